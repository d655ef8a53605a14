// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/peer_spread.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weir {

PeerSpread::Place PeerSpread::PlaceOf(const std::string& node) {
  // Names in order would make the nodes of one rack measure each other only.
  return {XXH3_64bits(node.data(), node.size()), node};
}

void PeerSpread::Following(const Ring& ring, const Place& from, size_t count_max,
                           std::vector<std::string>* out) {
  auto next = ring.upper_bound(from);
  for (size_t i = 0; i < std::min(count_max, ring.size()); ++i, ++next) {
    if (next == ring.end()) next = ring.begin();
    if (next->second == from.second) return;  // once around
    if (std::find(out->begin(), out->end(), next->second) == out->end()) {
      out->push_back(next->second);
    }
  }
}

void PeerSpread::MarkAround(const Ring& ring, const Place& place, size_t peers) {
  changed_.insert(place.second);
  if (ring.empty()) return;
  auto before = ring.lower_bound(place);
  for (size_t i = 0; i < std::min(peers, ring.size()); ++i) {
    if (before == ring.begin()) before = ring.end();
    --before;
    changed_.insert(before->second);
  }
}

void PeerSpread::AddNode(const std::string& node) {
  const Place place = PlaceOf(node);
  if (fleet_.insert(place).second) MarkAround(fleet_, place, kFleetPeers);
}

void PeerSpread::RemoveNode(const std::string& node) {
  const Place place = PlaceOf(node);
  if (fleet_.erase(place) == 0) return;
  MarkAround(fleet_, place, kFleetPeers);
  const std::set<std::string> jobs = JobsOf(node);
  for (const std::string& job : jobs) RemoveFromJob(job, node);
  changed_.erase(node);
}

void PeerSpread::AddToJob(const std::string& job, const std::string& node) {
  if (!jobs_of_[node].insert(job).second) return;
  const Place place = PlaceOf(node);
  Ring& ring = jobs_[job];
  ring.insert(place);
  MarkAround(ring, place, kJobPeers);
}

void PeerSpread::RemoveFromJob(const std::string& job, const std::string& node) {
  const auto jobs = jobs_of_.find(node);
  if (jobs == jobs_of_.end() || jobs->second.erase(job) == 0) return;
  if (jobs->second.empty()) jobs_of_.erase(jobs);
  const Place place = PlaceOf(node);
  const auto ring = jobs_.find(job);
  ring->second.erase(place);
  MarkAround(ring->second, place, kJobPeers);
  if (ring->second.empty()) jobs_.erase(ring);
}

void PeerSpread::RemoveJob(const std::string& job) {
  const auto ring = jobs_.find(job);
  if (ring == jobs_.end()) return;
  const Ring nodes = ring->second;
  for (const Place& place : nodes) RemoveFromJob(job, place.second);
}

const std::set<std::string>& PeerSpread::JobsOf(const std::string& node) const {
  static const std::set<std::string> kNone;
  const auto found = jobs_of_.find(node);
  return found == jobs_of_.end() ? kNone : found->second;
}

std::vector<std::string> PeerSpread::PeersOf(const std::string& node) const {
  std::vector<std::string> peers;
  for (const std::string& job : JobsOf(node)) {
    Following(jobs_.at(job), PlaceOf(node), kJobPeers, &peers);
  }
  Following(fleet_, PlaceOf(node), kFleetPeers, &peers);
  return peers;
}

std::vector<std::string> PeerSpread::JobPeersOf(const std::string& job,
                                                const std::string& node) const {
  std::vector<std::string> peers;
  const auto ring = jobs_.find(job);
  if (ring != jobs_.end()) Following(ring->second, PlaceOf(node), kJobPeers, &peers);
  return peers;
}

std::vector<std::string> PeerSpread::TakeChanged(size_t count_max) {
  std::vector<std::string> taken;
  while (!changed_.empty() && taken.size() < count_max) {
    auto first = changed_.extract(changed_.begin());
    if (fleet_.contains(PlaceOf(first.value()))) taken.push_back(std::move(first.value()));
  }
  return taken;
}

void PeerSpread::MarkAll() {
  for (const Place& place : fleet_) changed_.insert(place.second);
}

}  // namespace weir
