// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/probe_scheduler.h"

#include <algorithm>

namespace weir {
namespace {

constexpr double kCreditMax = 64.0 * (1 << 20);
constexpr double kGraceS = 2;
constexpr double kFirstTryIntervalS = 5;  // of a link whose bandwidth is not known
constexpr double kNever = 1e300;
constexpr size_t kStartedMax = 256, kConsideredMax = 4096;

}  // namespace

void ProbeScheduler::OnTrainingBytes(uint64_t bytes, double share) {
  credit_bytes_ = std::min(kCreditMax, credit_bytes_ + static_cast<double>(bytes) * share);
}

void ProbeScheduler::Enqueue(const Key& key, Link* link) {
  link->route_due_s = link->routed_at_s + kRouteIntervalS;
  link->bandwidth_due_s =
      !link->offer.iperf ? kNever
      : link->bandwidth_at_s < 0
          ? link->tried_at_s + kFirstTryIntervalS
          : std::max(link->bandwidth_at_s, link->tried_at_s) + link->offer.interval_s;
  link->bandwidth_due_s = std::max(link->bandwidth_due_s, link->rests_until_s);
  routes_.emplace(link->route_due_s, key);
  bandwidths_.emplace(link->bandwidth_due_s, key);
}

void ProbeScheduler::Dequeue(const Key& key, const Link& link) {
  routes_.erase({link.route_due_s, key});
  bandwidths_.erase({link.bandwidth_due_s, key});
}

void ProbeScheduler::OfferLink(const std::string& source, const std::string& target,
                               const LinkOffer& offer) {
  const Key key(source, target);
  const auto [found, added] = links_.try_emplace(key);
  Link& link = found->second;
  link.offered = true;
  const bool moved = link.offer.iperf != offer.iperf || link.offer.interval_s != offer.interval_s;
  if (!added && moved) Dequeue(key, link);
  link.offer = offer;
  if (added || moved) Enqueue(key, &link);
}

void ProbeScheduler::ForgetOtherLinks() {
  for (auto it = links_.begin(); it != links_.end();) {
    if (!it->second.offered) {
      Dequeue(it->first, it->second);
      it = links_.erase(it);
    } else {
      it->second.offered = false;
      ++it;
    }
  }
}

void ProbeScheduler::OnBandwidthSample(const std::string& source, const std::string& target,
                                       double now_s) {
  const auto found = links_.find({source, target});
  if (found == links_.end()) return;
  Dequeue(found->first, found->second);
  found->second.bandwidth_at_s = now_s;
  Enqueue(found->first, &found->second);
}

void ProbeScheduler::OnResult(const std::string& id, uint64_t bytes_used, double now_s) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  // The unused part of the reservation is returned; an agent cannot report more than it was
  // granted.
  const uint64_t used = std::min(bytes_used, found->second.bytes_max);
  credit_bytes_ += static_cast<double>(found->second.bytes_max - used);
  spent_bytes_ -= found->second.bytes_max - used;
  Ended(found->second, used, now_s - found->second.began_s, now_s);
  running_.erase(found);
}

void ProbeScheduler::Ended(const Running& probe, uint64_t bytes, double seconds, double now_s) {
  if (probe.method == "traceroute") return;  // a few packets
  spent_s_ += seconds;
  const auto found = links_.find({probe.source, probe.target});
  if (found == links_.end()) return;
  Link& link = found->second;
  link.used.bytes += bytes;
  link.used.seconds += seconds;
  // How long one ran that never answered is not known.
  if (seconds > kDeadlineS || !(link.offer.duty_max > 0)) return;
  Dequeue(found->first, link);
  link.rests_until_s = now_s + seconds / link.offer.duty_max;
  Enqueue(found->first, &link);
}

ProbeUse ProbeScheduler::UseBetween(const std::vector<std::string>& nodes) const {
  ProbeUse use;
  for (const std::string& source : nodes) {
    for (const std::string& target : nodes) {
      const auto found = links_.find({source, target});
      if (found == links_.end()) continue;
      use.bytes += found->second.used.bytes;
      use.seconds += found->second.used.seconds;
    }
  }
  return use;
}

void ProbeScheduler::OnNodeLost(const std::string& node) {
  std::erase_if(running_, [&](const auto& entry) {
    return entry.second.source == node || entry.second.target == node;
  });
}

void ProbeScheduler::Expire(double now_s) {
  std::erase_if(running_, [&](const auto& entry) {
    const Running& probe = entry.second;
    if (probe.expires_s > now_s) return false;
    Ended(probe, probe.bytes_max, now_s - probe.began_s, now_s);
    return true;
  });
}

std::vector<ScheduledProbe> ProbeScheduler::Next(double now_s) {
  Expire(now_s);
  std::set<std::string> busy;
  for (const auto& [id, probe] : running_) {
    busy.insert(probe.source);
    busy.insert(probe.target);
  }
  const auto due = [&](const Queue& queue) {
    std::vector<Key> keys;
    for (const auto& [due_s, key] : queue) {
      if (due_s > now_s || keys.size() >= kConsideredMax) break;
      keys.push_back(key);
    }
    return keys;
  };
  std::vector<ScheduledProbe> started;
  const auto take = [&](const Key& key) {
    if (started.size() >= kStartedMax || busy.contains(key.first) || busy.contains(key.second)) {
      return false;
    }
    busy.insert(key.first);
    busy.insert(key.second);
    return true;
  };
  for (const Key& key : due(routes_)) {
    if (!take(key)) continue;
    Link& link = links_[key];
    Dequeue(key, link);
    link.routed_at_s = now_s;
    Enqueue(key, &link);
    started.push_back(Begin(key, "traceroute", 0, now_s));
  }
  for (const Key& key : due(bandwidths_)) {
    Link& link = links_[key];
    const bool affordable =
        !link.first_granted || credit_bytes_ >= static_cast<double>(kProbeBytesMin);
    if (affordable && take(key)) started.push_back(BeginBandwidth(key, &link, now_s));
  }
  return started;
}

ScheduledProbe ProbeScheduler::BeginBandwidth(const Key& key, Link* link, double now_s) {
  if (!link->first_granted) {
    link->first_granted = true;
    credit_bytes_ += static_cast<double>(kInitialBytes);
  }
  Dequeue(key, *link);
  link->tried_at_s = now_s;
  Enqueue(key, link);
  const uint64_t wanted = std::clamp(link->offer.bytes_wanted, kProbeBytesMin, kProbeBytesMax);
  const uint64_t bytes = std::min(wanted, static_cast<uint64_t>(std::max(credit_bytes_, 0.0)));
  credit_bytes_ -= static_cast<double>(bytes);
  spent_bytes_ += bytes;
  return Begin(key, "iperf3", bytes, now_s);
}

ScheduledProbe ProbeScheduler::Begin(const Key& key, std::string method, uint64_t bytes,
                                     double now_s) {
  ScheduledProbe probe{std::string("p").append(std::to_string(next_id_++)),
                       key.first,
                       key.second,
                       std::move(method),
                       bytes,
                       kDeadlineS};
  running_[probe.id] = {probe.source, probe.target, probe.method,
                        bytes,        now_s,        now_s + kDeadlineS + kGraceS};
  return probe;
}

}  // namespace weir
