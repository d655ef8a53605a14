// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two-sided CUSUM: notices a lasting shift of a noisy value within a few samples and ignores
// outliers.

namespace weir {

/// Feed standardised residuals (mean 0, deviation 1 while nothing changes). Source: Page 1954; with
/// k = 0.5, h = 5 the mean time between false alarms is about 465 samples and a shift of one
/// deviation is seen after about 10. Deviates: each sample is clipped, so that no single one can
/// raise an alarm.
class ChangeDetector {
 public:
  struct Options {
    double slack = 0.5;     // k
    double threshold = 5;   // h
    double sample_max = 3;  // clip
  };

  ChangeDetector() = default;
  explicit ChangeDetector(Options options) : options_(options) {}

  /// +1: shifted up, -1: shifted down, 0: no alarm. An alarm resets the detector.
  int Add(double standardised);
  /// Samples since the sum on the alarming side was last zero: how long ago the change began. Valid
  /// after an alarm.
  int run_length() const { return alarm_run_; }
  void Reset();

 private:
  Options options_;
  double up_ = 0, down_ = 0;
  int up_run_ = 0, down_run_ = 0, alarm_run_ = 0;
};

}  // namespace weir
