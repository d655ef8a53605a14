// SPDX-License-Identifier: Apache-2.0
#include "controller/job/observer.h"

#include <algorithm>

#include "controller/job/bounds.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

// Where a step's time went, besides what is exposed: these overlap with each other.
void AddBusyTimes(const StepObservation& step, StepPoint* point) {
  for (const auto& bucket : step.buckets) {
    point->encode_s += bucket.encode_s;
    point->decode_s += bucket.decode_s;
    point->network_s += bucket.network_s;
  }
  point->codec_s = point->encode_s + point->decode_s;
  point->backward_s = step.backward_s;
}

}  // namespace

void Observer::Recover(const JobView& stored, std::string progress) {
  former_progress_ = std::move(progress);
  started_unix_s_ = stored.started_unix_s;
  bytes_sent_ = stored.bytes_sent;
}

void Observer::Begin(const RankGreeting& hello) {
  if (model_ != nullptr) former_progress_ = model_->SaveProgress();
  if (hello.step == 0 || started_unix_s_ == 0) {
    former_progress_.clear();
    started_unix_s_ = clock_.UnixSeconds();
    bytes_sent_ = 0;
    help_.Begin();
    non_finite_.reset();
    series_ = StepSeries();
  }
  buckets_.clear();
  model_ = std::make_unique<JobModel>(job_, hello.world, clock_);
  if (!former_progress_.empty()) {
    const Status restored = model_->RestoreProgress(former_progress_, hello.step);
    if (!restored.ok()) {
      Log(LogLevel::kWarning, "controller",
          StrCat("job ", job_,
                 ": what was learnt of its progress is not used: ", Message(restored)));
    }
  }
  former_progress_.clear();
  dense_step_s_ = 0;
}

void Observer::OnGreeting(const std::string& node, const RankGreeting& hello) {
  model_->SetRankNode(hello.rank, node);
  if (hello.memory_group > 0) model_->SetLowestRank(hello.rank, hello.memory_group - 1);
  model_->SetGradientDevice(hello.rank, hello.gradient_device);
  model_->SetLocalSteps(hello.rank, hello.local_steps);
  model_->SetCapabilities(hello.rank, CodecsOf(hello.capabilities, hello.world),
                          hello.capabilities.collectives);
  if (!hello.capabilities.codecs.empty()) capabilities_ = hello.capabilities;
}

StatusOr<bool> Observer::SetBuckets(const BucketList& table) {
  WEIR_ASSIGN_OR_RETURN(auto buckets, DefinitionsOf(table));
  const bool same =
      std::equal(buckets.begin(), buckets.end(), buckets_.begin(), buckets_.end(),
                 [](const BucketDefinition& a, const BucketDefinition& b) {
                   return a.key == b.key && a.elements == b.elements && a.order == b.order;
                 });
  if (same) return false;
  buckets_ = std::move(buckets);
  table_ = table;
  model_->SetBuckets(buckets_);
  return true;
}

uint64_t Observer::OnStep(const StepObservation& step) {
  model_->OnStep(step);
  uint64_t bytes = 0;
  for (const auto& bucket : step.buckets) bytes += bucket.bytes_sent;
  bytes_sent_ += bytes;
  return bytes;
}

WatchedStep Observer::Watched(const StepObservation& step) const {
  WatchedStep watched{.report = step, .lossless = !step.period.local()};
  if (step.period.local()) {
    const LocalSteps local = model_->local_steps();
    watched.steps = step.period.steps * SyncProgress(local.sync, sync_cost_);
  }
  double kept = 0, elements = 0;
  for (const auto& bucket : step.buckets) {
    watched.lossless = watched.lossless && capabilities_.IsLossless(bucket.codec);
    for (const BucketDefinition& definition : buckets_) {
      if (definition.key != bucket.bucket) continue;
      kept += bucket.gain * static_cast<double>(definition.elements);
      elements += static_cast<double>(definition.elements);
    }
  }
  if (elements > 0) watched.gain = kept / elements;
  return watched;
}

StepPoint Observer::AddPoint(const StepObservation& report) {
  help_.OnStep(Watched(report));
  std::optional<StepObservation> one;
  if (report.period.local()) one = report.OfOneStep();
  const StepObservation& step = one.has_value() ? *one : report;
  StepPoint point;
  point.step = step.step;
  point.unix_s = clock_.UnixSeconds();
  point.step_s = step.step_s;
  point.compute_s = step.compute_s;
  point.exposed_s = step.exposed_s;
  point.plan_version = step.plan_version;
  point.gain = model_->gain();
  point.loss = step.loss.value_or(model_->loss().value_or(0));
  point.bandwidth_bytes_per_s = Finite(model_->bandwidth_bytes_per_s().value);
  point.bandwidth_deviation_bytes_per_s = Finite(model_->bandwidth_bytes_per_s().deviation);
  point.latency_deviation_s = Finite(model_->latency_s().deviation);
  point.latency_s = Finite(model_->latency_s().value);
  AddBusyTimes(step, &point);
  point.skipped = step.skipped;
  point.dense_step_s = dense_step_s_;
  const size_t largest = LargestBucket();
  for (const auto& bucket : step.buckets) {
    if (largest >= buckets_.size() || bucket.bucket != buckets_[largest].key) continue;
    point.ratio = bucket.ratio;
    point.bits = static_cast<uint32_t>(bucket.bits);
    point.codec = bucket.codec;
    point.collective = bucket.collective;
  }
  series_.Add(point);
  return point;
}

void Observer::OnPaths(int rank, const PathList& paths, const Membership& members) {
  const Member* source = members.Find(rank);
  for (const RankPathObservation& path : paths) {
    const Member* target = members.Find(path.peer_rank);
    if (source == nullptr || target == nullptr || path.peer_rank == rank) continue;
    LinkObservation link;
    link.source_node = source->node;
    link.target_node = target->node;
    link.method = "tcp_info";
    link.rtt_s = path.rtt_s;
    link.bandwidth_bytes_per_s = path.delivery_rate_bytes_per_s;
    link.application_limited = path.application_limited;
    link.window_bytes = path.window_bytes;
    link.rtt_min_s = path.rtt_min_s;
    model_->OnLink(link);
  }
}

void Observer::OnLink(const LinkObservation& observation) {
  if (model_ != nullptr) model_->OnLink(observation);
}

void Observer::OnNccl(const std::string& node, const NcclObservation& sums) {
  if (model_ != nullptr) model_->OnNccl(node, sums);
}

bool Observer::OnNonFinite(const RankIncident& incident) {
  if (non_finite_.has_value() && incident.step < non_finite_->step) return true;  // a late one
  const auto known = [](const RankIncident& of) {
    return (of.guilty_rank >= 0 ? 1 : 0) + (of.parameter.empty() ? 0 : 1);
  };
  if (non_finite_.has_value() && incident.step == non_finite_->step &&
      known(incident) <= known(*non_finite_)) {
    return false;
  }
  non_finite_ = incident;
  return true;
}

size_t Observer::LargestBucket() const {
  size_t largest = 0;
  for (size_t i = 1; i < buckets_.size(); ++i) {
    if (buckets_[i].elements > buckets_[largest].elements) largest = i;
  }
  return largest;
}

void Observer::Fill(JobView* out) const {
  out->buckets = table_;
  out->bytes_sent = bytes_sent_;
  out->started_unix_s = started_unix_s_;
  out->non_finite = non_finite_;
  if (model_ == nullptr) return;
  out->step_s = Finite(model_->step_s().value);
  out->loss = Finite(model_->loss().value_or(0));
  out->gain = Finite(model_->gain());
  for (const RankPace& pace : model_->Paces()) {
    for (RankView& rank : out->ranks) {
      if (rank.rank == pace.rank) rank.slower = pace.slower;
    }
  }
  for (const RankCores& cores : model_->Cores()) {
    for (RankView& rank : out->ranks) {
      if (rank.rank == cores.rank) rank.cores = cores;
    }
  }
  for (RankView& rank : out->ranks) rank.nccl = model_->NcclOn(rank.node);
}

}  // namespace weir
