// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/session.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "datapath/base/caught.h"
#include "datapath/base/check.h"
#include "datapath/base/json.h"
#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "datapath/collective/primitives.h"
#include "datapath/transport/options.h"

namespace weir {
namespace {

// The number of an operation consists of its step, its position in the step and its part. A rank
// that lost count of steps or operations finds a mismatch and never takes another operation's
// bytes.
constexpr int kIndexShift = 3;
constexpr int kStepShift = 20;

// If a step spans many steps of the optimiser, another rank may be late by this many times the time
// that this rank took, because no fixed deadline fits periods of any length.
constexpr int kPeriodsLate = 8;

// The collective of dense sums if there is no plan and all ranks have staging buffers.
constexpr std::string_view kStagedCollective = "mesh";
// That of dense sums if there is no plan and all callers have a process group that sums.
constexpr char kCallers[] = "framework";

// Sets link_devices as the transport's options say.
StatusOr<std::unique_ptr<Transport>> MakeTransport(SessionOptions& options) {
  TransportOptions transport;
  WEIR_ASSIGN_OR_RETURN(const TransportFactory* factory,
                        ParseTransport(options.transport, &transport));
  options.link_devices = options.link_devices || transport.nccl;
  // To the transport, each epoch is a separate job, so that a mesh refuses late connections of
  // another epoch.
  const uint64_t job = XXH3_64bits(options.job.data(), options.job.size());
  transport.job = options.epoch == 0 ? job : MixSeed(job, options.epoch);
  transport.rank = options.rank;
  transport.world = options.world;
  transport.listen = options.listen;
  transport.host_silence_min = options.operation_timeout_floor;
  transport.job_key = options.job_key;
  transport.encrypt = options.encrypt;
  transport.unauthenticated = options.unauthenticated;
  return factory->Create(transport);
}

StatusOr<std::shared_ptr<const Plan>> InitialPlan(const SessionOptions& options) {
  if (options.plan_file.empty()) return std::make_shared<const Plan>();
  WEIR_ASSIGN_OR_RETURN(Plan plan, ReadPlanFile(options.plan_file));
  PlanLimits limits;
  limits.job = options.job;
  limits.world = options.world;
  limits.local_steps = options.local_steps;
  limits.caller_sums = options.caller_sums;
  const Status valid = ValidatePlan(plan, limits);
  if (!valid.ok()) return Annotate(valid, StrCat("plan file '", options.plan_file, "'"));
  return std::make_shared<const Plan>(std::move(plan));
}

}  // namespace

Status Session::CheckOptions(const SessionOptions& options) {
  if (options.job.empty()) return InvalidArgument("job: expected a name, found none");
  if (options.world < 1 || options.world > 65535) {
    return InvalidArgument(StrCat("world: expected 1..65535, found ", options.world));
  }
  if (options.rank < 0 || options.rank >= options.world) {
    return InvalidArgument(
        StrCat("rank: expected 0..", options.world - 1, ", found ", options.rank));
  }
  if (options.encode_workers < 1 || options.encode_workers > kEncodeWorkersMax) {
    return InvalidArgument(StrCat("encode_workers: expected 1..", kEncodeWorkersMax, ", found ",
                                  options.encode_workers));
  }
  return OkStatus();
}

uint64_t Session::OperationSequence(const Operation& op, int part) {
  static_assert(kComparisonIndex >> (kStepShift - kIndexShift) == 0);
  return op.step << kStepShift | op.index << kIndexShift | static_cast<uint64_t>(part);
}

StatusOr<std::unique_ptr<Session>> Session::Create(SessionOptions options, SessionParts parts) {
  WEIR_RETURN_IF_ERROR(CheckOptions(options));
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan, InitialPlan(options));
  std::unique_ptr<Transport> transport = std::move(parts.transport);
  if (transport == nullptr) {
    WEIR_ASSIGN_OR_RETURN(transport, MakeTransport(options));
  }
  if (options.link_devices && options.device == nullptr) {
    return InvalidArgument("nccl=on: expected a device of gradients (gradient_device), found none");
  }
  std::unique_ptr<Session> session(
      new Session(std::move(options), std::move(transport), parts.agent, std::move(plan)));
  if (!session->options_.agent.empty() && parts.agent == nullptr) {
    AgentLinkOptions link;
    link.address = session->options_.agent;
    link.token = session->options_.agent_token;
    if (const auto& key = session->options_.job_key; key.has_value()) {
      link.job_key.assign(reinterpret_cast<const char*>(key->data()), key->size());
    }
    link.name = session->name_;
    WEIR_ASSIGN_OR_RETURN(session->link_, AgentLink::Create(std::move(link), *session));
    session->agent_ = session->link_.get();
  }
  if (parts.former != nullptr) session->Inherit(*parts.former);
  return session;
}

OperationStages::Options Session::StageOptions() const {
  return {.job = options_.job,
          .rank = options_.rank,
          .world = options_.world,
          .device_timeout = options_.operation_timeout,
          .given_up = [this] { return failed_.load(); }};
}

Session::Session(SessionOptions options, std::unique_ptr<Transport> transport, AgentPort* agent,
                 std::shared_ptr<const Plan> initial)
    : options_(std::move(options)),
      name_(StrCat(options_.job, " rank ", options_.rank)),
      no_memory_(ResourceExhausted(StrCat("rank ", options_.rank, " ran out of memory"))),
      closed_by_caller_(Aborted(StrCat("rank ", options_.rank, " closed its session"))),
      transport_(std::move(transport)),
      address_(transport_->address()),
      aggregators_({.rank = options_.rank,
                    .world = options_.world,
                    .failed = [this](const std::string& detail) { OnOffloadFailed(detail); }}),
      residuals_(std::make_unique<ResidualStore>()),
      stages_(std::make_unique<OperationStages>(StageOptions(), *residuals_, RealClock())),
      agent_(agent),
      activation_(options_.rank, options_.world, std::move(initial)),
      adaptive_deadline_({options_.operation_timeout_floor, options_.operation_timeout}) {
  founder_ = options_.epoch == 0;
  stats_.epoch = options_.epoch;
  stats_.plan_version = activation_.active()->version;
  // A job can use leases only if a controller may grant them or its plan file has one.
  if (agent_ != nullptr || !options_.agent.empty() || !activation_.active()->leases.empty()) {
    aggregators_.Bind(address_);
  }
  Pipeline::Stages stages;
  stages.prepare = [this](Operation& op) { PreparePart(op); };
  stages.move = [this](std::span<Operation* const> ops, int ready) { return MovePart(ops, ready); };
  stages.decode = [this](Operation& op) { DecodeOperation(op); };
  stages.nudged = [this] { failed_.load() ? AbortTransport() : LookAtPeers(); };
  pipeline_ = std::make_unique<Pipeline>(std::move(stages), options_.encode_workers);
}

Session::~Session() { Close(); }

Status Session::Connect(const std::vector<TransportAddress>& addresses) {
  if (connected_ || closed_) return FailedPrecondition("the session was connected before");
  const TimePoint deadline = RealClock().Now() + options_.connect_timeout;
  if (addresses.size() != static_cast<size_t>(options_.world)) {
    return InvalidArgument(StrCat("addresses: expected one for each of ", options_.world,
                                  " ranks, found ", addresses.size()));
  }
  bool returned = false;
  Status status = Caught(
      [&] {
        Status joined = transport_->Connect(addresses, deadline);
        if (joined.ok() && options_.epoch > 0) joined = Agree(deadline);
        if (joined.ok()) joined = CheckStart(deadline);
        returned = true;
        return joined;
      },
      no_memory_);
  if (!status.ok()) {
    if (options_.epoch > 0) status = Annotate(status, StrCat("epoch ", options_.epoch));
    Fail(status);
    if (!returned) AbortTransport(Buffers::kGone);
    return status;
  }
  connected_ = true;
  survivor_ = survivor_ || options_.epoch == 0;
  addresses_ = addresses;
  CountMedia();
  const StatusOr<const Collective*> mesh = Collectives().Find(kStagedCollective);
  sums_in_staging_ = transport_->staging() != nullptr && mesh.ok() &&
                     options_.world <= (*mesh)->Traits().world_max;
  if (link_ != nullptr) link_->Start();
  return OkStatus();
}

void Session::CountMedia() {
  int shared = 0, others = 0;
  for (const PathSample& path : transport_->Samples()) ++(path.medium == "shm" ? shared : others);
  if (options_.rank == 0 && shared > 0) {
    Log(LogLevel::kInfo, "session",
        StrCat(name_, ": ", shared, " peers by shared memory, ", others, " over the network"));
  }
  MutexLock lock(mutex_);
  stats_.peers_shared_memory = shared;
}

void Session::Close() {
  if (closed_.exchange(true)) return;
  (void)Caught([this] {  // without memory for these messages, none is sent
    FinishReport(RealClock().Now());
    Tell(RankEvent{"closing", "", next_step_, -1});
  });
  AwaitComparison();
  bool busy;
  {
    MutexLock lock(mutex_);
    busy = outstanding_ != 0;
  }
  if (busy) Fail(closed_by_caller_);
  pipeline_->Drain([this] {
    if (failed_.load()) transport_->Interrupt();
  });
  if (link_ != nullptr) link_->Stop();
  device_group_.reset();
  if (failed_.load()) AbortTransport();
  // The transport sends a shutdown notice, and peers that are still in an operation receive what
  // was sent before it.
  std::unique_ptr<Transport> leaving;
  MutexLock lock(mutex_);
  stats_.bytes_sent = former_bytes_sent_ + transport_->bytes_sent();
  leaving = std::move(transport_);
}

StatusOr<uint64_t> Session::DefineBucket(std::vector<ResidualParameter> parameters, Dtype dtype) {
  const uint64_t key = BucketKey(parameters, dtype);
  {
    MutexLock lock(mutex_);
    if (buckets_.Find(key).ok()) return key;
    WEIR_RETURN_IF_ERROR(CheckUnused(parameters));
    BucketRegistry trial;  // finds errors in the arguments before anything changes
    WEIR_RETURN_IF_ERROR(trial.Define(parameters, dtype).status());
  }
  WEIR_RETURN_IF_ERROR(residuals_->Define(key, parameters));
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, buckets_.Define(std::move(parameters), dtype));
  TakeRestored(*bucket);
  buckets_changed_ = true;
  return key;
}

// Every submitted bucket is in use, since whether it is encoded by now depends on timing.
Status Session::CheckUnused(const std::vector<ResidualParameter>& parameters) const {
  if (!step_open_) return OkStatus();
  for (const ResidualParameter& parameter : parameters) {
    const Bucket* const owner = buckets_.OwnerOf(parameter.name);
    if (owner == nullptr || std::find(submitted_keys_.begin(), submitted_keys_.end(), owner->key) ==
                                submitted_keys_.end()) {
      continue;
    }
    return FailedPrecondition(StrCat("parameter '", parameter.name, "' belongs to bucket ",
                                     Hex64(owner->key), ", which was submitted in this step"));
  }
  return OkStatus();
}

Status Session::BeginStep() {
  return OrFail([this] { return Open(); });
}

Status Session::Open() {
  WEIR_RETURN_IF_ERROR(failure());
  if (!connected_ || closed_) return FailedPrecondition("the session is not connected");
  if (step_open_) return FailedPrecondition(StrCat("step ", next_step_ - 1, " was not ended"));
  WEIR_RETURN_IF_ERROR(ApplyAgreement());
  const TimePoint now = RealClock().Now();
  FinishReport(now);
  const uint64_t step = next_step_++;
  std::optional<PlanActive> activated;
  std::optional<BucketTable> table;
  bool lapsed = false;
  {
    MutexLock lock(mutex_);
    const std::shared_ptr<const Plan> lease_plan = activation_.lease_plan();
    const bool expired = lease_ > Duration(0) && now - lease_renewed_ > lease_;
    activated = activation_.BeginStep(step, expired);
    plan_ = activation_.active();
    lapsed = activated.has_value() && plan_ == lease_plan;
    stats_.step = step;
    stats_.next_step = next_step_;
    stats_.plan_version = plan_->version;
    if (buckets_changed_) table = buckets_.Describe();
  }
  buckets_changed_ = false;
  if (activated.has_value()) Tell(*activated);
  if (lapsed) TellLapse(step);
  if (table.has_value()) Tell(std::move(*table));
  operations_.clear();
  submitted_keys_.clear();
  times_ = SessionStepTimes{};
  times_.begin = now;
  report_ = StepReport{};
  report_.step = step;
  parameters_hash_.reset();
  report_.plan_version = plan_->version;
  step_open_ = true;
  return digest_ == nullptr ? OkStatus() : Compare();
}

Choice Session::EffectiveChoice(const Plan& plan, const Bucket& bucket) const {
  Choice choice = ChoiceFor(plan, bucket.key);
  // Without a plan a 16-bit bucket has 16 bits on the wire, as in dense libraries.
  if (plan.version == 0 && bucket.dtype == Dtype::kFloat16) choice.codec = "fp16";
  if (plan.version == 0 && bucket.dtype == Dtype::kBrain16) choice.codec = "bf16";
  // Without a plan no ring is used if all ranks have staging buffers, which are faster.
  if (plan.version == 0 && sums_in_staging_) choice.collective = kStagedCollective;
  // Without a plan the caller's own group sums as it would without Weir.
  if (plan.version == 0 && callers_sum_) choice = {.codec = "identity", .collective = kCallers};
  return choice;
}

Status Session::AllReduce(uint64_t bucket, void* data, double scale,
                          std::function<void(const Status&)> done, DevicePlace place) {
  return OrFail([&] { return Enqueue(bucket, data, scale, std::move(done), place); });
}

Status Session::Enqueue(uint64_t bucket_key, void* data, double scale,
                        std::function<void(const Status&)> done, DevicePlace place) {
  if (!std::isfinite(scale))
    return InvalidArgument(StrCat("scale: expected a finite number, found ", scale));
  WEIR_ASSIGN_OR_RETURN(Operation* const admitted, Admit(bucket_key, std::move(done)));
  Operation& op = *admitted;
  if (data == nullptr && op.bucket->elements > 0) return Refuse(InvalidArgument("data: is null"));
  if (op.collective->Traits().by_caller) {
    return Refuse(FailedPrecondition(
        StrCat("bucket ", Hex64(bucket_key), ": the plan leaves its sum to the caller")));
  }
  op.data = data;
  op.scale = static_cast<float>(scale);
  if (place.device != nullptr && op.bucket->elements > 0) {
    StatusOr<std::unique_ptr<DeviceBucket>> opened =
        place.device->Open({.data = data,
                            .elements = op.bucket->elements,
                            .dtype = op.bucket->dtype,
                            .stream = place.stream});
    if (!opened.ok()) return Refuse(opened.status());
    op.device = *std::move(opened);
  }
  op.sample_statistics = Samples(kGainCurveEverySteps);
  const Status submitted = Submit(&op);
  return submitted.ok() ? submitted : Refuse(submitted);
}

StatusOr<Operation*> Session::Admit(uint64_t bucket_key, std::function<void(const Status&)> done) {
  WEIR_RETURN_IF_ERROR(failure());
  if (!step_open_) return FailedPrecondition("no step is open");
  if (operations_.size() >= kLastRoundIndex) {
    return ResourceExhausted(StrCat("at most ", kLastRoundIndex, " operations fit in a step"));
  }
  Bucket* bucket;
  {
    MutexLock lock(mutex_);
    WEIR_ASSIGN_OR_RETURN(bucket, buckets_.Find(bucket_key));
  }
  if (std::find(submitted_keys_.begin(), submitted_keys_.end(), bucket_key) !=
      submitted_keys_.end()) {
    return FailedPrecondition(
        StrCat("bucket ", Hex64(bucket_key), " was submitted in this step already"));
  }
  Choice choice = EffectiveChoice(*plan_, *bucket);
  WEIR_ASSIGN_OR_RETURN(const Codec* const codec, Codecs().Find(choice.codec));
  WEIR_ASSIGN_OR_RETURN(const Collective* const collective, Collectives().Find(choice.collective));
  submitted_keys_.reserve(submitted_keys_.size() + 1);
  Operation& op = operations_.emplace_back();
  submitted_keys_.push_back(bucket_key);
  op.bucket = bucket;
  op.step = next_step_ - 1;
  op.index = operations_.size() - 1;
  op.plan = plan_;
  op.choice = std::move(choice);
  op.codec = codec;
  op.collective = collective;
  op.hashed = Compares(op.step);
  op.done = std::move(done);
  op.times.submitted = RealClock().Now();
  if (plan_->sync.local()) {
    op.lateness_allowed = kPeriodsLate * (op.times.submitted - times_.begin);
  }
  return &op;
}

Status Session::Refuse(Status status) {
  operations_.pop_back();
  submitted_keys_.pop_back();
  return status;
}

// The first steps are sampled, too, because the controller's first decision needs curves.
bool Session::Samples(uint64_t every) const {
  const uint64_t step = next_step_ - 1;
  const bool due = step < kGainCurveEverySteps || step % every == 0;
  return due && agent_ != nullptr && agent_->connected();
}

Status Session::Submit(Operation* op) {
  {
    MutexLock lock(mutex_);
    ++outstanding_;
  }
  const Status submitted = pipeline_->Submit(op);
  if (submitted.ok()) return OkStatus();
  MutexLock lock(mutex_);
  --outstanding_;
  return submitted;
}

StatusOr<bool> Session::EndStep() {
  if (!step_open_) return FailedPrecondition("no step is open");
  bool skipped = false;
  WEIR_RETURN_IF_ERROR(OrFail([&]() -> Status {
    WEIR_RETURN_IF_ERROR(AwaitCallerSums());
    WEIR_RETURN_IF_ERROR(AwaitOperations());
    WEIR_RETURN_IF_ERROR(AgreeOnFinite());
    WEIR_ASSIGN_OR_RETURN(skipped, Settle());
    return OkStatus();
  }));
  return skipped;
}

Status Session::AwaitOperations() {
  MutexLock lock(mutex_);
  // Each operation has its own deadline, and after the first failure the others end at once. So
  // this bound is exceeded only if a completion callback blocks.
  const Duration late = operations_.empty() ? Duration(0) : operations_.back().lateness_allowed;
  const TimePoint deadline =
      RealClock().Now() +
      (options_.operation_timeout + late) * static_cast<int64_t>(outstanding_ + 1) +
      std::chrono::seconds(5);
  while (outstanding_ != 0) {
    if (!all_delivered_.WaitUntil(mutex_, deadline) && outstanding_ != 0) {
      return DeadlineExceeded(StrCat(outstanding_, " operations of step ", next_step_ - 1,
                                     " were not delivered; a completion callback may block"));
    }
  }
  return OkStatus();
}

// Ends a step after all operations were delivered. Residuals change last: if an exception comes
// before, they are unchanged, and the caller gets an error and does not count the step.
StatusOr<bool> Session::Settle() {
  step_open_ = false;
  if (const Status failed = failure(); !failed.ok()) {
    residuals_->Discard();
    return failed;
  }
  bool skipped = std::exchange(non_finite_somewhere_, false);
  for (const Operation& op : operations_) {
    skipped = skipped || op.outcome.non_finite;
    const TimePoint submitted = op.times.submitted;
    times_.first_submit =
        &op == &operations_.front() ? submitted : std::min(times_.first_submit, submitted);
    times_.last_submit = std::max(times_.last_submit, submitted);
    times_.last_delivery = std::max(times_.last_delivery, op.times.delivered);
  }
  if (Compares(next_step_ - 1)) digest_ = TakeDigest();
  // Lack of memory for the report does not fail the step.
  report_pending_ = Caught([this] { FillReport(operations_, times_, &report_); }).ok();
  if (report_.period.steps > 1) report_.exposed_s = report_.period.waited_s;
  report_.skipped = skipped;
  bool order_changed;
  {
    MutexLock lock(mutex_);
    order_changed = buckets_.SetOrder(submitted_keys_);
    stats_.steps_skipped += skipped ? 1 : 0;
    stats_.last_exposed_s = report_.exposed_s;
  }
  buckets_changed_ = buckets_changed_ || order_changed;
  if (skipped) {
    residuals_->Discard();
    (void)Caught([this] { TellSkipped(); });
  } else {
    residuals_->Commit();
  }
  steps_done_ = next_step_;
  return skipped;
}

// The rank that met NaN says so. Where no rank encodes, none has met it in its own gradient, so
// rank 0 says what all know.
void Session::TellSkipped() {
  const auto own = std::ranges::find_if(
      operations_, [](const Operation& op) { return op.outcome.own_non_finite; });
  RankEvent event{.kind = "non_finite", .detail = {}, .step = report_.step, .guilty_rank = -1};
  if (own != operations_.end()) {
    event.detail =
        StrCat("its gradient of bucket ", Hex64(own->bucket->key), " held NaN or infinity");
    event.guilty_rank = options_.rank;
    event.bucket = own->bucket->key;
    if (own->bucket->parameters.size() == 1) event.parameter = own->bucket->parameters[0].name;
  } else if (options_.rank == 0) {
    event.detail = "the gradient of some rank held NaN or infinity, or the sum was too large";
  } else {
    return;
  }
  Tell(std::move(event));
}

Status Session::ReportPeriod(const LocalPeriod& period) {
  if (!step_open_) return FailedPrecondition("no step is open");
  if (period.steps < 1 || period.steps > kPlanSyncEveryMax ||
      period.overlap_steps >= period.steps) {
    return InvalidArgument(StrCat("steps: expected 1 to ", kPlanSyncEveryMax,
                                  " and less of them overlapped, found ", period.steps, " and ",
                                  period.overlap_steps));
  }
  for (const double number : {period.waited_s, period.moved_square, period.mean_square}) {
    if (number >= 0) continue;
    return InvalidArgument(StrCat("period: expected no negative number, found ", number));
  }
  report_.period = period;
  return OkStatus();
}

Status Session::ReportNonFinite(std::string_view parameter) {
  if (step_open_ || !report_.skipped) {
    return FailedPrecondition(StrCat("'", parameter,
                                     "': expected a step that was skipped and none "
                                     "after it"));
  }
  const Bucket* bucket;
  {
    MutexLock lock(mutex_);
    bucket = buckets_.OwnerOf(parameter);
  }
  Tell(RankEvent{.kind = "non_finite",
                 .detail = StrCat("its gradient of '", parameter, "' held NaN or infinity"),
                 .step = report_.step,
                 .guilty_rank = options_.rank,
                 .bucket = bucket == nullptr ? 0 : bucket->key,
                 .parameter = std::string(parameter)});
  return OkStatus();
}

SessionStats Session::Stats() const {
  SessionStats stats;
  {
    MutexLock lock(mutex_);
    stats = stats_;
    if (transport_ != nullptr) {
      stats.bytes_sent = former_bytes_sent_ + transport_->bytes_sent();
      stats.unauthenticated_peers = transport_->unauthenticated_peers();
    }
  }
  stats.agent_connected = agent_ != nullptr && agent_->connected();
  return stats;
}

std::shared_ptr<const Plan> Session::ActivePlan() const {
  MutexLock lock(mutex_);
  return activation_.active();
}

Status Session::failure() const {
  if (!failed_.load()) return OkStatus();
  MutexLock lock(mutex_);
  return failure_;
}

}  // namespace weir
