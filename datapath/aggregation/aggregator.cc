// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/aggregator.h"

#include <algorithm>
#include <utility>

namespace weir::aggregation {
namespace {

/// The terms of the lease at the parent, as Leaf::Create needs them with this lease below.
Lease TermsAbove(const Lease& below, const ParentLease& parent) {
  Lease above = below;
  above.id = parent.id;
  above.epoch = parent.epoch;
  above.cookie = parent.cookie;
  above.workers = parent.workers;
  above.world = 0;
  return above;
}

}  // namespace

// First fit is enough: there are few leases, they live long and have similar sizes.
std::optional<uint32_t> Aggregator::FreeRange(uint16_t id, uint32_t count) const {
  std::vector<SlotRange> taken;
  for (const auto& [other, granted] : leases_) {
    if (other != id) taken.push_back(granted.range);
  }
  std::sort(taken.begin(), taken.end(),
            [](const SlotRange& a, const SlotRange& b) { return a.first < b.first; });
  uint32_t first = 0;
  for (const SlotRange& range : taken) {
    if (range.first - first >= count) return first;
    first = range.first + range.count;
  }
  if (limits_.slots - first >= count) return first;
  return std::nullopt;
}

StatusOr<SlotRange> Aggregator::Grant(const Lease& lease, std::span<const SourceAddress> workers,
                                      const std::optional<ParentLease>& parent) {
  WEIR_RETURN_IF_ERROR(Validate(lease));
  if (workers.size() != static_cast<size_t>(lease.workers)) {
    return InvalidArgument(StrCat("lease ", lease.id, ": expected ", lease.workers,
                                  " worker addresses, found ", workers.size()));
  }
  Granted granted{.lease = lease, .range = {}, .workers = {workers.begin(), workers.end()}};
  for (size_t w = 0; w < workers.size(); ++w) {
    const auto [at, inserted] = granted.numbers.emplace(workers[w], static_cast<int>(w));
    if (!inserted) {
      return InvalidArgument(StrCat("lease ", lease.id, ": workers ", at->second, " and ", w,
                                    " have the same address"));
    }
  }
  const auto last = last_epochs_.find(lease.id);
  if (last != last_epochs_.end() && lease.epoch <= last->second) {
    return FailedPrecondition(StrCat("lease ", lease.id, ": expected an epoch above ", last->second,
                                     ", found ", lease.epoch));
  }
  if (leases_.size() >= limits_.leases && !leases_.contains(lease.id)) {
    return ResourceExhausted(StrCat("all ", limits_.leases, " leases are granted"));
  }
  if (lease.slots > limits_.slots_per_job) {
    return ResourceExhausted(StrCat("lease ", lease.id, ": at most ", limits_.slots_per_job,
                                    " slots a job, asked for ", lease.slots));
  }
  const std::optional<uint32_t> first = FreeRange(lease.id, lease.slots);
  if (!first.has_value()) {
    return ResourceExhausted(StrCat("lease ", lease.id, ": no ", lease.slots, " slots of ",
                                    limits_.slots, " are free in a row"));
  }
  granted.range = {.first = *first, .count = lease.slots};
  if (parent.has_value()) {
    const Granted* const other = BelowParent(parent->address, parent->id);
    if (other != nullptr && other->lease.id != lease.id) {
      return InvalidArgument(StrCat("lease ", lease.id, ": lease ", other->lease.id,
                                    " is below lease ", parent->id, " of that parent already"));
    }
    WEIR_ASSIGN_OR_RETURN(granted.leaf, Leaf::Create(lease, TermsAbove(lease, *parent)));
    granted.parent = parent;
  } else {
    granted.pool = std::make_unique<SlotPool>(lease, limits_.exact_floats);
  }
  leases_.insert_or_assign(lease.id, std::move(granted));
  last_epochs_[lease.id] = lease.epoch;
  return SlotRange{.first = *first, .count = lease.slots};
}

Status Aggregator::Revoke(uint16_t id, uint32_t epoch) {
  const auto found = leases_.find(id);
  if (found == leases_.end() || found->second.lease.epoch != epoch) {
    return NotFound(StrCat("no lease ", id, " of epoch ", epoch));
  }
  leases_.erase(found);
  return OkStatus();
}

void Aggregator::Count(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAdded:
      ++counters_.added;
      return;
    case Verdict::kCompleted:
      ++counters_.completed;
      return;
    case Verdict::kServed:
      ++counters_.served;
      return;
    case Verdict::kNoticed:
      ++counters_.noticed;
      return;
    case Verdict::kDuplicate:
      ++counters_.duplicate;
      return;
    case Verdict::kStale:
      ++counters_.stale;
      return;
    case Verdict::kEarly:
      ++counters_.early;
      return;
  }
}

int Aggregator::Granted::Number(SourceAddress source) {
  if (workers[recent] == source) return static_cast<int>(recent);
  const auto found = numbers.find(source);
  if (found == numbers.end()) return -1;
  recent = static_cast<size_t>(found->second);
  return found->second;
}

void Aggregator::OnPacket(SourceAddress source, std::span<const std::byte> datagram, TimePoint now,
                          ReplySink* sink) {
  const StatusOr<Packet> packet = DecodePacket(datagram);
  if (!packet.ok()) {
    ++counters_.malformed;
    return;
  }
  if ((packet->header.flags & kPacketReply) != 0) {
    Granted* const below = BelowParent(source, packet->header.lease);
    if (below != nullptr) return OnParentReply(below, datagram, sink);
    ++counters_.unknown;
    return;
  }
  const auto found = leases_.find(packet->header.lease);
  if (found == leases_.end()) {
    ++counters_.unknown;
    return;
  }
  Granted& granted = found->second;
  const int number = granted.Number(source);
  if (number < 0 || !Fits(granted.lease, packet->header)) {
    ++counters_.foreign;
    return;
  }
  granted.used_at = now;
  if (granted.leaf != nullptr) {
    return OnLeafRequest(&granted, source, number, *packet, now, sink);
  }
  const Outcome outcome = granted.pool->OnPacket(number, *packet, now);
  Count(outcome.verdict);
  if (outcome.verdict == Verdict::kCompleted) {
    if (outcome.partial) ++counters_.cut_off;
    sink->SendToAll(granted.workers, outcome.reply);
  } else if (!outcome.reply.empty()) {
    sink->Send(source, outcome.reply);
  }
}

Aggregator::Granted* Aggregator::BelowParent(SourceAddress source, uint16_t id) {
  for (auto& [own, granted] : leases_) {
    const bool ours =
        granted.parent.has_value() && granted.parent->address == source && granted.parent->id == id;
    if (ours) return &granted;
  }
  return nullptr;
}

void Aggregator::OnLeafRequest(Granted* granted, SourceAddress source, int worker,
                               const Packet& packet, TimePoint now, ReplySink* sink) {
  const LeafCounters before = granted->leaf->counters();
  const LeafOutput output = granted->leaf->OnRequest(worker, packet, now);
  Count(output.verdict);
  const LeafCounters& after = granted->leaf->counters();
  counters_.forwarded += after.forwarded - before.forwarded;
  counters_.forwarded_again += after.reforwarded - before.reforwarded;
  if (!output.up.empty()) sink->Send(granted->parent->address, output.up);
  if (!output.to_all.empty()) sink->SendToAll(granted->workers, output.to_all);
  if (!output.to_sender.empty()) sink->Send(source, output.to_sender);
}

void Aggregator::OnParentReply(Granted* granted, std::span<const std::byte> datagram,
                               ReplySink* sink) {
  const LeafOutput output = granted->leaf->OnReply(datagram);
  if (output.to_all.empty()) {
    ++counters_.foreign;  // of another epoch or round, usually a result that arrived twice
    return;
  }
  ++counters_.delivered;
  sink->SendToAll(granted->workers, output.to_all);
}

void Aggregator::OnTimer(TimePoint now, ReplySink* sink) {
  for (auto& [id, granted] : leases_) {
    if (granted.pool == nullptr) continue;  // leases with a parent have no cut-off
    granted.pool->OnTimer(now, [&, &workers = granted.workers](std::span<const std::byte> reply) {
      ++counters_.cut_off;
      sink->SendToAll(workers, reply);
    });
  }
}

bool Aggregator::NeedsTimer() const {
  return std::any_of(leases_.begin(), leases_.end(), [](const auto& entry) {
    return entry.second.lease.cutoff > Duration::zero();
  });
}

std::optional<OpenRound> Aggregator::OldestOpenRound(uint16_t id) const {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return std::nullopt;
  const Granted& granted = found->second;
  return granted.leaf != nullptr ? granted.leaf->OldestOpenRound()
                                 : granted.pool->OldestOpenRound();
}

std::optional<TimePoint> Aggregator::LastUsed(uint16_t id) const {
  const auto found = leases_.find(id);
  return found == leases_.end() ? std::nullopt : found->second.used_at;
}

}  // namespace weir::aggregation
