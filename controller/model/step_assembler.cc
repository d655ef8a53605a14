// SPDX-License-Identifier: Apache-2.0
// See step_assembler.h. Ranks enter a collective at different times; its duration on an early rank
// counts waiting for the late ones. Compression cannot cure lateness, so it must not look like
// network.

#include "controller/model/step_assembler.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr double kSecondsMax = 1e6;

/// Ranks are not trusted to send numbers: one NaN would stay in every average.
bool Sane(double seconds) { return seconds >= 0 && seconds <= kSecondsMax; }

bool Sane(const StepObservation& step) {
  return Sane(step.step_s) && Sane(step.compute_s) && Sane(step.backward_s) && Sane(step.exposed_s);
}

bool Sane(const BucketObservation& bucket) {
  return Sane(bucket.ready_s) && Sane(bucket.metadata_s) && Sane(bucket.encode_s) &&
         Sane(bucket.network_s) && Sane(bucket.decode_s) && Sane(bucket.entry_offset_s) &&
         Sane(bucket.residual_ratio) && std::isfinite(bucket.gain) && bucket.ratio > 0 &&
         bucket.ratio <= 1;
}

}  // namespace

std::optional<AssembledStep> StepAssembler::Add(const StepObservation& observation) {
  if (observation.rank < 0 || observation.rank >= world_ || !Sane(observation)) return std::nullopt;
  if (any_done_ && observation.step <= done_) return std::nullopt;
  const auto found = pending_.try_emplace(observation.step).first;
  found->second.try_emplace(observation.rank, observation);
  std::optional<AssembledStep> complete;
  if (static_cast<int>(found->second.size()) == world_) {
    complete = Assemble(found->second);
    done_ = observation.step;
    any_done_ = true;
    pending_.erase(pending_.begin(), std::next(found));  // older ones will not complete any more
  }
  while (pending_.size() > kPendingMax) {
    done_ = pending_.begin()->first;
    any_done_ = true;
    pending_.erase(pending_.begin());
  }
  return complete;
}

AssembledStep StepAssembler::Assemble(const Ranks& ranks) {
  AssembledStep out;
  const StepObservation& first = ranks.begin()->second;
  out.step = first.step;
  out.plan_version = first.plan_version;
  out.exposed_s = 1e18;
  out.period = {.steps = first.period.steps, .overlap = first.period.overlap};
  std::vector<double> step_s;
  double losses = 0;
  int loss_count = 0;
  size_t buckets = first.buckets.size();
  for (const auto& [rank, report] : ranks) {
    step_s.push_back(report.step_s);
    out.step_s += report.step_s / world_;
    out.backward_s += report.backward_s / world_;
    out.exposed_s = std::min(out.exposed_s, report.exposed_s);
    out.period.moved_square += report.period.moved_square / world_;
    out.period.mean_square += report.period.mean_square / world_;
    out.skipped |= report.skipped;
    buckets = std::min(buckets, report.buckets.size());
    if (report.loss.has_value() && std::isfinite(*report.loss)) {
      losses += *report.loss;
      ++loss_count;
    }
  }
  if (loss_count > 0) out.loss = losses / loss_count;
  out.exposed_s = std::max(0.0, out.exposed_s);
  out.compute_s = std::max(0.0, out.step_s - out.exposed_s);
  if (world_ > 1) alignment_.BeginStep(out.step, step_s);
  for (size_t b = 0; b < buckets; ++b) {
    if (auto bucket = AssembleBucket(ranks, b); bucket.has_value()) {
      out.buckets.push_back(*std::move(bucket));
    }
  }
  return out;
}

std::optional<AssembledBucket> StepAssembler::AssembleBucket(const Ranks& ranks, size_t index) {
  const BucketObservation& first = ranks.begin()->second.buckets[index];
  AssembledBucket out;
  out.key = first.bucket;
  out.codec = first.codec;
  out.collective = first.collective;
  out.ratio = first.ratio;
  out.bits = first.bits;
  out.encoded_on = first.encoded_on;
  out.metadata_s = 1e18;
  out.gain = 0;
  // Where some ranks encode for others (sums of nodes), those know no gain, and what codecs do
  // inside of the collective they have waited for.
  int encoders = 0;
  double codecs_s = 0;
  for (const auto& [rank, report] : ranks) {
    const BucketObservation& bucket = report.buckets[index];
    if (bucket.payload_bytes == 0) continue;
    ++encoders;
    codecs_s = std::max(codecs_s, bucket.encode_s + bucket.decode_s);
  }
  std::vector<ClockAlignment::Interval> intervals;
  double least = 1e18;
  for (const auto& [rank, report] : ranks) {
    const BucketObservation& bucket = report.buckets[index];
    if (bucket.bucket != out.key || bucket.codec != out.codec ||
        bucket.collective != out.collective || !Sane(bucket)) {
      return std::nullopt;
    }
    out.ready_s += bucket.ready_s / world_;
    // If some ranks encode on the host, the bucket counts as encoded there.
    if (out.encoded_on == CodecPlace::kDevice) out.encoded_on = bucket.encoded_on;
    out.encode_s += bucket.encode_s / world_;
    out.decode_s += bucket.decode_s / world_;
    out.metadata_s = std::min(out.metadata_s, bucket.metadata_s);
    out.payload_bytes += static_cast<double>(bucket.payload_bytes) / world_;
    const bool idle = encoders > 0 && bucket.payload_bytes == 0;
    if (!idle) out.gain += bucket.gain / (encoders > 0 ? encoders : world_);
    const double network_s = std::max(0.0, bucket.network_s - (idle ? codecs_s : 0));
    out.residual_ratio = std::max(out.residual_ratio, bucket.residual_ratio);
    intervals.push_back({bucket.entry_offset_s, bucket.entry_offset_s + network_s});
    least = std::min(least, network_s);
  }
  out.network_s = world_ > 1 ? alignment_.Add(intervals) : 0;
  // Not aligned yet: the last to enter waits for nobody, so the least duration is nearest.
  if (out.network_s < 0) out.network_s = least;
  return out;
}

}  // namespace weir
