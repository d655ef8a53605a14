// SPDX-License-Identifier: Apache-2.0
#pragma once
// A scripted agent over a real gRPC connection.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "datapath/base/mutex.h"
#include "tests/controller/fleet/fake_cluster.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir {

/// Optional facts of a rank.
struct WireRank {
  std::string aggregation_address = {};  // empty: it cannot sum on aggregators
  uint64_t step = 0;
  v1::Plan plan = {};  // its active plan
  uint32_t pid = 1;
};

/// One agent with one rank, enough for decisions. Job "wire", node "w<rank>".
class WireAgent {
 public:
  WireAgent(const std::string& target, int rank, int world,
            const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                grpc::InsecureChannelCredentials(),
            WireRank with = {})
      : rank_(rank), world_(world), with_(std::move(with)), active_(with_.plan.version()) {
    channel_ = grpc::CreateChannel(target, credentials);
    stub_ = v1::AgentService::NewStub(channel_);
    stream_ = stub_->Connect(&context_);
    reader_ = std::thread([this] { Read(); });
    Greet();
  }
  ~WireAgent() {
    context_.TryCancel();
    reader_.join();
  }

  void Step(uint64_t step) {
    v1::RankMessage message;
    auto* report = message.mutable_step();
    report->set_step(step);
    report->set_step_s(0.05);
    report->set_compute_s(0.02);
    report->set_backward_s(0.02);
    report->set_exposed_s(0.01);
    report->set_plan_version(active_);
    for (int b = 0; b < 2; ++b) {
      auto* sample = report->add_buckets();
      sample->set_bucket(StrCat("000000000000000", b));
      sample->set_codec("identity");
      sample->set_collective("ring");
      sample->set_ratio(1);
      sample->set_ready_s(0.02 * b);
      sample->set_network_s(0.004);
      sample->set_payload_bytes(400000);
      sample->set_bytes_sent(400000);
      sample->set_gain(1);
    }
    Say(message);
    v1::RankMessage paths;
    for (int peer = 0; peer < world_; ++peer) {
      if (peer == rank_) continue;
      auto* path = paths.mutable_paths()->add_paths();
      path->set_peer_rank(static_cast<uint32_t>(peer));
      path->set_rtt_s(0.0004);
      path->set_delivery_rate_bytes_per_s(1e8);
    }
    Say(paths);
    if (const uint64_t armed = armed_.exchange(0); armed != 0) Activate(armed);
  }
  /// Sends an event of the rank.
  void Tell(const v1::RankEvent& event) {
    v1::RankMessage message;
    *message.mutable_event() = event;
    Say(message);
  }
  /// Sends a measurement of the link to `node`.
  void Measure(const std::string& node) {
    v1::AgentMessage message;
    message.mutable_link()->set_target_node(node);
    message.mutable_link()->set_method("tcp_connect");
    message.mutable_link()->set_rtt_s(0.0004);
    message.mutable_link()->set_samples(1);
    Write(message);
  }
  void Activate(uint64_t version) {
    active_ = version;
    v1::RankMessage message;
    message.mutable_active()->set_version(version);
    message.mutable_active()->set_step(5);
    Say(message);
  }
  uint64_t armed() const { return armed_; }
  uint64_t active() const { return active_; }
  v1::Plan offered() const {  // last
    MutexLock lock(mutex_);
    return offered_;
  }
  bool welcomed() const { return welcomed_; }
  bool ended() const { return ended_; }

 private:
  void Greet() {
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(StrCat("w", rank_));
    hello.mutable_hello()->set_address("127.0.0.1");
    hello.mutable_hello()->set_agent_version("test");
    Write(hello);
    v1::RankMessage greeting;
    auto* rank_hello = greeting.mutable_hello();
    rank_hello->set_job("wire");
    rank_hello->set_rank(static_cast<uint32_t>(rank_));
    rank_hello->set_world(static_cast<uint32_t>(world_));
    rank_hello->set_pid(with_.pid);
    *rank_hello->mutable_capabilities() = FakeCapabilities();
    if (!with_.aggregation_address.empty()) AddSwitch(rank_hello->mutable_capabilities());
    rank_hello->set_aggregation_address(with_.aggregation_address);
    rank_hello->set_step(with_.step);
    rank_hello->set_active_plan_version(with_.plan.version());
    if (with_.plan.version() != 0) *rank_hello->mutable_active_plan() = with_.plan;
    Say(greeting);
    v1::RankMessage table;
    for (int b = 0; b < 2; ++b) {
      auto* bucket = table.mutable_buckets()->add_buckets();
      bucket->set_key(StrCat("000000000000000", b));
      bucket->set_elements(100000);
      bucket->set_order(static_cast<uint32_t>(b));
    }
    Say(table);
  }
  void Say(const v1::RankMessage& message) {
    v1::AgentMessage out;
    out.mutable_rank()->set_job("wire");
    out.mutable_rank()->set_rank(static_cast<uint32_t>(rank_));
    *out.mutable_rank()->mutable_message() = message;
    Write(out);
  }
  void Write(const v1::AgentMessage& message) {
    MutexLock lock(mutex_);
    stream_->Write(message);
  }
  void Read() {
    v1::ControllerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_welcome()) welcomed_ = true;
      if (!message.has_rank()) continue;
      const auto& command = message.rank().command();
      if (command.has_offer()) {
        v1::RankMessage ack;
        ack.mutable_ack()->set_version(command.offer().plan().version());
        ack.mutable_ack()->set_nonce(command.offer().nonce());
        Say(ack);
        MutexLock lock(mutex_);
        offered_ = command.offer().plan();
      } else if (command.has_arm()) {
        armed_ = command.arm().version();
      }
    }
    ended_ = true;
  }

  const int rank_, world_;
  const WireRank with_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ControllerMessage>> stream_;
  mutable Mutex mutex_;
  v1::Plan offered_ WEIR_GUARDED_BY(mutex_);
  std::atomic<uint64_t> armed_{0}, active_;
  std::atomic<bool> welcomed_{false}, ended_{false};
  std::thread reader_;
};

}  // namespace weir
