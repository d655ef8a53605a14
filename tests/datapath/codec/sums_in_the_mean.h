// SPDX-License-Identifier: Apache-2.0
#pragma once
// The check of lanes that are rounded at random when they add.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir::test {

/// The payloads of a world added up by random rounding: the mean over seeds of what that changes
/// must approach zero. In units of its deviation it is near a normal number at every element, so
/// its mean square over n elements is 1 +- sqrt(2 / n); six times that, and five deviations of the
/// error along the sum (shrinking would show there), fail a right codec less than once in 10^6
/// runs. Returns the mean square error over the square of the sum.
inline double CheckSumsInTheMean(const Codec& codec, int bits, int world) {
  const size_t n = 1000;
  const int draws = 300;
  std::vector<std::vector<float>> inputs;
  std::vector<EncodeContext> contexts;
  SharedMax shared_max;
  for (int rank = 0; rank < world; ++rank) {
    inputs.push_back(NormalVector(n, 60 + rank, 0.1));
    contexts.push_back(ContextFor(codec, inputs.back(), world, 0.1, bits));
    contexts.back().rank = rank;
    shared_max.Merge(contexts.back().shared_max);
  }
  std::vector<double> sum(n, 0.0), squares(n, 0.0);
  double along = 0, energy = 0;
  for (int draw = 0; draw < draws; ++draw) {
    for (EncodeContext& context : contexts) {
      context.shared_max = shared_max;
      context.seed = 1000 + draw;
    }
    const Exchanged exchanged = ExchangeOrDie(codec, inputs, contexts);
    std::vector<float> separate(n, 0.0f), together(n, 0.0f);
    for (const Encoded& encoded : exchanged.ranks) {
      EXPECT_TRUE(codec.DecodeAdd(encoded.payload, contexts[0], 1.0f, separate).ok());
    }
    EXPECT_TRUE(codec.DecodeAdd(exchanged.sum, contexts[0], 1.0f, together).ok());
    for (size_t i = 0; i < n; ++i) {
      const double error = static_cast<double>(together[i]) - separate[i];
      sum[i] += error;
      squares[i] += error * error;
      along += error * (separate[i] < 0 ? -1 : 1);
    }
    energy += SquaredNorm(separate);
  }
  double total = 0, variance = 0;
  for (size_t i = 0; i < n; ++i) {
    total += sum[i] * sum[i] / draws;
    variance += squares[i] / draws;
  }
  EXPECT_GT(variance, 0) << "world " << world;
  EXPECT_NEAR(total / variance, 1, 6 * std::sqrt(2.0 / n)) << "world " << world;
  EXPECT_LT(std::abs(along), 5 * std::sqrt(variance * draws)) << "world " << world;
  return variance * draws / energy;
}

/// Draws depend on how payloads are cut, but none leads further than to the powers of two around
/// the sum.
inline void CheckNearSum(const Codec& codec, const EncodeContext& context,
                         const std::vector<std::vector<std::byte>>& payloads,
                         std::span<const std::byte> added) {
  std::vector<float> sums(1000, 0.0f), drawn(1000, 0.0f);
  for (const std::vector<std::byte>& payload : payloads) {
    ASSERT_TRUE(codec.DecodeAdd(payload, context, 1, sums).ok());
  }
  ASSERT_TRUE(codec.DecodeAdd(added, context, 1, drawn).ok());
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_LE(std::abs(drawn[i] - sums[i]), std::abs(sums[i])) << i;
    ASSERT_GE(std::abs(drawn[i]), 0.5f * std::abs(sums[i])) << i;
  }
}

}  // namespace weir::test
