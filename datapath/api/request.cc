// SPDX-License-Identifier: Apache-2.0
// Requests, and the three functions of weir.h that take one.

#include "datapath/api/request.h"

#include <unistd.h>

#include <atomic>

#include "datapath/api/c_support.h"
#include "datapath/base/caught.h"

namespace weir::c_api {
namespace {

// Handles have a pointer type in C and hold numbers.
weir_request* ToHandle(uint64_t number) {
  return reinterpret_cast<weir_request*>(static_cast<uintptr_t>(number));
}
uint64_t ToNumber(const weir_request* handle) { return reinterpret_cast<uintptr_t>(handle); }

Status Unknown() {
  return InvalidArgument("request: expected one that is not released, found null or another");
}

}  // namespace

void Request::Finish(const Status& status, int peer) {
  MutexLock lock(mutex_);
  done_ = true;
  status_ = status;
  peer_ = peer;
  changed_.NotifyAll();
}

Status Request::Wait(Duration timeout, int* peer) {
  const TimePoint deadline = RealClock().Now() + timeout;
  MutexLock lock(mutex_);
  while (!done_) {
    if (timeout == Duration(0)) {
      changed_.Wait(mutex_);
    } else if (!changed_.WaitUntil(mutex_, deadline) && !done_) {
      return DeadlineExceeded(
          StrCat("the operation was not done within ", ToSeconds(timeout), " s and goes on"));
    }
  }
  if (peer != nullptr) *peer = peer_;
  return status_;
}

bool Request::done() const {
  MutexLock lock(mutex_);
  return done_;
}

Completion::~Completion() {
  if (!request_->done()) request_->Finish(OutOfMemory(), WEIR_ANY_RANK);
}

RequestTable::Entry RequestTable::Add(uint64_t owner) {
  auto request = std::make_shared<Request>(owner);
  MutexLock lock(mutex_);
  const uint64_t number = ++issued_;
  requests_.emplace(number, request);
  return {ToHandle(number), std::move(request)};
}

StatusOr<std::shared_ptr<Request>> RequestTable::Find(const weir_request* handle) const {
  MutexLock lock(mutex_);
  const auto found = requests_.find(ToNumber(handle));
  if (found == requests_.end()) {
    return Unknown();
  }
  return found->second;
}

bool RequestTable::Erase(const weir_request* handle) {
  MutexLock lock(mutex_);
  return requests_.erase(ToNumber(handle)) != 0;
}

void RequestTable::EraseAllOf(uint64_t owner) {
  MutexLock lock(mutex_);
  std::erase_if(requests_, [owner](const auto& entry) { return entry.second->owner() == owner; });
}

RequestTable& Requests() {
  struct Owned {
    explicit Owned(pid_t pid) : process(pid), table(static_cast<uint64_t>(pid) << 32) {}
    const pid_t process;
    RequestTable table;
  };
  static std::atomic<Owned*> current{nullptr};
  const pid_t process = getpid();
  Owned* owned = current.load();
  while (owned == nullptr || owned->process != process) {
    auto made = std::make_unique<Owned>(process);
    // The replaced table is never freed: a fork may have copied it while it was in use, and threads
    // may still wait for its requests while the process exits.
    if (current.compare_exchange_strong(owned, made.get())) owned = made.release();
  }
  return owned->table;
}

namespace {

// Errors of a request belong to its owner, so that weir_last_error of the session returns them.
template <typename Body>
weir_status WithRequest(const weir_request* handle, Body&& body) noexcept {
  std::shared_ptr<Request> request;
  const weir_status found = Guard(0, [&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(request, Requests().Find(handle));
    return OkStatus();
  });
  if (found != WEIR_OK) return found;
  return Guard(request->owner(), [&] { return body(*request); });
}

}  // namespace
}  // namespace weir::c_api

extern "C" {

weir_status weir_request_wait(weir_request* request, double timeout_s, int32_t* peer) {
  return weir::c_api::WithRequest(request, [&](weir::c_api::Request& found) -> weir::Status {
    WEIR_ASSIGN_OR_RETURN(const weir::Duration timeout,
                          weir::c_api::Timeout(timeout_s, "timeout_s", 0));
    return found.Wait(timeout, peer);
  });
}

weir_status weir_request_test(weir_request* request, int32_t* done) {
  return weir::c_api::WithRequest(request, [&](weir::c_api::Request& found) -> weir::Status {
    if (done == nullptr) return weir::InvalidArgument("done: is null");
    *done = found.done() ? 1 : 0;
    return weir::OkStatus();
  });
}

weir_status weir_request_release(weir_request* request) {
  return weir::c_api::WithRequest(request, [&](weir::c_api::Request& found) -> weir::Status {
    if (!found.done()) return weir::FailedPrecondition("request: the operation is under way");
    // If two threads release it at the same time, one of them fails.
    return weir::c_api::Requests().Erase(request) ? weir::OkStatus() : weir::c_api::Unknown();
  });
}

}  // extern "C"
