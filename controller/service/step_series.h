#pragma once
// The recent steps of one job for charts, and the statistics that /metrics and explain show.

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "controller/model/job_model.h"
#include "weir/v1/admin.pb.h"

namespace weir {

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

  void Add(v1::SeriesPoint point);
  /// Sets the predicted and measured network time of the steps that `records` name.
  void AddPredictions(const std::vector<PredictionRecord>& records);
  /// Oldest first, steps from `since_step` on.
  v1::Series Points(uint64_t since_step) const;
  const v1::SeriesPoint* newest() const { return points_.empty() ? nullptr : &points_.back(); }
  /// Median of |predicted - measured| / measured over the newest collectives; 0 without any.
  double PredictionErrorMedian() const;
  uint64_t predictions() const { return predictions_; }

  Histogram step, compute, exposed, codec;

 private:
  std::deque<v1::SeriesPoint> points_;
  std::deque<double> errors_;
  uint64_t predictions_ = 0;
};

}  // namespace weir
