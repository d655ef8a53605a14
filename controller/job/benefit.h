// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether Weir helps a job: the time that training took against the time that dense would have
// taken for the same progress, as one signed figure with its interval. Pure.

#include <array>
#include <cstdint>
#include <string>

#include "controller/model/progress.h"
#include "controller/model/snapshot.h"

namespace weir {

enum class BenefitVerdict { kUnknown, kDense, kSaves, kCosts, kUnclear };
enum class BenefitBasis { kPredicted, kMeasured };

/// See Benefit in admin.proto.
struct Benefit {
  BenefitVerdict verdict = BenefitVerdict::kUnknown;
  BenefitBasis basis = BenefitBasis::kPredicted;
  double saved_share = 0, saved_share_low = 0, saved_share_high = 0;
  double saved_s = 0, compared_s = 0;
  double step_saved_share = 0;
  double dense_step_s = 0, dense_step_deviation_s = 0;
  uint64_t measured_steps = 0;
  double dense_checks_share = 0;
};

/// "saves 34 % +- 5 % of the time", "costs 3 % +- 1 % of the time", "saves nothing that is certain:
/// 1 % +- 4 % of the time", with ", dense predicted" where no dense step was measured; "not
/// compared with dense yet"; "runs dense".
std::string BenefitText(const Benefit& benefit);

/// Measured over predicted time of dense steps. What is predicted is off by kPriorDeviation until
/// dense has run, and a measurement says less the older it is. Not thread-safe.
class DenseCalibration {
 public:
  static constexpr double kPriorDeviation = 0.25;  // of the logarithm
  /// `steps`: how many `measured_s` is the mean of. Ignores what is not positive.
  void Add(double measured_s, double predicted_s, double now_s, uint64_t steps = 1);
  /// The logarithm of measured over predicted, and its deviation, at `now_s`.
  Measured LogRatio(double now_s) const;
  uint64_t steps() const { return steps_; }

 private:
  double mean_ = 0, spread_ = 0;  // of logarithms; spread: mean square deviation
  double weight_ = 0;             // measurements behind the mean
  uint64_t steps_ = 0;
  double newest_s_ = 0;
};

/// One step of a job, with what dense is predicted to take now.
struct ComparedStep {
  double step_s = 0, gain = 1, predicted_dense_s = 0;
  bool dense = false;
  bool check = false;  // dense ran for this figure's sake
};

/// Sums over steps. Not thread-safe; constant memory.
class BenefitLedger {
 public:
  /// Steps without a prediction are left out.
  void Add(const ComparedStep& step);
  /// `log_ratio`: of DenseCalibration; `measured_steps` of it. Dense steps count as they were.
  Benefit Get(const ExponentBelief& belief, const Measured& log_ratio,
              uint64_t measured_steps) const;
  double total_s() const { return dense_s_ + compressed_s_; }
  double checks_s() const { return checks_s_; }

 private:
  double dense_s_ = 0, compressed_s_ = 0, checks_s_ = 0;
  double predicted_s_ = 0;                  // dense time of the compressed steps, and below of
  std::array<double, kExponents> due_s_{};  // their progress, by exponent
  double newest_predicted_s_ = 0;
};

}  // namespace weir
