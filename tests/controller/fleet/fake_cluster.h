// SPDX-License-Identifier: Apache-2.0
#pragma once
// Simulated nodes, agents and ranks around a fleet: they send hellos, train over a simulated
// network, report, ack plans and swap at a step's end, all on a fake clock.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/messages/mapping.h"
#include "controller/server/control_plane.h"
#include "controller/server/fleet_mapping.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/random.h"
#include "tests/controller/fleet/fake_capabilities.h"

namespace weir {

class FakeAgent : public AgentLink {
 public:
  bool Send(const AgentOrder& order) override {
    if (closed) return false;
    inbox.push_back(ToProto(order));
    return true;
  }
  void Close(const Status&) override { closed = true; }
  std::vector<v1::ControllerMessage> inbox;
  bool closed = false;
};

struct FakeNetwork {
  double bandwidth_bytes_per_s = 100e6;
  double latency_s = 200e-6;
  // Ranks 1 and 2 have a slower link between them; 0: they do not.
  double slow_pair_bytes_per_s = 0;
  // The bandwidth of the interface of rank 3's host; 0: that of the others.
  double slow_host_bytes_per_s = 0;
};

/// Adds the proof of `hello` for `node`.
inline void AddProof(const std::string& job_key, const std::string& node, v1::RankHello* hello) {
  const auto proof = ProveRank(job_key, {hello->job(), node, hello->rank(), hello->world(),
                                         hello->epoch(), std::string(kChallengeDigits, '1')});
  ASSERT_TRUE(proof.ok()) << proof.status();
  hello->mutable_proof()->set_public_key(proof->public_key);
  hello->mutable_proof()->set_node(proof->node);
  hello->mutable_proof()->set_challenge(proof->challenge);
  hello->mutable_proof()->set_signature(proof->signature);
}

class FakeCluster {
 public:
  static constexpr uint64_t kBucketElements = 640 * 1024;
  static constexpr int kBuckets = 4;
  static constexpr double kComputeS = 0.03, kBackwardS = 0.02;

  FakeCluster(int world, FakeClock& clock) : clock_(clock) {
    for (int rank = 0; rank < world; ++rank) ranks_.emplace_back();
  }

  /// Connects every agent to `plane` and sends the hello of every rank, as after a start or the
  /// loss of a controller.
  void Connect(ControlPlane& plane) {
    plane_ = &plane;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ConnectRank(static_cast<int>(rank));
  }

  void ConnectRank(int rank) {
    Rank& state = ranks_[rank];
    state.agent = std::make_shared<FakeAgent>();
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(Node(rank));
    hello.mutable_hello()->set_address(StrCat("10.0.0.", rank + 1));
    hello.mutable_hello()->set_agent_version("test");
    hello.mutable_hello()->set_instance(Node(rank));  // the same agent, also when it reconnects
    ASSERT_TRUE(plane_->agents.OnMessage(state.agent, hello).ok());
    v1::RankMessage greeting;
    auto* rank_hello = greeting.mutable_hello();
    rank_hello->set_job("lm");
    rank_hello->set_rank(static_cast<uint32_t>(rank));
    rank_hello->set_world(static_cast<uint32_t>(ranks_.size()));
    rank_hello->set_pid(pid);
    *rank_hello->mutable_capabilities() = capabilities.value_or(FakeCapabilities());
    if (!plugin_codec.empty()) {
      auto* plugin = rank_hello->mutable_capabilities()->add_codecs();
      *plugin = rank_hello->capabilities().codecs(0);
      plugin->set_name(plugin_codec);
    }
    if (half_gain.has_value()) AddHalf(rank_hello->mutable_capabilities());
    if (mesh) AddMesh(rank_hello->mutable_capabilities());
    if (offload) AddSwitch(rank_hello->mutable_capabilities());
    if (memory_ranks > 0) {
      AddByNode(rank_hello->mutable_capabilities());
      rank_hello->set_memory_group(static_cast<uint32_t>(1 + rank / memory_ranks * memory_ranks));
    }
    if (offload && rank != deaf_rank) {
      rank_hello->set_aggregation_address(StrCat("10.0.0.", rank + 1, ":", aggregation_port));
    }
    rank_hello->set_epoch(mesh_epoch);
    rank_hello->set_local_steps(local_steps && rank != every_step_rank);
    rank_hello->mutable_labels()->insert(labels.begin(), labels.end());
    rank_hello->set_frame_protection(frame_protection);
    rank_hello->set_unauthenticated_peers(rank == strange_rank ? 3 : 0);
    if (!job_key.empty()) AddProof(job_key, Node(rank), rank_hello);
    rank_hello->set_step(step_);
    rank_hello->set_active_plan_version(active_.version());
    if (active_.version() != 0) *rank_hello->mutable_active_plan() = active_;
    Say(rank, greeting);
    v1::RankMessage table;
    for (int b = 0; b < kBuckets; ++b) {
      auto* bucket = table.mutable_buckets()->add_buckets();
      bucket->set_key(Key(b));
      bucket->set_elements(kBucketElements);
      bucket->set_order(static_cast<uint32_t>(b));
      bucket->set_dtype("float32");
    }
    Say(rank, table);
  }

  void DisconnectRank(int rank) {
    plane_->agents.OnClosed(ranks_[rank].agent);
    ranks_[rank].agent->closed = true;
  }

  /// Runs one step of every rank's session, with local steps so many of the optimiser. Returns its
  /// duration in seconds.
  double Step() {
    ++step_;
    const uint64_t stamped = ranks_[0].armed;
    ranks_[0].armed = 0;
    const uint32_t every = std::max(1u, active_.sync().every());
    std::vector<double> network_s;
    double end = 0;
    stalled_s_ = 0;
    for (int b = 0; b < kBuckets; ++b) {
      const double ready = every > 1 ? 0 : kBackwardS * b / (kBuckets - 1);
      const double free_s = NetworkSeconds(ChoiceOf(b));
      network_s.push_back(free_s * Stretch());
      stalled_s_ += network_s.back() - free_s;
      end = std::max(end, ready) + network_s.back() + CodecSeconds(ChoiceOf(b));
    }
    const double hidden = every > 1 ? kComputeS * active_.sync().overlap_steps() : kBackwardS;
    const double exposed = std::max(0.0, end - hidden);
    const bool lossy = ActiveCodec() != "identity";
    const bool extra = lossy && (extra_codec.empty() || ActiveCodec() == extra_codec);
    const double step_s = every * kComputeS + exposed + (extra ? lossy_extra_s : 0);
    clock_steps_ +=
        (progress ? progress(GainOf(ChoiceOf(kBuckets - 1))) : 1) * std::pow(every, 1 - sync_cost);
    damage_ += lossy ? lossy_damage : 0;
    clock_.Advance(FromSeconds(step_s));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].agent == nullptr || ranks_[rank].agent->closed) continue;
      Report(static_cast<int>(rank), step_s, exposed, network_s);
      SampleLinks(static_cast<int>(rank));
    }
    Deliver();
    if (stamped != 0) Swap(stamped);
    plane_->fleet.OnTick();
    Deliver();
    return step_s;
  }

  /// Rank 0 has not heard from the controller for too long, so every rank swaps to the lease plan.
  /// `heard`: a controller is there to receive the reports.
  void LetTheLeaseRunOut(bool heard) {
    ASSERT_NE(lease_.version(), 0u) << "the active plan has no lease";
    for (const Rank& rank : ranks_) {
      ASSERT_EQ(rank.prepared_lease.SerializeAsString(), lease_.SerializeAsString());
    }
    active_ = std::exchange(lease_, v1::Plan());
    if (heard) TellActive(active_.version());
  }

  /// Handles the messages that agents have received.
  void Deliver() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].agent == nullptr) continue;
      auto inbox = std::exchange(ranks_[rank].agent->inbox, {});
      for (const auto& message : inbox) {
        if (message.body_case() == v1::ControllerMessage::kRank)
          OnCommand(static_cast<int>(rank), message.rank());
        if (message.body_case() == v1::ControllerMessage::kPeers) peers_ = message.peers();
      }
    }
  }

  const v1::Plan& active() const { return active_; }
  const v1::Plan& lease_plan() const { return lease_; }
  double lease_s() const { return lease_s_; }  // as of the newest message to rank 0
  int leases() const { return leases_; }       // number of these messages
  std::string ActiveCodec() const { return ChoiceOf(kBuckets - 1).codec(); }
  uint64_t step() const { return step_; }
  const std::shared_ptr<FakeAgent>& agent(int rank) const { return ranks_[rank].agent; }
  const v1::PeerList& peers() const { return peers_; }
  const std::vector<std::string>& refusals() const { return refusals_; }
  static std::string Node(int rank) { return StrCat("n", rank); }

  /// Sends an event of `rank`.
  void Tell(int rank, const std::string& kind, const std::string& detail) {
    v1::RankEvent event;
    event.set_kind(kind);
    event.set_detail(detail);
    event.set_step(step_);
    Tell(rank, event);
  }
  void Tell(int rank, const v1::RankEvent& event) {
    v1::RankMessage message;
    *message.mutable_event() = event;
    Say(rank, message);
  }
  /// Ends the process of `rank`, but not its agent.
  void LoseRank(int rank) {
    v1::AgentMessage gone;
    gone.mutable_rank_gone()->set_job("lm");
    gone.mutable_rank_gone()->set_rank(static_cast<uint32_t>(rank));
    gone.mutable_rank_gone()->set_reason("killed");
    ASSERT_TRUE(plane_->agents.OnMessage(ranks_[static_cast<size_t>(rank)].agent, gone).ok());
  }
  std::string ActiveCollective() const { return ChoiceOf(kBuckets - 1).collective(); }

  FakeNetwork network;
  std::optional<v1::Capabilities> capabilities;  // in place of FakeCapabilities
  bool offload = false;                          // ranks can use an aggregator
  bool mesh = false;                             // ranks can exchange shards, of any shares
  std::optional<double> half_gain;               // what fp16 keeps; none: ranks do not have it
  int memory_ranks = 0;  // this many ranks share memory and can sum by nodes; 0: none
  int deaf_rank = -1;    // this rank has no port for an aggregator
  int aggregation_port = 40000;
  uint64_t mesh_epoch = 0;
  std::string plugin_codec;  // a lossless codec that ranks have in addition; empty: none
  std::string job_key;       // that ranks prove; empty: none
  v1::FrameProtection frame_protection = v1::FRAME_PROTECTION_CHECKED;
  std::map<std::string, std::string> labels = {};  // of the job
  int strange_rank = -1;     // this rank reaches three peers without authentication
  bool local_steps = false;  // ranks can make them
  int every_step_rank = -1;  // but for this one
  double sync_cost = 0;      // of progress, for each e-fold of them
  bool nack = false;
  int late_rank = -1;  // computes `late` times as long until its first bucket
  double late = 1;
  // Other work takes the cores of starved_rank's host: its codecs and the collectives, which wait
  // for it, take starved_stretch times as long, and its agent says so.
  int starved_rank = -1;
  double starved_stretch = 3;
  double lossy_extra_s = 0;  // of a step, where no measurement of a rank shows it
  std::string extra_codec;   // for which it is; empty: for all lossy ones
  // Progress of a step by its gain, in dense ones; none: all steps are worth the same.
  std::function<double(double gain)> progress;
  double lossy_damage = 0;    // to the loss, each step
  double codec_slowdown = 1;  // factor of lossy codecs' times over the reported ones
  bool non_finite_when_lossy = false;
  uint32_t pid = 100;

 private:
  struct Rank {
    std::shared_ptr<FakeAgent> agent;
    v1::Plan prepared, prepared_lease;
    uint64_t armed = 0;
  };

  static std::string Key(int bucket) { return StrCat("000000000000000", bucket); }

  v1::Choice ChoiceOf(int bucket) const {
    for (const auto& entry : active_.buckets()) {
      if (entry.bucket() == Key(bucket)) return entry.choice();
    }
    v1::Choice dense;
    dense.set_codec("identity");
    dense.set_collective("ring");
    dense.set_ratio(1);
    return active_.has_fallback() ? active_.fallback() : dense;
  }

  static constexpr uint32_t kShardSegmentBytes = 1 << 15;
  static void AddMesh(v1::Capabilities* capabilities) {
    auto* pairs = capabilities->add_collectives();
    pairs->set_name("mesh");
    pairs->set_form("lanes");
    pairs->mutable_latency()->set_constant(2);
    pairs->mutable_payload()->set_n_minus_1_over_n(2);
    pairs->mutable_reduce()->set_n_minus_1_over_n(1);
    pairs->set_world_min(1);
    pairs->set_all_pairs(true);
    pairs->set_shard_segment_bytes(kShardSegmentBytes);
  }

  static void AddByNode(v1::Capabilities* capabilities) {
    auto* by_node = capabilities->add_collectives();
    by_node->set_name("hierarchical");
    by_node->set_form("lanes");
    by_node->mutable_latency()->set_log2_n(2);
    by_node->mutable_payload()->set_n_minus_1_over_n(2);
    by_node->mutable_reduce()->set_n_minus_1_over_n(1);
    by_node->set_world_min(1);
    v1::WithinNodeCost* even = by_node->mutable_node_cost()->mutable_even();
    *even->mutable_latency() = by_node->latency();
    *even->mutable_payload() = by_node->payload();
    *even->mutable_reduce() = by_node->reduce();
  }

  static double PayloadBytes(const v1::Choice& choice) {
    if (choice.codec() == "identity") return kBucketElements * 4.0;
    if (choice.codec() == "fp16") return kBucketElements * 2.0;
    const double r = choice.ratio();
    const double entropy = r >= 1 ? 0 : -r * std::log2(r) - (1 - r) * std::log2(1 - r);
    return kBucketElements * (16 * r + entropy) / 8;
  }

  double LinkBandwidth(size_t from, size_t to) const {
    const bool slow = (from == 1 && to == 2) || (from == 2 && to == 1);
    if (slow && network.slow_pair_bytes_per_s > 0) return network.slow_pair_bytes_per_s;
    return std::min(HostBandwidth(from), HostBandwidth(to));
  }

  double HostBandwidth(size_t rank) const {
    return rank == 3 && network.slow_host_bytes_per_s > 0 ? network.slow_host_bytes_per_s
                                                          : network.bandwidth_bytes_per_s;
  }

  /// Seconds of a mesh all-reduce, by its busiest interface: it sends 1-w of the payload in the
  /// first phase and (n-1) w in the second; sums follow contributions by a segment of the largest
  /// shard.
  double MeshSeconds(double payload) const {
    const double n = static_cast<double>(ranks_.size());
    double busiest = 0, largest = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const double share = active_.shard_shares_size() == 0
                               ? 1 / n
                               : active_.shard_shares(static_cast<int>(rank)) / 65536.0;
      largest = std::max(largest, share);
      busiest = std::max(busiest, (1 - share + (n - 1) * share) * payload / HostBandwidth(rank));
    }
    const double segments = std::max(1.0, std::floor(largest * payload / kShardSegmentBytes));
    const double slowest = std::min(HostBandwidth(3 % ranks_.size()), HostBandwidth(0));
    const bool even = active_.shard_shares_size() == 0;
    return 2 * network.latency_s + busiest + (even ? 0 : payload / segments / slowest);
  }

  /// Bandwidth of the slowest link between ranks that follow each other in the ring.
  double RingBandwidth() const {
    double slowest = network.bandwidth_bytes_per_s;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const size_t next = (i + 1) % ranks_.size();
      const auto at = [&](size_t place) {
        return active_.ring_order_size() == 0 ? place : active_.ring_order(static_cast<int>(place));
      };
      slowest = std::min(slowest, LinkBandwidth(at(i), at(next)));
    }
    return slowest;
  }

  double NetworkSeconds(const v1::Choice& choice) const {
    const double n = static_cast<double>(ranks_.size());
    const double payload = PayloadBytes(choice);
    if (choice.collective() == "ring") {
      return 2 * (n - 1) * network.latency_s + 2 * (n - 1) / n * payload / RingBandwidth();
    }
    if (choice.collective() == "mesh") return MeshSeconds(payload);
    if (choice.collective() == "hierarchical") {
      const double p = memory_ranks, nodes = n / p;
      return 2 * std::ceil(std::log2(nodes)) * network.latency_s +
             2 * (nodes - 1) / nodes * payload / network.bandwidth_bytes_per_s +
             2 * std::ceil(std::log2(p)) * 1e-5 + 2 * (p - 1) / p * payload / 2e9;
    }
    if (choice.collective() == "switchml" || choice.collective() == "omnireduce") {
      return (2 + 2 * std::ceil(std::log2(n))) * network.latency_s +
             payload / network.bandwidth_bytes_per_s;
    }
    return (n - 1) * network.latency_s + (n - 1) * payload / LinkBandwidth(1, 2);
  }

  double Stretch() const { return starved_rank < 0 ? 1 : starved_stretch; }

  double CodecSeconds(const v1::Choice& choice) const {
    return (choice.codec() == "identity" ? 1e-5 : 1e-3 * codec_slowdown) * Stretch();
  }

  double GainOf(const v1::Choice& choice) const {
    return choice.codec() == "fp16" ? half_gain.value_or(1) : Gain(choice.ratio());
  }

  static double Gain(double ratio) {
    if (ratio >= 1) return 1;
    const double l = std::log(1 / ratio);
    return ratio * (1 + l + l * l / 2);
  }

  void Say(int rank, const v1::RankMessage& message) {
    if (ranks_[rank].agent->closed) return;
    v1::AgentMessage out;
    out.mutable_rank()->set_job("lm");
    out.mutable_rank()->set_rank(static_cast<uint32_t>(rank));
    *out.mutable_rank()->mutable_message() = message;
    ASSERT_TRUE(plane_->agents.OnMessage(ranks_[rank].agent, out).ok());
  }

  void Report(int rank, double step_s, double exposed, const std::vector<double>& network_s) {
    v1::RankMessage message;
    auto* report = message.mutable_step();
    report->set_step(step_);
    report->set_plan_version(active_.version());
    report->set_step_s(step_s);
    report->set_compute_s((kComputeS - kBackwardS) * (rank == late_rank ? late : 1));
    report->set_backward_s(kBackwardS);
    report->set_exposed_s(exposed);
    if (active_.sync().every() > 1) {
      report->set_backward_s(0);
      report->set_compute_s(step_s - exposed);
      report->mutable_period()->set_steps(active_.sync().every());
      report->mutable_period()->set_moved_square(2);
      report->mutable_period()->set_mean_square(1.25);  // half of the movement is signal
    }
    report->set_loss(3.0 / (1 + 0.01 * clock_steps_) + damage_);
    report->set_has_loss(true);
    const bool starved = rank == starved_rank;
    report->mutable_cores()->set_wait_ratio(starved ? 0.45 : 0.01);
    report->mutable_cores()->set_datapath_wait_ratio((starved ? stalled_s_ / step_s : 0.01) +
                                                     1e-3 * random_.Uniform());
    report->mutable_cores()->set_steal_ratio(starved ? 0.3 : 0);
    report->set_skipped(non_finite_when_lossy && ActiveCodec() != "identity");
    for (int b = 0; b < kBuckets; ++b) {
      const v1::Choice choice = ChoiceOf(b);
      auto* sample = report->add_buckets();
      sample->set_bucket(Key(b));
      sample->set_codec(choice.codec());
      sample->set_collective(choice.collective());
      sample->set_ratio(choice.ratio());
      sample->set_ready_s(kBackwardS * b / (kBuckets - 1));
      sample->set_encode_s(CodecSeconds(choice) / 2);
      sample->set_decode_s(CodecSeconds(choice) / 2);
      sample->set_network_s(network_s[static_cast<size_t>(b)] * (1 + 0.02 * random_.Normal()));
      sample->set_payload_bytes(static_cast<uint64_t>(PayloadBytes(choice)));
      sample->set_bytes_sent(static_cast<uint64_t>(PayloadBytes(choice) * 1.5));
      sample->set_gain(GainOf(choice));
      sample->set_residual_ratio(choice.codec() == "identity" ? 0 : 1);
      if (step_ % 5 != 1) continue;
      auto* curve = report->add_gains();
      curve->set_bucket(Key(b));
      for (double ratio = 1; ratio > 5e-4; ratio /= 2) {
        curve->add_ratios(ratio);
        curve->add_gains(Gain(ratio));
      }
      curve->set_peak_over_rms(10);
    }
    Say(rank, message);
  }

  void SampleLinks(int rank) {
    v1::RankMessage message;
    for (size_t peer = 0; peer < ranks_.size(); ++peer) {
      if (static_cast<int>(peer) == rank) continue;
      auto* path = message.mutable_paths()->add_paths();
      path->set_peer_rank(static_cast<uint32_t>(peer));
      path->set_rtt_s(2 * network.latency_s * (1 + 0.02 * std::abs(random_.Normal())));
      path->set_rtt_min_s(2 * network.latency_s);
      const double bytes_per_s = LinkBandwidth(static_cast<size_t>(rank), peer);
      path->set_delivery_rate_bytes_per_s(bytes_per_s * (1 + 0.02 * random_.Normal()));
      // A queue as long as the path itself: the link was what limited it.
      path->set_congestion_window_bytes(static_cast<uint32_t>(4 * bytes_per_s * network.latency_s) +
                                        (64 << 10));
    }
    Say(rank, message);
    if (step_ % 10 != 1) return;
    v1::AgentMessage link;
    link.mutable_link()->set_target_node(Node((rank + 1) % static_cast<int>(ranks_.size())));
    link.mutable_link()->set_method("tcp_connect");
    link.mutable_link()->set_rtt_s(2 * network.latency_s);
    link.mutable_link()->set_samples(1);
    ASSERT_TRUE(plane_->agents.OnMessage(ranks_[rank].agent, link).ok());
  }

  void OnCommand(int rank, const v1::ToRank& to_rank) {
    Rank& state = ranks_[rank];
    const v1::RankCommand& command = to_rank.command();
    v1::RankMessage reply;
    if (command.has_offer()) {
      if (command.offer().plan().version() <= active_.version()) return;
      if (nack) {
        reply.mutable_nack()->set_version(command.offer().plan().version());
        reply.mutable_nack()->set_nonce(command.offer().nonce());
        reply.mutable_nack()->set_reason("no memory");
      } else {
        state.prepared = command.offer().plan();
        state.prepared_lease = command.offer().lease_plan();
        reply.mutable_ack()->set_version(state.prepared.version());
        reply.mutable_ack()->set_nonce(command.offer().nonce());
      }
      Say(rank, reply);
    } else if (command.has_arm()) {
      EXPECT_EQ(rank, 0);
      state.armed = command.arm().version();
    } else if (command.has_withdraw()) {
      if (state.prepared.version() == command.withdraw().version()) state.prepared.Clear();
    } else if (command.has_lease()) {
      EXPECT_EQ(rank, 0);
      ++leases_;
      lease_s_ = command.lease().lease_s();
    } else if (command.has_refusal()) {
      refusals_.push_back(command.refusal().reason());
    }
  }

  void Swap(uint64_t version) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ASSERT_EQ(ranks_[rank].prepared.version(), version)
          << "rank " << rank << " does not hold the plan";
    }
    active_ = ranks_[0].prepared;
    lease_ = ranks_[0].prepared_lease;
    TellActive(version);
  }

  void TellActive(uint64_t version) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].agent == nullptr || ranks_[rank].agent->closed) continue;
      v1::RankMessage message;
      message.mutable_active()->set_version(version);
      message.mutable_active()->set_step(step_ + 1);
      Say(static_cast<int>(rank), message);
    }
  }

  FakeClock& clock_;
  ControlPlane* plane_ = nullptr;
  std::vector<Rank> ranks_;
  v1::Plan active_, lease_;
  int leases_ = 0;
  double lease_s_ = 0;
  v1::PeerList peers_;
  std::vector<std::string> refusals_;
  uint64_t step_ = 0;
  double stalled_s_ = 0;  // for which collectives of the step waited for cores
  double clock_steps_ = 0, damage_ = 0;
  Random random_{7};
};

}  // namespace weir
