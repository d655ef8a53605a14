// SPDX-License-Identifier: Apache-2.0
// Buckets that the session's caller sums over a process group of its own, because the plan says so.
// They do not pass through the pipeline: the caller begins each of them in its place among the
// other operations, sums, and says how that went. What an all-reduce of the session does beside
// summing is done all the same. The residual goes into the sum. One message to every rank in front
// of the first sum carries the announcement of a plan, shows that all ranks run the same step of
// the same plan, and names a rank that is missing. A step with NaN or infinity is skipped, and
// results are hashed for the comparison of replicas.

#include "datapath/base/json.h"
#include "datapath/session/session.h"

namespace weir {
namespace {

// How long a rank whose process group has failed looks for another rank's failure.
constexpr Duration kCauseAwaited = std::chrono::seconds(1);

}  // namespace

StatusOr<CallerSumNeeds> Session::NeedsOf(uint64_t bucket_key) {
  WEIR_RETURN_IF_ERROR(failure());
  if (!step_open_) return FailedPrecondition("no step is open");
  CallerSumNeeds needs;
  if (!callers_sum_) return needs;
  const Bucket* bucket;
  {
    MutexLock lock(mutex_);
    WEIR_ASSIGN_OR_RETURN(bucket, buckets_.Find(bucket_key));
  }
  WEIR_ASSIGN_OR_RETURN(const Collective* const collective,
                        Collectives().Find(EffectiveChoice(*plan_, *bucket).collective));
  if (!collective->Traits().by_caller) return needs;
  needs.by_caller = true;
  needs.residual = residuals_->HasResidual(bucket_key);
  needs.sample = Samples(kCallerGainCurveEverySteps);
  needs.hash = compares() && !bucket->sharded;
  return needs;
}

Status Session::BeginSum(uint64_t bucket, void* data, std::function<void(const Status&)> done) {
  return OrFail([&]() -> Status {
    WEIR_ASSIGN_OR_RETURN(Operation* const op, Admit(bucket, std::move(done)));
    if (!op->collective->Traits().by_caller) {
      return Refuse(
          FailedPrecondition(StrCat("bucket ", Hex64(bucket), ": the plan has Weir sum it (",
                                    op->choice.codec, ", ", op->choice.collective, ")")));
    }
    op->by_caller = true;
    op->hashed = op->hashed && !op->bucket->sharded;
    op->sample_statistics = data != nullptr && Samples(kCallerGainCurveEverySteps);
    const Status prepared = stages_->PrepareForCaller(*op, data);
    if (!prepared.ok()) return Refuse(prepared);
    if (op->index == 0) {
      const Status started = StartRound(*op, kFirstRoundIndex, false);
      if (!started.ok()) return Refuse(started);
    }
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    caller_sums_.push_back(op);
    ++outstanding_;
    pipeline_->Watch(true);
    return OkStatus();
  });
}

Status Session::EndSum(uint64_t bucket, const CallerSum& sum) {
  Operation* op;
  {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find(caller_sums_, bucket,
                                         [](const Operation* one) { return one->bucket->key; });
    if (found == caller_sums_.end()) {
      if (!failure_.ok()) return failure_;
      return FailedPrecondition(StrCat("bucket ", Hex64(bucket), ": its sum was not begun"));
    }
    op = *found;
    caller_sums_.erase(found);
  }
  const TimePoint ended = RealClock().Now() - sum.ended_ago;
  // The caller's group does not tell, so these are the bytes that the prior of its cost says.
  op->bytes_sent = static_cast<uint64_t>(op->collective->Traits().cost.payload.At(options_.world) *
                                         static_cast<double>(op->outcome.payload_bytes));
  op->outcome.network = sum.network;
  op->outcome.non_finite = !sum.finite;
  op->times.network_begin = ended - sum.network;
  if (sum.since_ready > Duration(0)) op->times.submitted = ended - sum.since_ready;
  op->times.delivered = ended;
  if (!sum.status.ok()) {
    pipeline_->Watch(true);  // until the cause is known
    op->status =
        CauseOf(Annotate(sum.status, StrCat("rank ", options_.rank, ": step ", op->step, " bucket ",
                                            Hex64(bucket), " (", op->choice.collective, ")")));
    pipeline_->Watch(false);
    FailAndTell(op->status);
  } else if (op->hashed && sum.sum != nullptr) {
    const size_t bytes = op->bucket->elements * DtypeBytes(op->bucket->dtype);
    op->hash = HashBytes({static_cast<const std::byte*>(sum.sum), bytes});
  }
  const Status outcome = op->status;
  Delivered(*op);
  return outcome;
}

// A process group fails on all ranks when one of them dies, and seldom names it. The session does.
Status Session::CauseOf(Status failed) {
  const TimePoint deadline = RealClock().Now() + kCauseAwaited;
  MutexLock lock(mutex_);
  while (failure_.ok() && all_delivered_.WaitUntil(mutex_, deadline)) continue;
  return failure_.ok() ? failed : failure_;
}

void Session::LookAtPeers() {
  const Status status =
      Caught([&] { return transport_->WaitAny({}, RealClock().Now()).status(); }, no_memory_);
  if (status.ok()) return;
  Fail(status);
  AbortTransport();
}

Status Session::StartRound(const Operation& beside, uint64_t index, bool non_finite) {
  Operation& round = index == kFirstRoundIndex ? first_round_ : last_round_;
  round = Operation();
  round.step = beside.step;
  round.index = index;
  round.plan = beside.plan;
  round.lateness_allowed = beside.lateness_allowed;
  round.control = [this, &round, non_finite,
                   collective = beside.collective](Group& group) -> Status {
    CallerSumOperand operand{.non_finite = non_finite};
    const Status status = RunCollective(*collective, group, operand).status();
    if (round.index == kLastRoundIndex) non_finite_somewhere_ = operand.non_finite;
    return Annotate(status, StrCat("step ", round.step, " (", collective->Traits().name, ")"));
  };
  return Submit(&round);
}

Status Session::SetSharded(uint64_t bucket_key) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, buckets_.Find(bucket_key));
  buckets_changed_ = buckets_changed_ || !bucket->sharded;
  bucket->sharded = true;
  return OkStatus();
}

Status Session::AgreeOnFinite() {
  const Operation* last = nullptr;
  bool non_finite = false;
  for (const Operation& op : operations_) {
    if (!op.by_caller || !op.bucket->sharded) continue;
    last = &op;
    non_finite = non_finite || op.outcome.non_finite;
  }
  if (last == nullptr || !failure().ok()) return OkStatus();
  WEIR_RETURN_IF_ERROR(StartRound(*last, kLastRoundIndex, non_finite));
  return AwaitOperations();
}

Status Session::AwaitCallerSums() {
  Status late;
  {
    MutexLock lock(mutex_);
    if (caller_sums_.empty()) return OkStatus();
    const Duration allowed = options_.operation_timeout + caller_sums_.front()->lateness_allowed;
    // The message in front of the sums has the same time, and its error names a rank.
    const TimePoint deadline = RealClock().Now() + allowed + kCauseAwaited;
    while (!caller_sums_.empty() && all_delivered_.WaitUntil(mutex_, deadline)) continue;
    if (caller_sums_.empty()) return OkStatus();
    late = DeadlineExceeded(StrCat("rank ", options_.rank, ": step ", next_step_ - 1, " bucket ",
                                   Hex64(caller_sums_.front()->bucket->key),
                                   ": the caller's process group has not summed it after ",
                                   ToSeconds(allowed), " s"));
  }
  FailAndTell(late);
  return OkStatus();
}

}  // namespace weir
