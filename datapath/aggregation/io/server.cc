// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/server.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "datapath/aggregation/io/address.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/log.h"

namespace weir::aggregation {
namespace {

constexpr size_t kJobNameMax = 128;

Status CheckJobName(const std::string& job) {
  const bool plain = std::all_of(job.begin(), job.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (!job.empty() && job.size() <= kJobNameMax && plain) return OkStatus();
  return InvalidArgument(StrCat("job: expected 1 to ", kJobNameMax,
                                " letters, digits, '.', '_' or '-', found '", job.substr(0, 160),
                                "'"));
}

Status CheckOwner(const std::string& owner) {
  const bool visible =
      std::all_of(owner.begin(), owner.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (owner.empty() || (owner.size() >= kOwnerMin && owner.size() <= kOwnerMax && visible)) {
    return OkStatus();
  }
  return InvalidArgument(
      StrCat("owner: expected ", kOwnerMin, " to ", kOwnerMax, " visible ASCII characters, found ",
             owner.size(),
             visible ? "" : " with others"));  // which are not repeated: a secret
}

Status NotTheOwner(const std::string& job) {
  return MakeStatus(StatusCode::kPermissionDenied,
                    StrCat("job ", job,
                           " has a lease of another owner, whose secret its grant told: only with "
                           "that it is renewed or ended before it is idle. Give another job "
                           "another name"));
}

Status CheckOptions(const ServerOptions& o) {
  if (o.shards < 1 || o.shards > kShardsMax) {
    return InvalidArgument(StrCat("shards: expected 1 .. ", kShardsMax, ", found ", o.shards));
  }
  if (o.first_port != 0 && o.first_port + o.shards - 1 > std::numeric_limits<uint16_t>::max()) {
    return InvalidArgument(StrCat("port: expected at most ", 65536 - o.shards, " with ", o.shards,
                                  " shards, found ", o.first_port));
  }
  if (!(o.drop >= 0 && o.drop < 1)) {
    return InvalidArgument(StrCat("drop probability: expected 0 to below 1, found ", o.drop));
  }
  return OkStatus();
}

StatusOr<uint64_t> RandomCookie() {
  uint64_t cookie = 0;
  if (getentropy(&cookie, sizeof cookie) != 0) return Unavailable("the system has no random bytes");
  return cookie;
}

}  // namespace

StatusOr<std::unique_ptr<AggregatorServer>> AggregatorServer::Start(const ServerOptions& options) {
  WEIR_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<AggregatorServer> server(new AggregatorServer(options));
  for (int i = 0; i < options.shards; ++i) {
    const int port = options.first_port == 0 ? 0 : options.first_port + i;
    auto shard = Shard::Start({.number = i,
                               .port = {.listen = StrCat(options.listen, ":", port),
                                        .buffer_bytes = options.buffer_bytes},
                               .limits = options.limits,
                               .drop = options.drop,
                               .seed = options.seed});
    if (!shard.ok()) return Annotate(shard.status(), StrCat("shard ", i));
    server->shards_.push_back(std::move(*shard));
  }
  return server;
}

int AggregatorServer::FreestShard() const {
  std::vector<uint64_t> slots(shards_.size(), 0);
  for (const auto& [job, grant] : leases_)
    slots[static_cast<size_t>(grant.shard)] += grant.range.count;
  return static_cast<int>(std::min_element(slots.begin(), slots.end()) - slots.begin());
}

uint16_t AggregatorServer::FreeId() const {
  std::set<uint16_t> taken;
  for (const auto& [job, grant] : leases_) taken.insert(grant.lease.id);
  uint16_t id = 1;
  while (taken.contains(id)) ++id;  // a shard has far fewer leases than ids
  return id;
}

StatusOr<LeaseGrant> AggregatorServer::Grant(const LeaseRequest& request) {
  WEIR_RETURN_IF_ERROR(CheckJobName(request.job));
  LeaseGrant grant{.job = request.job,
                   .owner = request.owner,
                   .lease = request.terms,
                   .workers = request.workers,
                   .parent = request.parent};
  WEIR_RETURN_IF_ERROR(CheckOwner(request.owner));
  WEIR_ASSIGN_OR_RETURN(grant.lease.cookie, RandomCookie());
  MutexLock lock(mutex_);
  const auto held = leases_.find(request.job);
  if (held != leases_.end()) {
    if (!ConstantTimeEquals(request.owner, held->second.owner)) return NotTheOwner(request.job);
    grant.shard = held->second.shard;
    if (grant.parent.has_value() && grant.shard != 0) {
      return FailedPrecondition(StrCat("job ", request.job, " has a lease on shard ", grant.shard,
                                       "; end it before one with a parent"));
    }
    grant.lease.id = held->second.lease.id;
  } else {
    if (leases_.size() >= options_.limits.leases * shards_.size()) {
      return ResourceExhausted(StrCat("all ", leases_.size(), " leases are granted"));
    }
    if (grant.owner.empty()) {
      WEIR_ASSIGN_OR_RETURN(grant.owner, NewChallenge());
    }
    grant.shard = grant.parent.has_value() ? 0 : FreestShard();
    grant.lease.id = FreeId();
  }
  if (last_epoch_ == std::numeric_limits<uint32_t>::max()) {
    return ResourceExhausted("all epochs are used up; restart the aggregator");
  }
  // Epochs of all leases are counted together, so that they also increase for an id that passes
  // from job to job.
  grant.lease.epoch = ++last_epoch_;
  WEIR_RETURN_IF_ERROR(Place(&grant));
  if (held == leases_.end()) WarnOfLoss(grant);
  grant.granted_at = RealClock().Now();
  leases_.insert_or_assign(request.job, grant);
  return grant;
}

void AggregatorServer::WarnOfLoss(const LeaseGrant& grant) const {
  const size_t in_flight = grant.workers.size() * grant.range.count;
  const size_t held = shards_[static_cast<size_t>(grant.shard)]->packets_held();
  if (in_flight <= held) return;
  Log(LogLevel::kWarning, "aggregator",
      StrCat("job ", grant.job, ": ", grant.workers.size(), " workers with ", grant.range.count,
             " slots may send ", in_flight, " packets at once, and shard ", grant.shard,
             " holds about ", held,
             ": some will be lost and sent again; raise --buffer-mib, or net.core.rmem_max if it "
             "is the limit, or "
             "request fewer slots"));
}

Status AggregatorServer::Place(LeaseGrant* grant) {
  Shard& shard = *shards_[static_cast<size_t>(grant->shard)];
  grant->address = shard.address();
  return shard.Call([&](Aggregator* aggregator) -> Status {
    WEIR_ASSIGN_OR_RETURN(grant->range,
                          aggregator->Grant(grant->lease, grant->workers, grant->parent));
    return OkStatus();
  });
}

Status AggregatorServer::End(const LeaseGrant& grant) {
  const Lease& lease = grant.lease;
  return shards_[static_cast<size_t>(grant.shard)]->Call(
      [&lease](Aggregator* aggregator) { return aggregator->Revoke(lease.id, lease.epoch); });
}

StatusOr<LeaseGrant*> AggregatorServer::Find(const std::string& job, uint32_t epoch) {
  const auto held = leases_.find(job);
  if (held == leases_.end()) return NotFound(StrCat("job '", job.substr(0, 160), "' has no lease"));
  const Lease& lease = held->second.lease;
  if (epoch != 0 && epoch != lease.epoch) {
    return NotFound(StrCat("job '", job, "': expected epoch ", lease.epoch, ", found ", epoch));
  }
  return &held->second;
}

Status AggregatorServer::Revoke(const std::string& job, uint32_t epoch, std::string_view owner) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(const LeaseGrant* const held, Find(job, epoch));
  if (!ConstantTimeEquals(owner, held->owner)) return NotTheOwner(job);
  WEIR_RETURN_IF_ERROR(End(*held));
  leases_.erase(job);
  return OkStatus();
}

Status AggregatorServer::Expire(const std::string& job, uint32_t epoch) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(const LeaseGrant* const held, Find(job, epoch));
  WEIR_RETURN_IF_ERROR(End(*held));
  leases_.erase(job);
  return OkStatus();
}

namespace {

void FillIn(TimePoint now, const std::optional<OpenRound>& round,
            const std::optional<TimePoint>& used_at, LeaseStatus* status) {
  status->idle = now - used_at.value_or(status->grant.granted_at);
  if (!round.has_value()) return;
  status->oldest = StalledRound{.round = *round, .age = now - round->opened_at, .missing = {}};
  for (int w = 0; w < status->grant.lease.workers; ++w) {
    if ((round->missing >> w & 1) != 0) status->oldest->missing.push_back(w);
  }
}

}  // namespace

StatusOr<std::vector<LeaseStatus>> AggregatorServer::Leases() {
  MutexLock lock(mutex_);
  std::vector<LeaseStatus> all;
  for (const auto& [job, grant] : leases_)
    all.push_back({.grant = grant, .oldest = {}, .idle = {}});
  for (size_t s = 0; s < shards_.size(); ++s) {
    WEIR_RETURN_IF_ERROR(shards_[s]->Call([&all, s](Aggregator* aggregator) {
      const TimePoint now = RealClock().Now();
      for (LeaseStatus& status : all) {
        if (static_cast<size_t>(status.grant.shard) != s) continue;
        const uint16_t id = status.grant.lease.id;
        FillIn(now, aggregator->OldestOpenRound(id), aggregator->LastUsed(id), &status);
      }
      return OkStatus();
    }));
  }
  return all;
}

StatusOr<std::vector<ShardStatus>> AggregatorServer::Shards() {
  MutexLock lock(mutex_);
  std::vector<ShardStatus> all(shards_.size());
  for (size_t s = 0; s < shards_.size(); ++s) {
    all[s].address = shards_[s]->address();
    WEIR_ASSIGN_OR_RETURN(all[s].counters, shards_[s]->Counters());
  }
  for (const auto& [job, grant] : leases_) {
    ShardStatus& shard = all[static_cast<size_t>(grant.shard)];
    shard.slots_granted += grant.range.count;
    ++shard.leases;
  }
  return all;
}

std::string Describe(const LeaseGrant& grant, const StalledRound& stalled) {
  constexpr size_t kNamed = 8;
  std::string text = StrCat("job ", grant.job, ": round ", stalled.round.round, " of slot ",
                            stalled.round.slot, " (operation ", stalled.round.operation,
                            ") has waited ", ToSeconds(stalled.age), " s for");
  for (size_t i = 0; i < std::min(kNamed, stalled.missing.size()); ++i) {
    const int worker = stalled.missing[i];
    text += StrCat(i == 0 ? " worker " : ", worker ", worker, " at ",
                   AddressText(grant.workers[static_cast<size_t>(worker)]));
  }
  if (stalled.missing.size() > kNamed) {
    text += StrCat(" and ", stalled.missing.size() - kNamed, " others");
  }
  return text;
}

}  // namespace weir::aggregation
