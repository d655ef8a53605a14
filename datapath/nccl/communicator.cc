// SPDX-License-Identifier: Apache-2.0
// Source: NVIDIA's NCCL user guide, "Creating a communicator" (non-blocking communicators),
// "Point-to-point communication" and "Fault tolerance"; nccl.h for the values below.

#include "datapath/nccl/communicator.h"

#include <dlfcn.h>

#include <climits>
#include <cstring>

#include "datapath/base/mutex.h"

namespace weir::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kSuccess = 0, kInProgress = 7;  // ncclResult_t
constexpr int kFloat32 = 7;                   // ncclDataType_t
constexpr int kUndefined = INT_MIN;           // NCCL_CONFIG_UNDEF_INT

bool Begun(int result) { return result == kSuccess || result == kInProgress; }

}  // namespace

struct Communicator::Library {
  struct Id {
    char internal[128];
  };
  static_assert(sizeof(Id) == sizeof(UniqueId));
  /// ncclConfig_t of NCCL 2.17. Later versions read as much as its size says and take their
  /// defaults for the rest.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21700;
    int blocking = 0;
    int cluster_size = kUndefined, blocks_min = kUndefined, blocks_max = kUndefined;
    const char* network = nullptr;
  };

  int (*get_unique_id)(Id*) = nullptr;
  int (*init)(void** comm, int size, Id id, int place, Config* config) = nullptr;
  int (*get_async_error)(void* comm, int* state) = nullptr;
  int (*abort)(void* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  int (*receive)(void*, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  const char* (*error_text)(int) = nullptr;
  const char* (*last_error)(void* comm) = nullptr;
};

// A library that was found stays loaded, because it has threads.
StatusOr<const Communicator::Library*> Communicator::Find() {
  static Mutex& mutex = *new Mutex();
  static const Library* found = nullptr;
  MutexLock lock(mutex);
  if (found != nullptr) return found;
  void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unavailable(StrCat("NCCL is not there: ", dlerror()));
  auto library = std::make_unique<Library>();
  const char* missing = nullptr;
  const auto bind = [&](auto* function, const char* name) {
    void* const symbol = dlsym(handle, name);
    if (symbol == nullptr && missing == nullptr) missing = name;
    std::memcpy(function, &symbol, sizeof(symbol));
  };
  bind(&library->get_unique_id, "ncclGetUniqueId");
  bind(&library->init, "ncclCommInitRankConfig");
  bind(&library->get_async_error, "ncclCommGetAsyncError");
  bind(&library->abort, "ncclCommAbort");
  bind(&library->group_start, "ncclGroupStart");
  bind(&library->group_end, "ncclGroupEnd");
  bind(&library->send, "ncclSend");
  bind(&library->receive, "ncclRecv");
  bind(&library->error_text, "ncclGetErrorString");
  bind(&library->last_error, "ncclGetLastError");
  if (missing != nullptr) {
    return Unavailable(StrCat(kLibrary, " has no ", missing, ": NCCL 2.17 or later is needed"));
  }
  found = library.release();
  return found;
}

Status Communicator::Error(const char* call, int result) const {
  const char* const detail = library_.last_error(comm_);
  const bool more = detail != nullptr && *detail != 0;
  return Unavailable(StrCat("NCCL: ", call, ": ", library_.error_text(result), more ? "; " : "",
                            more ? detail : ""));
}

StatusOr<UniqueId> NewId() {
  WEIR_ASSIGN_OR_RETURN(const Communicator::Library* const library, Communicator::Find());
  Communicator::Library::Id made = {};
  const int result = library->get_unique_id(&made);
  if (result != kSuccess) return Communicator(*library).Error("ncclGetUniqueId", result);
  UniqueId id;
  std::memcpy(id.data(), &made, id.size());
  return id;
}

StatusOr<std::unique_ptr<Communicator>> Communicator::Join(const UniqueId& id, int place,
                                                           int size) {
  WEIR_ASSIGN_OR_RETURN(const Library* const library, Find());
  std::unique_ptr<Communicator> joined(new Communicator(*library));
  Library::Id given;
  std::memcpy(&given, id.data(), id.size());
  Library::Config config;
  const int result = library->init(&joined->comm_, size, given, place, &config);
  if (!Begun(result)) return joined->Error("ncclCommInitRankConfig", result);
  return joined;
}

Communicator::~Communicator() {
  if (comm_ != nullptr) (void)library_.abort(comm_);
}

StatusOr<bool> Communicator::IsSettled() {
  int state = kSuccess;
  const int result = library_.get_async_error(comm_, &state);
  if (result != kSuccess) return Error("ncclCommGetAsyncError", result);
  if (!Begun(state)) return Error("a call that was begun", state);
  return state == kSuccess;
}

Status Communicator::Exchange(std::span<const std::span<const float>> outgoing,
                              std::span<const std::span<float>> incoming, void* stream) {
  int result = library_.group_start();
  if (result != kSuccess) return Error("ncclGroupStart", result);
  for (size_t i = 0; i < outgoing.size() && Begun(result); ++i) {
    const int peer = static_cast<int>(i);
    if (!outgoing[i].empty()) {
      result = library_.send(outgoing[i].data(), outgoing[i].size(), kFloat32, peer, comm_, stream);
    }
    if (!incoming[i].empty() && Begun(result)) {
      result =
          library_.receive(incoming[i].data(), incoming[i].size(), kFloat32, peer, comm_, stream);
    }
  }
  // Also after a failure, because the group must not stay open.
  const int ended = library_.group_end();
  if (!Begun(result)) return Error("ncclSend or ncclRecv", result);
  return Begun(ended) ? OkStatus() : Error("ncclGroupEnd", ended);
}

}  // namespace weir::nccl
