// SPDX-License-Identifier: Apache-2.0
// The estimate from samples that ranks of the quick demo reported on a machine with too few
// cores for its four hosts: half of them are of flows that a window or a stalled host made slow.

#include "controller/model/arrival_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace weir {
namespace {

/// MB/s, and the deviation of its logarithm.
struct Recorded {
  double rate, deviation;
};

/// Six steps at 1 Gb/s, then ten at 50 Mb/s, of which TCP payloads get 0.955.
const std::vector<std::vector<Recorded>> kSlowed = {
    {{17.3, 0.32}, {131, 0.23}, {120, 0.12}, {72.9, 0.32}},
    {{60.9, 0.32}, {129, 0.32}, {28.1, 0.32}, {111, 0.32}},
    {},
    {{118, 0.17}, {9.38, 0.32}, {106, 0.32}},
    {{51.5, 0.32}, {138, 0.23}, {143, 0.32}},
    {{119, 0.44}, {126, 0.32}, {119, 0.44}},
    {{7.38, 0.11},
     {6.79, 0.66},
     {5.87, 0.04},
     {5.6, 0.03},
     {5.68, 0.08},
     {7.48, 0.17},
     {5.89, 0.03}},
    {{6.36, 0.32}, {5.67, 0.03}, {6.14, 0.09}, {5.91, 0.08}, {5.83, 0.03}},
    {{5.49, 0.04},
     {5.75, 0.03},
     {4.93, 0.59},
     {4.4, 0.26},
     {2.99, 0.50},
     {16.2, 0.32},
     {6.42, 0.07}},
    {{6.64, 0.57},
     {6.44, 0.24},
     {5.99, 0.07},
     {6.03, 0.04},
     {3.99, 0.32},
     {5.13, 0.08},
     {5.7, 0.32},
     {4.23, 0.17},
     {21.9, 0.32},
     {5.97, 0.04}},
    {{3.68, 0.18},
     {8.87, 0.32},
     {5.34, 0.37},
     {9.44, 0.32},
     {3.47, 0.23},
     {6.86, 0.59},
     {6.59, 0.32}},
    {{4.52, 0.59}, {6.18, 0.11}, {2.43, 0.23}, {3.28, 0.59}, {4.5, 0.52}},
    {{4.42, 0.65},
     {1.15, 0.59},
     {4.49, 0.59},
     {6.92, 0.32},
     {3.1, 0.20},
     {10.4, 0.60},
     {8.81, 0.32}},
    {{3.64, 0.17},
     {4.17, 0.35},
     {3.4, 0.59},
     {11.1, 0.52},
     {7.96, 0.32},
     {7.46, 0.32},
     {5.97, 0.59},
     {6.21, 0.32}},
    {{5.98, 0.50}, {3.13, 0.26}, {6.1, 0.59}, {3.89, 0.32}, {6.24, 0.32}},
    {{3.62, 0.21},
     {5.87, 0.32},
     {5.97, 0.59},
     {5.39, 0.32},
     {4.11, 0.19},
     {1.8, 0.59},
     {5.85, 0.59}},
};

/// Two steps at 200 Mb/s, then twelve at 500 Mb/s.
const std::vector<std::vector<Recorded>> kQuickened = {
    {{43.2, 0.59},
     {24.4, 0.55},
     {23.5, 0.05},
     {21.8, 0.10},
     {30.1, 0.55},
     {27.3, 0.32},
     {23.3, 0.59},
     {29.7, 0.23}},
    {{28.6, 0.59},
     {12.4, 0.38},
     {26, 0.23},
     {26.7, 0.55},
     {25.9, 0.59},
     {22.3, 0.59},
     {27, 0.12},
     {32.7, 0.66},
     {17.1, 0.14}},
    {{73.3, 0.54}, {90.1, 0.44}, {88, 0.30}, {99.4, 0.66}, {81, 0.44}},
    {{8.85, 0.20}, {64.3, 0.66}, {64.7, 0.37}, {49, 0.44}, {122, 0.75}, {99, 0.31}},
    {{62.4, 0.66}, {79.9, 0.31}},
    {{80.2, 0.66}, {60.1, 0.35}, {64.3, 0.62}},
    {{22.7, 0.64}, {62.7, 0.44}, {75.2, 0.66}, {14.4, 0.22}},
    {{59.8, 0.59}, {69.3, 0.22}, {14, 0.32}, {62.2, 0.66}, {71.2, 0.66}},
    {{52.7, 0.44}, {58.5, 0.35}, {86.3, 0.66}},
    {{70.6, 0.44}, {70.3, 0.31}, {112, 0.55}, {132, 0.66}},
    {{84.3, 0.31}, {51.2, 0.35}, {90.9, 0.66}, {11.7, 0.59}},
    {{56.3, 0.41}},
    {{11.8, 0.23}, {68, 0.44}, {59.6, 0.66}},
    {{124, 0.69}, {68.5, 0.44}, {74, 0.69}},
};

/// Feeds one step of samples.
void Feed(const std::vector<Recorded>& samples, double now_s, ArrivalPool* pool) {
  for (const Recorded& one : samples) {
    const double deviation = std::hypot(0.08, one.deviation);
    pool->Add(now_s, "host", 1e6 * one.rate, deviation, false);
  }
  pool->EndStep(now_s);
}

double LogError(const ArrivalPool& pool, double now_s, double truth) {
  const auto bandwidth = pool.Bandwidth(now_s);
  return bandwidth.has_value() ? std::log(bandwidth->value / (0.955e6 * truth)) : 9;
}

TEST(ArrivalPoolTest, SlowFlowsOfBusyHostsAreNoSlowLink) {
  ArrivalPool pool;
  double now_s = 0;
  for (size_t step = 0; step < kSlowed.size(); ++step) {
    Feed(kSlowed[step], now_s += 0.4, &pool);
    if (step == 5) {
      EXPECT_NEAR(LogError(pool, now_s, 125), 0, 0.2);
    }
    if (step >= 10) {
      EXPECT_NEAR(LogError(pool, now_s, 6.25), 0, 0.2) << step;
    }
  }
}

TEST(ArrivalPoolTest, AChangeThatCollectivesFoundIsAdoptedAtOnce) {
  ArrivalPool pool;
  double now_s = 0;
  for (size_t step = 0; step < 8; ++step) Feed(kSlowed[step], now_s += 0.4, &pool);
  pool.ForgetUpTo(now_s - 0.8);
  EXPECT_NEAR(LogError(pool, now_s, 6.25), 0, 0.2);
  pool.ForgetUpTo(now_s, true);
  EXPECT_NEAR(LogError(pool, now_s, 6.25), 0, 0.2) << "a longer way alone is no slower one";
  pool.ForgetUpTo(now_s);
  EXPECT_FALSE(pool.Bandwidth(now_s).has_value());
}

TEST(ArrivalPoolTest, CollectivesOfBusyHostsDoNotUndoWhatStillArrives) {
  ArrivalPool pool;
  double now_s = 0;
  for (int step = 0; step < 8; ++step) {
    Feed({{61.1, 0.2}, {66.5, 0.3}, {58.2, 0.2}}, now_s += 0.4, &pool);
  }
  const double since_s = now_s;
  Feed({{61.1, 0.44}, {97.5, 0.66}, {9.65, 0.17}}, now_s += 0.4, &pool);  // recorded
  pool.ForgetUpTo(since_s);
  EXPECT_NEAR(LogError(pool, now_s, 62.5), 0, 0.2);
}

TEST(ArrivalPoolTest, ShortTrainsOfStalledHostsAreNoSlowLink) {
  ArrivalPool pool;
  double now_s = 0;
  for (int step = 0; step < 8; ++step) {
    Feed({{119, 0.05}, {121, 0.1}, {112, 0.05}}, now_s += 0.4, &pool);
  }
  // Recorded at 1 Gb/s, with payloads that take a millisecond.
  for (const std::vector<Recorded>& samples : std::vector<std::vector<Recorded>>{
           {{6.27, 0.17}},
           {{46.9, 0.32}},
           {{9.72, 0.32}, {33.7, 0.23}, {8.89, 0.32}, {10.5, 0.32}},
           {{8.21, 0.41}},
           {{8.33, 0.32}, {85.4, 0.41}, {8.49, 0.11}, {7.69, 0.32}},
           {{21.9, 0.32}},
           {{13.5, 0.24}, {11.8, 0.32}, {32.6, 0.32}, {10.2, 0.32}}}) {
    Feed(samples, now_s += 0.6, &pool);
    EXPECT_NEAR(LogError(pool, now_s, 125), 0, 0.2);
  }
}

TEST(ArrivalPoolTest, AFasterNetworkIsAdoptedWithinAFewSteps) {
  ArrivalPool pool;
  double now_s = 0;
  for (size_t step = 0; step < kQuickened.size(); ++step) {
    Feed(kQuickened[step], now_s += 0.4, &pool);
    if (step >= 7) {
      EXPECT_NEAR(LogError(pool, now_s, 62.5), 0, 0.3) << step;
    }
    if (step >= 8) {
      EXPECT_NEAR(LogError(pool, now_s, 62.5), 0, 0.2) << step;
    }
  }
}

TEST(ArrivalPoolTest, AHostIsSlowerOnlyByItsOwnSteadySamplesInTwoWindows) {
  ArrivalPool pool;
  double now_s = 0;
  const auto step = [&](bool steady) {
    now_s += 0.4;
    for (int host = 0; host < 4; ++host) {
      const bool slow = host == 3;
      pool.Add(now_s, std::string(1, static_cast<char>('a' + host)), slow ? 1e7 : 1e8, 0.1, steady);
    }
    pool.EndStep(now_s);
  };
  for (int i = 0; i < 40; ++i) step(false);
  EXPECT_NEAR(std::log(pool.Bandwidth(now_s)->value / 1e8), 0, 0.1);
  step(true);
  EXPECT_NEAR(std::log(pool.Bandwidth(now_s)->value / 1e8), 0, 0.1);
  for (int i = 0; i < 15; ++i) step(true);
  EXPECT_NEAR(std::log(pool.Bandwidth(now_s)->value / 1e7), 0, 0.1);
}

}  // namespace
}  // namespace weir
