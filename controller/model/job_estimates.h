// SPDX-License-Identifier: Apache-2.0
#pragma once
// Estimates of a job that need no model: compute time, gain curves, payload sizes, links.

#include <cmath>
#include <deque>
#include <map>
#include <string>

#include "controller/model/block_density.h"
#include "controller/model/job_model.h"
#include "controller/model/measured_gain.h"
#include "controller/model/snapshot.h"

namespace weir {

/// Median and spread of the newest values. O(window log window) per question.
class RollingMedian {
 public:
  explicit RollingMedian(size_t window) : window_(window) {}
  void Add(double value);
  void Clear() { values_.clear(); }
  size_t count() const { return values_.size(); }
  /// 0 when empty. deviation: of the median, from the median absolute deviation.
  Measured Get() const;

 private:
  size_t window_;
  std::deque<double> values_;
};

/// Exponential average that starts at its first value.
class Smoothed {
 public:
  explicit Smoothed(double weight) : weight_(weight) {}
  void Add(double value) {
    if (!std::isfinite(value)) return;
    value_ = seen_ ? value_ + weight_ * (value - value_) : value;
    seen_ = true;
  }
  double value_or(double fallback) const { return seen_ ? value_ : fallback; }
  bool seen() const { return seen_; }

 private:
  double weight_, value_ = 0;
  bool seen_ = false;
};

/// The estimates of one bucket beside its definition.
struct BucketEstimate {
  Smoothed ready_s{0.1};
  Smoothed peak_over_rms{0.2};
  double residual_ratio = 0;
  MeasuredGains measured_gains;
  std::vector<double> gain_ratios, gains;              // averaged curve
  std::map<uint32_t, BlockDensityEstimate> densities;  // by block_elements; at most kBlockSizesMax

  /// Averages a rank's curve into the bucket's; a curve over other ratios replaces it. Curves that
  /// are not descending in ratio, or hold anything but numbers in [0, 1], are ignored.
  void AddCurve(const GainObservation& curve);
  /// Sets what gains are predicted from.
  void DescribeGradient(BucketModel* bucket) const;
};

/// Takes in the block densities that a rank reports at `now_s`, of known buckets.
void AddDensities(const StepObservation& observation, double now_s,
                  std::map<std::string, BucketEstimate>* estimates);

/// The evidence on the links between the nodes of ranks 0 .. world - 1, which are numbered by their
/// first ranks: a measured link counts as fast as the middle one unless it differs from it by more
/// than kEvidenceDeviations of both together, and did so in two windows. Empty until every rank's
/// node is known, and on more than kRingNodesMax nodes.
inline constexpr double kEvidenceDeviations = 3;
NodeLinks LinksBetween(const std::map<int, std::string>& nodes, int world,
                       const std::vector<LinkEstimate>& estimates);

}  // namespace weir
