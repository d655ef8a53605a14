// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/fleet/load_agent.h"

#include <cstdlib>

#include "datapath/base/status.h"

namespace weir::fleet_bench {
namespace {

constexpr double kBackOffMax = 5;
constexpr size_t kQueueItems = 4096, kQueueBytes = 16u << 20;  // those of an agent
constexpr double kLatencyIntervalDefault = 5;

v1::AgentMessage HelloOf(int index, const std::string& name) {
  v1::AgentMessage message;
  v1::NodeHello& hello = *message.mutable_hello();
  hello.set_node(name);
  hello.set_address(StrCat("10.", index / 62500, ".", index / 250 % 250, ".", 1 + index % 250));
  hello.set_probe_port(7446);
  hello.set_agent_version("bench");
  hello.set_instance(name);
  for (const char* interface : {"eth0", "eth1"}) {
    v1::NetworkInterface& card = *hello.add_interfaces();
    card.set_name(interface);
    card.set_speed_bytes_per_s(1.25e9);
    card.set_mtu(1500);
  }
  for (int i = 0; i < 8; ++i) {
    v1::Gpu& gpu = *hello.add_gpus();
    gpu.set_name("NVIDIA H100 80GB HBM3");
    gpu.set_uuid(StrCat("GPU-00000000-0000-0000-0000-", 100000 + index, 100000 + i));
    gpu.set_memory_bytes(80ull << 30);
  }
  return message;
}

}  // namespace

std::string NodeName(int index) {
  std::string digits = std::to_string(index);
  return StrCat("node-", std::string(6 - std::min<size_t>(6, digits.size()), '0'), digits);
}

// Deletes itself when gRPC is done with it.
class LoadAgent::Stream : public grpc::ClientBidiReactor<v1::AgentMessage, v1::ControllerMessage> {
 public:
  explicit Stream(LoadAgent& agent) : agent_(agent), queue_(kQueueItems, kQueueBytes) {}

  void Begin(const std::string& controller) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    channel_ = grpc::CreateCustomChannel(controller, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::AgentService::NewStub(channel_);
    stub_->async()->Connect(&context_, this);
    AddHold();  // until the stream has ended, because writes begin outside of reactions
    StartRead(&incoming_);
    StartCall();
  }

  void Send(v1::AgentMessage message, agent::Tier tier) {
    const size_t bytes = message.ByteSizeLong();
    MutexLock lock(mutex_);
    if (ended_) return;
    queue_.Push(std::move(message), tier, bytes);
    WriteLocked();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      MutexLock lock(mutex_);
      EndLocked();
      return;
    }
    agent_.OnMessage(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok) {
      WriteLocked();
    } else {
      EndLocked();
    }
  }

  void OnDone(const grpc::Status& status) override {
    double retry_after_s = 0;
    const auto& trailers = context_.GetServerTrailingMetadata();
    if (const auto found = trailers.find("weir-retry-after-ms"); found != trailers.end()) {
      retry_after_s =
          std::atof(std::string(found->second.data(), found->second.size()).c_str()) / 1000;
    }
    agent_.measures_.Count("telemetry_dropped", static_cast<double>(queue_.dropped()));
    agent_.OnEnd(status, retry_after_s);
    delete this;
  }

 private:
  void WriteLocked() WEIR_REQUIRES(mutex_) {
    if (writing_ || ended_ || queue_.empty()) return;
    writing_ = true;
    outgoing_ = *queue_.Pop();
    StartWrite(&outgoing_);
  }

  void EndLocked() WEIR_REQUIRES(mutex_) {
    if (!ended_) RemoveHold();
    ended_ = true;
  }

  LoadAgent& agent_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  v1::ControllerMessage incoming_;
  v1::AgentMessage outgoing_;
  Mutex mutex_;
  agent::TieredQueue<v1::AgentMessage> queue_ WEIR_GUARDED_BY(mutex_);
  bool writing_ WEIR_GUARDED_BY(mutex_) = false;
  bool ended_ WEIR_GUARDED_BY(mutex_) = false;
};

LoadAgent::LoadAgent(int index, std::string controller, Timer& timer, Measures& measures,
                     RankCommandHandler on_command,
                     std::function<std::vector<v1::AgentMessage>()> ranks)
    : index_(index),
      controller_(std::move(controller)),
      name_(NodeName(index)),
      timer_(timer),
      measures_(measures),
      on_command_(std::move(on_command)),
      ranks_(std::move(ranks)) {}

void LoadAgent::Connect() {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    tried_at_ = RealClock().Now();
    if (lost_at_ == TimePoint{}) lost_at_ = tried_at_;
    ++connection_;
    stream_ = new Stream(*this);
    stream_->Begin(controller_);
    stream_->Send(HelloOf(index_, name_), agent::Tier::kControl);
  }
  measures_.Count("tries");
}

void LoadAgent::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

void LoadAgent::Send(v1::AgentMessage message, agent::Tier tier) {
  MutexLock lock(mutex_);
  if (stream_ != nullptr && welcomed_) stream_->Send(std::move(message), tier);
}

bool LoadAgent::welcomed() const {
  MutexLock lock(mutex_);
  return welcomed_;
}

void LoadAgent::OnMessage(const v1::ControllerMessage& message) {
  if (message.has_rank()) {
    on_command_(index_, message.rank());
  } else if (message.has_peers()) {
    measures_.Count("peer_lists");
    measures_.Count("peers_in_lists", message.peers().peers_size());
    MutexLock lock(mutex_);
    peers_ = message.peers();
  } else if (message.has_welcome()) {
    uint64_t connection = 0;
    {
      MutexLock lock(mutex_);
      welcomed_ = true;
      connection = connection_;
      back_off_s_ = 0.2;
      const TimePoint now = RealClock().Now();
      // From the last try, which is what the controller is answerable for, and from the loss.
      measures_.Time("welcome_s", ToSeconds(now - tried_at_));
      measures_.Time("reconnect_s", ToSeconds(now - lost_at_));
      if (message.welcome().heartbeat_interval_s() > 0) {
        heartbeat_s_ = message.welcome().heartbeat_interval_s();
      }
    }
    for (v1::AgentMessage& each : ranks_()) Send(std::move(each), agent::Tier::kControl);
    timer_.After(5 * timer_.Uniform(), [this, connection] { Heartbeat(connection); });
    timer_.After(5 * timer_.Uniform(), [this, connection] { Probe(connection); });
  }
}

void LoadAgent::OnEnd(const grpc::Status& status, double retry_after_s) {
  double wait_s = 0;
  {
    MutexLock lock(mutex_);
    stream_ = nullptr;
    if (stopped_) return;
    if (welcomed_) {
      lost_at_ = RealClock().Now();
      measures_.Count("lost");
      measures_.Count("lost: " + status.error_message());
    } else if (retry_after_s > 0) {
      measures_.Count("asked_to_wait");
    } else {
      measures_.Count("failed_tries");
    }
    welcomed_ = false;
    wait_s = retry_after_s > 0 ? retry_after_s : back_off_s_ * (0.5 + timer_.Uniform());
    back_off_s_ = std::min(2 * back_off_s_, kBackOffMax);
  }
  timer_.After(wait_s, [this] { Connect(); });
}

void LoadAgent::Heartbeat(uint64_t connection) {
  double interval_s = 0;
  {
    MutexLock lock(mutex_);
    if (connection != connection_ || !welcomed_) return;
    interval_s = heartbeat_s_;
  }
  v1::AgentMessage message;
  message.mutable_heartbeat()->set_unix_s(RealClock().UnixSeconds());
  Send(std::move(message), agent::Tier::kControl);
  timer_.After(interval_s, [this, connection] { Heartbeat(connection); });
}

// One sample of every peer, as a round of echoes gives them.
void LoadAgent::Probe(uint64_t connection) {
  std::vector<v1::AgentMessage> samples;
  double interval_s = kLatencyIntervalDefault;
  {
    MutexLock lock(mutex_);
    if (connection != connection_ || !welcomed_) return;
    if (peers_.latency_interval_s() > 0) interval_s = peers_.latency_interval_s();
    for (const v1::Peer& peer : peers_.peers()) {
      v1::LinkSample& link = *samples.emplace_back().mutable_link();
      link.set_target_node(peer.node());
      link.set_method("udp_echo");
      link.set_rtt_s(2e-4 * (0.9 + 0.2 * timer_.Uniform()));
      link.set_rtt_deviation_s(2e-5);
      link.set_samples(5);
    }
  }
  measures_.Count("link_samples", static_cast<double>(samples.size()));
  for (v1::AgentMessage& each : samples) Send(std::move(each), agent::Tier::kTelemetry);
  timer_.After(interval_s * (0.8 + 0.4 * timer_.Uniform()),
               [this, connection] { Probe(connection); });
}

}  // namespace weir::fleet_bench
