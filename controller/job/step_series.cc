// SPDX-License-Identifier: Apache-2.0
#include "controller/job/step_series.h"

#include <algorithm>
#include <cmath>

namespace weir {

void Histogram::Add(double value) {
  const auto bound = std::lower_bound(kBoundsS.begin(), kBoundsS.end(), value);
  ++counts[static_cast<size_t>(bound - kBoundsS.begin())];
  sum += value;
  ++count;
}

void StepSeries::Add(StepPoint point) {
  step.Add(point.step_s);
  compute.Add(point.compute_s);
  exposed.Add(point.exposed_s);
  codec.Add(point.codec_s);
  points_.push_back(std::move(point));
  if (points_.size() > kPointsMax) points_.pop_front();
}

void StepSeries::AddPredictions(const std::vector<PredictionRecord>& records) {
  for (const PredictionRecord& record : records) {
    if (!(record.measured_s > 0) || !std::isfinite(record.predicted_s)) continue;
    errors_.push_back(std::abs(record.predicted_s - record.measured_s) / record.measured_s);
    if (errors_.size() > kErrorsMax) errors_.pop_front();
    ++predictions_;
    // Records arrive for the newest steps: look from the back.
    for (auto it = points_.rbegin(); it != points_.rend() && it->step >= record.step; ++it) {
      if (it->step != record.step) continue;
      it->predicted_network_s += record.predicted_s;
      it->measured_network_s += record.measured_s;
    }
  }
}

std::vector<StepPoint> StepSeries::Points(uint64_t since_step) const {
  std::vector<StepPoint> found;
  for (const StepPoint& point : points_) {
    if (point.step >= since_step) found.push_back(point);
  }
  return found;
}

double StepSeries::PredictionErrorMedian() const {
  if (errors_.empty()) return 0;
  std::vector<double> sorted(errors_.begin(), errors_.end());
  const auto middle = sorted.begin() + static_cast<long>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace weir
