// SPDX-License-Identifier: Apache-2.0
#include "controller/server/fleet_mapping.h"

#include <algorithm>
#include <cmath>

#include "controller/messages/mapping.h"

namespace weir {
namespace {

double Positive(double value) { return std::max(Finite(value), 0.0); }

v1::NetworkInterface ToProto(const NodeInterface& in) {
  v1::NetworkInterface out;
  out.set_name(in.name);
  out.set_speed_bytes_per_s(in.speed_bytes_per_s);
  out.set_mtu(in.mtu);
  return out;
}

v1::Gpu ToProto(const NodeGpu& in) {
  v1::Gpu out;
  out.set_name(in.name);
  out.set_uuid(in.uuid);
  out.set_memory_bytes(in.memory_bytes);
  out.set_pcie_generation(in.pcie_generation);
  out.set_pcie_lanes(in.pcie_lanes);
  out.set_pcie_bytes_per_s(in.pcie_bytes_per_s);
  out.set_nvlinks(in.nvlinks);
  out.set_nvlink_version(in.nvlink_version);
  return out;
}

v1::NcclSummary ToProto(const NcclSums& in) {
  v1::NcclSummary out;
  out.set_communicators(in.communicators);
  out.set_obstructed(in.obstructed);
  out.set_calls(in.calls);
  out.set_steered_calls(in.steered_calls);
  out.set_sampled_operations(in.sampled_operations);
  out.set_sampled_sent_bytes(in.sampled_sent_bytes);
  out.set_own_gpu_s(in.own_gpu_s);
  out.set_peer_s(in.peer_s);
  out.set_wire_s(in.wire_s);
  out.set_arrival_s(in.arrival_s);
  out.set_table_source(in.table_source);
  out.set_refusing(in.refusing);
  return out;
}

// Agents are not believed any other text.
std::string KnownSource(const std::string& source) {
  return source == "file" || source == "controller" ? source : "";
}

v1::NcclTable TableOf(const std::vector<NcclRule>& rules) {
  v1::NcclTable out;
  for (const NcclRule& in : rules) {
    v1::NcclRule* rule = out.add_rules();
    rule->set_function(in.function);
    rule->set_bytes_min(in.bytes_min);
    rule->set_bytes_end(in.bytes_end);
    rule->set_ranks(static_cast<uint32_t>(in.ranks));
    rule->set_algorithm(in.algorithm);
    rule->set_protocol(in.protocol);
    rule->set_channels(static_cast<uint32_t>(in.channels));
    rule->set_chunk_bytes(in.chunk_bytes);
  }
  return out;
}

v1::Estimate ToProto(const LinkState::Smoothed& in, TimePoint now) {
  v1::Estimate out;
  out.set_value(in.value);
  out.set_deviation(Finite(in.deviation));
  out.set_age_s(in.samples == 0 ? 0 : std::max(0.0, ToSeconds(now - in.at)));
  out.set_method(in.method);
  out.set_samples(in.samples);
  return out;
}

// Fills the body of a message for agents.
struct OrderBody {
  v1::ControllerMessage& out;

  void operator()(const Welcome& in) const {
    out.mutable_welcome()->set_heartbeat_interval_s(in.heartbeat_interval_s);
    out.mutable_welcome()->set_controller_version(in.controller_version);
    if (!in.nccl_rules.empty()) {
      *out.mutable_welcome()->mutable_nccl_table() = TableOf(in.nccl_rules);
    }
  }
  void operator()(const NcclTable& in) const { *out.mutable_nccl_table() = TableOf(in.rules); }
  void operator()(const PeerList& in) const {
    out.mutable_peers()->set_latency_interval_s(in.latency_interval_s);
    for (const NodePeer& each : in.peers) {
      v1::Peer* peer = out.mutable_peers()->add_peers();
      peer->set_node(each.node);
      peer->set_address(each.address);
      peer->set_probe_port(each.probe_port);
      peer->set_iperf_port(each.iperf_port);
    }
  }
  void operator()(const ScheduledProbe& in) const {
    out.mutable_probe()->set_probe_id(in.id);
    out.mutable_probe()->set_target_node(in.target);
    out.mutable_probe()->set_method(in.method);
    out.mutable_probe()->set_bytes_max(in.bytes_max);
    out.mutable_probe()->set_deadline_s(in.deadline_s);
  }
  void operator()(const OrderToRank& in) const {
    *out.mutable_rank() = weir::ToProto(in.job, in.rank, in.order);
  }
  void operator()(const RefusalToRank& in) const {
    out.mutable_rank()->set_job(in.job);
    out.mutable_rank()->set_rank(in.rank);
    v1::RankRefusal* refusal = out.mutable_rank()->mutable_command()->mutable_refusal();
    refusal->set_reason(in.reason);
    refusal->set_retry_after_s(in.retry_after_s);
  }
};

void FillBounds(const Policy& policy, v1::PolicyBounds* out) {
  out->set_ratio_min(policy.ratio_min);
  out->set_ratio_max(policy.ratio_max);
  out->set_gain_min(policy.gain_min);
  out->set_residual_ratio_max(policy.residual_ratio_max);
  for (const std::string& codec : policy.codecs) out->add_codecs(codec);
  for (const std::string& collective : policy.collectives) out->add_collectives(collective);
  out->set_delay_target_s(policy.objective == "delay_target" ? policy.delay_target_s : 0);
}

}  // namespace

NodeGreeting ToModel(const v1::NodeHello& in) {
  NodeGreeting out;
  out.node = in.node();
  out.address = in.address();
  out.probe_port = in.probe_port();
  out.iperf_port = in.iperf_port();
  out.agent_version = in.agent_version();
  out.instance = in.instance();
  for (const v1::NetworkInterface& each : in.interfaces()) {
    out.interfaces.push_back({each.name(), each.speed_bytes_per_s(), each.mtu()});
  }
  for (const v1::Gpu& each : in.gpus()) {
    out.gpus.push_back({each.name(), each.uuid(), each.memory_bytes(), each.pcie_generation(),
                        each.pcie_lanes(), each.pcie_bytes_per_s(), each.nvlinks(),
                        each.nvlink_version()});
  }
  return out;
}

v1::NodeHello ToProto(const NodeGreeting& in) {
  v1::NodeHello out;
  out.set_node(in.node);
  out.set_address(in.address);
  out.set_probe_port(in.probe_port);
  out.set_iperf_port(in.iperf_port);
  out.set_agent_version(in.agent_version);
  out.set_instance(in.instance);
  for (const NodeInterface& each : in.interfaces) *out.add_interfaces() = ToProto(each);
  for (const NodeGpu& each : in.gpus) *out.add_gpus() = ToProto(each);
  return out;
}

std::optional<NcclSums> ToModel(const v1::NcclSummary& in) {
  if (!std::isfinite(in.own_gpu_s() + in.peer_s() + in.wire_s() + in.arrival_s())) {
    return std::nullopt;
  }
  return NcclSums{in.communicators(),
                  in.obstructed(),
                  in.calls(),
                  in.steered_calls(),
                  in.sampled_operations(),
                  in.sampled_sent_bytes(),
                  in.own_gpu_s(),
                  in.peer_s(),
                  in.wire_s(),
                  in.arrival_s(),
                  KnownSource(in.table_source()),
                  in.refusing()};
}

std::optional<LinkReport> ToModel(const std::string& source, const v1::LinkSample& in) {
  if (!in.error().empty()) return std::nullopt;
  LinkReport out;
  out.source_node = source;
  out.target_node = in.target_node();
  out.method = in.method();
  out.rtt_s = Positive(in.rtt_s());
  out.rtt_deviation_s = Positive(in.rtt_deviation_s());
  out.bandwidth_bytes_per_s = Positive(in.bandwidth_bytes_per_s());
  out.bandwidth_deviation_bytes_per_s = Positive(in.bandwidth_deviation_bytes_per_s());
  out.application_limited = in.application_limited();
  out.age_s = Positive(in.age_s());
  out.hops = in.hops();
  return out;
}

v1::ControllerMessage ToProto(const AgentOrder& order) {
  v1::ControllerMessage out;
  std::visit(OrderBody{out}, order);
  return out;
}

v1::Node ToProto(const NodeView& in) {
  const NodeState& state = in.state;
  v1::Node out;
  out.set_name(state.said.node);
  out.set_address(state.said.address);
  out.set_connected(state.connected());
  out.set_last_seen_unix_s(state.last_seen_unix_s);
  out.set_agent_version(state.said.agent_version);
  out.set_clock_ahead_s(state.clock_ahead_s);
  for (const NodeInterface& each : state.said.interfaces) *out.add_interfaces() = ToProto(each);
  for (const NodeGpu& each : state.said.gpus) *out.add_gpus() = ToProto(each);
  if (state.nccl.has_value()) *out.mutable_nccl() = ToProto(*state.nccl);
  for (const std::string& job : in.jobs) out.add_jobs(job);
  return out;
}

v1::Link ToProto(const NodeTable::LinkEnds& ends, const LinkState& in, TimePoint now) {
  v1::Link out;
  out.set_source(ends.first);
  out.set_target(ends.second);
  *out.mutable_rtt_s() = ToProto(in.rtt_s, now);
  *out.mutable_bandwidth_bytes_per_s() = ToProto(in.bandwidth_bytes_per_s, now);
  out.set_hops(in.hops);
  return out;
}

v1::Event ToProto(const FleetEvent& in) {
  v1::Event out;
  switch (in.kind) {
    case FleetEvent::Kind::kNode:
      out.set_kind("node");
      break;
    case FleetEvent::Kind::kLink:
      out.set_kind("link");
      break;
    case FleetEvent::Kind::kPolicy:
      out.set_kind("policy");
      break;
  }
  out.set_text(in.text);
  if (in.node.has_value()) *out.mutable_node() = ToProto(*in.node);
  return out;
}

v1::Policy ToProto(const PolicyEntry& entry) {
  v1::Policy policy;
  policy.set_name(entry.name);
  policy.set_source(entry.source);
  policy.set_origin(entry.origin);
  if (entry.valid) {
    policy.set_objective(entry.policy.objective);
    for (const std::string& job : entry.policy.jobs) policy.add_jobs(job);
    for (const std::string& space : entry.policy.namespaces) policy.add_namespaces(space);
    policy.mutable_labels()->insert(entry.policy.labels.begin(), entry.policy.labels.end());
    policy.set_priority(entry.policy.priority);
    FillBounds(entry.policy, policy.mutable_bounds());
  }
  policy.set_loaded_unix_s(entry.loaded_unix_s);
  policy.set_error(entry.error);
  policy.set_etag(SourceTag(entry.source));
  return policy;
}

v1::PolicyDifference ToProto(const PolicyDifference& in) {
  v1::PolicyDifference out;
  out.set_key(in.key);
  out.set_before(in.before);
  out.set_after(in.after);
  return out;
}

v1::PolicyEffect ToProto(const PolicyEffect& in) {
  v1::PolicyEffect out;
  out.set_job(in.job);
  out.set_policy_before(in.policy_before);
  out.set_policy_after(in.policy_after);
  if (in.plan.running.has_value()) *out.mutable_running() = ToProto(*in.plan.running);
  if (in.plan.chosen.has_value()) *out.mutable_chosen() = ToProto(*in.plan.chosen);
  out.set_switches(in.plan.switches);
  out.set_nothing_to_choose(in.plan.nothing_to_choose);
  out.set_unforeseen(in.plan.unforeseen);
  return out;
}

}  // namespace weir
