#include "datapath/session/telemetry.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace weir {
namespace {

double SecondsBetween(TimePoint from, TimePoint to) { return std::max(0.0, ToSeconds(to - from)); }

double ResidualRatio(const Operation& op) {
  if (op.residual_energy < 0 || op.bucket->gradient_energy <= 0) return 0;
  return std::sqrt(op.residual_energy / op.bucket->gradient_energy);
}

}  // namespace

BucketSample SampleOf(const Operation& op, const StepTimes& times) {
  BucketSample sample;
  sample.bucket = op.bucket->key;
  sample.codec = op.choice.codec;
  // Whoever calibrates by it learns of what took the time.
  sample.collective = op.ran_instead.empty() ? op.choice.collective : std::string(op.ran_instead);
  sample.ratio = op.choice.ratio;
  sample.bits = op.choice.bits;
  sample.ready_s = SecondsBetween(times.first_submit, op.times.submitted);
  sample.metadata_s = ToSeconds(op.times.metadata);
  sample.encode_s = ToSeconds(op.times.encode);
  sample.network_s = ToSeconds(op.times.network);
  sample.decode_s = ToSeconds(op.times.decode);
  // Under a shared index the values travel beside the payload that holds the positions.
  sample.payload_bytes = op.payload_bytes + op.values.size() * sizeof(float);
  sample.bytes_sent = op.bytes_sent;
  sample.gain = op.gain;
  sample.residual_ratio = ResidualRatio(op);
  if (op.times.network_begin != TimePoint{}) {
    sample.entry_offset_s = SecondsBetween(times.begin, op.times.network_begin);
  }
  return sample;
}

void FillReport(const std::deque<Operation>& operations, const StepTimes& times,
                StepReport* report) {
  report->buckets.clear();
  report->gains.clear();
  report->codec_losses.clear();
  report->block_densities.clear();
  if (operations.empty()) return;
  report->compute_s = SecondsBetween(times.begin, times.first_submit);
  report->backward_s = SecondsBetween(times.first_submit, times.last_submit);
  report->exposed_s = SecondsBetween(times.last_submit, times.last_delivery);
  for (const Operation& op : operations) {
    report->buckets.push_back(SampleOf(op, times));
    if (op.gain_curve.has_value()) report->gains.push_back(*op.gain_curve);
    report->codec_losses.insert(report->codec_losses.end(), op.codec_losses.begin(),
                                op.codec_losses.end());
    report->block_densities.insert(report->block_densities.end(), op.block_densities.begin(),
                                   op.block_densities.end());
  }
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
