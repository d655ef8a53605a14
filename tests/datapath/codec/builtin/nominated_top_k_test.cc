// SPDX-License-Identifier: Apache-2.0
// The union of nominations compared with one rank's choice, and the size of the union.

#include <gtest/gtest.h>

#include <set>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

constexpr int kWorld = 8;
constexpr size_t kSize = 100000;
constexpr double kRatio = 0.01;

/// Gradients of eight ranks: log-normal scales of the coordinates, a part `common` of the energy
/// the same on all ranks.
std::vector<std::vector<float>> Gradients(double common, uint64_t seed) {
  const std::vector<float> scale = test::NormalVector(kSize, 99);
  const std::vector<float> shared = test::NormalVector(kSize, seed);
  std::vector<std::vector<float>> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(test::NormalVector(kSize, seed + 1 + rank));
    for (size_t i = 0; i < kSize; ++i) {
      const double mixed = std::sqrt(common) * shared[i] + std::sqrt(1 - common) * ranks[rank][i];
      ranks[rank][i] = static_cast<float>(std::exp(scale[i]) * mixed);
    }
  }
  return ranks;
}

class Ranks {
 public:
  explicit Ranks(const char* name) : codec_(test::FindCodec(name)) {
    for (int rank = 0; rank < kWorld; ++rank) {
      EncodeContext context = test::ContextFor(codec_, {}, kWorld, kRatio);
      context.rank = rank;
      states_.push_back(codec_.NewState(kSize, context));
      context.state = states_.back().get();
      contexts_.push_back(context);
    }
  }
  /// Every rank's selection; *nominated counts them.
  std::set<uint32_t> Union(const std::vector<std::vector<float>>& gradients, size_t* nominated) {
    std::set<uint32_t> chosen;
    *nominated = 0;
    for (int rank = 0; rank < kWorld; ++rank) {
      const std::vector<uint32_t> own = Selection(rank, gradients[rank]);
      *nominated += own.size();
      chosen.insert(own.begin(), own.end());
    }
    for (const EncodeContext& context : contexts_) {
      codec_.LearnSelection(context, chosen.size(), kSize);
    }
    return chosen;
  }
  std::vector<uint32_t> Selection(int rank, const std::vector<float>& gradient) {
    const test::Encoded encoded = test::EncodeOrDie(codec_, gradient, contexts_[rank]);
    std::vector<uint32_t> indices;
    WEIR_CHECK(codec_.DecodeIndices(encoded.payload, kSize, &indices).ok());
    return indices;
  }

 private:
  const Codec& codec_;
  std::vector<std::unique_ptr<CodecState>> states_;
  std::vector<EncodeContext> contexts_;
};

/// Energy of the ranks' mean at the chosen positions, over the most that as many positions hold.
template <typename Positions>
double Kept(const std::vector<std::vector<float>>& gradients, const Positions& chosen) {
  std::vector<double> energy(kSize, 0.0);
  for (size_t i = 0; i < kSize; ++i) {
    for (const auto& gradient : gradients) energy[i] += gradient[i];
    energy[i] *= energy[i];
  }
  double kept = 0;
  for (const uint32_t i : chosen) kept += energy[i];
  std::sort(energy.begin(), energy.end(), std::greater<>());
  double best = 0;
  for (size_t i = 0; i < chosen.size(); ++i) best += energy[i];
  return kept / best;
}

TEST(NominatedTopKTest, UnionKeepsMoreThanOneRanksChoice) {
  for (const auto& [common, margin] : {std::pair{0.1, 0.1}, {0.5, 0.06}}) {
    Ranks nominated("nominated_top_k"), shared("shared_top_k");
    size_t count = 0;
    for (int step = 0; step < 12; ++step) nominated.Union(Gradients(common, 1000 + step), &count);
    const auto gradients = Gradients(common, 7);
    const double by_union = Kept(gradients, nominated.Union(gradients, &count));
    const double by_star = Kept(gradients, shared.Selection(0, gradients[0]));
    EXPECT_GT(by_union, by_star + margin) << "common " << common << ": " << by_star;
  }
}

TEST(NominatedTopKTest, UnionSettlesAtTheRatio) {
  // From hardly any agreement to identical ranks: at 0.1 some 1.6 nominations a position, at 1 all.
  for (const double common : {0.1, 0.9, 1.0}) {
    Ranks ranks("nominated_top_k");
    size_t nominated = 0, chosen = 0;
    for (int step = 0; step < 20; ++step) {
      chosen = ranks.Union(Gradients(common, 2000 + step), &nominated).size();
    }
    EXPECT_NEAR(static_cast<double>(chosen), kRatio * kSize, 0.15 * kRatio * kSize) << common;
    EXPECT_GE(nominated, chosen);
    EXPECT_LE(nominated, kWorld * kRatio * kSize * 1.15);
  }
}

TEST(NominatedTopKTest, SharesAreTheSameOnEveryRank) {
  // Ranks that see the same union nominate equally many, whatever their own gradients.
  Ranks ranks("nominated_top_k");
  size_t nominated = 0;
  for (int step = 0; step < 5; ++step) ranks.Union(Gradients(0.5, 3000 + step), &nominated);
  const std::vector<float> x = Gradients(0.5, 5)[0];
  const size_t first = ranks.Selection(0, x).size();
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, kRatio * kSize);
  ranks.Selection(1, x);  // thresholds are each rank's own until they have seen x
  EXPECT_NEAR(static_cast<double>(ranks.Selection(1, x).size()), static_cast<double>(first),
              0.05 * static_cast<double>(first));
}

}  // namespace
}  // namespace weir
