// SPDX-License-Identifier: Apache-2.0
// See codec_calibrator.h.

#include "controller/model/codec_calibrator.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {
constexpr double kForgetting = 0.98;
constexpr double kHuber = 1.345;
constexpr double kVarianceMax = 1e4;
}  // namespace

CodecCalibrator::CodecCalibrator(const CodecModel::Time& prior)
    : coefficients_{prior.base_s * 1e3, prior.per_element_s * 1e9, prior.per_kept_s * 1e9},
      covariance_{} {
  covariance_[0][0] = 1;
  covariance_[1][1] = 25;
  covariance_[2][2] = 100;
}

void CodecCalibrator::Add(double elements, double kept, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || elements < 1) return;
  const double features[3] = {1, elements * 1e-6, kept * 1e-6};
  const double measured = seconds * 1e3;
  double predicted = 0;
  for (int i = 0; i < 3; ++i) predicted += coefficients_[i] * features[i];
  const double error = measured - predicted;
  // Relative noise of 15 %, and scheduling noise of 50 us.
  const double noise = 0.05 + 0.15 * std::max(measured, predicted);
  double direction[3] = {0, 0, 0}, spread = noise * noise;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) direction[i] += covariance_[i][j] * features[j];
    spread += features[i] * direction[i];
  }
  const double scale = std::sqrt(spread);
  const double weight = std::min(1.0, kHuber * scale / std::max(std::fabs(error), 1e-12));
  for (int i = 0; i < 3; ++i) {
    coefficients_[i] = std::max(0.0, coefficients_[i] + weight * direction[i] / spread * error);
    for (int j = 0; j < 3; ++j) {
      covariance_[i][j] = (covariance_[i][j] - weight * direction[i] * direction[j] / spread);
      if (i == j) covariance_[i][j] = std::min(kVarianceMax, covariance_[i][j] / kForgetting);
    }
  }
  ++samples_;
  const double share = samples_ == 1 ? 1 : 0.1;
  error_ += share * (std::fabs(error) - error_);
  elements_ += share * (elements - elements_);
}

double CodecCalibrator::Predict(double elements, double kept) const {
  return 1e-3 * (coefficients_[0] + 1e-6 * (coefficients_[1] * elements + coefficients_[2] * kept));
}

CodecModel::Time CodecCalibrator::Time() const {
  CodecModel::Time time;
  time.base_s = coefficients_[0] * 1e-3;
  time.per_element_s = coefficients_[1] * 1e-9;
  time.per_kept_s = coefficients_[2] * 1e-9;
  time.deviation_s_per_element = samples_ > 0 ? 1.25 * error_ * 1e-3 / std::max(elements_, 1.0)
                                              : 0.5 * (time.per_element_s + time.per_kept_s * 0.01);
  return time;
}

}  // namespace weir
