// SPDX-License-Identifier: Apache-2.0
#include "controller/model/timeline.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir {
namespace {

TEST(TimelineTest, NetworkBoundBucketsQueueOnTheNetwork) {
  const std::vector<BucketTimes> buckets = {{0, 1, 10, 2}, {3, 1, 10, 2}};
  // E: 1, 4. W: 11, 21. D: 13, 23. The last bucket is ready at 3, backward ends at 5.
  const StepTimes step = PredictStep(buckets, 100, 5);
  EXPECT_DOUBLE_EQ(step.exposed_s, 18);
  EXPECT_DOUBLE_EQ(step.step_s, 118);
  EXPECT_DOUBLE_EQ(step.communication_s, 26);
}

TEST(TimelineTest, CommunicationInsideBackwardIsFree) {
  const std::vector<BucketTimes> buckets = {{0, 1, 2, 1}};
  EXPECT_EQ(PredictStep(buckets, 50, 20).exposed_s, 0);
  EXPECT_EQ(PredictStep(buckets, 50, 20).step_s, 50);
}

TEST(TimelineTest, EncodeBoundBucketsQueueOnTheEncoder) {
  const std::vector<BucketTimes> buckets = {{0, 5, 1, 1}, {0, 5, 1, 1}, {0, 5, 1, 1}};
  EXPECT_DOUBLE_EQ(PredictStep(buckets, 0, 0).exposed_s, 17);
}

TEST(TimelineTest, SlowDecodeIsCounted) {
  const std::vector<BucketTimes> buckets = {{0, 1, 1, 7}, {0, 1, 1, 7}};
  EXPECT_DOUBLE_EQ(PredictStep(buckets, 0, 0).exposed_s, 16);
}

TEST(TimelineTest, BackwardNeverEndsBeforeTheLastBucketIsReady) {
  const std::vector<BucketTimes> buckets = {{30, 1, 1, 1}};
  EXPECT_DOUBLE_EQ(PredictStep(buckets, 40, 0).exposed_s, 3);
}

}  // namespace
}  // namespace weir
