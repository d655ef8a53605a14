// SPDX-License-Identifier: Apache-2.0
// NCCL for ranks that are threads of one process and have the host's memory for devices: a library
// with its name, its functions and its manner. Communicators never block, calls are settled only
// after some questions, and what is queued on a stream moves when the sender's and the receiver's
// streams have come to it, or never, if one of them does not. Sizes that differ are an error, as is
// a second member on one place.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/fake_nccl.h"

namespace {

using weir::testing::FakeNccl;

constexpr int kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6,
              kInProgress = 7;
constexpr int kQuestions = 3;  // until a call is settled

struct Comm;

struct Transfer {
  const float* from = nullptr;
  float* to = nullptr;
  size_t count = 0;
  std::vector<std::shared_ptr<Comm>> ends;
  bool moved = false;

  bool CanMove() const;
};

/// The state that all members of a communicator share.
struct Clique {
  int size = 0;
  std::vector<bool> places;
  int joined = 0;
  // By sender and receiver, in the order of their calls: sends without and receives without a
  // match.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Transfer>>> sends, receives;
};

struct Id {
  char internal[128];
};

std::mutex mutex;  // of everything below
std::map<std::string, std::shared_ptr<Clique>> cliques;
int ids = 0;
FakeNccl* controls = nullptr;

struct Comm {
  std::shared_ptr<Clique> clique;
  int place = 0;
  int questions = 0;
  bool initialised = false;
  int error = kSuccess;
  bool aborted = false;
};
std::map<Comm*, std::shared_ptr<Comm>> comms;

// The memory of a member that has aborted is used no more.
bool Transfer::CanMove() const {
  return ends.size() == 2 && !ends[0]->aborted && !ends[1]->aborted;
}

struct Call {
  bool send;
  float* data;
  size_t count;
  int peer;
  Comm* comm;
  void* stream;
};
thread_local std::vector<Call> group;

/// One group of one member on its stream.
struct Work {
  std::shared_ptr<Comm> comm;
  std::vector<Call> calls;
  std::vector<std::shared_ptr<Transfer>> transfers;
  bool begun = false;

  /// Matches the calls with those of other members, whose work may begin later.
  void Begin() {
    begun = true;
    Clique& clique = *comm->clique;
    for (const Call& call : calls) {
      const auto pair =
          call.send ? std::pair(comm->place, call.peer) : std::pair(call.peer, comm->place);
      auto& waiting = call.send ? clique.receives[pair] : clique.sends[pair];
      std::shared_ptr<Transfer> transfer;
      if (waiting.empty()) {
        transfer = std::make_shared<Transfer>();
        transfer->count = call.count;
        (call.send ? clique.sends : clique.receives)[pair].push_back(transfer);
      } else {
        transfer = waiting.front();
        waiting.pop_front();
      }
      if (call.send) {
        transfer->from = call.data;
      } else {
        transfer->to = call.data;
      }
      transfer->ends.push_back(comm);
      if (transfer->count != call.count) comm->error = kInvalidUsage;
      transfers.push_back(transfer);
    }
  }
  bool IsDone() {
    const std::lock_guard lock(mutex);
    if (comm->aborted) return true;
    if (comm->error != kSuccess || (controls != nullptr && controls->stuck)) return false;
    if (!begun) {
      Begin();
      return false;
    }
    bool all = true;
    for (const auto& transfer : transfers) {
      if (!transfer->moved && transfer->CanMove()) {
        std::memcpy(transfer->to, transfer->from, transfer->count * sizeof(float));
        transfer->moved = true;
      }
      all = all && transfer->moved;
    }
    if (all && controls != nullptr) ++controls->exchanges;
    return all;
  }
};

int Queue(bool send, const void* data, size_t count, int type, int peer, void* comm, void* stream) {
  if (type != 7 || peer < 0 || comm == nullptr || data == nullptr) return kInvalidArgument;
  group.push_back({send, const_cast<float*>(static_cast<const float*>(data)), count, peer,
                   static_cast<Comm*>(comm), stream});
  return kSuccess;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE void weir_fake_nccl_controls(FakeNccl* given) {
  const std::lock_guard lock(mutex);
  controls = given;
}

FAKE int ncclGetUniqueId(Id* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "fake %d", ++ids);
  return kSuccess;
}

FAKE int ncclCommInitRankConfig(void** out, int size, Id id, int place, void* config) {
  const std::lock_guard lock(mutex);
  unsigned magic, version;
  int blocking;
  std::memcpy(&magic, static_cast<char*>(config) + 8, 4);
  std::memcpy(&version, static_cast<char*>(config) + 12, 4);
  std::memcpy(&blocking, static_cast<char*>(config) + 16, 4);
  if (magic != 0xcafebeef || version < 21700 || blocking != 0) return kInvalidArgument;
  if (controls != nullptr && controls->refuses_place == place) return kInvalidUsage;
  auto& clique = cliques[std::string(id.internal, sizeof(id.internal))];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = size;
    clique->places.resize(static_cast<size_t>(size));
  }
  if (clique->size != size || clique->places[static_cast<size_t>(place)]) return kInvalidUsage;
  clique->places[static_cast<size_t>(place)] = true;
  ++clique->joined;
  auto comm = std::make_shared<Comm>();
  comm->clique = clique;
  comm->place = place;
  *out = comm.get();
  comms[comm.get()] = comm;
  return kInProgress;
}

FAKE int ncclCommGetAsyncError(void* handle, int* state) {
  const std::lock_guard lock(mutex);
  Comm& comm = *static_cast<Comm*>(handle);
  if (controls != nullptr && controls->fails) comm.error = kRemoteError;
  comm.initialised = comm.initialised || comm.clique->joined == comm.clique->size;
  const bool settled = ++comm.questions >= kQuestions && comm.initialised;
  *state = comm.error != kSuccess ? comm.error : settled ? kSuccess : kInProgress;
  return kSuccess;
}

FAKE int ncclCommAbort(void* handle) {
  const std::lock_guard lock(mutex);
  auto* const comm = static_cast<Comm*>(handle);
  comm->aborted = true;
  if (controls != nullptr) ++controls->aborts;
  const std::shared_ptr<Clique> clique = comm->clique;
  comms.erase(comm);
  // With the last member goes what nobody has matched, which would keep the members alive.
  const bool last = std::none_of(comms.begin(), comms.end(),
                                 [&](const auto& one) { return one.second->clique == clique; });
  if (last) {
    clique->sends.clear();
    clique->receives.clear();
  }
  return kSuccess;
}

FAKE int ncclGroupStart() { return kSuccess; }
FAKE int ncclSend(const void* data, size_t count, int type, int peer, void* comm, void* stream) {
  return Queue(true, data, count, type, peer, comm, stream);
}
FAKE int ncclRecv(void* data, size_t count, int type, int peer, void* comm, void* stream) {
  return Queue(false, data, count, type, peer, comm, stream);
}

FAKE int ncclGroupEnd() {
  if (group.empty()) return kSuccess;
  auto work = std::make_shared<Work>();
  work->calls = std::move(group);
  group.clear();
  void* const stream = work->calls.front().stream;
  std::function<void(void*, std::function<bool()>)> await;
  {
    const std::lock_guard lock(mutex);
    const auto comm = comms.find(work->calls.front().comm);
    if (comm == comms.end() || controls == nullptr) return kInvalidArgument;
    work->comm = comm->second;
    work->comm->questions = 0;
    await = controls->await;
  }
  await(stream, [work] { return work->IsDone(); });
  return kInProgress;
}

FAKE const char* ncclGetErrorString(int result) {
  return result == kRemoteError    ? "remote process exited or there was a network error"
         : result == kInvalidUsage ? "invalid usage"
                                   : "fake error";
}
FAKE const char* ncclGetLastError(void*) { return "fake detail"; }
