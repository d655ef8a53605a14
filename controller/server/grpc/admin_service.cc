// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/admin_service.h"

#include "controller/server/grpc/caller.h"
#include "controller/server/grpc/grpc_status.h"
#include "controller/server/rest/routes.h"

namespace weir {
namespace {

// Lives until gRPC reports the call as done, also when the client left before the answer.
class UnaryReactor : public grpc::ServerUnaryReactor {
 public:
  void OnDone() override { delete this; }
};

class WatchReactor : public grpc::ServerWriteReactor<v1::Event> {
 public:
  explicit WatchReactor(EventHub& events) : events_(events) {}

  void Begin(const v1::WatchRequest& request) {
    // The hub may wake this watcher before Subscribe returns, so the lock is held until the queue
    // is known.
    MutexLock lock(mutex_);
    auto subscription = events_.Subscribe(request, [this] { Wake(); });
    if (!subscription.ok()) {
      FinishLocked(subscription.status());
      return;
    }
    subscription_ = *subscription;
    // This tells the watcher that it misses no event from now on.
    StartSendInitialMetadata();
    PumpLocked();  // events from before
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok)
      FinishLocked(MakeStatus(StatusCode::kCancelled, "the watcher is gone"));
    else
      PumpLocked();
  }

  void OnCancel() override {
    MutexLock lock(mutex_);
    FinishLocked(MakeStatus(StatusCode::kCancelled, "cancelled"));
  }

  void OnDone() override {
    std::shared_ptr<Subscription> subscription;
    {
      MutexLock lock(mutex_);
      subscription = subscription_;
    }
    if (subscription != nullptr) {
      events_.Unsubscribe(subscription);
      // A publisher may still hold this watcher after its removal.
      subscription->Detach();
    }
    delete this;
  }

 private:
  void Wake() {
    MutexLock lock(mutex_);
    PumpLocked();
  }

  void PumpLocked() WEIR_REQUIRES(mutex_) {
    if (writing_ || finishing_ || subscription_ == nullptr) {
      if (finishing_ && !writing_ && !finished_) FinishNowLocked();
      return;
    }
    current_ = subscription_->TryNext();
    if (current_ != nullptr) {
      writing_ = true;
      StartWrite(current_.get());
    } else if (subscription_->closed()) {
      FinishLocked(Unavailable("the controller is shutting down"));
    }
  }

  void FinishLocked(const Status& why) WEIR_REQUIRES(mutex_) {
    if (!finishing_) why_ = why;
    finishing_ = true;
    if (!writing_ && !finished_) FinishNowLocked();
  }

  void FinishNowLocked() WEIR_REQUIRES(mutex_) {
    finished_ = true;
    Finish(ToGrpc(why_));
  }

  EventHub& events_;
  Mutex mutex_;
  std::shared_ptr<Subscription> subscription_ WEIR_GUARDED_BY(mutex_);
  std::shared_ptr<const v1::Event> current_ WEIR_GUARDED_BY(mutex_);
  bool writing_ WEIR_GUARDED_BY(mutex_) = false;
  bool finishing_ WEIR_GUARDED_BY(mutex_) = false;
  bool finished_ WEIR_GUARDED_BY(mutex_) = false;
  Status why_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace

// Request and response stay valid until the reactor is done, which is after Finish.
#define WEIR_ADMIN_UNARY(method, Request, Response)                                               \
  grpc::ServerUnaryReactor* AdminServiceImpl::method(                                             \
      grpc::CallbackServerContext* context, const v1::Request* request, v1::Response* response) { \
    auto* reactor = new UnaryReactor();                                                           \
    const Route& route = RouteOf(#method);                                                        \
    auto caller = calls_.Admit(CredentialsOf(*context, local_), route, *request);                 \
    if (!caller.ok()) {                                                                           \
      reactor->Finish(ToGrpc(caller.status()));                                                   \
      return reactor;                                                                             \
    }                                                                                             \
    const bool posted =                                                                           \
        executor_.Post([this, reactor, request, response, &route, caller = *std::move(caller)] {  \
          const Status status = calls_.Call(caller, route, *request, response);                   \
          reactor->Finish(ToGrpc(status));                                                        \
        });                                                                                       \
    if (!posted) {                                                                                \
      reactor->Finish(ToGrpc(Unavailable("the controller is shutting down or overloaded")));      \
    }                                                                                             \
    return reactor;                                                                               \
  }
#include "controller/server/admin_methods.def"
#undef WEIR_ADMIN_UNARY

grpc::ServerWriteReactor<v1::Event>* AdminServiceImpl::Watch(grpc::CallbackServerContext* context,
                                                             const v1::WatchRequest* request) {
  auto* reactor = new WatchReactor(events_);
  const auto caller = calls_.Admit(CredentialsOf(*context, local_), RouteOf("Watch"), *request);
  if (caller.ok()) {
    reactor->Begin(*request);
  } else {
    reactor->Finish(ToGrpc(caller.status()));
  }
  return reactor;
}

}  // namespace weir
