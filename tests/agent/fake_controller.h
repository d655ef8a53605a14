// SPDX-License-Identifier: Apache-2.0
#pragma once
// A controller in this process: a gRPC server that records the agents' messages and sends those
// that a test wants.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/base/bounded_queue.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir::agent {

class FakeController : public v1::AgentService::Service {
 public:
  /// Port 0: any free one.
  explicit FakeController(int port = 0, std::shared_ptr<grpc::ServerCredentials> credentials =
                                            grpc::InsecureServerCredentials()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(StrCat("127.0.0.1:", port), std::move(credentials), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeController() override { Stop(); }

  /// Refuses streams from now on, as one that stands by does; it names `leader` unless that is
  /// empty.
  void StandBy(const std::string& leader) {
    MutexLock lock(mutex_);
    standby_ = true;
    leader_ = leader;
  }
  /// Says that it leads in that term.
  void Lead(uint64_t term) {
    MutexLock lock(mutex_);
    standby_ = false;
    term_ = term;
  }

  /// Ends the stream that was opened last.
  void CloseStreams() {
    MutexLock lock(mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }

  /// Ends every stream and the server, as a crash would.
  void Stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  int port() const { return port_; }

  /// Sends the next `streams` away with the request to come back after `wait`.
  void SendAway(int streams, std::chrono::milliseconds wait) {
    MutexLock lock(mutex_);
    to_send_away_ = streams;
    wait_ = wait;
  }
  /// When each stream began.
  std::vector<TimePoint> began() const {
    MutexLock lock(mutex_);
    return began_;
  }

  /// The next message of any agent that `wanted` accepts, within 10 s; others are discarded.
  template <typename Wanted>
  std::optional<v1::AgentMessage> Next(Wanted wanted) {
    const TimePoint deadline = RealClock().Now() + std::chrono::seconds(10);
    while (true) {
      std::optional<v1::AgentMessage> message = said_.Pop(deadline);
      if (!message || wanted(*message)) return message;
    }
  }
  /// Sends to the newest stream; false when there is none.
  bool Send(const v1::ControllerMessage& message) {
    MutexLock lock(mutex_);
    return stream_ != nullptr && stream_->Write(message);
  }

 private:
  using Stream = grpc::ServerReaderWriter<v1::ControllerMessage, v1::AgentMessage>;
  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
    v1::ControllerMessage welcome;
    welcome.mutable_welcome()->set_heartbeat_interval_s(0.1);
    {
      MutexLock lock(mutex_);
      if (standby_) {
        if (!leader_.empty()) context->AddTrailingMetadata("weir-leader", leader_);
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "this controller stands by");
      }
      if (term_ > 0) context->AddInitialMetadata("weir-term", std::to_string(term_));
      began_.push_back(RealClock().Now());
      if (to_send_away_ > 0) {
        --to_send_away_;
        context->AddTrailingMetadata("weir-retry-after-ms", std::to_string(wait_.count()));
        return {grpc::StatusCode::UNAVAILABLE, "the controller is busy"};
      }
      stream->Write(welcome);
      stream_ = stream;
      context_ = context;
    }
    v1::AgentMessage message;
    while (stream->Read(&message)) said_.PushDroppingOldest(message);
    MutexLock lock(mutex_);
    if (stream_ == stream) stream_ = nullptr;
    if (context_ == context) context_ = nullptr;
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  BoundedQueue<v1::AgentMessage> said_{10000};
  mutable Mutex mutex_;
  bool standby_ WEIR_GUARDED_BY(mutex_) = false;
  std::string leader_ WEIR_GUARDED_BY(mutex_);
  uint64_t term_ WEIR_GUARDED_BY(mutex_) = 0;
  grpc::ServerContext* context_ WEIR_GUARDED_BY(mutex_) = nullptr;
  int to_send_away_ WEIR_GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds wait_ WEIR_GUARDED_BY(mutex_){};
  std::vector<TimePoint> began_ WEIR_GUARDED_BY(mutex_);
  Stream* stream_ WEIR_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace weir::agent
