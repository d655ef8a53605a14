// SPDX-License-Identifier: Apache-2.0
#pragma once
// The recent steps of one job for charts, and the statistics that /metrics and explain show.

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "controller/model/job_model.h"

namespace weir {

/// One step of rank 0 with the estimates of its time; see SeriesPoint in admin.proto.
struct StepPoint {
  uint64_t step = 0;
  double unix_s = 0;
  double step_s = 0, compute_s = 0, exposed_s = 0;
  double ratio = 0;  // of the largest bucket, as the next three
  uint32_t bits = 0;
  std::string codec, collective;
  double gain = 0, loss = 0;
  double bandwidth_bytes_per_s = 0, latency_s = 0;
  double bandwidth_deviation_bytes_per_s = 0, latency_deviation_s = 0;
  double predicted_network_s = 0, measured_network_s = 0;
  uint64_t plan_version = 0;
  // Where time went besides what is exposed, over all buckets; these overlap with each other.
  double codec_s = 0, encode_s = 0, decode_s = 0, network_s = 0;
  double backward_s = 0;
  bool skipped = false;
  double dense_step_s = 0;
};

/// Counts per bucket, not cumulative; the last one is +Inf.
struct Histogram {
  static constexpr std::array<double, 13> kBoundsS = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                      0.25,  0.5,    1,     2.5,  10,    60};
  std::array<uint64_t, kBoundsS.size() + 1> counts{};
  double sum = 0;
  uint64_t count = 0;
  void Add(double value);
};

/// Not thread-safe.
class StepSeries {
 public:
  static constexpr size_t kPointsMax = 2000;
  static constexpr size_t kErrorsMax = 2000;

  void Add(StepPoint point);
  /// Sets the predicted and measured network time of the steps that `records` name.
  void AddPredictions(const std::vector<PredictionRecord>& records);
  /// Oldest first, steps from `since_step` on.
  std::vector<StepPoint> Points(uint64_t since_step) const;
  const StepPoint* newest() const { return points_.empty() ? nullptr : &points_.back(); }
  /// Median of |predicted - measured| / measured over the newest collectives; 0 without any.
  double PredictionErrorMedian() const;
  uint64_t predictions() const { return predictions_; }

  Histogram step, compute, exposed, codec;

 private:
  std::deque<StepPoint> points_;
  std::deque<double> errors_;
  uint64_t predictions_ = 0;
};

}  // namespace weir
