// SPDX-License-Identifier: Apache-2.0
#include "controller/model/block_density.h"

#include <gtest/gtest.h>

#include "controller/model/cost_model.h"
#include "controller/model/job_estimates.h"
#include "datapath/base/random.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

TEST(BlockDensityTest, TheUnionOfIndependentBlocksFollowsTheFormula) {
  EXPECT_DOUBLE_EQ(IndependentUnion(0, 8), 0);
  EXPECT_DOUBLE_EQ(IndependentUnion(1, 3), 1);
  EXPECT_DOUBLE_EQ(IndependentUnion(0.25, 1), 0.25);
  EXPECT_NEAR(IndependentUnion(0.01, 4), 1 - 0.99 * 0.99 * 0.99 * 0.99, 1e-15);
  // Against drawn blocks.
  constexpr int kWorld = 6, kBlocks = 200000;
  Random random(7);
  int held = 0;
  for (int block = 0; block < kBlocks; ++block) {
    bool any = false;
    for (int rank = 0; rank < kWorld; ++rank) any |= random.Uniform() < 0.05;
    held += any;
  }
  EXPECT_NEAR(IndependentUnion(0.05, kWorld), static_cast<double>(held) / kBlocks, 0.003);
}

TEST(BlockDensityTest, WithoutMeasurementsEverythingIsDense) {
  const BlockDensityEstimate nothing;
  EXPECT_EQ(nothing.Own(), 1);
  EXPECT_EQ(nothing.Union(4, 0), (Measured{1, 0, 0}));
}

TEST(BlockDensityTest, BeforeASumWasSeenBlocksCountAsIndependent) {
  BlockDensityEstimate estimate;
  for (int rank = 0; rank < 3; ++rank) estimate.AddOwn(rank, 0.1 * (rank + 1));
  EXPECT_DOUBLE_EQ(estimate.Own(), 0.3);
  const Measured all = estimate.Union(3, 5);
  EXPECT_NEAR(all.value, 1 - 0.9 * 0.8 * 0.7, 1e-12);
  // From 0.3, were all in one place, to 0.6, were none.
  EXPECT_NEAR(all.deviation, 0.3 / std::sqrt(12.0), 1e-12);
  // A fourth that was not heard is like the others.
  EXPECT_NEAR(estimate.Union(4, 5).value, 1 - 0.9 * 0.8 * 0.7 * 0.8, 1e-12);
}

TEST(BlockDensityTest, SumsTakeOverAndAreAveragedWithVarianceAndAge) {
  BlockDensityEstimate estimate;
  for (int rank = 0; rank < 4; ++rank) estimate.AddOwn(rank, 0.1);
  const Measured expected = estimate.Union(4, 0);
  estimate.AddUnion(0.12, 10);
  const Measured first = estimate.Union(4, 10);
  EXPECT_DOUBLE_EQ(first.value, 0.12);
  EXPECT_LT(first.deviation, expected.deviation);
  for (int i = 0; i < 60; ++i) estimate.AddUnion(0.12, 10 + i);
  const Measured steady = estimate.Union(4, 69);
  EXPECT_LT(steady.deviation, 0.1 * first.deviation);
  EXPECT_EQ(steady.age_s, 0);
  const Measured old = estimate.Union(4, 69 + 600);
  EXPECT_EQ(old.age_s, 600);
  EXPECT_NEAR(old.deviation, 0.1, 0.01);
  // Sums that vary are less certain than sums that do not.
  for (int i = 0; i < 60; ++i) estimate.AddUnion(i % 2 == 0 ? 0.1 : 0.3, 70);
  const Measured restless = estimate.Union(4, 70);
  EXPECT_NEAR(restless.value, 0.2, 0.02);
  EXPECT_NEAR(restless.deviation, 0.1, 0.02);
}

TEST(BlockDensityTest, AnOldSumYieldsToWhatRanksHoldNow) {
  BlockDensityEstimate estimate;
  for (int rank = 0; rank < 2; ++rank) estimate.AddOwn(rank, 0.1);
  estimate.AddUnion(0.15, 0);
  for (int i = 0; i < 100; ++i) {
    for (int rank = 0; rank < 2; ++rank) estimate.AddOwn(rank, 0.6);
  }
  EXPECT_NEAR(estimate.Union(2, 1).value, 0.6, 1e-6) << "no less than one rank's";
  for (int i = 0; i < 100; ++i) {
    for (int rank = 0; rank < 2; ++rank) estimate.AddOwn(rank, 0.01);
  }
  EXPECT_NEAR(estimate.Union(2, 1).value, 0.02, 1e-6) << "no more than all together";
}

TEST(BlockDensityTest, OnlyKnownBucketsAndFewSizesAreFollowed) {
  std::map<std::string, BucketEstimate> estimates;
  estimates["a"];
  StepObservation report;
  report.block_densities = {{"a", 0, 0.5, 0.5}, {"b", 64, 0.5, 0.5}};
  for (uint32_t size = 1; size <= 100; ++size)
    report.block_densities.push_back({"a", size, 0.5, {}});
  AddDensities(report, 0, &estimates);
  EXPECT_EQ(estimates.size(), 1u);
  EXPECT_EQ(estimates["a"].densities.size(), kBlockSizesMax);
}

TEST(BlockDensityTest, OneRankTellsOfTheSum) {
  std::map<std::string, BucketEstimate> estimates;
  estimates["a"];
  StepObservation report;
  for (report.rank = 0; report.rank < 2; ++report.rank) {
    report.block_densities = {{"a", 64, 0.2, report.rank == 0 ? 0.3 : 0.9}};
    AddDensities(report, 0, &estimates);
  }
  const auto densities = DensitiesOf(estimates["a"].densities, 2, 0);
  ASSERT_EQ(densities.size(), 1u);
  EXPECT_EQ(densities[0].block_elements, 64u);
  EXPECT_DOUBLE_EQ(densities[0].union_of.value, 0.3);
}

CollectiveModel LeavesOutZeros() {
  CollectiveModel collective = test::Collective("block_mesh", "lanes");
  collective.payload.n_minus_1_over_n = 2;
  collective.block_elements = 256;
  collective.own_block_share = collective.union_block_share = 0.5;
  return collective;
}

TEST(BlockSavingTest, SharesOfThePayloadGoWithTheirDensities) {
  const CollectiveModel collective = LeavesOutZeros();
  const CodecModel dense = test::Lanes("identity", 32, false);
  EXPECT_EQ(PredictBlockSaving(dense, collective, {}).share, 1) << "not measured";
  const std::vector<BlockDensityModel> densities = {{64, 0.01, {0.02, 0, 0}},
                                                    {256, 0.1, {0.3, 0.04, 0}}};
  const BlockSaving saving = PredictBlockSaving(dense, collective, densities);
  EXPECT_DOUBLE_EQ(saving.share, 0.5 * 0.1 + 0.5 * 0.3);
  EXPECT_DOUBLE_EQ(saving.deviation, 0.5 * 0.04);
  EXPECT_EQ(PredictBlockSaving(test::Lanes("fp16", 16, true), collective, densities).share, 1);
  EXPECT_EQ(PredictBlockSaving(dense, test::Collective("ring", "lanes"), densities).share, 1);
}

TEST(BlockSavingTest, ABucketCostsTheBytesThatAreLeft) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-4, 1e8);
  BucketModel bucket = snapshot.buckets[0];
  const CodecModel dense = test::Lanes("identity", 32, false);
  const BucketCost all = PredictBucket(snapshot, bucket, dense, LeavesOutZeros(), 1);
  bucket.block_densities = {{256, 0.02, {0.06, 0.03, 0}}};
  const BucketCost few = PredictBucket(snapshot, bucket, dense, LeavesOutZeros(), 1);
  EXPECT_NEAR(few.network_beta_bytes, 0.04 * all.network_beta_bytes, 1e-6);
  EXPECT_EQ(few.network_alphas, all.network_alphas);
  EXPECT_GT(few.relative_deviation, 0.3) << "the share may as well be half of that";
}

}  // namespace
}  // namespace weir
