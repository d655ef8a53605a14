// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/agent_service.h"

#include <deque>

#include "controller/server/fleet_mapping.h"
#include "controller/server/grpc/grpc_status.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

using Reactor = grpc::ServerBidiReactor<v1::AgentMessage, v1::ControllerMessage>;

// The part of a stream that outlives the reactor: the fleet may still hold it when gRPC is done
// with the stream.
class StreamLink : public AgentLink {
 public:
  explicit StreamLink(Reactor* reactor) : reactor_(reactor) {}

  bool Send(const AgentOrder& order) override {
    MutexLock lock(mutex_);
    if (finishing_) return false;
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

  void ReadNext(v1::AgentMessage* into) {
    MutexLock lock(mutex_);
    if (!finishing_) reactor_->StartRead(into);
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

  Mutex mutex_;
  Reactor* const reactor_;  // alive until Finish has been called and reported
  std::deque<v1::ControllerMessage> queue_ WEIR_GUARDED_BY(mutex_);
  bool writing_ WEIR_GUARDED_BY(mutex_) = false;
  bool finishing_ WEIR_GUARDED_BY(mutex_) = false;
  bool finished_ WEIR_GUARDED_BY(mutex_) = false;
  Status why_ WEIR_GUARDED_BY(mutex_);
};

class AgentStream : public Reactor {
 public:
  AgentStream(Executor& executor, AgentApi& agents)
      : executor_(executor), agents_(agents), link_(std::make_shared<StreamLink>(this)) {
    link_->ReadNext(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      link_->Close(OkStatus());
      return;
    }
    // `this` stays alive: the stream is finished through the link only, and OnDone comes after
    // that.
    auto message = std::make_shared<v1::AgentMessage>(std::move(incoming_));
    incoming_.Clear();
    v1::AgentMessage* const next = &incoming_;
    const bool posted = executor_.Post([link = link_, message, next, &agents = agents_] {
      const Status status = agents.OnMessage(link, *message);
      if (status.ok()) {
        link->ReadNext(next);
      } else {
        Log(LogLevel::kWarning, "controller", StrCat("agent stream ended: ", Message(status)));
        link->Close(status);
      }
    });
    if (!posted) link_->Close(Unavailable("the controller is shutting down or overloaded"));
  }

  void OnWriteDone(bool ok) override { link_->OnWriteDone(ok); }
  void OnCancel() override { link_->Close(MakeStatus(StatusCode::kCancelled, "cancelled")); }

  void OnDone() override {
    executor_.Post([link = link_, &agents = agents_] { agents.OnClosed(link); });
    delete this;
  }

 private:
  Executor& executor_;
  AgentApi& agents_;
  const std::shared_ptr<StreamLink> link_;
  v1::AgentMessage incoming_;
};

}  // namespace

Reactor* AgentServiceImpl::Connect(grpc::CallbackServerContext*) {
  return new AgentStream(executor_, agents_);
}

}  // namespace weir
