// SPDX-License-Identifier: Apache-2.0
// The small parts of the session: 16-bit conversion, gathered payloads, bucket keys, guilty ranks.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "datapath/base/half.h"
#include "datapath/exchange/gathered_pool.h"
#include "datapath/session/bucket_table.h"
#include "datapath/session/passes.h"
#include "datapath/session/telemetry.h"

namespace weir {
namespace {

uint16_t Half(float value) {
  uint16_t out = 0;
  FloatToHalf({&value, 1}, {&out, 1});
  return out;
}
uint16_t Brain(float value) {
  uint16_t out = 0;
  FloatToBrain({&value, 1}, {&out, 1});
  return out;
}

TEST(HalfTest, EveryHalfSurvivesTheRoundTripInBothPaths) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  HalfToFloat(all, wide);  // by eights, vector path where the machine has one
  for (size_t i = 0; i < all.size(); ++i) {
    float single = 0;
    HalfToFloat({&all[i], 1}, {&single, 1});  // scalar path
    if (std::isnan(wide[i])) {
      EXPECT_TRUE(std::isnan(single));
      EXPECT_EQ(Half(single) & 0x7C00, 0x7C00);
      EXPECT_NE(Half(single) & 0x3FF, 0);
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(single), std::bit_cast<uint32_t>(wide[i])) << i;
    ASSERT_EQ(Half(single), all[i]);
  }
}

TEST(HalfTest, RoundsToEvenAndOverflowsToInfinityLikeTheVectorPath) {
  EXPECT_EQ(Half(1.0f), 0x3C00);
  EXPECT_EQ(Half(65504.0f), 0x7BFF);
  EXPECT_EQ(Half(65519.9f), 0x7BFF);
  EXPECT_EQ(Half(65520.0f), 0x7C00);
  EXPECT_EQ(Half(-1e9f), 0xFC00);
  EXPECT_EQ(Half(0x1p-24f), 0x0001);
  EXPECT_EQ(Half(0x1p-25f), 0x0000);  // tie to even
  EXPECT_EQ(Half(0x1.8p-24f), 0x0002);
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x7F800000u; bits += 9973) {
    values.push_back(std::bit_cast<float>(bits));
  }
  values.resize(values.size() / 8 * 8);
  std::vector<uint16_t> together(values.size());
  FloatToHalf(values, together);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(Half(values[i]), together[i]) << values[i];
}

TEST(BrainTest, RoundsToEvenAndKeepsNan) {
  EXPECT_EQ(Brain(1.0f), 0x3F80);
  EXPECT_EQ(Brain(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // tie to even
  EXPECT_EQ(Brain(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(Brain(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(Brain(std::bit_cast<float>(0x7F800001u)) & 0x7F, 0x40);
  const uint16_t in = 0xC0A0;
  float out = 0;
  BrainToFloat({&in, 1}, {&out, 1});
  EXPECT_EQ(out, -5.0f);
}

TEST(GatheredPoolTest, KeepsTheMemoryOfWhatIsReturnedAndBoundsIt) {
  GatheredPool pool(1);
  Gathered list = pool.Take(), other = pool.Take();
  EXPECT_TRUE(list.empty());
  list.resize(2);
  list[1].resize(5000);
  other.resize(3);
  const std::byte* const memory = list[1].data();
  pool.Return(list);
  EXPECT_TRUE(list.empty());
  pool.Return(other);  // one too many
  list = pool.Take();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[0].empty() && list[1].empty());
  list[1].resize(5000);
  EXPECT_EQ(list[1].data(), memory);
  EXPECT_TRUE(pool.Take().empty());
}

TEST(PassesTest, BlockDensityCountsBlocksThatHoldAnything) {
  EXPECT_EQ(BlockDensityOf({}, 4), 0);
  std::vector<float> x(10);
  EXPECT_EQ(BlockDensityOf(x, 4), 0);
  x[9] = 1e-30f;  // in the last block, of two elements
  EXPECT_DOUBLE_EQ(BlockDensityOf(x, 4), 1.0 / 3);
  x[0] = -0.0f;
  EXPECT_DOUBLE_EQ(BlockDensityOf(x, 4), 1.0 / 3);
  x[3] = std::nanf("");
  EXPECT_DOUBLE_EQ(BlockDensityOf(x, 4), 2.0 / 3);
  EXPECT_DOUBLE_EQ(BlockDensityOf(x, 100), 1);
}

TEST(BucketTableTest, KeysFollowNamesSizesOrderAndDtype) {
  const std::vector<ResidualParameter> ab = {{"a", 1}, {"b", 2}}, ba = {{"b", 2}, {"a", 1}};
  const uint64_t key = BucketKey(ab, Dtype::kFloat32);
  EXPECT_EQ(key, BucketKey(ab, Dtype::kFloat32));
  EXPECT_NE(key, BucketKey(ba, Dtype::kFloat32));
  EXPECT_NE(key, BucketKey(ab, Dtype::kFloat16));
  const std::vector<ResidualParameter> odd = {{"a", 12}}, even = {{"a:1", 2}};
  EXPECT_NE(BucketKey(odd, Dtype::kFloat32), BucketKey(even, Dtype::kFloat32));
}

TEST(BucketTableTest, ALaterDefinitionDissolvesAndCanBeTakenBack) {
  BucketRegistry buckets;
  const uint64_t ab = (*buckets.Define({{"a", 1}, {"b", 2}}, Dtype::kFloat32))->key;
  const uint64_t a = (*buckets.Define({{"a", 1}}, Dtype::kFloat32))->key;
  EXPECT_EQ(buckets.Find(ab).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(buckets.Find(a).ok());
  EXPECT_EQ(buckets.Describe().buckets.size(), 1u);
  EXPECT_EQ((*buckets.Define({{"a", 1}, {"b", 2}}, Dtype::kFloat32))->key, ab);
  EXPECT_TRUE(buckets.Find(ab).ok());
  EXPECT_FALSE(buckets.Find(a).ok());
  ASSERT_EQ(buckets.Sizes().size(), 1u);
  EXPECT_EQ(buckets.Sizes().at(ab).elements, 3u);
}

TEST(BucketTableTest, OrderIsThatOfTheLastStep) {
  BucketRegistry buckets;
  const uint64_t x = (*buckets.Define({{"x", 1}}, Dtype::kFloat32))->key;
  const uint64_t y = (*buckets.Define({{"y", 1}}, Dtype::kFloat32))->key;
  EXPECT_FALSE(buckets.SetOrder({x, y}));
  EXPECT_TRUE(buckets.SetOrder({y, x}));
  EXPECT_EQ(buckets.Describe().buckets[0].key, y);
}

TEST(GuiltyRankTest, IsTheLastOtherRankNamed) {
  EXPECT_EQ(GuiltyRank("waiting for rank 0: rank 1 reported: rank 2 (1.2.3.4:5) closed", 0), 2);
  EXPECT_EQ(GuiltyRank("rank 3 sent plan 4; rank 0 expected plan 5", 0), 3);
  EXPECT_EQ(GuiltyRank("rank 0 closed its session", 0), -1);
  EXPECT_EQ(GuiltyRank("ranks start; rank", 0), -1);
}

}  // namespace
}  // namespace weir
