// SPDX-License-Identifier: Apache-2.0
#include "controller/model/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "datapath/base/random.h"

namespace weir {
namespace {

using Curve = std::function<double(double clock)>;

const Curve kPower = [](double clock) { return 1 + 4 / std::sqrt(1 + clock / 30); };
const Curve kLog = [](double clock) { return 6 - 0.6 * std::log(1 + clock / 20); };
const Curve kExponential = [](double clock) { return 1 + 3 * std::exp(-clock / 800); };
const Curve kPlateau = [](double) { return 2.0; };

struct Course {
  Curve curve = kPower;
  double exponent = 1, noise = 0.05;
  int steps = 2000, plan_steps = 200, loss_every = 1;
  double spike_share = 0;
  int learning_rate_falls_at = 0;
  bool switches = true;
};

/// A job whose plans have four gains in turn, after 20 dense steps.
ProgressModel Train(const Course& course, uint64_t seed) {
  Random random(seed);
  ProgressModel model;
  const double gains[] = {0.3, 0.7, 0.2, 1};
  double clock = 0, gain = 1;
  int left = 20, next = 0;
  for (int step = 0; step < course.steps; ++step) {
    if (course.switches && left-- <= 0) {
      gain = gains[next++ % 4] * (0.9 + 0.1 * random.Uniform());
      left = static_cast<int>(course.plan_steps * (0.5 + random.Uniform()));
    }
    double loss = course.curve(clock) + course.noise * random.Normal();
    if (random.Uniform() < course.spike_share) loss += 5 * random.Uniform();
    const int since = step - course.learning_rate_falls_at;
    if (course.learning_rate_falls_at > 0 && since > 0)
      loss -= 0.15 * (1 - std::exp(-since / 60.0));
    model.Add(gain, step % course.loss_every == 0 ? std::optional(loss) : std::nullopt);
    clock += std::pow(gain, course.exponent);
  }
  return model;
}

struct Score {
  double covered = 0, width = 0, mean = 0;
};

/// Over so many seeds: how often the central 90 % hold the truth.
Score Judge(Course course, int seeds, double prior_deviation = 0.35) {
  Score score;
  for (int seed = 1; seed <= seeds; ++seed) {
    const ProgressModel model = Train(course, static_cast<uint64_t>(seed) * 7919);
    const auto belief = BeliefOf(model.LogLikelihood(), 1, prior_deviation);
    const double low = belief.Quantile(0.05), high = belief.Quantile(0.95);
    score.covered += low - 1e-9 <= course.exponent && course.exponent <= high + 1e-9;
    score.width += high - low;
    score.mean += belief.mean;
  }
  return {score.covered / seeds, score.width / seeds, score.mean / seeds};
}

TEST(ProgressModelTest, FindsTheExponentOnCurvesOfEveryKind) {
  for (const Curve& curve : {kPower, kLog, kExponential}) {
    for (const double exponent : {0.3, 0.7, 1.0, 1.5}) {
      const Score score = Judge({.curve = curve, .exponent = exponent}, 12);
      EXPECT_GE(score.covered, 0.85) << exponent;
      EXPECT_LT(score.width, 0.5) << exponent << ": the prior alone is 1.1 wide";
      EXPECT_NEAR(score.mean, exponent, 0.12);
    }
  }
}

TEST(ProgressModelTest, IntervalsHoldWithMoreNoiseFewerLossesSpikesAndChangesOfTheRate) {
  for (const double exponent : {0.5, 1.0}) {
    EXPECT_GE(Judge({.exponent = exponent, .noise = 0.3}, 8).covered, 0.85);
    EXPECT_GE(Judge({.exponent = exponent, .noise = 0.01}, 8).covered, 0.85);
    EXPECT_GE(Judge({.exponent = exponent, .loss_every = 10}, 8).covered, 0.85);
    EXPECT_GE(Judge({.exponent = exponent, .plan_steps = 40}, 8).covered, 0.85);
    EXPECT_GE(Judge({.exponent = exponent, .spike_share = 0.01}, 8).covered, 0.85);
    EXPECT_GE(Judge({.exponent = exponent, .learning_rate_falls_at = 1200}, 8).covered, 0.8);
  }
}

TEST(ProgressModelTest, NarrowsAsPlansChange) {
  double before = 1.2;  // of the prior
  for (const int steps : {60, 200, 2000}) {
    const double width =
        Judge({.curve = kLog, .exponent = 0.7, .steps = steps, .plan_steps = 50}, 8).width;
    EXPECT_LT(width, before) << steps;
    before = width;
  }
  EXPECT_LT(before, 0.25);
}

TEST(ProgressModelTest, NothingIsLearntWithoutLossesSwitchesOrSlope) {
  EXPECT_TRUE(Train({.loss_every = 1000000}, 1).LogLikelihood().empty());
  EXPECT_TRUE(Train({.switches = false}, 1).LogLikelihood().empty());
  const auto prior = BeliefOf({}, 1, 0.35);
  EXPECT_EQ(prior.mean, 1);
  const auto flat = BeliefOf(Train({.curve = kPlateau}, 1).LogLikelihood(), 1, 0.35);
  EXPECT_NEAR(flat.mean, 1, 0.15);
  EXPECT_NEAR(flat.deviation, prior.deviation, 0.1);
  ProgressModel model;
  for (int i = 0; i < 100; ++i) model.Add(i % 2 == 0 ? 1 : 0.5, std::nan(""));
  EXPECT_EQ(model.losses(), 0u);
}

TEST(ProgressModelTest, AGainThatIsNotWhatItWasAtFirstButAlwaysTheSameSaysNothing) {
  ProgressModel model;
  Random random(3);
  for (int i = 0; i < 500; ++i) model.Add(0.4, kPower(i) + 0.05 * random.Normal());
  EXPECT_TRUE(model.LogLikelihood().empty());
  EXPECT_NEAR(model.gain_seen(), 0.4, 0.01);
}

TEST(ProgressModelTest, IsDeterministicBoundedAndCheap) {
  const Course course = {.exponent = 0.6};
  EXPECT_EQ(Train(course, 5).LogLikelihood(), Train(course, 5).LogLikelihood());
  const ProgressModel model = Train(course, 5);
  EXPECT_EQ(model.updates(), model.losses() * ProgressModel::kFilters);
  EXPECT_LE(ProgressModel::kFilters, 128);
  EXPECT_LT(sizeof(ProgressModel), 20'000u);
  for (const double value : model.LogLikelihood()) {
    EXPECT_LE(value, 0);
    EXPECT_GE(value, -50);
  }
}

TEST(ProgressModelTest, ALossThatFallsBehindTheCurveIsMeasured) {
  // Until step 400 all is well; then a plan of gain 0.5 stops all progress, whatever p says. Or the
  // one plan that ran from the beginning does harm from then on.
  for (const bool begins : {true, false}) {
    for (const bool harms : {true, false}) {
      Random random(11);
      ProgressModel model;
      double clock = 0, harm = 0;
      for (int step = 0; step < 700; ++step) {
        if (begins && step == 400) model.BeginPlan();
        const double gain = begins && step < 400 ? 1 : 0.5;
        model.Add(gain, kLog(clock) + harm + 0.03 * random.Normal());
        const bool harmed = harms && step >= 400;
        clock += harmed && begins ? 0 : gain;
        harm += harmed && !begins ? 0.002 : 0;
      }
      const auto behind = model.BehindCurve(1);
      ASSERT_TRUE(behind.has_value());
      EXPECT_EQ(behind->loss > 0.1 && behind->loss > 2 * behind->deviation, harms)
          << begins << " " << behind->loss << " +- " << behind->deviation;
    }
  }
}

TEST(ProgressModelTest, ACurveThatBendsIsNotBehindItself) {
  const Curve hyperbola = [](double clock) { return 3 / (1 + 0.01 * clock); };
  for (const Curve& curve : {kPower, kLog, kExponential, kPlateau, hyperbola}) {
    for (const double noise : {0.0, 0.05}) {
      Random random(7);
      ProgressModel model;
      int in_a_row = 0, most = 0;
      for (int step = 0; step < 4000; ++step) {
        if (step == 10 || step == 900) model.BeginPlan();
        const double gain = step < 10 ? 1 : step < 900 ? 0.7 : 0.5;
        model.Add(gain, curve(step) + noise * random.Normal());
        const auto behind = model.BehindCurve(0);
        const bool late =
            behind.has_value() && behind->loss > 0.05 * behind->curve + 2 * behind->deviation;
        in_a_row = late ? in_a_row + 1 : 0;
        most = std::max(most, in_a_row);
      }
      EXPECT_LT(most, 30) << curve(0) << " noise " << noise;
    }
  }
}

TEST(ProgressModelTest, GoesOnWhereASavedOneWas) {
  ProgressModel model = Train({}, 3);
  const std::string saved = model.Save();
  EXPECT_LT(saved.size(), 40'000u);
  ProgressModel restored;
  ASSERT_TRUE(restored.Restore(saved, 0).ok());
  EXPECT_EQ(restored.Save(), saved);
  Random random(9);
  for (int step = 0; step < 300; ++step) {
    const double gain = step < 150 ? 0.4 : 1, loss = 1.5 + 0.05 * random.Normal();
    model.Add(gain, loss);
    restored.Add(gain, loss);
  }
  EXPECT_EQ(restored.LogLikelihood(), model.LogLikelihood());
  EXPECT_EQ(restored.losses(), model.losses());
  EXPECT_EQ(restored.BehindCurve(1)->loss, model.BehindCurve(1)->loss);
  EXPECT_EQ(ProgressModel().Save(), "");
}

TEST(ProgressModelTest, StepsThatNobodySawMoveTheClock) {
  // The same course, with 400 steps in its middle that the restored model did not see.
  ProgressModel model;
  Random random(4);
  const auto loss_at = [&](int step) { return kPower(step) + 0.02 * random.Normal(); };
  for (int step = 0; step < 600; ++step) model.Add(1, loss_at(step));
  ProgressModel late, still;
  ASSERT_TRUE(late.Restore(model.Save(), 400).ok());
  ASSERT_TRUE(still.Restore(model.Save(), 0).ok());
  for (int step = 1000; step < 1100; ++step) {
    const double loss = loss_at(step);
    late.Add(1, loss);
    still.Add(1, loss);
  }
  ASSERT_TRUE(late.BehindCurve(1).has_value());
  EXPECT_LT(std::fabs(late.BehindCurve(1)->loss), 0.5 * std::fabs(still.BehindCurve(1)->loss));
}

TEST(ProgressModelTest, ADamagedStateIsRefusedAndChangesNothing) {
  const std::string saved = Train({}, 3).Save();
  ProgressModel model = Train({}, 5);
  const std::string before = model.Save();
  std::vector<std::string> damaged = {"",
                                      "progress1",
                                      "progress2" + saved.substr(9),
                                      saved + " 1",
                                      saved.substr(0, saved.size() / 2),
                                      "progress1 nan nan"};
  std::string text = saved;
  for (char& c : text) c = c == ' ' ? c : '-';
  damaged.push_back(text);
  // Every number in turn becomes one that no logarithm takes.
  for (size_t at = saved.find(' '); at != std::string::npos; at = saved.find(' ', at + 1)) {
    const size_t end = std::min(saved.find(' ', at + 1), saved.size());
    ProgressModel fresh;
    const std::string one = saved.substr(0, at) + " -1" + saved.substr(end);
    if (!fresh.Restore(one, 10).ok()) continue;
    for (int i = 0; i < 20; ++i) fresh.Add(0.5, 2.0 - 0.01 * i);
    for (const double value : fresh.LogLikelihood()) ASSERT_TRUE(std::isfinite(value)) << at;
  }
  for (const std::string& one : damaged) {
    EXPECT_EQ(model.Restore(one, 0).code(), StatusCode::kInvalidArgument) << one.substr(0, 40);
    EXPECT_EQ(model.Save(), before);
  }
}

TEST(ExponentBeliefTest, APolicyMayBeCertain) {
  const ProgressModel model = Train({.exponent = 0.3}, 1);
  const auto belief = BeliefOf(model.LogLikelihood(), 1.75, 0);
  EXPECT_EQ(belief.mean, 1.75);
  EXPECT_EQ(belief.deviation, 0);
}

TEST(ProgressCurveTest, BelowTheGainThatWasSeenThePriorHolds) {
  const ProgressCurve curve = {.exponent = 0.2, .gain_seen = 0.5, .prior = 1};
  EXPECT_NEAR(curve.At(0.8), std::pow(0.8, 0.2), 1e-12);
  EXPECT_NEAR(curve.At(0.05), std::pow(0.5, 0.2) * 0.1, 1e-12);
  const ProgressCurve steep = {.exponent = 1.5, .gain_seen = 0.5, .prior = 1};
  EXPECT_NEAR(steep.At(0.05), std::pow(0.05, 1.5), 1e-12);
  double before = -1;
  for (double gain = 0; gain <= 1; gain += 0.01) {
    EXPECT_GT(curve.At(gain), before);
    before = curve.At(gain);
  }
}

}  // namespace
}  // namespace weir
