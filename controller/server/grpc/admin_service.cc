// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/admin_service.h"

#include "controller/server/grpc/agent_service.h"
#include "controller/server/grpc/caller.h"
#include "controller/server/grpc/grpc_status.h"
#include "controller/server/rest/routes.h"
#include "controller/server/status_mapping.h"

namespace weir {
namespace {

// Lives until gRPC reports the call as done, also when the client left before the answer.
class UnaryReactor : public grpc::ServerUnaryReactor {
 public:
  /// `access`: null for no access log.
  UnaryReactor(AccessLog* access, const char* method, Origin from)
      : access_(access), method_(method), from_(std::move(from)), began_(RealClock().Now()) {}

  /// `caller`: null where nobody is known.
  void End(const Caller* caller, const Status& status) {
    if (access_ != nullptr) {
      access_->Add({.protocol = "grpc",
                    .method = method_,
                    .peer = from_.peer,
                    .principal = caller == nullptr ? "" : caller->name,
                    .request_id = from_.request_id,
                    .outcome = std::string(CodeName(status.code())),
                    .duration = RealClock().Now() - began_});
    }
    Finish(ToGrpc(status));
  }

  void OnDone() override { delete this; }

 private:
  AccessLog* const access_;
  const char* const method_;
  const Origin from_;
  const TimePoint began_;
};

// The answer of one of several controllers says which of them leads.
void TellStanding(const ServedPlane& served, grpc::CallbackServerContext* context) {
  if (!served.shared()) return;
  const LeadershipView view = served.view();
  context->AddTrailingMetadata(kStandingMetadata, served.acts() ? "leader" : "standby");
  if (view.leader.has_value()) context->AddTrailingMetadata(kLeaderMetadata, view.leader->grpc);
  // Metadata are lines of printable characters.
  std::string why = view.store.ok() ? "" : Message(view.store).substr(0, 400);
  for (char& c : why) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (!why.empty()) context->AddTrailingMetadata(kStoreMetadata, why);
}

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
    const Credentials credentials = CredentialsOf(context, local_);                               \
    auto* reactor = new UnaryReactor(access_, #method, credentials.origin());                     \
    const Route& route = RouteOf(#method);                                                        \
    auto caller = calls_.Admit(credentials, route, *request);                                     \
    TellStanding(calls_.served(), context);                                                       \
    if (!caller.ok()) {                                                                           \
      reactor->End(nullptr, caller.status());                                                     \
      return reactor;                                                                             \
    }                                                                                             \
    const bool posted =                                                                           \
        executor_.Post([this, reactor, request, response, &route, caller = *std::move(caller)] {  \
          const Status status = calls_.Call(caller, route, *request, response);                   \
          reactor->End(&caller, status);                                                          \
        });                                                                                       \
    if (!posted) {                                                                                \
      reactor->End(nullptr, Unavailable("the controller is shutting down or overloaded"));        \
    }                                                                                             \
    return reactor;                                                                               \
  }
#include "controller/server/admin_methods.def"
#undef WEIR_ADMIN_UNARY

grpc::ServerWriteReactor<v1::Event>* AdminServiceImpl::Watch(grpc::CallbackServerContext* context,
                                                             const v1::WatchRequest* request) {
  auto* reactor = new WatchReactor(events_);
  const auto caller = calls_.Admit(CredentialsOf(context, local_), RouteOf("Watch"), *request);
  TellStanding(calls_.served(), context);
  if (caller.ok()) {
    reactor->Begin(*request);
  } else {
    reactor->Finish(ToGrpc(caller.status()));
  }
  return reactor;
}

}  // namespace weir
