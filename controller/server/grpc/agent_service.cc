// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/agent_service.h"

#include <grpcpp/alarm.h>

#include <cmath>
#include <deque>
#include <optional>

#include "controller/server/fleet_mapping.h"
#include "controller/server/grpc/caller.h"
#include "controller/server/grpc/grpc_status.h"

namespace weir {
namespace {

constexpr const char* kConnect = "Connect";  // in the audit trail

using Reactor = grpc::ServerBidiReactor<v1::AgentMessage, v1::ControllerMessage>;

// Telemetry may wait behind greetings and answers.
Urgency UrgencyOf(const v1::AgentMessage& message) {
  switch (message.body_case()) {
    case v1::AgentMessage::kLink:
    case v1::AgentMessage::kNccl:
      return Urgency::kTelemetry;
    case v1::AgentMessage::kRank:
      return message.rank().message().has_step() || message.rank().message().has_paths()
                 ? Urgency::kTelemetry
                 : Urgency::kControl;
    case v1::AgentMessage::kHello:
    case v1::AgentMessage::kRankGone:
    case v1::AgentMessage::kProbe:
    case v1::AgentMessage::kHeartbeat:
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  return Urgency::kControl;
}

// The part of a stream that outlives the reactor: the fleet may still hold it when gRPC is done
// with the stream.
class StreamLink : public AgentLink, public std::enable_shared_from_this<StreamLink> {
 public:
  StreamLink(Reactor* reactor, const ServedPlane& served) : reactor_(reactor), served_(served) {}

  bool Send(const AgentOrder& order) override {
    const Status acting = served_.RequireActing();  // also if the process has just woken up
    MutexLock lock(mutex_);
    if (finishing_) return false;
    if (!acting.ok()) {
      FinishLocked(acting);
      return false;
    }
    if (queue_.size() >= AgentServiceImpl::kWriteQueueMax) {
      FinishLocked(ResourceExhausted(
          StrCat("the agent is slow: ", queue_.size(), " messages wait for it, the most allowed")));
      return false;
    }
    queue_.push_back(ToProto(order));
    if (!writing_) StartWriteLocked();
    return true;
  }

  void Close(const Status& why) override {
    MutexLock lock(mutex_);
    FinishLocked(why);
  }

  std::optional<TimePoint> LastHeard() const override {
    MutexLock lock(mutex_);
    return waiting_ ? RealClock().Now() : heard_;
  }

  // A message has arrived; it waits until ReadNext.
  void OnHeard() {
    MutexLock lock(mutex_);
    heard_ = RealClock().Now();
    waiting_ = true;
  }

  // Reads the next message, after the second is over if there were too many in it.
  void ReadNext(v1::AgentMessage* into) {
    MutexLock lock(mutex_);
    waiting_ = false;
    if (finishing_) return;
    const TimePoint now = RealClock().Now();
    if (now >= second_end_) {
      second_end_ = now + std::chrono::seconds(1);
      reads_ = 0;
    }
    if (++reads_ <= AgentServiceImpl::kMessagesPerSecondMax) {
      reactor_->StartRead(into);
      return;
    }
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(second_end_ - now);
    // An alarm keeps its function after it has fired: one that owned this link would never let it
    // go.
    pause_.Set(std::chrono::system_clock::now() + left, [link = weak_from_this(), into](bool) {
      if (const auto self = link.lock()) self->ReadAfterPause(into);
    });
  }

  void OnWriteDone(bool ok) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!queue_.empty()) queue_.pop_front();
    if (!ok) {
      FinishLocked(Unavailable("the agent is gone"));
    } else if (finishing_) {
      if (!finished_) FinishNowLocked();
    } else if (!queue_.empty()) {
      StartWriteLocked();
    }
  }

 private:
  void ReadAfterPause(v1::AgentMessage* into) {
    MutexLock lock(mutex_);
    second_end_ = RealClock().Now() + std::chrono::seconds(1);
    reads_ = 1;
    if (!finishing_) reactor_->StartRead(into);
  }

  void StartWriteLocked() WEIR_REQUIRES(mutex_) {
    writing_ = true;
    reactor_->StartWrite(&queue_.front());
  }

  // One write may be outstanding, and Finish has to wait for it.
  void FinishLocked(const Status& why) WEIR_REQUIRES(mutex_) {
    if (!finishing_) {
      finishing_ = true;
      why_ = why;
    }
    if (!writing_ && !finished_) FinishNowLocked();
  }

  void FinishNowLocked() WEIR_REQUIRES(mutex_) {
    finished_ = true;
    reactor_->Finish(ToGrpc(why_));
  }

  mutable Mutex mutex_;
  Reactor* const reactor_;  // alive until Finish has been called and reported
  const ServedPlane& served_;
  std::deque<v1::ControllerMessage> queue_ WEIR_GUARDED_BY(mutex_);
  bool writing_ WEIR_GUARDED_BY(mutex_) = false;
  bool finishing_ WEIR_GUARDED_BY(mutex_) = false;
  bool finished_ WEIR_GUARDED_BY(mutex_) = false;
  Status why_ WEIR_GUARDED_BY(mutex_);
  TimePoint second_end_ WEIR_GUARDED_BY(mutex_){};
  int reads_ WEIR_GUARDED_BY(mutex_) = 0;  // of this second
  grpc::Alarm pause_ WEIR_GUARDED_BY(mutex_);
  std::optional<TimePoint> heard_ WEIR_GUARDED_BY(mutex_);
  bool waiting_ WEIR_GUARDED_BY(mutex_) = false;
};

class AgentStream : public Reactor {
 public:
  AgentStream(grpc::CallbackServerContext* context, Executor& executor, ServedPlane& served,
              AdminCalls& calls, Admission& admission, const Origin& from,
              const StatusOr<Caller>& caller, const Status& acting)
      : context_(context),
        executor_(executor),
        served_(served),
        calls_(calls),
        admission_(admission),
        link_(std::make_shared<StreamLink>(this, served)) {
    if (caller.ok() && !acting.ok()) {
      link_->Close(acting);
    } else if (caller.ok()) {
      caller_ = std::make_shared<const Caller>(*caller);
      link_->ReadNext(&incoming_);
    } else {
      calls_.Refuse(nullptr, from, kConnect, "", caller.status());
      link_->Close(caller.status());
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      link_->Close(OkStatus());
      return;
    }
    if (incoming_.has_hello()) {
      const Status allowed = RequireNode(*caller_, incoming_.hello().node());
      if (!allowed.ok()) {
        calls_.Refuse(caller_.get(), caller_->from, kConnect, incoming_.hello().node(), allowed);
        link_->Close(allowed);
        return;
      }
      const double wait_s = admission_.Admit(RealClock().Now(), executor_.Lag(Urgency::kControl));
      if (wait_s > 0) {
        SendAway(wait_s);
        return;
      }
    }
    link_->OnHeard();
    const Urgency urgency = UrgencyOf(incoming_);
    // `this` stays alive: the stream is finished through the link only, and OnDone comes after
    // that.
    auto message = std::make_shared<v1::AgentMessage>(std::move(incoming_));
    incoming_.Clear();
    v1::AgentMessage* const next = &incoming_;
    const bool posted = executor_.Post(
        [link = link_, caller = caller_, message, next, &served = served_, &calls = calls_] {
          const Status acting = served.RequireActing();
          const Status status = acting.ok() ? served->agents.OnMessage(link, *message) : acting;
          if (status.ok()) {
            link->ReadNext(next);
          } else if (!acting.ok()) {
            link->Close(acting);
          } else {
            const std::string node = message->has_hello() ? message->hello().node() : "";
            calls.Refuse(caller.get(), caller->from, kConnect, node, status);
            link->Close(status);
          }
        },
        urgency);
    if (!posted) link_->Close(Unavailable("the controller is shutting down or overloaded"));
  }

  void OnWriteDone(bool ok) override { link_->OnWriteDone(ok); }
  void OnCancel() override { link_->Close(MakeStatus(StatusCode::kCancelled, "cancelled")); }

  void OnDone() override {
    executor_.Post([link = link_, &served = served_] { served->agents.OnClosed(link); });
    delete this;
  }

 private:
  void SendAway(double wait_s) {
    const int64_t wait_ms = std::llround(wait_s * 1000);
    context_->AddTrailingMetadata(AgentServiceImpl::kRetryAfter, std::to_string(wait_ms));
    link_->Close(
        Unavailable(StrCat("the controller is busy, many agents are connecting: come back in ",
                           static_cast<double>(wait_ms) / 1000, " s")));
  }

  grpc::CallbackServerContext* const context_;  // valid until OnDone
  Executor& executor_;
  ServedPlane& served_;
  AdminCalls& calls_;
  Admission& admission_;
  std::shared_ptr<const Caller> caller_;  // null: unknown, and the stream ends
  const std::shared_ptr<StreamLink> link_;
  v1::AgentMessage incoming_;
};

}  // namespace

Reactor* AgentServiceImpl::Connect(grpc::CallbackServerContext* context) {
  const Credentials credentials = CredentialsOf(context, local_);
  const auto caller = authenticator_.Identify(credentials);
  const Status acting = served_.RequireActing();
  if (served_.shared() && acting.ok()) {
    context->AddInitialMetadata(kTermMetadata, std::to_string(served_.term()));
  } else if (caller.ok() && !acting.ok()) {
    const LeadershipView view = served_.view();
    if (view.leader.has_value() && !view.leads) {
      context->AddTrailingMetadata(kLeaderMetadata, view.leader->grpc);
    }
  }
  return new AgentStream(context, executor_, served_, calls_, admission_, credentials.origin(),
                         caller, acting);
}

}  // namespace weir
