// SPDX-License-Identifier: Apache-2.0
// Every SIMD target of this machine must produce the bytes of the simplest one, and the number
// formats must round as IEEE 754 says.

#include "datapath/codec/kernels/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "datapath/codec/codec.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/support/every_target.h"

namespace weir {
namespace {

using test::ScopedTarget;

/// Half precision by the book: exact arithmetic in double, ties to even.
uint16_t ReferenceHalf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(value));
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const double unit = std::ldexp(1.0, exponent - 10);
  const double rounded = std::nearbyint(magnitude / unit);  // 1024..2048, below for subnormals
  const int bits = static_cast<int>(rounded) + (exponent + 14) * 1024;
  return sign | static_cast<uint16_t>(bits);
}

std::vector<float> InterestingFloats() {
  std::vector<float> values = {0.0f,         -0.0f,           65504.0f,       1e-8f,
                               0x1p-24f,     0x1p-25f,        0x1.8p-25f,     0x1p-14f,
                               0x1.FFCp-15f, 1.0f + 0x1p-11f, 1.0f + 0x3p-11f};
  Random random(4);
  for (int i = 0; i < 20000; ++i) {
    const double magnitude = std::pow(2.0, -30 + 45.9 * random.Uniform());
    values.push_back(static_cast<float>(test::Sign(random) * std::min(magnitude, 65504.0)));
  }
  return values;
}

TEST(KernelsTest, ScaleFiniteFindsEveryNanAndInfinityOnEveryTarget) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ScopedTarget scoped(target);
    for (const size_t n : {0, 1, 15, 16, 17, 100}) {
      for (const float scale : {1.0f, 0.3f, 2.0f}) {
        std::vector<float> x(n), expected(n);
        for (size_t i = 0; i < n; ++i) {
          x[i] = (i % 2 == 0 ? 0.3f : -1e-40f) * static_cast<float>(i);
          expected[i] = x[i] * scale;
        }
        if (n > 0) x[n / 2] = scale <= 1 ? largest : 1;
        if (n > 0) expected[n / 2] = x[n / 2] * scale;
        EXPECT_TRUE(kernels::ScaleFinite(x.data(), n, scale)) << hwy::TargetName(target);
        EXPECT_EQ(x, expected) << hwy::TargetName(target);
        for (size_t i = 0; i < n; ++i) {
          for (const float bad : {infinity, -infinity, std::nanf(""), -std::nanf(""), largest}) {
            std::vector<float> one = expected;
            one[i] = bad;
            EXPECT_EQ(kernels::ScaleFinite(one.data(), n, scale), bad == largest && scale <= 1)
                << hwy::TargetName(target) << " " << i << " of " << n;
          }
        }
      }
    }
  }
}

TEST(KernelsTest, HalfPrecisionRoundsToNearestEvenOnEveryTarget) {
  const std::vector<float> values = InterestingFloats();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ScopedTarget scoped(target);
    std::vector<uint16_t> lanes(values.size());
    for (size_t at = 0; at < values.size(); at += kernels::kBlockElements) {
      kernels::Sums sums;
      const size_t size = std::min(kernels::kBlockElements, values.size() - at);
      kernels::EncodeHalf({.gradient = values.data() + at, .size = size}, 1, 65504, &lanes[at],
                          nullptr, &sums);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(lanes[i], ReferenceHalf(values[i])) << values[i] << hwy::TargetName(target);
    }
    // Every finite pattern comes back as itself.
    std::vector<uint16_t> patterns;
    for (uint32_t p = 0; p < 0x10000; ++p) {
      if ((p & 0x7C00) != 0x7C00) patterns.push_back(static_cast<uint16_t>(p));
    }
    std::vector<float> decoded(patterns.size(), -0.0f);
    ASSERT_TRUE(kernels::DecodeAddHalf(patterns.data(), patterns.size(), 1, decoded.data()));
    for (size_t i = 0; i < patterns.size(); ++i) {
      ASSERT_EQ(ReferenceHalf(decoded[i]), patterns[i]) << hwy::TargetName(target);
    }
  }
}

TEST(KernelsTest, EveryTargetGivesTheSameBytes) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_GE(targets.size(), 2u) << "one target only: nothing to compare";
  const size_t n = 70013;
  const std::vector<float> g = test::NormalVector(n, 1), r0 = test::NormalVector(n, 2);
  for (const Codec* codec : Codecs().All()) {
    std::vector<std::byte> expected_payload;
    std::vector<float> expected_rest;
    for (const int64_t target : targets) {
      const ScopedTarget scoped(target);
      EncodeContext context = test::ContextFor(*codec, g, 4, 0.05);
      const auto state = codec->NewState(n, context);
      context.state = state.get();
      std::vector<std::byte> out;
      std::vector<float> residual = r0;
      for (int step = 0; step < 3; ++step) {
        test::FeedbackOrDie(*codec, g, residual, residual, context, &out);
      }
      std::vector<float> rest = residual;
      if (!HoldsIndicesOnly(codec->Traits().form)) {
        if (codec->Traits().form == PayloadForm::kLanes) {
          codec->Accumulate(context, out, std::vector<std::byte>(out));
        }
        ASSERT_TRUE(codec->DecodeAdd(out, context, 0.3f, rest).ok());
      }
      if (expected_payload.empty()) {
        expected_payload = out;
        expected_rest = rest;
      }
      EXPECT_EQ(out, expected_payload) << codec->Traits().name << " " << hwy::TargetName(target);
      EXPECT_EQ(rest, expected_rest) << codec->Traits().name << " " << hwy::TargetName(target);
    }
  }
}

TEST(KernelsTest, BrainFloatRoundsToNearestEvenAndSaturates) {
  const std::vector<float> values = {
      1.0f,
      std::bit_cast<float>(0x3F808000u),  // tie to even: down
      std::bit_cast<float>(0x3F818000u),  // tie to even: up
      std::bit_cast<float>(0x3F808001u),
      std::numeric_limits<float>::max(),
      -std::numeric_limits<float>::max(),
  };
  const std::vector<uint16_t> expected = {0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F7F, 0xFF7F};
  std::vector<uint16_t> lanes(values.size());
  kernels::Sums sums;
  kernels::EncodeBrain({.gradient = values.data(), .size = values.size()}, lanes.data(), nullptr,
                       &sums);
  EXPECT_EQ(lanes, expected);
}

TEST(KernelsTest, SaturatingSumsStayFinite) {
  std::vector<uint16_t> half(20, 0x7BFF), brain(20, 0xFF7F);
  kernels::AccumulateHalf(half.data(), std::vector<uint16_t>(half).data(), half.size());
  kernels::AccumulateBrain(brain.data(), std::vector<uint16_t>(brain).data(), brain.size());
  EXPECT_EQ(half, std::vector<uint16_t>(20, 0x7BFF));
  EXPECT_EQ(brain, std::vector<uint16_t>(20, 0xFF7F));
}

TEST(KernelsTest, LossesAreRightAtMagnitudesWhoseSquaresAreNot) {
  for (const double scale : {1.0, 0x1p-90, 0x1p90}) {
    const std::vector<float> x = test::NormalVector(1000, 3, scale);
    for (const char* name : {"bf16", "natural", "minmax"}) {
      const Codec& codec = test::FindCodec(name);
      const EncodeContext context = test::ContextFor(codec, x);
      std::vector<float> rest(x.size(), 0.0f);
      std::vector<std::byte> out;
      const test::Encoded plain = test::EncodeOrDie(codec, x, context);
      const EncodeResult fed = test::FeedbackOrDie(codec, x, rest, rest, context, &out);
      const double lost = test::SquaredNorm(rest);
      EXPECT_GT(lost, 0);
      EXPECT_NEAR(plain.result.energy_lost / lost, 1, 1e-5) << name << " " << scale;
      EXPECT_NEAR(fed.energy_lost / lost, 1, 1e-5) << name << " " << scale;
    }
  }
}

/// The residual that Select should leave of a selected element.
float LeftOf(float e, const kernels::SelectRest& rest) {
  switch (rest.kept) {
    case kernels::SelectRest::Kept::kNothing:
      return 0;
    case kernels::SelectRest::Kept::kWhole:
      return e;
    case kernels::SelectRest::Kept::kHalfError:
      break;
  }
  const uint16_t lane = ReferenceHalf(e * rest.scale);
  float value = 0;
  EXPECT_TRUE(kernels::DecodeAddHalf(&lane, 1, 1 / rest.scale, &value));
  return e - value;
}

TEST(KernelsTest, SelectIsStrictAndOrdered) {
  using Kept = kernels::SelectRest::Kept;
  for (const size_t size : {size_t{1}, size_t{15}, size_t{16}, size_t{100}, size_t{2048}}) {
    std::vector<float> x = test::NormalVector(size, size);
    x[0] = 1.0f;  // equal to the threshold: not selected
    for (const Kept kept : {Kept::kNothing, Kept::kWhole, Kept::kHalfError}) {
      for (const bool streamed : {false, true}) {
        std::vector<uint32_t> indices(size + kernels::kSelectSlack);
        std::vector<float> values(indices.size());
        alignas(64) float rest[2048];
        const kernels::SelectRest format{rest, kept, 0x1p3f, streamed};
        kernels::Sums sums;
        const size_t count = kernels::Select({.gradient = x.data(), .size = size}, 1.0f, 1000,
                                             format, indices.data(), values.data(), &sums);
        kernels::FlushStreams();
        size_t next = 0;
        for (size_t i = 0; i < size; ++i) {
          if (std::abs(x[i]) > 1.0f) {
            ASSERT_LT(next, count);
            EXPECT_EQ(indices[next], 1000 + i);
            EXPECT_EQ(values[next++], x[i]);
            EXPECT_EQ(rest[i], LeftOf(x[i], format));
          } else {
            EXPECT_EQ(rest[i], x[i]);
          }
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(KernelsTest, SampledHistogramIsUnbiasedOnRegularTensors) {
  // Columns of very different size with a row length that is a multiple of the sampling group.
  const size_t row = 256, rows = 1024, n = row * rows;
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = i % row < 16 ? 100.0f : 1.0f;
  std::vector<uint32_t> bins(GradientStatistics::kBins);
  for (size_t at = 0; at < n; at += kernels::kBlockElements) {
    kernels::Histogram({.gradient = x.data() + at, .size = kernels::kBlockElements}, true,
                       at / kernels::kSampleGroup, kHistogramSampling, bins.data());
  }
  const double large = bins[std::bit_cast<uint32_t>(100.0f) >> 19];
  EXPECT_NEAR(large / n, 1.0 / 16, 0.1 / 16);
}

}  // namespace
}  // namespace weir
