// SPDX-License-Identifier: Apache-2.0
// The parts of Session that do not run on the caller's thread: the pipeline's stages, failure, and
// messages to and from the agent.

#include <unistd.h>

#include "datapath/base/caught.h"
#include "datapath/base/log.h"
#include "datapath/base/version.h"
#include "datapath/session/session.h"

namespace weir {

// --- Pipeline stages
// --------------------------------------------------------------------------------

void Session::PreparePart(Operation& op) {
  if (failed_.load() || op.control) return;  // MovePart reports a failure
  op.status = Caught([&] { return stages_->Prepare(op); }, no_memory_);
  // The session fails before another part moves, because whether this part joins others is unknown.
  if (!op.status.ok()) FailAndTell(op.status);
}

ReadyCount Session::MovePart(std::span<Operation* const> ops, int ready) {
  ReadyCount heard{.count = ready};
  // An exception destroys buffers on its way here while the transport still refers to them.
  Buffers buffers = Buffers::kAlive;
  if (!failed_.load()) {
    buffers = Buffers::kGone;
    const Status status = Caught(
        [&] {
          Status run = RunOnNetwork(ops, &heard);
          buffers = Buffers::kAlive;
          return run;
        },
        no_memory_);
    if (status.ok()) return heard;
    Fail(status);
  }
  AbortTransport(buffers);  // the other ranks wait for this one's part
  for (Operation* const op : ops) {
    op->status = failure();
    op->more = false;
  }
  return {};
}

Status Session::RunOnNetwork(std::span<Operation* const> ops, ReadyCount* ready) {
  Operation& first = *ops.front();
  if (!first.control && first.exchange == nullptr) return OkStatus();  // nothing moves
  // A comparison, and what goes before sums of callers, runs at the start of a step. It waits for
  // late ranks as long as the first bucket does, and its end does not show that they have begun
  // their backward pass.
  if (first.control) {
    WEIR_RETURN_IF_ERROR(
        RunWithin(ops, options_.operation_timeout + first.lateness_allowed, ready));
    ready->everywhere = true;
  } else {
    const int part = first.exchange->part();
    const bool reaches_all = first.exchange->reaches_all();
    const Duration allowed =
        adaptive_deadline_.Begin(first.step, {first.bucket->key, part},
                                 AdaptiveDeadlineKey(first.choice), RealClock().Now()) +
        first.lateness_allowed;
    Status status = RunWithin(ops, allowed, ready);
    if (status.code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded(StrCat(Message(status), adaptive_deadline_.Explain()));
    }
    WEIR_RETURN_IF_ERROR(status);
    adaptive_deadline_.Finish(RealClock().Now(), reaches_all);
    ready->everywhere = reaches_all;
  }
  if (ready->everywhere && first.step != confirmed_step_) {
    // Every rank took part in the operation, so every rank has ended the step before.
    confirmed_step_ = first.step;
    residuals_->Confirm();
  }
  return OkStatus();
}

Status Session::RunWithin(std::span<Operation* const> ops, Duration allowed, ReadyCount* ready) {
  Operation& first = *ops.front();
  ControlWord word;
  {
    MutexLock lock(mutex_);
    word = activation_.announced();
  }
  const size_t segment_bytes =
      first.choice.segment_bytes != 0 ? first.choice.segment_bytes : kSegmentBytesDefault;
  Group group(*transport_, segment_bytes, &scratch_);
  group.SetNodes(nodes_);
  group.SetDevices(device_group_.get());
  group.SetRing(first.plan->ring_order);
  group.SetShards(first.plan->shard_shares);
  group.SetOffload(aggregators_.OffloadOf(*first.plan, first.choice.collective));
  OperationId id{first.plan->version, OperationSequence(first, 0), 0};
  uint16_t flags = ReadyFlags(ready->count);
  if (!first.control) {
    id.op_sequence = OperationSequence(first, first.exchange->part());
    id.bucket = first.bucket->key;
    flags |= first.exchange->flags();
  }
  group.Begin(id, word, flags, RealClock().Now() + allowed);
  WEIR_RETURN_IF_ERROR(first.control ? first.control(group) : stages_->Move(ops, group));
  ready->count = ReadyOperations(group.flags());
  MutexLock lock(mutex_);
  return activation_.OnOperationDone(group.control());
}

void Session::DecodeOperation(Operation& op) {
  if (op.status.ok() && !op.control) {
    op.status = Caught(
        [&] {
          WEIR_RETURN_IF_ERROR(stages_->Decode(op));
          return op.hashed ? stages_->Hash(op) : OkStatus();
        },
        no_memory_);
    if (!op.status.ok()) FailAndTell(op.status);
  }
  Delivered(op);
}

void Session::Delivered(Operation& op) {
  // Whatever has become of the operation, it does not use the data any more.
  if (op.by_caller) pipeline_->Watch(false);
  op.device.reset();
  op.staged.Release();
  // The caller's sum says itself when it ended.
  if (op.times.delivered == TimePoint{}) op.times.delivered = RealClock().Now();
  if (op.done) (void)Caught([&] { op.done(op.status); });
  op.done = nullptr;
  MutexLock lock(mutex_);
  --outstanding_;
  all_delivered_.NotifyAll();
}

// --- Failure
// ----------------------------------------------------------------------------------------

void Session::Fail(const Status& status) {
  uint64_t step;
  std::vector<Operation*> caller_sums;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    step = activation_.step();
    failed_.store(true);
    caller_sums.swap(caller_sums_);
  }
  for (Operation* const op : caller_sums) {
    op->status = status;
    Delivered(*op);
  }
  all_delivered_.NotifyAll();
  if (status.code() == StatusCode::kAborted && closed_.load()) return;
  (void)Caught([&] {
    Log(LogLevel::kError, "session", StrCat(name_, ": ", ToString(status)));
    Tell(RankEvent{"peer_failed", ToString(status), step,
                   GuiltyRank(Message(status), options_.rank)});
  });
}

void Session::FailAndTell(const Status& status) noexcept {
  Fail(status);
  pipeline_->Nudge();  // the network thread tells the other ranks
}

void Session::OnOffloadFailed(const std::string& detail) {
  uint64_t step;
  {
    MutexLock lock(mutex_);
    step = activation_.step();
  }
  Log(LogLevel::kWarning, "session",
      StrCat(name_, ": ", detail,
             "; the ranks sum among themselves until another lease is granted"));
  Tell(RankEvent{"offload_failed", detail, step, -1});
}

void Session::AbortTransport(Buffers buffers) {
  if (transport_aborted_) return;
  transport_aborted_ = true;
  const auto abort = [&] {
    const std::string reason = Message(failure());
    buffers == Buffers::kGone ? transport_->Abandon(reason) : transport_->Abort(reason);
  };
  // The text needs memory, too. Without it, peers see their connections end and name this rank.
  if (!Caught(abort).ok()) (void)Caught(abort);
}

// --- The agent
// --------------------------------------------------------------------------------------

void Session::Tell(RankMessage message) {
  if (agent_ != nullptr) agent_->Send(std::move(message));
}

std::vector<RankMessage> Session::Greeting() {
  RankHello hello;
  hello.job = options_.job;
  hello.labels = options_.labels;
  hello.rank = options_.rank;
  hello.world = options_.world;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.library_version = kLibraryVersion;
  hello.datapath_address = address_;
  hello.aggregation_address = aggregators_.address();
  if (!nodes_.empty()) hello.lowest_rank = nodes_[static_cast<size_t>(options_.rank)];
  hello.epoch = options_.epoch;
  hello.caller_sums = callers_sum_;
  hello.local_steps = options_.local_steps;
  if (options_.job_key.has_value()) {
    hello.protection = options_.encrypt ? Protection::kEncrypted : Protection::kAuthenticated;
  }
  if (options_.measure_codecs) {
    Device* const device = options_.device;
    if (device == nullptr) {
      hello.codec_timings = &CodecTimings();
    } else {
      hello.device_timings = &CodecTimingsOn(*device);
    }
  }
  hello.device_linked = device_group_ != nullptr;
  MutexLock lock(mutex_);
  hello.active_plan = activation_.active();
  hello.active_plan_version = hello.active_plan->version;
  hello.step = stats_.step;
  if (transport_ != nullptr) hello.unauthenticated_peers = transport_->unauthenticated_peers();
  std::vector<RankMessage> messages;
  messages.emplace_back(std::move(hello));
  BucketTable table = buckets_.Describe();
  if (!table.buckets.empty()) messages.emplace_back(std::move(table));
  return messages;
}

std::string Session::Stance() {
  MutexLock lock(mutex_);
  const uint64_t version = activation_.active()->version;
  if (version == 0) return "running dense";
  if (lease_ == Duration(0) || activation_.lease_plan() == nullptr) {
    return StrCat("keeping plan ", version);
  }
  return StrCat("keeping plan ", version, " for ", ToSeconds(lease_), " s, then dense");
}

void Session::TellLapse(uint64_t step) {
  const std::string what =
      StrCat("the plan's lease ran out without a word of the controller: dense, plan ",
             plan_->version, ", from step ", step);
  Log(LogLevel::kWarning, "session", StrCat(name_, ": ", what));
  if (options_.rank == 0) Tell(RankEvent{"lease_expired", what, step, -1});
}

void Session::OnCommand(RankCommand command) {
  if (auto* offer = std::get_if<PlanOffer>(&command)) {
    OnOffer(std::move(*offer));
  } else if (const auto* arm = std::get_if<PlanArm>(&command)) {
    std::optional<ActivationReply> reply;
    {
      MutexLock lock(mutex_);
      reply = activation_.OnArm(arm->version);
    }
    if (reply.has_value()) std::visit([this](auto& message) { Tell(message); }, *reply);
  } else if (const auto* withdraw = std::get_if<PlanWithdraw>(&command)) {
    MutexLock lock(mutex_);
    activation_.OnWithdraw(withdraw->version);
  } else if (const auto* lease = std::get_if<PlanLease>(&command)) {
    MutexLock lock(mutex_);
    lease_ = lease->lease_s > 0 ? std::max(FromSeconds(lease->lease_s), options_.lease_min)
                                : Duration(0);
    lease_renewed_ = RealClock().Now();
  }
}

void Session::OnOffer(PlanOffer offer) {
  if (!offer.plan.ok()) {
    Tell(PlanNack{offer.version, offer.nonce, ToString(offer.plan.status())});
    return;
  }
  PlanLimits limits;
  limits.job = options_.job;
  limits.world = options_.world;
  {
    MutexLock lock(mutex_);
    limits.buckets = buckets_.Sizes();
  }
  limits.memory_bytes_max = options_.plan_memory_bytes_max != 0 ? options_.plan_memory_bytes_max
                                                                : AvailableMemoryBytes() / 2;
  limits.residual_bytes_held = residuals_->MemoryBytes();
  limits.encode_workers = options_.encode_workers;
  limits.local_steps = options_.local_steps;
  limits.caller_sums = callers_sum_;
  Status valid = ValidatePlan(*offer.plan, limits);
  std::shared_ptr<const Plan> lease;
  if (offer.lease_plan.has_value()) {
    if (valid.ok()) valid = Annotate(ValidatePlan(*offer.lease_plan, limits), "lease plan");
    lease = std::make_shared<const Plan>(std::move(*offer.lease_plan));
  }
  auto plan = std::make_shared<const Plan>(std::move(*offer.plan));
  ActivationReply reply;
  {
    MutexLock lock(mutex_);
    reply = activation_.OnOffer(std::move(plan), offer.nonce, valid, std::move(lease));
  }
  if (const auto* nack = std::get_if<PlanNack>(&reply)) {
    Log(LogLevel::kWarning, "session",
        StrCat(name_, ": refused plan ", nack->version, ": ", nack->reason));
  }
  std::visit([this](auto& message) { Tell(message); }, reply);
}

// --- Telemetry (the caller's thread, at a step's begin)
// ----------------------------------------------

void Session::FinishReport(TimePoint now) {
  if (!report_pending_) return;
  report_pending_ = false;
  report_.step_s = ToSeconds(now - times_.begin);
  {
    MutexLock lock(mutex_);
    stats_.last_step_s = report_.step_s;
  }
  if (agent_ == nullptr || !agent_->connected()) return;
  report_.arrivals = InTurn(transport_->TakeArrivals(), report_.step);
  Tell(std::move(report_));
  TellPaths(now);
}

void Session::TellPaths(TimePoint now) {
  if (now - paths_told_ < PathReportInterval(options_.world)) return;
  paths_told_ = now;
  PathReport report;
  report.paths = transport_->Samples();
  report.addresses = addresses_;
  if (!report.paths.empty()) Tell(std::move(report));
}

}  // namespace weir
