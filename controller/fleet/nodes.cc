// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/nodes.h"

#include <algorithm>
#include <cmath>

#include "controller/job/bounds.h"

namespace weir {
namespace {

constexpr double kSmoothing = 0.2;
constexpr double kSampleAgeMaxS = 3600;
constexpr Duration kLinkKept = std::chrono::minutes(10);  // where others need the room
constexpr Duration kEvictionInterval = std::chrono::seconds(30);
constexpr size_t kInterfacesMax = 64;
constexpr size_t kInterfaceNameMax = 63;  // Linux has 15
constexpr size_t kGpusMax = 32;
constexpr size_t kGpuNameMax = 96;  // as NVML
constexpr size_t kVersionMax = 63;

void Smooth(double sample, double stated_deviation, const std::string& method, TimePoint at,
            LinkState::Smoothed* out) {
  if (out->samples++ == 0) {
    out->value = sample;
    out->deviation = stated_deviation > 0 ? stated_deviation : sample / 4;
  } else {
    const double error = sample - out->value;
    out->value += kSmoothing * error;
    out->deviation = std::sqrt((1 - kSmoothing) *
                               (out->deviation * out->deviation + kSmoothing * error * error));
  }
  out->method = method;
  out->at = at;
}

}  // namespace

void NodeTable::Restore(NodeGreeting said, double last_seen_unix_s) {
  const std::string name = said.node;
  nodes_[name] = {.said = std::move(said), .last_seen_unix_s = last_seen_unix_s};
}

Status NodeTable::Check(const NodeGreeting& said) const {
  WEIR_RETURN_IF_ERROR(CheckName("the node's name", said.node));
  // Interface names are bounded, because lists of nodes contain all of them.
  const bool long_name =
      std::any_of(said.interfaces.begin(), said.interfaces.end(),
                  [](const NodeInterface& each) { return each.name.size() > kInterfaceNameMax; });
  if (said.interfaces.size() > kInterfacesMax || long_name || said.address.size() > kNameBytesMax ||
      said.agent_version.size() > kVersionMax) {
    return InvalidArgument(StrCat("node ", said.node, ": expected an address of at most ",
                                  kNameBytesMax, " bytes, a version of ", kVersionMax, " and ",
                                  kInterfacesMax, " interfaces with names of ", kInterfaceNameMax));
  }
  const bool long_gpu_name =
      std::any_of(said.gpus.begin(), said.gpus.end(), [](const NodeGpu& gpu) {
        return gpu.name.size() > kGpuNameMax || gpu.uuid.size() > kGpuNameMax;
      });
  if (said.gpus.size() > kGpusMax || long_gpu_name) {
    return InvalidArgument(StrCat("node ", said.node, ": expected at most ", kGpusMax,
                                  " GPUs with names of at most ", kGpuNameMax, " bytes"));
  }
  if (!nodes_.contains(said.node) && nodes_.size() >= kNodesMax) {
    return ResourceExhausted(StrCat("at most ", kNodesMax, " nodes"));
  }
  return OkStatus();
}

void NodeTable::Connect(const std::shared_ptr<AgentLink>& link, const NodeGreeting& said) {
  NodeState& node = nodes_[said.node];
  node.said = said;
  node.link = link;
  node.last_seen = clock_.Now();
  node.last_seen_unix_s = clock_.UnixSeconds();
  names_by_link_[link.get()] = said.node;
}

std::string NodeTable::NameOf(const AgentLink* link) const {
  const auto known = names_by_link_.find(link);
  return known == names_by_link_.end() ? "" : known->second;
}

std::string NodeTable::Heard(const AgentLink* link) {
  const std::string name = NameOf(link);
  if (NodeState* node = Find(name); node != nullptr) {
    node->last_seen = clock_.Now();
    node->last_seen_unix_s = clock_.UnixSeconds();
  }
  return name;
}

bool NodeTable::Lose(const std::string& name) {
  NodeState* node = Find(name);
  if (node == nullptr || !node->connected()) return false;
  names_by_link_.erase(node->link.get());
  node->link = nullptr;
  return true;
}

void NodeTable::Forget(const std::string& name) {
  nodes_.erase(name);
  std::erase_if(links_, [&](const auto& entry) {
    return entry.first.first == name || entry.first.second == name;
  });
}

NodeState* NodeTable::Find(const std::string& name) {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : &found->second;
}

const NodeState* NodeTable::Find(const std::string& name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : &found->second;
}

bool NodeTable::Connected(const std::string& name) const {
  const NodeState* node = Find(name);
  return node != nullptr && node->connected();
}

bool NodeTable::Send(const std::string& name, const AgentOrder& order) const {
  const NodeState* node = Find(name);
  return node != nullptr && node->connected() && node->link->Send(order);
}

std::vector<std::string> NodeTable::Silent(double silence_max_s) const {
  std::vector<std::string> silent;
  for (const auto& [name, node] : nodes_) {
    if (node.connected() && ToSeconds(clock_.Now() - node.heard()) > silence_max_s) {
      silent.push_back(name);
    }
  }
  return silent;
}

void NodeTable::SendPeers(const std::string& name, const std::vector<std::string>& peers,
                          double latency_interval_s) const {
  const NodeState* node = Find(name);
  if (node == nullptr || !node->connected()) return;
  PeerList list{.peers = {}, .latency_interval_s = latency_interval_s};
  for (const std::string& peer : peers) {
    const NodeState* other = Find(peer);
    if (other == nullptr || !other->connected()) continue;
    const NodeGreeting& said = other->said;
    list.peers.push_back({peer, said.address, said.probe_port, said.iperf_port});
  }
  node->link->Send(list);
}

// Peers change as nodes come and go, and links that nobody measures any more would fill the table.
bool NodeTable::RoomForALink() {
  if (links_.size() < kLinksMax) return true;
  const TimePoint now = clock_.Now();
  if (now < next_eviction_) return false;
  next_eviction_ = now + kEvictionInterval;
  std::erase_if(links_, [&](const auto& entry) {
    const LinkState& link = entry.second;
    return now - std::max(link.rtt_s.at, link.bandwidth_bytes_per_s.at) > kLinkKept;
  });
  return links_.size() < kLinksMax;
}

LinkState* NodeTable::Record(const LinkReport& report) {
  if (!nodes_.contains(report.target_node)) return nullptr;
  const LinkEnds ends(report.source_node, report.target_node);
  if (!links_.contains(ends) && !RoomForALink()) return nullptr;
  LinkState& link = links_[ends];
  const TimePoint at = clock_.Now() - FromSeconds(std::min(report.age_s, kSampleAgeMaxS));
  if (report.rtt_s > 0) {
    Smooth(report.rtt_s, report.rtt_deviation_s, report.method, at, &link.rtt_s);
  }
  if (report.bandwidth_bytes_per_s > 0 && !report.application_limited) {
    Smooth(report.bandwidth_bytes_per_s, report.bandwidth_deviation_bytes_per_s, report.method, at,
           &link.bandwidth_bytes_per_s);
  }
  if (report.hops > 0) link.hops = report.hops;
  return &link;
}

double NodeTable::StalestLinkS() const {
  double oldest_s = 0;
  for (const auto& [ends, link] : links_) {
    if (!Connected(ends.first) || !Connected(ends.second)) continue;
    const TimePoint newest = std::max(link.rtt_s.at, link.bandwidth_bytes_per_s.at);
    oldest_s = std::max(oldest_s, ToSeconds(clock_.Now() - newest));
  }
  return oldest_s;
}

}  // namespace weir
