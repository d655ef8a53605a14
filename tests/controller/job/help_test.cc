// SPDX-License-Identifier: Apache-2.0
// The time that a job's plans save, and when dense runs to find out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "controller/job/benefit.h"
#include "controller/job/dense_checks.h"
#include "controller/job/help_watch.h"
#include "controller/job/loss_guard.h"
#include "datapath/base/random.h"

namespace weir {
namespace {

const ExponentBelief kSure = BeliefOf({}, 1, 0);

TEST(BenefitTest, SaysWhatIsSavedWithItsInterval) {
  BenefitLedger ledger;
  EXPECT_EQ(ledger.Get(kSure, {}, 0).verdict, BenefitVerdict::kUnknown);
  // 0.2 s at a gain of 0.8 for 0.5 s dense: 0.25 s for the same progress.
  for (int i = 0; i < 100; ++i) ledger.Add({.step_s = 0.2, .gain = 0.8, .predicted_dense_s = 0.5});
  const Benefit exact = ledger.Get(kSure, {0, 0, 0}, 5);
  EXPECT_EQ(exact.verdict, BenefitVerdict::kSaves);
  EXPECT_NEAR(exact.saved_share, 0.5, 1e-9);
  EXPECT_NEAR(exact.step_saved_share, 0.6, 1e-9);
  EXPECT_NEAR(exact.saved_s, 20, 1e-9);
  EXPECT_EQ(BenefitText(exact), "saves 50 % +- 0 % of the time");
  const Benefit about = ledger.Get(kSure, {0, 0.1, 0}, 0);
  EXPECT_NEAR(about.saved_share_low, 1 - 0.5 * std::exp(0.169), 0.005);
  EXPECT_NEAR(about.saved_share_high, 1 - 0.5 * std::exp(-0.169), 0.005);
  EXPECT_THAT(BenefitText(about), testing::HasSubstr("of the time, dense predicted"));
  const Benefit unsure = ledger.Get(BeliefOf({}, 1, 0.35), {0, 0.1, 0}, 5);
  EXPECT_LT(unsure.saved_share_low, about.saved_share_low) << "progress is uncertain, too";
}

TEST(BenefitTest, ACostIsNoSavingAndWhatIsUnclearIsCalledSo) {
  BenefitLedger ledger;
  for (int i = 0; i < 100; ++i) ledger.Add({.step_s = 0.5, .gain = 1, .predicted_dense_s = 0.4});
  const Benefit costs = ledger.Get(kSure, {0, 0.02, 0}, 5);
  EXPECT_EQ(costs.verdict, BenefitVerdict::kCosts);
  EXPECT_NEAR(costs.saved_share, -0.25, 0.01);
  EXPECT_LT(costs.saved_s, 0);
  EXPECT_THAT(BenefitText(costs), testing::StartsWith("costs 25 % +- "));
  const Benefit unclear = ledger.Get(kSure, {0.2, 0.2, 0}, 5);
  EXPECT_EQ(unclear.verdict, BenefitVerdict::kUnclear);
  EXPECT_THAT(BenefitText(unclear), testing::StartsWith("saves nothing that is certain: "));
}

TEST(BenefitTest, DenseStepsSaveNothingAndCountAsTheyWere) {
  BenefitLedger ledger;
  ledger.Add({.step_s = 0.7, .predicted_dense_s = 0.4, .dense = true});
  EXPECT_EQ(ledger.Get(kSure, {}, 5).verdict, BenefitVerdict::kDense);
  EXPECT_EQ(BenefitText(ledger.Get(kSure, {}, 5)), "runs dense");
  ledger.Add({.step_s = 0.1, .gain = 1, .predicted_dense_s = 0.3});
  EXPECT_NEAR(ledger.Get(kSure, {}, 5).saved_s, 0.2, 1e-9);
  ledger.Add({.step_s = 1, .predicted_dense_s = 0});
  EXPECT_NEAR(ledger.total_s(), 0.8, 1e-9) << "what cannot be compared is left out";
}

TEST(DenseCalibrationTest, NarrowsWithMeasurementsAndWidensWithAge) {
  DenseCalibration calibration;
  EXPECT_EQ(calibration.LogRatio(0).deviation, DenseCalibration::kPriorDeviation);
  for (int i = 0; i < 10; ++i) calibration.Add(1.2, 1, 0);
  EXPECT_NEAR(calibration.LogRatio(0).value, std::log(1.2), 0.01);
  const double fresh = calibration.LogRatio(0).deviation;
  EXPECT_LT(fresh, 0.05);
  EXPECT_GT(calibration.LogRatio(3600).deviation, 2 * fresh);
  EXPECT_LT(calibration.LogRatio(1e9).deviation, DenseCalibration::kPriorDeviation + 1e-9);
  EXPECT_NEAR(calibration.LogRatio(1e9).value, 0, 0.01) << "only the prediction is left";
  calibration.Add(0, 1, 0);
  calibration.Add(1, -1, 0);
  EXPECT_EQ(calibration.steps(), 10u);
}

TEST(DenseCalibrationTest, NinetyPercentIntervalsHoldTheTruth) {
  int held = 0;
  const int seeds = 400;
  for (int seed = 1; seed <= seeds; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    const double truth = DenseCalibration::kPriorDeviation * random.Normal();
    DenseCalibration calibration;
    for (int i = 0; i < 3; ++i) {
      calibration.Add(std::exp(truth + 0.1 * random.Normal()), 1, 0);
    }
    const Measured found = calibration.LogRatio(0);
    held += std::fabs(found.value - truth) < 1.645 * found.deviation;
  }
  EXPECT_GT(held, 0.84 * seeds);
  EXPECT_LT(held, 0.97 * seeds);
}

TEST(DenseChecksTest, StayWithinHalfAPercentOverHours) {
  for (const double dense_s : {0.11, 0.3, 2.0}) {
    DenseChecks checks;
    Benefit plan = {.verdict = BenefitVerdict::kSaves, .saved_share_low = 0.01};
    plan.dense_step_s = dense_s;
    double total_s = 0, dense_total_s = 0;
    int made = 0, left = 0;
    while (total_s < 4 * 3600) {
      if (left == 0 && checks.IsDue(plan, 0.2)) {
        left = 7;  // it takes some steps to come back
        ++made;
        checks.OnCheckBegun();
      }
      const double step_s = left > 0 ? dense_s : 0.1;
      checks.OnStep(step_s, left > 0);
      total_s += step_s;
      dense_total_s += left > 0 ? step_s : 0;
      left = std::max(0, left - 1);
      ASSERT_LE(dense_total_s, 0.005 * total_s + 1e-9) << dense_s;
    }
    EXPECT_GE(made, 4) << dense_s;
  }
}

TEST(DenseChecksTest, AreNotMadeWhereTheySayNothing) {
  DenseChecks checks;
  for (int i = 0; i < 100000; ++i) checks.OnStep(0.1, false);
  Benefit plan = {.verdict = BenefitVerdict::kSaves, .saved_share_low = 0.01};
  plan.dense_step_s = 0.2;
  EXPECT_TRUE(checks.IsDue(plan, 0.2));
  EXPECT_FALSE(checks.IsDue(plan, 0.01)) << "dense's time is known";
  plan.saved_share_low = 0.8;
  EXPECT_FALSE(checks.IsDue(plan, 0.2)) << "dense is hopeless";
  plan.saved_share_low = 0.01;
  plan.dense_step_s = 1000;
  EXPECT_FALSE(checks.IsDue(plan, 0.2)) << "dense is too dear";
}

TEST(LossGuardTest, OnlyALongAndLargeLagBringsAGentlerPlan) {
  LossGuard guard;
  guard.Begin(0.4);
  EXPECT_NEAR(guard.GentlerGain(), 0.7, 1e-12);
  const ProgressModel::Behind late = {.loss = 0.2, .deviation = 0.02, .curve = 2};
  const ProgressModel::Behind vague = {.loss = 0.2, .deviation = 0.2, .curve = 2};
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(guard.OnStep(late, 0.05, 10).has_value());
  EXPECT_NEAR(guard.behind_share(), 0.1, 1e-12);
  EXPECT_FALSE(guard.OnStep(vague, 0.05, 10).has_value()) << "the curve is not that certain";
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(guard.OnStep(late, 0.05, 10).has_value());
  EXPECT_TRUE(guard.OnStep(late, 0.05, 10).has_value());
  EXPECT_FALSE(guard.OnStep(late, 0.05, 1).has_value()) << "said once";
  guard.Begin(0.4);
  EXPECT_FALSE(guard.OnStep(late, 0, 1).has_value()) << "the policy does not want it";
  EXPECT_FALSE(guard.OnStep(late, 0.2, 1).has_value()) << "tolerated";
  guard.Begin(1);
  EXPECT_FALSE(guard.OnStep(late, 0.05, 1).has_value()) << "dense has no gentler plan";
}

TEST(HelpWatchTest, StepsBeforeTheFirstDecisionTellDensesTime) {
  FakeClock clock;
  HelpWatch watch(clock);
  StepObservation report;
  report.buckets = {{.bucket = "a", .codec = "identity", .collective = "ring"}};
  for (report.step = 1; report.step <= 8; ++report.step) {
    report.step_s = 0.4;
    watch.OnStep({report, 1, true});
  }
  watch.SetDense(0.3, {{"identity", "ring", 1, 0}});
  EXPECT_NEAR(watch.OfRun(kSure).dense_step_s, 0, 1e-9) << "no step was compared yet";
  watch.BeginPlan({{"top_k", "sparse_all_gather", 0.01, 0}}, 9, false);
  report.step = 12;
  report.step_s = 0.1;
  watch.OnStep({report, 0.5, false});
  const Benefit benefit = watch.OfRun(kSure);
  EXPECT_EQ(benefit.basis, BenefitBasis::kMeasured);
  EXPECT_NEAR(benefit.dense_step_s, 0.4, 0.01) << "measured, not predicted";
  EXPECT_NEAR(benefit.saved_share, 0.5, 0.02);
}

}  // namespace
}  // namespace weir
