// SPDX-License-Identifier: Apache-2.0
#pragma once
// The asynchronous core under both C interfaces. Every queued operation of a session or a
// communicator is a request. A handle is a number that is never reused, so a wrong one is refused
// and never dereferenced.

#include <cstdint>
#include <map>
#include <memory>

#include "datapath/api/weir.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir::c_api {

/// One operation in progress. It is owned by the table until it is released, by every waiting
/// thread, and by the operation until it has ended. Thread-safe.
class Request {
 public:
  /// `owner`: the session or communicator whose last error its failures become (NextOwner()).
  explicit Request(uint64_t owner) : owner_(owner) {}

  uint64_t owner() const { return owner_; }
  /// Called once. `peer`: the other rank of a message, else WEIR_ANY_RANK. Allocates nothing.
  void Finish(const Status& status, int peer);
  /// Returns the operation's status, or kDeadlineExceeded after `timeout`, in which case the
  /// operation continues. Zero: waits as long as the operation takes, which its own deadline
  /// limits.
  Status Wait(Duration timeout, int* peer);
  bool done() const;

 private:
  const uint64_t owner_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool done_ WEIR_GUARDED_BY(mutex_) = false;
  Status status_ WEIR_GUARDED_BY(mutex_);
  int peer_ WEIR_GUARDED_BY(mutex_) = WEIR_ANY_RANK;
};

/// The operation's reference to its request. If it is destroyed without Finish, for example because
/// memory ran out, it ends the request nevertheless, so that no thread waits for ever.
class Completion {
 public:
  explicit Completion(std::shared_ptr<Request> request) : request_(std::move(request)) {}
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  ~Completion();
  void Finish(const Status& status, int peer) { request_->Finish(status, peer); }

 private:
  const std::shared_ptr<Request> request_;
};

/// All requests of the process that were not released. Thread-safe, O(log requests).
class RequestTable {
 public:
  /// Handles are above `first`.
  explicit RequestTable(uint64_t first) : issued_(first) {}

  struct Entry {
    weir_request* handle = nullptr;
    std::shared_ptr<Request> request;
  };
  Entry Add(uint64_t owner);
  /// kInvalidArgument: null, released, or never a request.
  StatusOr<std::shared_ptr<Request>> Find(const weir_request* handle) const;
  /// Returns false if it was not in the table.
  bool Erase(const weir_request* handle);
  /// Erases the requests of a session or communicator that was closed. All of them have ended.
  void EraseAllOf(uint64_t owner);

 private:
  mutable Mutex mutex_;
  uint64_t issued_ WEIR_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Request>> requests_ WEIR_GUARDED_BY(mutex_);
};

/// The table of this process. A forked child gets an empty one, because it has none of the threads
/// that would finish its parent's requests.
RequestTable& Requests();

/// Queues an operation by `submit(completion)`, which gets a shared pointer by which the operation
/// later finishes a new request. `*handle` becomes the request, or null when `submit` fails. Where
/// `handle` is null, there is no request, and the completion is null. Returns what `submit` returns
/// and throws what it throws.
template <typename Submission>
Status Submit(uint64_t owner, weir_request** handle, Submission&& submit) {
  if (handle == nullptr) return submit(std::shared_ptr<Completion>());
  *handle = nullptr;
  const RequestTable::Entry entry = Requests().Add(owner);
  try {
    const Status status = submit(std::make_shared<Completion>(entry.request));
    if (status.ok()) {
      *handle = entry.handle;
    } else {
      Requests().Erase(entry.handle);
    }
    return status;
  } catch (...) {
    Requests().Erase(entry.handle);
    throw;
  }
}

}  // namespace weir::c_api
