// SPDX-License-Identifier: Apache-2.0
// Fixed-point numbers by class under an error bound.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

const Codec& Inceptionn() { return test::FindCodec("inceptionn"); }

std::vector<float> MixedMagnitudes(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    v = static_cast<float>(test::Sign(random) * std::exp2(-20 + 24 * random.Uniform()));
  }
  return x;
}

TEST(InceptionnTest, ClassesFollowTheFormula) {
  for (const int bits : {8, 10, 12, 14}) {
    const double bound = std::exp2(-bits);
    const std::vector<float> x = MixedMagnitudes(5003, bits);
    const EncodeContext context = test::ContextFor(Inceptionn(), x, 1, 1, bits);
    const test::Encoded encoded = test::EncodeOrDie(Inceptionn(), x, context);
    const auto decoded = test::DecodeFor(Inceptionn(), encoded.payload, context, x).value();
    size_t bytes = (x.size() + 3) / 4;
    for (size_t i = 0; i < x.size(); ++i) {
      const double magnitude = std::abs(static_cast<double>(x[i]));
      const double step = magnitude < 128 * bound ? bound : 0x1p-15;
      double expected = x[i];
      if (magnitude < 1) expected = std::copysign(std::floor(magnitude / step) * step, x[i]);
      ASSERT_EQ(decoded[i], expected) << bits << " " << x[i];
      ASSERT_LT(std::abs(decoded[i] - x[i]), bound);
      bytes += magnitude < bound ? 0 : magnitude < 128 * bound ? 1 : magnitude < 1 ? 2 : 4;
    }
    EXPECT_EQ(encoded.payload.size(), bytes);
  }
}

TEST(InceptionnTest, EdgesOfTheClassesPassUnchanged) {
  const std::vector<float> x = {0x1p-10f,
                                -0x1p-10f,
                                0x1p-3f,
                                127 * 0x1p-10f,
                                0x1.FFFCp-1f,
                                1.0f,
                                -1.0f,
                                1.0e38f,
                                -0x1p-3f,
                                0.0f,
                                std::numeric_limits<float>::max()};
  const EncodeContext context = test::ContextFor(Inceptionn(), x);
  const test::Encoded encoded = test::EncodeOrDie(Inceptionn(), x, context);
  EXPECT_EQ(encoded.result.energy_lost, 0);
  EXPECT_EQ(test::DecodeFor(Inceptionn(), encoded.payload, context, x).value(), x);
}

TEST(InceptionnTest, TheBoundIsTheExactWorstCase) {
  for (const size_t n : {size_t{1}, size_t{2047}, size_t{2049}, size_t{6000}}) {
    const std::vector<float> x(n, 2.0f);
    const EncodeContext context = test::ContextFor(Inceptionn(), x);
    EXPECT_EQ(test::EncodeOrDie(Inceptionn(), x, context).payload.size(),
              Inceptionn().MaxEncodedBytes(n, context));
  }
}

TEST(InceptionnTest, HostilePayloadsAreRejectedWithTheirOffset) {
  const std::vector<float> x = {2.0f, 0.5f, 0.01f, 0.0f, 0.0f};
  const EncodeContext context = test::ContextFor(Inceptionn(), x);
  const std::vector<std::byte> good = test::EncodeOrDie(Inceptionn(), x, context).payload;
  // Classes 3, 2, 1, 0 and 0: then one octet, two and four.
  ASSERT_EQ(good.size(), 2u + 1 + 2 + 4);
  EXPECT_EQ(good[0], std::byte{0b00'01'10'11});
  const auto message = [&](std::vector<std::byte> payload) {
    return Message(test::DecodeFor(Inceptionn(), payload, context, x).status());
  };
  EXPECT_EQ(message(good), "");
  std::vector<std::byte> bad = good;
  bad[1] = std::byte{4};
  EXPECT_NE(message(bad).find("padding at offset 1"), std::string::npos) << message(bad);
  bad = good;
  bad[1] = std::byte{3};  // a float that is not there
  EXPECT_NE(message(bad).find("expected 11 more bytes at offset 2"), std::string::npos);
  bad = good;
  bad[8] = std::byte{0x7F};
  bad[7] = std::byte{0x80};
  EXPECT_NE(message(bad).find("not finite"), std::string::npos) << message(bad);
  bad = good;
  bad.push_back(std::byte{0});
  EXPECT_NE(message(bad).find("offset 9"), std::string::npos) << message(bad);
}

}  // namespace
}  // namespace weir
