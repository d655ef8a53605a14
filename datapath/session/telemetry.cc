// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/telemetry.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace weir {
namespace {

double SecondsBetween(TimePoint from, TimePoint to) { return std::max(0.0, ToSeconds(to - from)); }

double ResidualRatio(const Operation& op) {
  if (op.outcome.residual_energy < 0 || op.bucket->gradient_energy <= 0) return 0;
  return std::sqrt(op.outcome.residual_energy / op.bucket->gradient_energy);
}

}  // namespace

BucketSample SampleOf(const Operation& op, const SessionStepTimes& times) {
  const ExchangeOutcome& outcome = op.outcome;
  BucketSample sample;
  sample.bucket = op.bucket->key;
  sample.codec = op.choice.codec;
  // The controller calibrates by these samples, so it needs the collective that took the time.
  sample.collective =
      outcome.ran_instead.empty() ? op.choice.collective : std::string(outcome.ran_instead);
  sample.ratio = op.choice.ratio;
  sample.bits = op.choice.bits;
  sample.ready_s = SecondsBetween(times.first_submit, op.times.submitted);
  sample.metadata_s = ToSeconds(outcome.metadata);
  sample.encode_s = ToSeconds(outcome.encode);
  sample.network_s = ToSeconds(outcome.network);
  sample.decode_s = ToSeconds(outcome.decode);
  sample.payload_bytes = outcome.payload_bytes;
  sample.bytes_sent = op.bytes_sent;
  sample.gain = outcome.gain;
  sample.residual_ratio = ResidualRatio(op);
  sample.encoded_on = op.on_device                     ? EncodedOn::kDevice
                      : IsRawFloat(op.codec->Traits()) ? EncodedOn::kNowhere
                                                       : EncodedOn::kHost;
  if (op.times.network_begin != TimePoint{}) {
    sample.entry_offset_s = SecondsBetween(times.begin, op.times.network_begin);
  }
  return sample;
}

void FillReport(const std::deque<Operation>& operations, const SessionStepTimes& times,
                StepReport* report) {
  report->buckets.clear();
  report->gains.clear();
  report->codec_losses.clear();
  report->block_densities.clear();
  if (operations.empty()) return;
  report->compute_s = SecondsBetween(times.begin, times.first_submit);
  report->backward_s = SecondsBetween(times.first_submit, times.last_submit);
  report->exposed_s = SecondsBetween(times.last_submit, times.last_delivery);
  report->device_link_bytes = report->device_link_s = 0;
  for (const Operation& op : operations) {
    report->buckets.push_back(SampleOf(op, times));
    report->device_link_bytes += static_cast<double>(op.device_bytes);
    report->device_link_s += ToSeconds(op.device_time);
    if (const std::optional<GradientSample>& sample = op.outcome.sample; sample.has_value()) {
      GainCurve& curve = report->gains.emplace_back();
      curve.bucket = op.bucket->key;
      curve.ratios.assign(kGainCurveRatios.begin(), kGainCurveRatios.end());
      curve.gains = sample->gains;
      curve.peak_over_rms = sample->peak_over_rms;
      report->codec_losses.insert(report->codec_losses.end(), sample->losses.begin(),
                                  sample->losses.end());
    }
    report->block_densities.insert(report->block_densities.end(), op.block_densities.begin(),
                                   op.block_densities.end());
  }
}

std::vector<ArrivalSample> InTurn(std::vector<ArrivalSample> samples, uint64_t step) {
  if (samples.size() <= kArrivalsMax) return samples;
  const uint64_t first = step * kArrivalsMax % samples.size();
  std::rotate(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(first), samples.end());
  samples.resize(kArrivalsMax);
  return samples;
}

int GuiltyRank(std::string_view message, int own_rank) {
  int guilty = -1;
  for (size_t at = message.find("rank "); at != std::string_view::npos;
       at = message.find("rank ", at + 1)) {
    size_t digit = at + 5;
    int rank = 0;
    const size_t first = digit;
    while (digit < message.size() && message[digit] >= '0' && message[digit] <= '9' &&
           digit - first < 6) {
      rank = rank * 10 + (message[digit++] - '0');
    }
    if (digit > first && rank != own_rank) guilty = rank;
  }
  return guilty;
}

uint64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return UINT64_MAX;
}

}  // namespace weir
