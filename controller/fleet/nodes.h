// SPDX-License-Identifier: Apache-2.0
#pragma once
// The nodes whose agents have connected, and the links between them as agents measure them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "controller/fleet/probe_scheduler.h"
#include "controller/job/job_host.h"
#include "controller/model/job_model.h"
#include "controller/policy/policy.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// See NetworkInterface and Gpu in agent.proto.
struct NodeInterface {
  std::string name;
  double speed_bytes_per_s = 0;
  uint32_t mtu = 0;
};
struct NodeGpu {
  std::string name, uuid;
  uint64_t memory_bytes = 0;
  uint32_t pcie_generation = 0, pcie_lanes = 0;
  double pcie_bytes_per_s = 0;
  uint32_t nvlinks = 0, nvlink_version = 0;
};

/// An agent's words of its node and itself when it connects; see NodeHello in agent.proto.
struct NodeGreeting {
  std::string node, address;
  uint32_t probe_port = 0, iperf_port = 0;
  std::string agent_version, instance;
  std::vector<NodeInterface> interfaces;
  std::vector<NodeGpu> gpus;
};

/// See NcclSummary in agent.proto.
struct NcclSums {
  uint32_t communicators = 0, obstructed = 0;
  uint64_t calls = 0, steered_calls = 0, sampled_operations = 0, sampled_sent_bytes = 0;
  double own_gpu_s = 0, peer_s = 0, wire_s = 0, arrival_s = 0;
  std::string table_source;
  uint32_t refusing = 0;
};

/// One successful measurement of one directed link. Numbers are finite and not negative.
struct LinkReport : LinkObservation {
  double bandwidth_deviation_bytes_per_s = 0;
  uint32_t hops = 0;  // 0: not measured
};

// Messages of the controller to an agent; see ControllerMessage in agent.proto.
struct Welcome {
  double heartbeat_interval_s = 0;
  std::string controller_version;
  std::vector<NcclRule> nccl_rules = {};
};
struct NcclTable {
  std::vector<NcclRule> rules;
};
struct NodePeer {
  std::string node, address;
  uint32_t probe_port = 0, iperf_port = 0;
};
struct PeerList {
  std::vector<NodePeer> peers;
  double latency_interval_s = 0;
};
struct OrderToRank {
  std::string job;
  int rank = 0;
  RankOrder order;
};
struct RefusalToRank {
  std::string job;
  uint32_t rank = 0;  // as it was greeted with, also out of range
  std::string reason;
  double retry_after_s = 0;  // as in RankRefusal
};
using AgentOrder =
    std::variant<Welcome, PeerList, ScheduledProbe, OrderToRank, RefusalToRank, NcclTable>;

/// The controller's end of one agent's stream.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  /// Queues an order. Returns false when the stream has ended or its queue is full; a full queue
  /// ends the stream, and the agent reconnects and sends its whole state again.
  virtual bool Send(const AgentOrder& order) = 0;
  /// Ends the stream.
  virtual void Close(const Status& why) = 0;
  /// When the agent last gave a sign of life, which may be later than what has been handled: where
  /// much is waiting, an agent is not to be taken for dead because nobody has listened. None: only
  /// what was handled counts.
  virtual std::optional<TimePoint> LastHeard() const { return std::nullopt; }
};

struct NodeState {
  NodeGreeting said;
  std::shared_ptr<AgentLink> link = nullptr;  // null: disconnected
  double last_seen_unix_s = 0;
  TimePoint last_seen{};
  double clock_ahead_s = 0;
  std::optional<NcclSums> nccl = {};  // the newest of this node's agent
  uint64_t nccl_rules = 0;            // hash of those that the agent was sent last; 0: none

  bool connected() const { return link != nullptr; }
  /// The newest sign of life.
  TimePoint heard() const {
    const auto by_link = connected() ? link->LastHeard() : std::nullopt;
    return by_link.has_value() ? std::max(*by_link, last_seen) : last_seen;
  }
};

/// Estimates from agents' measurements of one directed link.
struct LinkState {
  struct Smoothed {
    double value = 0, deviation = 0;
    std::string method;  // of the newest sample
    uint64_t samples = 0;
    TimePoint at{};
  };
  Smoothed rtt_s, bandwidth_bytes_per_s;
  TimePoint published_at{};
  uint32_t hops = 0;
};

/// Not thread-safe.
class NodeTable {
 public:
  static constexpr size_t kNodesMax = 16384;
  static constexpr size_t kLinksMax = 262144;
  using LinkEnds = std::pair<std::string, std::string>;  // source, target

  explicit NodeTable(const Clock& clock) : clock_(clock) {}

  /// Adds a node that a former controller knew.
  void Restore(NodeGreeting said, double last_seen_unix_s);
  /// kInvalidArgument: a name, list or text of `said` is out of bounds; kResourceExhausted: too
  /// many nodes.
  Status Check(const NodeGreeting& said) const;
  /// Connects the node of a greeting that Check accepts.
  void Connect(const std::shared_ptr<AgentLink>& link, const NodeGreeting& said);
  /// Notes a sign of life and returns the node's name; empty: nobody has greeted on `link`.
  std::string Heard(const AgentLink* link);
  /// The name of the node that greeted on `link`; empty: none.
  std::string NameOf(const AgentLink* link) const;
  /// Disconnects. Returns false if the node was not connected.
  bool Lose(const std::string& name);
  /// Forgets a node that is not connected, and its links.
  void Forget(const std::string& name);
  /// Null: there is no such node.
  NodeState* Find(const std::string& name);
  const NodeState* Find(const std::string& name) const;
  bool Connected(const std::string& name) const;
  /// Whether the node is connected and the order was queued.
  bool Send(const std::string& name, const AgentOrder& order) const;
  /// Connected nodes that have said nothing for longer.
  std::vector<std::string> Silent(double silence_max_s) const;
  /// Tells a connected node whose latency it shall measure, and how often.
  void SendPeers(const std::string& name, const std::vector<std::string>& peers,
                 double latency_interval_s) const;

  /// Smooths a measurement into the estimates of its link. Null: its target is unknown, or there
  /// are too many links, all of them measured within the last 10 min.
  LinkState* Record(const LinkReport& report);
  /// Age of the newest sample of a link between connected nodes; the largest of all links.
  double StalestLinkS() const;

  const std::map<std::string, NodeState>& all() const { return nodes_; }
  const std::map<LinkEnds, LinkState>& links() const { return links_; }

 private:
  /// Whether there is room for another link, perhaps after old ones have been forgotten.
  bool RoomForALink();

  const Clock& clock_;
  std::map<std::string, NodeState> nodes_;
  std::map<const AgentLink*, std::string> names_by_link_;
  std::map<LinkEnds, LinkState> links_;
  TimePoint next_eviction_{};
};

}  // namespace weir
