// SPDX-License-Identifier: Apache-2.0
// Requirements on every codec whose payloads can be added, checked for all of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "datapath/codec/codec.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/datapath/codec/conformance.h"
#include "tests/datapath/codec/sums_in_the_mean.h"

namespace weir {
namespace {

using test::DecodeFor;
using test::Encoded;
using test::EncodeOrDie;

class CodecLanesTest : public test::CodecConformanceTest {};

TEST_P(CodecLanesTest, SumOfPayloadsDecodesToSumOfDecodings) {
  if (const double declared = codec().Traits().sum_error_squared; declared > 0) {
    for (const int world : {2, 3, 8}) {
      if (!Allows(world)) continue;
      const double error = test::CheckSumsInTheMean(codec(), GetParam().bits, world);
      // Ranks are added one after the other; the sum of k of them has k / world of the energy.
      const double expected = declared * (world * (world + 1) / 2.0 - 1) / world;
      EXPECT_NEAR(error, expected, 0.1 * expected) << "world " << world;
    }
    return;
  }
  const size_t n = 4099;
  for (int world = 2; world <= 8; ++world) {
    if (!Allows(world)) continue;
    std::vector<std::vector<float>> inputs;
    std::vector<EncodeContext> contexts;
    double largest = 0;
    SharedMax shared_max;
    for (int rank = 0; rank < world; ++rank) {
      inputs.push_back(test::NormalVector(n, 60 + rank, 0.1));
      contexts.push_back(ContextFor(codec(), inputs.back(), world));
      contexts.back().rank = rank;
      shared_max.Merge(contexts.back().shared_max);
      for (const float v : inputs.back()) largest = std::max<double>(largest, std::abs(v));
    }
    for (EncodeContext& context : contexts) context.shared_max = shared_max;
    const test::Exchanged exchanged = test::ExchangeOrDie(codec(), inputs, contexts);
    std::vector<float> sum_of_decodings(n, 0.0f), decoded_sum(n, 0.0f);
    for (int rank = 0; rank < world; ++rank) {
      const std::vector<std::byte>& payload = exchanged.ranks[rank].payload;
      ASSERT_EQ(payload.size() % codec().LaneBytes(contexts[rank]), 0u);
      ASSERT_TRUE(codec().DecodeAdd(payload, contexts[rank], 1.0f, sum_of_decodings).ok());
    }
    ASSERT_TRUE(codec().DecodeAdd(exchanged.sum, contexts[0], 1.0f, decoded_sum).ok());
    // 16-bit float lanes round at every addition: a unit in the last place of the sum each time.
    const bool rounds = codec().Traits().error_model == ErrorModel::kRelative &&
                        codec().LaneBytes(contexts[0]) == 2;
    const double lane_error = rounds ? world * largest * 0x1p-8 : 1e-5 * largest;
    // Alone, each of a world's votes also subtracts the votes of the others.
    const double offset =
        codec().Traits().lanes_are_votes ? world * (world - 1.0) * shared_max.one() : 0.0;
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(decoded_sum[i], sum_of_decodings[i] + offset, lane_error)
          << i << " world " << world;
    }
  }
}

TEST_P(CodecLanesTest, LanesMayBeAddedInPieces) {
  const std::vector<float> x = test::NormalVector(1000, 71), y = test::NormalVector(1000, 72);
  const EncodeContext context = ContextFor(codec(), x, Allows(2) ? 2 : 1, 1.0);
  const Encoded a = EncodeOrDie(codec(), x, context), b = EncodeOrDie(codec(), y, context);
  std::vector<std::byte> whole = a.payload, pieces = a.payload;
  codec().Accumulate(context, whole, b.payload);
  const size_t lane = codec().LaneBytes(context);
  std::vector<std::byte> exchanged = b.payload;
  codec().Accumulate(context, exchanged, a.payload);
  EXPECT_EQ(whole, exchanged) << "the operands exchanged";
  for (size_t at = 0, lanes = 1; at < pieces.size(); lanes = lanes * 2 + 1) {
    const size_t size = std::min(lanes * lane, pieces.size() - at);
    codec().Accumulate(context, std::span(pieces).subspan(at, size),
                       std::span(b.payload).subspan(at, size));
    at += size;
  }
  if (codec().Traits().sum_error_squared == 0) {
    EXPECT_EQ(whole, pieces);
    return;
  }
  test::CheckNearSum(codec(), context, {a.payload, b.payload}, pieces);
}

INSTANTIATE_TEST_SUITE_P(Registry, CodecLanesTest,
                         testing::ValuesIn(test::CasesOf([](const CodecTraits& traits) {
                           return traits.form == PayloadForm::kLanes;
                         })),
                         test::kNameOfCase);

}  // namespace
}  // namespace weir
