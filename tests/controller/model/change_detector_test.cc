// SPDX-License-Identifier: Apache-2.0
#include "controller/model/change_detector.h"

#include <gtest/gtest.h>

#include <limits>

#include "datapath/base/random.h"

namespace weir {
namespace {

TEST(ChangeDetectorTest, ALargeShiftIsSeenAtTheSecondSample) {
  ChangeDetector detector;
  EXPECT_EQ(detector.Add(20), 0);
  EXPECT_EQ(detector.Add(20), 1);
  EXPECT_EQ(detector.run_length(), 2);
  EXPECT_EQ(detector.Add(-20), 0);
  EXPECT_EQ(detector.Add(-20), -1);
}

TEST(ChangeDetectorTest, OneOutlierIsIgnored) {
  ChangeDetector detector;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(detector.Add(i % 10 == 0 ? 1000 : 0), 0);
  }
}

TEST(ChangeDetectorTest, OneDeviationIsSeenInAboutTenSamples) {
  double total = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    ChangeDetector detector;
    int samples = 0;
    do {
      ++samples;
    } while (detector.Add(1 + random.Normal()) == 0);
    total += samples;
  }
  EXPECT_GT(total / 200, 6);
  EXPECT_LT(total / 200, 14);
}

TEST(ChangeDetectorTest, FalseAlarmsAreRare) {
  int alarms = 0;
  Random random(1);
  ChangeDetector detector;
  for (int i = 0; i < 100000; ++i) alarms += detector.Add(random.Normal()) != 0;
  EXPECT_LT(alarms, 100000 / 300);
  EXPECT_GT(alarms, 10);  // and it does not sleep
}

TEST(ChangeDetectorTest, RunLengthPointsAtTheBeginning) {
  ChangeDetector detector;
  for (int i = 0; i < 20; ++i) detector.Add(-0.2);
  int samples = 0;
  do {
    ++samples;
  } while (detector.Add(1.5) == 0);
  EXPECT_EQ(detector.run_length(), samples);
}

TEST(ChangeDetectorTest, NotANumberIsIgnored) {
  ChangeDetector detector;
  detector.Add(20);
  EXPECT_EQ(detector.Add(std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(detector.Add(20), 1);
}

}  // namespace
}  // namespace weir
