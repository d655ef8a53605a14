// SPDX-License-Identifier: Apache-2.0
#include "controller/store/etcd/election.h"

#include <pthread.h>

#include <algorithm>

#include "controller/store/etcd/fields.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(100);
constexpr Duration kLookInterval = std::chrono::seconds(5);  // at the member's size and alarms

}  // namespace

std::string LeaderKey(const EtcdOptions& etcd) { return etcd.prefix + "/leader"; }

EtcdElection::EtcdElection(ElectionOptions options)
    : options_(std::move(options)), key_(LeaderKey(options_.etcd)), client_(options_.etcd) {
  store_ = Unavailable("etcd has not answered yet");
}

EtcdElection::~EtcdElection() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void EtcdElection::Start(const ControllerAddress& own) {
  value_ = JoinFields({options_.identity, own.grpc, own.http});
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "weir-election");
}

std::optional<Tenure> EtcdElection::tenure() const {
  MutexLock lock(mutex_);
  if (!tenure_.has_value() || RealClock().Now() >= tenure_->until) return std::nullopt;
  return tenure_;
}

LeadershipView EtcdElection::view() const {
  MutexLock lock(mutex_);
  LeadershipView out;
  out.leads = tenure_.has_value() && RealClock().Now() < tenure_->until;
  if (out.leads || !tenure_.has_value()) out.leader = leader_;
  out.store = store_;
  out.revision = revision_;
  out.changes = changes_;
  out.store_bytes = store_bytes_;
  return out;
}

void EtcdElection::Resign(uint64_t term, const std::string& why) {
  MutexLock lock(mutex_);
  if (!tenure_.has_value() || tenure_->term != term) return;
  tenure_->until = TimePoint{};
  resigned_until_ = RealClock().Now() + options_.resigned_pause;
  resigned_why_ = why;
  wake_.NotifyAll();
}

void EtcdElection::Loop() {
  while (true) {
    bool leads = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) break;
      leads = tenure_.has_value();
    }
    const Duration pause = leads ? Renew() : Compete();
    const TimePoint until = RealClock().Now() + pause;
    MutexLock lock(mutex_);
    while (!stopping_ && wake_.WaitUntil(mutex_, until)) {
      if (tenure_.has_value() && tenure_->until == TimePoint{}) break;  // resigned
    }
  }
  ReturnLease();
}

// Remembers whether etcd answered. A leader that is no longer heard of is forgotten.
void EtcdElection::Settle(const Status& answered) {
  const Status contact = answered.ok() ? alarm_ : answered;
  MutexLock lock(mutex_);
  const bool was = store_.ok();
  store_ = contact;
  const TimePoint now = RealClock().Now();
  if (answered.ok()) {
    contact_ = now;
  } else if (!tenure_.has_value() && now - contact_ > std::chrono::seconds(options_.lease_s)) {
    leader_.reset();
  }
  if (was == contact.ok()) return;
  if (contact.ok()) {
    Log(LogLevel::kInfo, "controller", "the shared store answers");
  } else {
    Log(LogLevel::kError, "controller",
        StrCat("the shared store cannot be used: ", Message(contact),
               "; jobs go on with the plans that they have"));
  }
}

// Looks who leads, and tries to lead if nobody does.
Duration EtcdElection::Compete() {
  ReturnLease();
  const auto found = client_.Range({.key = key_}, RealClock().Now() + kEtcdCallMax);
  Settle(found.status());
  if (!found.ok()) return kRetry;
  if (!found->rows.empty()) {
    const EtcdRow& row = found->rows.front();
    const auto fields = SplitFields(row.value, 3);
    std::optional<ControllerAddress> leader;
    if (fields.ok()) leader = ControllerAddress{(*fields)[1], (*fields)[2]};
    MutexLock lock(mutex_);
    leader_ = leader;
    revision_ = found->revision;
    // A lease of this process whose return was not confirmed.
    if (fields.ok() && (*fields)[0] == options_.identity) lease_ = row.lease;
    return options_.poll_interval;
  }
  {
    MutexLock lock(mutex_);
    leader_.reset();
    if (RealClock().Now() < resigned_until_) return options_.poll_interval;
  }
  const Status led = TryToLead();
  if (!led.ok()) {
    Settle(led);
    return kRetry;
  }
  KeepSmall();
  return options_.renew_interval;
}

Status EtcdElection::TryToLead() {
  // The lease cannot begin before it is asked for.
  const TimePoint asked = RealClock().Now();
  WEIR_ASSIGN_OR_RETURN(const EtcdClient::Lease lease,
                        client_.GrantLease(options_.lease_s, asked + kEtcdCallMax));
  lease_ = lease.id;
  lease_lasts_ = std::chrono::seconds(lease.ttl_s);
  WEIR_ASSIGN_OR_RETURN(
      const EtcdOutcome outcome,
      client_.Commit({{.key = key_}}, {EtcdPut{key_, value_, lease_}}, {}, asked + kEtcdCallMax));
  if (!outcome.succeeded) return OkStatus();  // another one was faster
  const auto fields = SplitFields(value_, 3);
  MutexLock lock(mutex_);
  tenure_ = Tenure{static_cast<uint64_t>(outcome.revision), asked + lease_lasts_};
  leader_ = ControllerAddress{(*fields)[1], (*fields)[2]};
  ++changes_;
  Log(LogLevel::kInfo, "controller", StrCat("this controller leads, term ", outcome.revision));
  return OkStatus();
}

Duration EtcdElection::Renew() {
  const TimePoint asked = RealClock().Now();
  TimePoint until;
  {
    MutexLock lock(mutex_);
    until = tenure_->until;
  }
  if (until == TimePoint{}) {
    std::string why;
    {
      MutexLock lock(mutex_);
      why = resigned_why_;
    }
    EndTenure(why);
    return Duration(0);
  }
  if (asked >= until) {
    EndTenure("the lease ran out before it could be renewed");
    return Duration(0);
  }
  const auto left = client_.KeepAlive(lease_, std::min(asked + kEtcdCallMax, until));
  Settle(left.status());
  if (!left.ok()) return kRetry;
  if (*left <= 0) {
    lease_ = 0;
    EndTenure("etcd has ended the lease");
    return Duration(0);
  }
  {
    MutexLock lock(mutex_);
    if (tenure_->until != TimePoint{}) tenure_->until = asked + lease_lasts_;
  }
  KeepSmall();
  return options_.renew_interval;
}

void EtcdElection::EndTenure(const std::string& why) {
  alarm_ = OkStatus();  // only a leader looks for alarms
  MutexLock lock(mutex_);
  tenure_.reset();
  leader_.reset();
  ++changes_;
  Log(LogLevel::kWarning, "controller", StrCat("this controller no longer leads: ", why));
}

// Ends a lease that is not needed, so that nobody waits for its end.
void EtcdElection::ReturnLease() {
  if (lease_ == 0) return;
  if (client_.Revoke(lease_, RealClock().Now() + kEtcdCallMax).code() != StatusCode::kUnavailable) {
    lease_ = 0;
  }
}

// Every overwritten value stays in etcd until it is compacted.
void EtcdElection::KeepSmall() {
  const TimePoint now = RealClock().Now();
  if (now - looked_at_ < std::min(kLookInterval, options_.compact_interval)) return;
  looked_at_ = now;
  const auto member = client_.Member(now + kEtcdCallMax);
  if (!member.ok()) return;
  alarm_ = member->alarms.empty()
               ? OkStatus()
               : ResourceExhausted(StrCat("etcd refuses writes: ", member->alarms));
  {
    MutexLock lock(mutex_);
    store_bytes_ = member->db_bytes;
  }
  if (now < next_compaction_) return;
  next_compaction_ = now + options_.compact_interval;
  if (compact_to_ > 0) {
    const Status compacted = client_.Compact(compact_to_, RealClock().Now() + kEtcdCallMax);
    if (!compacted.ok() && Message(compacted).find("compacted") == std::string::npos) {
      Log(LogLevel::kWarning, "controller", StrCat("etcd not compacted: ", Message(compacted)));
    }
  }
  compact_to_ = member->revision;
}

}  // namespace weir
