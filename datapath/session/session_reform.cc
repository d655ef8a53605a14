// SPDX-License-Identifier: Apache-2.0
// How a job continues in a new mesh: what a session takes over from its predecessor, and what all
// ranks of the new mesh agree on before their first step.
//
// The ranks of a mesh that fails may differ in which step was their last. An all-reduce may have
// ended on some of them and not on others, so some have completed step s, applied it to their model
// and committed its residuals, and others have not. They are never more than one step apart: an
// operation of step s+1 needs the part of every rank, so no rank completes it while another has yet
// to complete step s.
//
// A step that is not complete on all ranks is void on all ranks. The ranks that lack it cannot
// complete it with the help of the others, because under a shared index or EF21 they need more than
// the sum. So the ranks that completed it go back. Their residuals and momenta return to what they
// were before the commit, which the ResidualStore keeps until a part of the next step has involved
// all ranks. Their callers take the model of a rank that did not complete the step. Then the ranks
// of the new mesh repeat the step. Thus every gradient plus residual is delivered or kept, exactly
// once.
//
// Not kept are the residuals of lost ranks (an error of the size of one of their steps), codecs'
// states (thresholds, warm starts) and the memory of EF21. The latter two have to be equal on all
// ranks and hold no part of a gradient that is still to be delivered.

#include <algorithm>
#include <array>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/log.h"
#include "datapath/collective/primitives.h"
#include "datapath/session/session.h"

namespace weir {
namespace {

// Numbers that no operation of a step has.
constexpr uint64_t kStartSequence = UINT64_MAX;
constexpr uint64_t kAgreeSequence = UINT64_MAX - 1;
constexpr size_t kStandingBytes = 16;

}  // namespace

struct Session::Standing {
  /// Founders were created in epoch 0, but their mesh was never connected.
  enum Kind : uint64_t { kNewcomer = 0, kSurvivor = 1, kFounder = 2 };
  uint64_t steps_done = 0;
  uint64_t kind = kNewcomer;
};

// Memory is allocated first, so that the former session keeps everything on an exception.
void Session::Inherit(Session& former) {
  auto stages = std::make_unique<OperationStages>(StageOptions(), *former.residuals_, RealClock());
  std::vector<Bucket*> live;
  {
    MutexLock theirs(former.mutex_);
    live = former.buckets_.Live();
    MutexLock lock(mutex_);
    activation_.StartFrom(former.activation_.active());
  }
  // This drops what an incomplete last step of the former session wrote.
  former.residuals_->Discard();
  former.residuals_->ForgetEf21();
  residuals_ = std::move(former.residuals_);
  stages_ = std::move(stages);
  steps_done_ = former.steps_done_;
  survivor_ = former.survivor_;
  founder_ = former.founder_;
  next_step_ = steps_done_;
  former.operations_.clear();
  for (Bucket* bucket : live) bucket->codec_memory = {};
  buckets_changed_ = true;
  MutexLock theirs(former.mutex_);
  MutexLock lock(mutex_);
  buckets_ = std::exchange(former.buckets_, BucketRegistry());
  stats_ = former.stats_;
  former_bytes_sent_ = stats_.bytes_sent;
  stats_.epoch = options_.epoch;
  stats_.peers_shared_memory = 0;
  stats_.next_step = next_step_;
  stats_.model_source = -1;
}

Status Session::Agree(TimePoint deadline) {
  std::vector<std::byte> own(kStandingBytes);
  ByteWriter writer(own);
  writer.Write(steps_done_);
  writer.Write(uint64_t{survivor_  ? Standing::kSurvivor
                        : founder_ ? Standing::kFounder
                                   : Standing::kNewcomer});
  std::vector<std::byte> bytes(kStandingBytes * static_cast<size_t>(options_.world));
  Group group(*transport_);
  group.Begin({0, kAgreeSequence, 0}, {}, 0, deadline);
  WEIR_RETURN_IF_ERROR(SmallAllGather(group, own, bytes));
  std::vector<Standing> all(static_cast<size_t>(options_.world));
  ByteReader reader(bytes);
  for (Standing& standing : all) {
    WEIR_RETURN_IF_ERROR(reader.Read(&standing.steps_done));
    WEIR_RETURN_IF_ERROR(reader.Read(&standing.kind));
  }
  int source = -1;
  for (const uint64_t kind : {Standing::kSurvivor, Standing::kFounder}) {
    if (source >= 0) break;
    for (int rank = 0; rank < options_.world; ++rank) {
      if (all[rank].kind != kind) continue;
      if (source < 0 || all[rank].steps_done < all[source].steps_done) source = rank;
    }
  }
  if (source < 0) {
    return FailedPrecondition(StrCat(
        "epoch ", options_.epoch, ": no rank has anything to go on from; a job begins in epoch 0"));
  }
  const uint64_t resume = all[source].steps_done;
  for (int rank = 0; rank < options_.world; ++rank) {
    if (all[rank].kind == Standing::kSurvivor && all[rank].steps_done > resume + 1) {
      return Internal(StrCat("rank ", rank, " completed ", all[rank].steps_done, " steps and rank ",
                             source, " ", resume, ": expected at most one more"));
    }
  }
  WEIR_RETURN_IF_ERROR(TakePlan(group, all, source));
  aggregators_.Disown(*ActivePlan());
  agreement_pending_ = true;
  next_step_ = resume;
  const bool undo = survivor_ && steps_done_ > resume;
  Log(LogLevel::kInfo, "session",
      StrCat(name_, ": epoch ", options_.epoch, ", ", options_.world, " ranks go on with step ",
             resume, undo ? ", which others did not complete" : ""));
  MutexLock lock(mutex_);
  stats_.next_step = next_step_;
  stats_.model_source = source;
  stats_.plan_version = activation_.active()->version;
  return OkStatus();
}

// Gives all ranks the plan of `source`. Nothing is sent if that rank runs dense, without a plan.
Status Session::TakePlan(Group& group, const std::vector<Standing>& all, int source) {
  PlanLimits limits;
  limits.job = options_.job;
  limits.world = static_cast<int>(all.size());
  limits.local_steps = options_.local_steps;
  limits.caller_sums = options_.caller_sums;
  std::string text;
  if (options_.rank == source) {
    const std::shared_ptr<const Plan> plan = ActivePlan();
    {
      MutexLock lock(mutex_);
      limits.buckets = buckets_.Sizes();
    }
    const Status valid = ValidatePlan(*plan, limits);
    if (valid.ok() && plan->version != 0) text = PlanToJson(*plan);
    if (!valid.ok()) {
      Log(LogLevel::kWarning, "session",
          StrCat(name_, ": plan ", plan->version, " cannot run on ", options_.world,
                 " ranks, so all run dense: ", ToString(valid)));
    }
  }
  std::vector<std::byte> received;
  WEIR_RETURN_IF_ERROR(
      BinomialBroadcast(group, source, std::as_bytes(std::span(text)), kPlanBytesMax, &received));
  if (options_.rank != source) {
    text.assign(reinterpret_cast<const char*>(received.data()), received.size());
  }
  auto plan = std::make_shared<Plan>();
  if (!text.empty()) {
    StatusOr<Plan> parsed = ParsePlan(text, UnknownKeys::kIgnore);
    if (!parsed.ok()) {
      return group.Fail(Annotate(parsed.status(), StrCat("the plan of rank ", source)));
    }
    *plan = std::move(*parsed);
  }
  MutexLock lock(mutex_);
  activation_.StartFrom(std::move(plan));
  return OkStatus();
}

// The plan's digest takes the place of the bucket in the operation's number, so that ranks with
// different plans find a mismatch here and not in the middle of training.
Status Session::CheckStart(TimePoint deadline) {
  Group group(*transport_);
  const std::shared_ptr<const Plan> plan = ActivePlan();
  group.Begin({plan->version, kStartSequence, PlanDigest(*plan)}, {}, 0, deadline);
  const Status status = LearnNodes(group);
  if (status.code() != StatusCode::kInternal) return status;
  return Annotate(status, "ranks start from different plans; give all the same plan file");
}

// Called when the caller begins a step. Until then the mesh may fail again, and a rank must still
// be able to report which steps its model has seen.
Status Session::ApplyAgreement() {
  if (!agreement_pending_) return OkStatus();
  if (survivor_ && steps_done_ > next_step_) WEIR_RETURN_IF_ERROR(residuals_->Undo());
  agreement_pending_ = false;
  survivor_ = true;
  steps_done_ = next_step_;
  return OkStatus();
}

}  // namespace weir
