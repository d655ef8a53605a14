// SPDX-License-Identifier: Apache-2.0
// Sparse sums by region: how regions are cut, the wire format of a part, which sums owners keep,
// and what all ranks learn from them.

#include "datapath/collective/sparse_regions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "datapath/base/random.h"

namespace weir {
namespace {

SparseVector RandomSparse(size_t elements, size_t count, uint64_t seed) {
  Random random(seed);
  std::set<uint32_t> places;
  while (places.size() < count) {
    places.insert(static_cast<uint32_t>(random.Uniform() * static_cast<double>(elements)));
  }
  SparseVector all;
  for (const uint32_t place : places) {
    all.indices.push_back(place);
    all.values.push_back(static_cast<float>(random.Uniform() - 0.5));
  }
  return all;
}

TEST(SparseRegionsTest, CoverEverythingInOrder) {
  for (const int world : {1, 2, 3, 7}) {
    for (const uint64_t elements : {0, 1, 5, 1000}) {
      SparseBalance balance;
      for (int balanced = 0; balanced < 2; ++balanced) {
        if (balanced) {
          for (int r = 1; r < world; ++r) {
            balance.begins.push_back(std::min<uint64_t>(elements, 3 * r));
          }
        }
        uint64_t at = 0;
        for (const SparseRange& region : SparseRegions(balance, elements, world)) {
          EXPECT_EQ(region.begin, at);
          at += region.size;
        }
        EXPECT_EQ(at, elements);
      }
    }
  }
}

TEST(SparseRegionsTest, BalanceOfAnotherWorldOrSizeCountsAsNone) {
  const SparseBalance balance{.begins = {600, 900}};
  EXPECT_EQ(SparseRegions(balance, 1000, 3)[1].begin, 600u);
  EXPECT_EQ(SparseRegions(balance, 800, 3)[1].begin, 267u);
  EXPECT_EQ(SparseRegions(balance, 1000, 2)[1].begin, 500u);
}

TEST(SparsePartTest, ComesBackAndStaysWithinItsRange) {
  const SparseVector all = RandomSparse(100'000, 3000, 1);
  SparseVector back;
  for (const SparseRange& range : SparseRegions({}, 100'000, 7)) {
    std::optional<SparseSummary> summary;
    const auto bytes = EncodeSparse(all, range);
    EXPECT_LT(bytes.size(), 28 + 3000 / 7 * 1.3 * 5.1);
    ASSERT_TRUE(DecodeSparse(bytes, range, &back, &summary).ok());
    EXPECT_FALSE(summary.has_value());
  }
  EXPECT_EQ(back.indices, all.indices);
  EXPECT_EQ(back.values, all.values);
}

TEST(SparsePartTest, LooksAsWritten) {
  const SparseVector one{.indices = {5}, .values = {1}};
  std::string text;
  for (const std::byte byte : EncodeSparse(one, {.begin = 4, .size = 4})) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  EXPECT_EQ(text,
            "0400000000000000"
            "0400000000000000"
            "030202000100000001000000"
            "05"
            "0000803f");
}

TEST(SparsePartTest, RejectsWhatIsCutBentOrOfAnotherRegion) {
  const SparseVector all = RandomSparse(1000, 100, 2);
  const SparseRange range{.begin = 100, .size = 700};
  const auto bytes = EncodeSparse(all, range, SummaryOf(all));
  std::optional<SparseSummary> summary;
  for (size_t size = 0; size < bytes.size(); ++size) {
    SparseVector out;
    const Status status = DecodeSparse(std::span(bytes).first(size), range, &out, &summary);
    // A part is also complete without its summary.
    if (size + sizeof(uint64_t) + 4 * SparseSummary::kPoints == bytes.size()) continue;
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << size;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto bent = bytes;
      bent[at] ^= std::byte(1 << bit);
      SparseVector out;
      if (!DecodeSparse(bent, range, &out, &summary).ok()) continue;
      ASSERT_EQ(out.indices.size(), out.values.size());
      for (size_t i = 0; i < out.indices.size(); ++i) {
        ASSERT_GE(out.indices[i], range.begin);
        ASSERT_LT(out.indices[i], range.begin + range.size);
        ASSERT_TRUE(i == 0 || out.indices[i - 1] < out.indices[i]);
      }
    }
  }
  auto longer = bytes;
  longer.push_back({});
  SparseVector out;
  EXPECT_EQ(DecodeSparse(longer, range, &out, &summary).code(), StatusCode::kDataLoss);
  const Status other = DecodeSparse(bytes, {.begin = 100, .size = 600}, &out, &summary);
  EXPECT_EQ(other.code(), StatusCode::kDataLoss);
  EXPECT_NE(Message(other).find("600 elements from 100 on, found 700 from 100"), std::string::npos)
      << other;
}

TEST(KeepSparseTest, KeepsFromTheThresholdOnUpToTheCap) {
  const SparseVector sums{.indices = {1, 3, 5, 7, 9}, .values = {-4, 1, 2, -2, NAN}};
  // Without a threshold, the share of the target is kept, lower positions first.
  EXPECT_EQ(KeepSparse(sums, {}, 6, 2).indices, (std::vector<uint32_t>{1, 5, 9}));
  EXPECT_EQ(KeepSparse(sums, {.threshold = 2}, 6, 2).indices, (std::vector<uint32_t>{1, 5, 7, 9}));
  EXPECT_EQ(KeepSparse(sums, {.threshold = 0}, 2, 2).indices, (std::vector<uint32_t>{1, 9}));
  EXPECT_TRUE(KeepSparse({}, {}, 6, 2).indices.empty());
}

TEST(LearnSparseTest, SummariesGiveTheThresholdOfTheTarget) {
  constexpr int kWorld = 4;
  std::vector<SparseSummary> summaries;
  std::vector<float> magnitudes;
  for (int rank = 0; rank < kWorld; ++rank) {
    SparseVector sums = RandomSparse(1 << 20, 2000 * (rank + 1), 10 + rank);
    for (float& value : sums.values) value *= static_cast<float>(rank + 1);
    for (const float value : sums.values) magnitudes.push_back(std::fabs(value));
    summaries.push_back(SummaryOf(sums));
  }
  for (const uint64_t target : {100, 1000, 5000, 15000}) {
    SparseBalance balance;
    LearnSparse({}, summaries, 1 << 20, target, kWorld, &balance);
    const auto above = std::count_if(magnitudes.begin(), magnitudes.end(),
                                     [&](float m) { return m >= balance.threshold; });
    EXPECT_NEAR(above, target, 20000.0 / 128) << target;
  }
  SparseBalance balance;
  LearnSparse({}, summaries, 1 << 20, 20000, kWorld, &balance);
  EXPECT_EQ(balance.threshold, 0) << "all sums are wanted";
}

TEST(LearnSparseTest, TooManyRaiseTheThresholdAndTooFewAskForSummaries) {
  SparseBalance balance{.uses = 5, .threshold = 0.001f, .summarise = false};
  const SparseVector kept = RandomSparse(10'000, 1000, 3);
  LearnSparse(kept, {}, 10'000, 500, 2, &balance);
  EXPECT_FALSE(balance.summarise);
  EXPECT_EQ(KeepSparse(kept, balance, 1000, 1).indices.size(), 500u);
  const float before = balance.threshold;
  LearnSparse(kept, {}, 10'000, 2000, 2, &balance);
  EXPECT_TRUE(balance.summarise);
  EXPECT_EQ(balance.threshold, before);
}

TEST(LearnSparseTest, RegionsShareOutWhatWasKept) {
  SparseVector kept = RandomSparse(1000, 300, 4);
  SparseBalance balance;
  const std::vector<SparseSummary> summaries(3, SummaryOf(kept));
  LearnSparse(kept, summaries, 1'000'000, 300, 3, &balance);
  for (const SparseRange& region : SparseRegions(balance, 1'000'000, 3)) {
    const auto in = std::count_if(kept.indices.begin(), kept.indices.end(), [&](uint32_t i) {
      return i >= region.begin && i < region.begin + region.size;
    });
    EXPECT_EQ(in, 100);
  }
}

TEST(SparseBalanceTest, ScalesItsThreshold) {
  SparseBalance balance{.threshold = 3};
  balance.Scale(0.5);
  EXPECT_EQ(balance.threshold, 1.5f);
  balance.threshold = -1;  // none known
  balance.Scale(0.5);
  EXPECT_EQ(balance.threshold, -1);
}

}  // namespace
}  // namespace weir
