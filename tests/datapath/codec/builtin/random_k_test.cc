// SPDX-License-Identifier: Apache-2.0
// The positions of random_k's elements, on which all ranks must agree.

#include <gtest/gtest.h>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

TEST(RandomKTest, PositionsAreOnePerStratum) {
  const Codec& codec = test::FindCodec("random_k");
  for (const size_t n : {1, 2, 97, 4096, 100003}) {
    for (const double ratio : {1.0, 0.7, 0.5, 0.013}) {
      std::vector<float> x(n);
      for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i + 1);
      const EncodeContext context = test::ContextFor(codec, x, 1, ratio);
      std::vector<float> decoded(n, 0.0f), expected(n, 0.0f);
      const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
      ASSERT_TRUE(codec.DecodeAdd(encoded.payload, context, 1, decoded).ok());
      const auto k = std::max<uint64_t>(1, static_cast<uint64_t>(ratio * static_cast<double>(n)));
      for (uint64_t j = 0; j < k; ++j) {
        // As in proto/WIRE.md.
        const uint64_t begin = j * n / k, size = (j + 1) * n / k - begin;
        const auto product = static_cast<unsigned __int128>(MixSeed(context.seed, j)) * size;
        const uint64_t at = begin + static_cast<uint64_t>(product >> 64);
        expected[at] = x[at];
      }
      EXPECT_EQ(decoded, expected) << n << " " << ratio;
    }
  }
}

}  // namespace
}  // namespace weir
