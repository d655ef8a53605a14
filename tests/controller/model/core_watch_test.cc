// SPDX-License-Identifier: Apache-2.0
// Which waits for cores count as beyond what a job is used to.
#include "controller/model/core_watch.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

// Differs from call to call, as what agents see does: repetitions are ignored.
CoreObservation Waits(double share, int look) {
  return {.wait_ratio = share, .datapath_wait_ratio = share + 1e-6 * (look % 7)};
}

TEST(CoreWatchTest, OnlyWhatTheJobIsNotUsedToIsExcess) {
  CoreWatch watch;
  double now_s = 100;
  const auto look = [&](double share, int looks) {
    for (int i = 0; i < looks; ++i) watch.Add(now_s += 0.25, 0, Waits(share, i));
  };
  look(0.2, 20);  // as with two ranks on each core
  EXPECT_EQ(watch.Excess(0, now_s), 0);
  look(0.25, 20);
  EXPECT_EQ(watch.Excess(0, now_s), 0) << "a little more is noise";
  look(0.6, 4);
  EXPECT_NEAR(watch.Excess(0, now_s), 0.4, 0.05);
  EXPECT_EQ(watch.Excesses(now_s).size(), 1u);
  EXPECT_EQ(watch.Excess(0, now_s + 2 * CoreWatch::kFreshS), 0) << "nothing is known any more";
  EXPECT_EQ(watch.Excess(1, now_s), 0);
  look(0.2, 1);
  EXPECT_EQ(watch.Excess(0, now_s), 0) << "it ended";
  EXPECT_TRUE(watch.Excesses(now_s).empty());
}

TEST(CoreWatchTest, ALoadThatLastsBecomesWhatTheJobIsUsedTo) {
  CoreWatch watch;
  double now_s = 0;
  for (int i = 0; i < 40; ++i) watch.Add(now_s += 0.25, 0, Waits(0, i));
  for (int i = 0; i < 4 * 60; ++i) watch.Add(now_s += 0.25, 0, Waits(0.5, i));
  EXPECT_GT(watch.Excess(0, now_s), 0.4) << "after a minute";
  for (int i = 0; i < 4 * 2000; ++i) watch.Add(now_s += 0.25, 0, Waits(0.5, i));
  EXPECT_EQ(watch.Excess(0, now_s), 0) << "after half an hour";
}

TEST(CoreWatchTest, StolenTimeCountsAndRepetitionsDoNot) {
  CoreWatch watch;
  double now_s = 0;
  for (int i = 0; i < 100; ++i) watch.Add(now_s += 0.01, 3, {.steal_ratio = 0.4});
  EXPECT_EQ(watch.Excess(3, now_s), 0) << "one look, told a hundred times";
  for (int i = 0; i < 20; ++i) watch.Add(now_s += 0.25, 3, Waits(0, i));
  watch.Add(now_s += 0.25, 3, {.steal_ratio = 0.7});
  EXPECT_GT(watch.Excess(3, now_s), 0.4);
  EXPECT_GT(watch.Recent(3, now_s)->steal_ratio, 0.1);
  EXPECT_FALSE(watch.Recent(4, now_s).has_value());
}

}  // namespace
}  // namespace weir
