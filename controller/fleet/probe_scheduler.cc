// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/probe_scheduler.h"

#include <algorithm>

namespace weir {
namespace {

constexpr double kCreditMax = 64.0 * (1 << 20);
constexpr double kGraceS = 2;

}  // namespace

void ProbeScheduler::OnTrainingBytes(uint64_t bytes, double share) {
  credit_bytes_ = std::min(kCreditMax, credit_bytes_ + static_cast<double>(bytes) * share);
}

void ProbeScheduler::OfferLink(const std::string& source, const std::string& target,
                               const LinkOffer& offer) {
  Link& link = links_[{source, target}];
  link.offered = true;
  link.offer = offer;
}

void ProbeScheduler::ForgetOtherLinks() {
  std::erase_if(links_, [](const auto& entry) { return !entry.second.offered; });
  for (auto& [key, link] : links_) link.offered = false;
}

void ProbeScheduler::OnBandwidthSample(const std::string& source, const std::string& target,
                                       double now_s) {
  const auto found = links_.find({source, target});
  if (found != links_.end()) found->second.bandwidth_at_s = now_s;
}

void ProbeScheduler::OnResult(const std::string& id, uint64_t bytes_used, double now_s) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  // The unused part of the reservation is returned; an agent cannot report more than it was
  // granted.
  const uint64_t used = std::min(bytes_used, found->second.bytes_max);
  credit_bytes_ += static_cast<double>(found->second.bytes_max - used);
  spent_bytes_ -= found->second.bytes_max - used;
  (void)now_s;
  running_.erase(found);
}

void ProbeScheduler::OnNodeLost(const std::string& node) {
  std::erase_if(running_, [&](const auto& entry) {
    return entry.second.source == node || entry.second.target == node;
  });
}

void ProbeScheduler::Expire(double now_s) {
  std::erase_if(running_, [&](const auto& entry) { return entry.second.expires_s <= now_s; });
}

std::vector<ScheduledProbe> ProbeScheduler::Next(double now_s) {
  Expire(now_s);
  std::set<std::string> busy;
  for (const auto& [id, probe] : running_) {
    busy.insert(probe.source);
    busy.insert(probe.target);
  }
  std::vector<ScheduledProbe> started;
  while (auto probe = Pick(now_s, busy)) {
    busy.insert(probe->source);
    busy.insert(probe->target);
    started.push_back(std::move(*probe));
  }
  return started;
}

std::optional<ScheduledProbe> ProbeScheduler::Pick(double now_s,
                                                   const std::set<std::string>& busy) {
  const Key* best = nullptr;
  for (auto& [key, link] : links_) {
    if (busy.contains(key.first) || busy.contains(key.second)) continue;
    if (now_s - link.routed_at_s >= kRouteIntervalS) {
      link.routed_at_s = now_s;
      return Begin(key, "traceroute", 0, now_s);
    }
    const double since = now_s - std::max(link.bandwidth_at_s, link.tried_at_s);
    const bool stale =
        link.bandwidth_at_s < 0 ? now_s - link.tried_at_s >= 5 : since >= link.offer.interval_s;
    if (!link.offer.iperf || !stale) continue;
    const bool affordable =
        !link.first_granted || credit_bytes_ >= static_cast<double>(kProbeBytesMin);
    if (!affordable) continue;
    if (best == nullptr || link.tried_at_s < links_[*best].tried_at_s) best = &key;
  }
  if (best == nullptr) return std::nullopt;
  Link& link = links_[*best];
  if (!link.first_granted) {
    link.first_granted = true;
    credit_bytes_ += static_cast<double>(kInitialBytes);
  }
  link.tried_at_s = now_s;
  const uint64_t wanted = std::clamp(link.offer.bytes_wanted, kProbeBytesMin, kProbeBytesMax);
  const uint64_t bytes = std::min(wanted, static_cast<uint64_t>(std::max(credit_bytes_, 0.0)));
  credit_bytes_ -= static_cast<double>(bytes);
  spent_bytes_ += bytes;
  return Begin(*best, "iperf3", bytes, now_s);
}

ScheduledProbe ProbeScheduler::Begin(const Key& key, std::string method, uint64_t bytes,
                                     double now_s) {
  ScheduledProbe probe{std::string("p").append(std::to_string(next_id_++)),
                       key.first,
                       key.second,
                       std::move(method),
                       bytes,
                       kDeadlineS};
  running_[probe.id] = {probe.source, probe.target, probe.method, bytes,
                        now_s + kDeadlineS + kGraceS};
  return probe;
}

}  // namespace weir
