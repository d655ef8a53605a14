// SPDX-License-Identifier: Apache-2.0
#include "controller/job/job_lease.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr size_t kAddressBytesMax = 64;
constexpr double kBytesPerLane = 4;
// Slots for so many bandwidth-delay products: a packet also waits at the aggregator until the last
// worker's has come.
constexpr double kDelayProducts = 2;

uint32_t SlotsWanted(const Snapshot& network, const AggregatorReport& aggregator) {
  const double packet = kBytesPerLane * std::min(JobLease::kLanes, aggregator.lanes_max);
  const double in_flight =
      kDelayProducts * network.bandwidth_bytes_per_s.value * 2 * network.latency_s.value;
  const double wanted = std::isfinite(in_flight) ? in_flight / packet : 0;
  uint32_t slots = JobLease::kSlotsMin;
  while (slots < wanted && slots < JobLease::kSlotsMax) slots *= 2;
  return std::min(slots, aggregator.slots_per_job);
}

/// The rate at which a rank can send to `aggregator` with `slots` of it: the other leases of a
/// shard and the other ranks share the aggregator's goodput, and a slot carries one packet per
/// round trip. 0: no limit.
double RateOf(const Snapshot& network, const AggregatorReport& aggregator, uint32_t slots,
              bool holds) {
  double rate = 0;
  const auto limit = [&](double other) { rate = rate > 0 ? std::min(rate, other) : other; };
  if (aggregator.goodput_bits_per_s > 0) {
    const int others = static_cast<int>(aggregator.leases.size()) - (holds ? 1 : 0);
    const double shards = std::max(1u, aggregator.shards);
    const double sharing = 1 + std::floor(std::max(0, others) / shards);
    limit(aggregator.goodput_bits_per_s / 8 / shards / sharing / std::max(1, network.world));
  }
  if (network.latency_s.value > 0) {
    const double packet = kBytesPerLane * std::min(JobLease::kLanes, aggregator.lanes_max);
    limit(slots * packet / (2 * network.latency_s.value));
  }
  return rate;
}

// How an aggregator serves a collective.
struct LeasedKind {
  std::string collective, mode;
  uint32_t block_lanes = 0;  // mode "sparse": as small as rows of embeddings are; else 0
};

const std::vector<LeasedKind>& LeasedKinds() {
  static const auto& kinds = *new std::vector<LeasedKind>{
      {"omnireduce", "sparse", 64}, {"switchml", "sum"}, {"thc_table", "table"}};
  return kinds;
}

/// Fills in what a packet holds.
void SetShape(const AggregatorReport& aggregator, LeaseAsk* ask) {
  ask->lanes = std::min(JobLease::kLanes, aggregator.lanes_max);
  if (ask->table.sum_bits > 0) ask->lanes *= 32 / ask->table.sum_bits;  // sums are narrower
  for (const LeasedKind& kind : LeasedKinds()) {
    if (kind.collective != ask->collective || kind.block_lanes == 0) continue;
    const uint32_t packet = ask->lanes;
    ask->lanes = std::min(kind.block_lanes, packet);
    ask->columns = packet / ask->lanes;
  }
}

std::string Found(const std::string& so_far, const std::string& one) {
  if (so_far.size() > 200) return so_far;
  return so_far + (so_far.empty() ? "" : ", ") + one;
}

}  // namespace

// Their capabilities do not say so themselves.
std::string LeaseModeOf(const std::string& collective) {
  for (const LeasedKind& kind : LeasedKinds()) {
    if (kind.collective == collective) return kind.mode;
  }
  return "";
}

std::vector<std::string> LeasedCollectives() {
  std::vector<std::string> names;
  for (const LeasedKind& kind : LeasedKinds()) names.push_back(kind.collective);
  return names;
}

// Rounded up, but for what decimals lose: 0.7 of 10 ranks are 7.
LeaseWish WishOf(const Policy& policy, int world) {
  LeaseWish wish{.checked = policy.checksums};
  if (policy.quorum <= 0) return wish;
  const int quorum = std::max(1, static_cast<int>(std::ceil(policy.quorum * world - 1e-9)));
  if (quorum >= world) return wish;
  wish.quorum = static_cast<uint32_t>(quorum);
  wish.cutoff_ms = static_cast<uint32_t>(policy.cutoff_ms);
  return wish;
}

JobLease::JobLease(std::string job, LeaseHost& host, const Clock& clock, LeaseBackoff* backoff)
    : job_(std::move(job)),
      host_(host),
      clock_(clock),
      backoff_(backoff == nullptr ? own_backoff_ : *backoff) {}

void JobLease::Begin(int world) {
  if (held_.has_value()) (void)Fail("the ranks formed another mesh");
  pending_.reset();
  addresses_.clear();
  world_ = world;
}

void JobLease::SetAddress(int rank, const std::string& address) {
  const bool plausible = address.size() <= kAddressBytesMax;
  std::string& known = addresses_[rank];
  const std::string now = plausible ? address : "";
  if (known == now) return;
  known = now;
  if (held_.has_value() && static_cast<int>(addresses_.size()) == world_) {
    // After a restart of the controller the ranks greet one by one: Lost compares them all.
    if (const std::string why = Lost(); !why.empty()) End();
  }
  pending_.reset();
}

void JobLease::Adopt(const SlotGrant& lease) {
  if (held_.has_value() || pending_.has_value()) return;
  if (lease.cookie.empty() || !host_.aggregators().contains(lease.aggregator)) return;
  if (LeaseModeOf(lease.collective).empty() || lease.epoch == 0) return;
  if (ended_ == StrCat(lease.aggregator, " ", lease.epoch)) return;
  held_ = lease;
  held_since_ = used_at_ = clock_.Now();
}

std::vector<std::string> JobLease::Workers() const {
  std::vector<std::string> workers;
  for (const auto& [rank, address] : addresses_) workers.push_back(address);
  return workers;
}

std::string JobLease::AddressesMissing() const {
  std::map<std::string, int> seen;
  for (int rank = 0; rank < world_; ++rank) {
    const auto found = addresses_.find(rank);
    if (found == addresses_.end() || found->second.empty()) {
      return StrCat("rank ", rank, " gave no aggregation address");
    }
    const auto [other, fresh] = seen.emplace(found->second, rank);
    if (!fresh) {
      return StrCat("ranks ", other->second, " and ", rank, " gave the same aggregation address ",
                    found->second);
    }
  }
  return "";
}

JobLease::Pick JobLease::PickFor(const Snapshot& network) const {
  Pick pick;
  if (host_.aggregators().empty()) {
    pick.why_not = "no aggregator is registered";
    return pick;
  }
  std::string unreachable, small, full;
  uint32_t wanted = 0;
  for (const auto& [name, state] : host_.aggregators()) {
    const AggregatorReport& one = state.said;
    const uint32_t slots = SlotsWanted(network, one);
    if (!one.reachable) {
      unreachable = Found(unreachable, StrCat(name, ": ", one.error));
    } else if (static_cast<int>(one.workers_max) < world_) {
      small = Found(small, StrCat(name, " takes ", one.workers_max));
    } else if (one.leases_free == 0) {
      full = Found(full, StrCat(name, " has no lease left"));
      wanted = std::max(wanted, slots);
    } else if (one.slots_free_of_shard < slots) {
      full = Found(full, StrCat(name, " has ", one.slots_free_of_shard));
      wanted = std::max(wanted, slots);
    } else if (pick.aggregator == nullptr ||
               one.slots_free_of_shard > pick.aggregator->slots_free_of_shard) {
      pick.aggregator = &one;
      pick.slots = slots;
    }
  }
  if (pick.aggregator != nullptr) return pick;
  if (!full.empty()) {
    pick.why_not = StrCat("no aggregator has ", wanted, " free slots (", full, ")");
  } else if (!small.empty()) {
    pick.why_not = StrCat("no aggregator takes ", world_, " workers (", small, ")");
  } else {
    pick.why_not = StrCat("no aggregator is reachable (", unreachable, ")");
  }
  return pick;
}

void JobLease::Describe(const Snapshot& network, CollectiveModel* collective) const {
  collective->lease_available = false;
  collective->bandwidth_max_bytes_per_s = 0;
  const auto refuse = [&](const std::string& why) {
    collective->lease_why_not = StrCat(collective->name, ": ", why);
  };
  if (!held_.has_value() && clock_.Now() < backoff_.until) return refuse(backoff_.why);
  if (const std::string missing = AddressesMissing(); !missing.empty()) return refuse(missing);
  const AggregatorReport* aggregator = nullptr;
  uint32_t slots = 0;
  if (held_.has_value()) {
    if (held_->collective != collective->name) {
      return refuse(StrCat("the job's lease is for ", held_->collective));
    }
    const auto found = host_.aggregators().find(held_->aggregator);
    if (found != host_.aggregators().end()) aggregator = &found->second.said;
    slots = held_->slots;
  } else {
    const Pick pick = PickFor(network);
    if (pick.aggregator == nullptr) return refuse(pick.why_not);
    aggregator = pick.aggregator;
    slots = pick.slots;
  }
  collective->lease_available = true;
  collective->lease_why_not.clear();
  if (aggregator != nullptr) {
    collective->bandwidth_max_bytes_per_s = RateOf(network, *aggregator, slots, held_.has_value());
  }
}

void JobLease::Ask(const Snapshot& network, const std::string& collective, const LeaseTable& table,
                   const LeaseWish& wish) {
  if (pending_.has_value() || held_.has_value()) return;
  const Pick pick = PickFor(network);
  if (pick.aggregator == nullptr) return Block(pick.why_not);
  LeaseAsk ask{pick.aggregator->name,   job_,      ++last_id_, collective,
               LeaseModeOf(collective), Workers(), pick.slots};
  ask.table = table;
  ask.wish = wish;
  if (table.sum_bits == 0) ask.wish.quorum = ask.wish.cutoff_ms = 0;  // exact sums are of all ranks
  SetShape(*pick.aggregator, &ask);
  if (!host_.AskLease(ask)) return Block(StrCat("too much waits for ", ask.aggregator));
  pending_ = std::move(ask);
  deadline_ = clock_.Now() + FromSeconds(kAskDeadlineS);
}

std::string JobLease::Waiting() const {
  if (!pending_.has_value()) return "";
  return StrCat("waiting for ", pending_->aggregator, " to grant ", pending_->slots, " slots");
}

void JobLease::OnAnswer(uint64_t id, const StatusOr<SlotGrant>& answer) {
  if (!pending_.has_value() || pending_->id != id) {
    if (answer.ok()) {
      host_.EndLease(answer->aggregator, LeaseOwner(job_, answer->mode), answer->epoch);
    }
    return;
  }
  const LeaseAsk ask = *std::exchange(pending_, std::nullopt);
  if (!answer.ok()) {
    return Block(StrCat(ask.aggregator, " gives no lease: ", Message(answer.status())));
  }
  held_ = *answer;
  held_since_ = used_at_ = clock_.Now();
  Log(LogLevel::kInfo, "controller",
      StrCat("job ", job_, ": ", ask.aggregator, " granted ", held_->slots, " slots to ",
             ask.workers.size(), " ranks, epoch ", held_->epoch));
}

/// Why the lease is not what the ranks have any more; empty: it is, as far as one knows.
std::string JobLease::Lost() const {
  const auto found = host_.aggregators().find(held_->aggregator);
  if (found == host_.aggregators().end()) return StrCat(held_->aggregator, " is not known here");
  const AggregatorReport& aggregator = found->second.said;
  if (!aggregator.reachable) {
    if (ToSeconds(clock_.Now() - std::max(found->second.since, held_since_)) < kUnreachableMaxS) {
      return "";
    }
    return StrCat(aggregator.name, " does not answer: ", aggregator.error);
  }
  if (found->second.answered_at <= held_since_) return "";  // what it said then, says nothing
  const std::string owner = LeaseJobName(LeaseOwner(job_, held_->mode));
  for (const ReportedLease& lease : aggregator.leases) {
    if (lease.job != owner || lease.epoch != held_->epoch) continue;
    const bool complete = static_cast<int>(addresses_.size()) == world_;
    if (!complete || lease.workers == Workers()) return "";
    return StrCat(aggregator.name, " serves other addresses than the ranks have");
  }
  return StrCat(aggregator.name, " has ended the lease of epoch ", held_->epoch);
}

/// For how long no packet came for what is held, as the aggregator said last; 0 without its word.
double JobLease::IdleSeconds() const {
  const auto found = host_.aggregators().find(held_->aggregator);
  if (found == host_.aggregators().end() || found->second.answered_at <= held_since_) return 0;
  if (!found->second.said.reachable) return 0;
  const std::string owner = LeaseJobName(LeaseOwner(job_, held_->mode));
  for (const ReportedLease& lease : found->second.said.leases) {
    if (lease.job == owner && lease.epoch == held_->epoch) return lease.idle_s;
  }
  return 0;
}

std::optional<std::string> JobLease::OnTick(Use use) {
  const TimePoint now = clock_.Now();
  if (pending_.has_value() && now >= deadline_) {
    const std::string why =
        StrCat(pending_->aggregator, " did not answer within ", kAskDeadlineS, " s");
    pending_.reset();
    Block(why);
    return why;
  }
  if (!held_.has_value()) return std::nullopt;
  if (use.planned) used_at_ = now;
  if (use.lost && IdleSeconds() > kLostIdleMaxS) {
    Log(LogLevel::kInfo, "controller",
        StrCat("job ", job_, " is lost and sends nothing to ", held_->aggregator,
               ": its lease ends"));
    End();
    return std::nullopt;
  }
  if (ToSeconds(now - used_at_) > kUnusedMaxS) {
    End();
    return std::nullopt;
  }
  const std::string why = Lost();
  if (why.empty()) return std::nullopt;
  (void)Fail(why);
  return why;
}

void JobLease::End() {
  if (!held_.has_value()) return;
  if (ToSeconds(clock_.Now() - held_since_) >= kGoodAfterS) {
    backoff_.next_s = LeaseBackoff::kMinS;
  }
  host_.EndLease(held_->aggregator, LeaseOwner(job_, held_->mode), held_->epoch);
  ended_ = StrCat(held_->aggregator, " ", held_->epoch);
  held_.reset();
}

bool JobLease::Fail(const std::string& why) {
  if (!held_.has_value() && clock_.Now() < backoff_.until) return false;
  End();
  pending_.reset();
  Block(why);
  return true;
}

void JobLease::Block(const std::string& why) {
  backoff_.why = why;
  backoff_.until = clock_.Now() + FromSeconds(backoff_.next_s);
  Log(LogLevel::kInfo, "controller",
      StrCat("job ", job_, ": no aggregator for ", backoff_.next_s, " s: ", why));
  backoff_.next_s = std::min(2 * backoff_.next_s, LeaseBackoff::kMaxS);
}

}  // namespace weir
