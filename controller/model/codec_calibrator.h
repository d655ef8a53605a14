// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long one codec takes on this job's hosts, under this job's load: seconds = base + per_element
// * n
// + per_kept * kept, fitted online.

#include "controller/model/snapshot.h"

namespace weir {

/// Recursive least squares with forgetting 0.98, Huber weights and coefficients bounded below by
/// zero, started from a prior. Not thread-safe. Deterministic.
class CodecCalibrator {
 public:
  explicit CodecCalibrator(const CodecModel::Time& prior);

  /// `kept` is 0 for codecs without a ratio, whose cost is all per element.
  void Add(double elements, double kept, double seconds);
  /// Seconds that would be no surprise.
  double Predict(double elements, double kept) const;
  CodecModel::Time Time() const;
  int samples() const { return samples_; }

 private:
  double coefficients_[3];  // milliseconds: base, per 1e6 elements, per 1e6 kept
  double covariance_[3][3];
  double error_ = 0;     // smoothed |error| in milliseconds
  double elements_ = 1;  // smoothed, to spread the error over elements
  int samples_ = 0;
};

}  // namespace weir
