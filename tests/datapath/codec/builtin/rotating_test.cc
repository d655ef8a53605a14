// SPDX-License-Identifier: Apache-2.0
// The randomised Hadamard transform, and the promises of the papers of DRIVE, EDEN and THC.

#include <gtest/gtest.h>

#include <bit>
#include <numbers>

#include "datapath/codec/kernels/hadamard.h"
#include "datapath/codec/rotation.h"
#include "datapath/codec/thc_table.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using test::ContextFor;
using test::DecodeFor;
using test::EncodeOrDie;

/// Entry (i, j) of the unnormalised Walsh-Hadamard matrix.
double HadamardEntry(size_t i, size_t j) { return std::popcount(i & j) % 2 == 0 ? 1 : -1; }

bool Negated(const kernels::RotationSigns& signs, size_t i) {
  return (signs.words[i / 32] >> (i % 32) & 1) != 0;
}

struct AlignedBlock {
  alignas(64) float values[kernels::kRotationElements] = {};
};

/// y = H D x / size from the definition.
std::vector<double> ReferenceRotation(std::span<const float> x,
                                      const kernels::RotationSigns& signs) {
  const size_t size = x.size();
  std::vector<double> y(size, 0.0);
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      y[i] += HadamardEntry(i, j) * (Negated(signs, j) ? -x[j] : x[j]) / size;
    }
  }
  return y;
}

TEST(RotationTest, TransformIsTheMatrixOfTheDefinition) {
  for (size_t size = kernels::kRotationMin; size <= kernels::kRotationElements; size *= 2) {
    const std::vector<float> g = test::NormalVector(size, size), r = test::NormalVector(size, 1);
    std::vector<float> e(size);
    for (size_t i = 0; i < size; ++i) e[i] = g[i] + r[i];
    const kernels::RotationSigns signs = kernels::MakeRotationSigns(99, size);
    AlignedBlock y;
    kernels::Sums sums;
    kernels::Rotate({.gradient = g.data(), .residual = r.data(), .size = size}, signs, y.values,
                    &sums);
    const std::vector<double> expected = ReferenceRotation(e, signs);
    for (size_t i = 0; i < size; ++i) EXPECT_NEAR(y.values[i], expected[i], 1e-6) << size;
    EXPECT_NEAR(sums.energy_in, test::SquaredNorm(e), 1e-9 * sums.energy_in);
    // The inverse must give the input.
    kernels::Hadamard(y.values, size);
    std::vector<float> x(size, 1.0f);
    kernels::AddSigned(signs, y.values, size, 2.0f, x.data());
    for (size_t i = 0; i < size; ++i) EXPECT_NEAR(x[i], 1 + 2 * e[i], 1e-5) << size;
  }
}

TEST(RotationTest, SignsAreBalancedAndDifferBetweenBlocksAndSeeds) {
  const kernels::RotationSigns a = kernels::MakeRotationSigns(1, 0),
                               b = kernels::MakeRotationSigns(1, 1),
                               c = kernels::MakeRotationSigns(2, 0);
  int ones = 0, same_block = 0, same_seed = 0;
  for (size_t i = 0; i < kernels::kRotationElements; ++i) {
    ones += Negated(a, i);
    same_block += Negated(a, i) == Negated(b, i);
    same_seed += Negated(a, i) == Negated(c, i);
  }
  for (const int count : {ones, same_block, same_seed}) EXPECT_NEAR(count, 512, 5 * 16);
}

TEST(RotationTest, LargestFloatsDoNotOverflow) {
  const std::vector<float> x(kernels::kRotationElements, 3e38f);
  AlignedBlock y;
  kernels::Sums sums;
  kernels::Rotate({.gradient = x.data(), .size = x.size()}, kernels::MakeRotationSigns(7, 0),
                  y.values, &sums);
  for (const float v : y.values) ASSERT_TRUE(std::isfinite(v));
}

TEST(RotationTest, RestIsPaddedToAPowerOfTwo) {
  EXPECT_EQ(RotatedElements(0), 0u);
  EXPECT_EQ(RotatedElements(1), 16u);
  EXPECT_EQ(RotatedElements(17), 32u);
  EXPECT_EQ(RotatedElements(1024), 1024u);
  EXPECT_EQ(RotatedElements(1025), 1040u);
  EXPECT_EQ(RotatedElements(2047), 2048u);
}

// --- eden, which is DRIVE at 1 bit ---------------------------------------------------------------

TEST(EdenTest, OneBitIsTheFormulaOfDrive) {
  // One full rotation: x_hat = R^-1 (||x||^2 / ||R x||_1 sign(R x)) in double.
  const size_t size = kernels::kRotationElements;
  const std::vector<float> x = test::NormalVector(size, 5);
  const Codec& eden = test::FindCodec("eden");
  const EncodeContext context = ContextFor(eden, x, 1, 1, /*bits=*/1);
  const std::vector<float> decoded =
      DecodeFor(eden, EncodeOrDie(eden, x, context).payload, context, x).value();
  const kernels::RotationSigns signs =
      kernels::MakeRotationSigns(MixSeed(context.seed, 0x726F74617465), 0);
  std::vector<double> rotated = ReferenceRotation(x, signs);
  double square = 0, absolute = 0;
  for (double& v : rotated) {
    v *= std::sqrt(static_cast<double>(size));  // orthonormal
    square += v * v;
    absolute += std::abs(v);
  }
  for (size_t j = 0; j < size; ++j) {
    double value = 0;
    for (size_t i = 0; i < size; ++i) value += HadamardEntry(i, j) * (rotated[i] < 0 ? -1 : 1);
    value *= square / absolute / std::sqrt(static_cast<double>(size));
    ASSERT_NEAR(decoded[j], Negated(signs, j) ? -value : value, 1e-4) << j;
  }
}

/// Checks that E ||x_hat - x||^2 / ||x||^2 is as declared, and that the mean over seeds is near x.
void CheckUnbiased(const std::string& name, int bits, const std::vector<float>& x) {
  const Codec& codec = test::FindCodec(name);
  const int draws = 400;
  std::vector<double> mean(x.size(), 0.0);
  double loss = 0;
  for (int draw = 0; draw < draws; ++draw) {
    EncodeContext context = ContextFor(codec, x, 1, 1, bits);
    context.seed = draw;
    const test::Encoded encoded = EncodeOrDie(codec, x, context);
    const std::vector<float> decoded = DecodeFor(codec, encoded.payload, context, x).value();
    for (size_t i = 0; i < x.size(); ++i) mean[i] += decoded[i] / draws;
    loss += encoded.result.energy_lost / encoded.result.energy_in / draws;
  }
  const double declared = FindSetting(codec.Traits(), {.bits = bits}, 1)->relative_error_squared;
  EXPECT_NEAR(loss, declared, 0.1 * declared) << name << bits;
  double bias = 0;
  for (size_t i = 0; i < x.size(); ++i) bias += std::pow(mean[i] - x[i], 2);
  // The mean of unbiased draws has the squared error loss / draws; its spread over many coordinates
  // is a few percent of that. A bias of 5 % of x would add 2.5e-3, several times as much.
  EXPECT_LT(bias / test::SquaredNorm(x), 1.5 * declared / draws + 1e-5) << name << bits;
}

TEST(EdenTest, OneBitIsUnbiasedWithTheVarianceOfDrive) {
  EXPECT_NEAR(FindSetting(test::FindCodec("eden").Traits(), {.bits = 1}, 1)->relative_error_squared,
              std::numbers::pi / 2 - 1, 1e-12);
  CheckUnbiased("eden", 1, test::NormalVector(3000, 1));
  std::vector<float> uneven = test::NormalVector(3000, 2);
  for (float& v : uneven) v = std::exp(0.7f * v);
  CheckUnbiased("eden", 1, uneven);
}

TEST(EdenTest, IsUnbiasedWithTheVarianceOfThePaper) {
  std::vector<float> uneven = test::NormalVector(3000, 3);
  for (float& v : uneven) v = std::exp(0.7f * v);
  for (const int bits : {1, 2, 3, 4, 5, 6, 7, 8}) CheckUnbiased("eden", bits, uneven);
}

TEST(EdenTest, WideCodebooksTakeTheCellOfEveryMagnitude) {
  Random random(8);
  for (const int bits : {5, 6, 7, 8}) {
    // Centroids 1/50 apart and more, so that a boundary lies in every cell or two.
    const int count = 1 << (bits - 1);
    std::vector<float> centroids(count);
    float next = 0.01f;
    for (float& centroid : centroids) {
      centroid = next;
      next += 0.02f + 0.01f * static_cast<float>(random.Uniform());
    }
    const kernels::Codebook book = kernels::MakeCodebook(bits, centroids.data());
    AlignedBlock y;
    const size_t size = kernels::kRotationElements;
    for (size_t i = 0; i < size; ++i) {
      y.values[i] = static_cast<float>(6 * (random.Uniform() - 0.5));
      // Test the boundaries themselves, the edges of cells, and values beyond the codebook.
      if (i % 7 == 1) y.values[i] = book.boundaries[i % (count - 1)];
      if (i % 7 == 2) y.values[i] = static_cast<float>(i) / 64;
      if (i % 101 == 3) y.values[i] = -1e30f;
    }
    std::vector<uint8_t> planes(size / 8 * bits);
    const kernels::CodebookSums sums =
        kernels::EncodeCodebook(book, 1.0f, y.values, size, planes.data());
    AlignedBlock decoded;
    kernels::DecodeCodebook(book, planes.data(), size, 2.0f, decoded.values);
    double product = 0, square = 0;
    for (size_t i = 0; i < size; ++i) {
      const float magnitude = std::abs(y.values[i]);
      int number = 0;
      while (number + 1 < count && magnitude > book.boundaries[number]) ++number;
      ASSERT_EQ(decoded.values[i], std::copysign(2 * centroids[number], y.values[i]))
          << bits << " bits, " << y.values[i];
      product += static_cast<double>(centroids[number]) * magnitude;
      square += static_cast<double>(centroids[number]) * centroids[number];
    }
    EXPECT_NEAR(sums.product / product, 1, 1e-6);
    EXPECT_NEAR(sums.square / square, 1, 1e-6);
  }
}

TEST(EdenTest, CentroidsAreTheConditionalMeans) {
  // Lloyd-Max: every centroid is the mean of a normal variable in its cell. Seen through the codec:
  // the error is orthogonal to the reconstruction but for the scale, and D / (1 - D) is met; here
  // the distortions themselves, by Max's table I.
  const double max_table[] = {0.3634, 0.1175, 0.03454, 0.009497};
  for (const int bits : {1, 2, 3, 4}) {
    const double relative =
        FindSetting(test::FindCodec("eden").Traits(), {.bits = bits}, 1)->relative_error_squared;
    EXPECT_NEAR(relative / (1 + relative), max_table[bits - 1], 1e-3 * max_table[bits - 1]);
  }
  // Many levels approach sqrt(3) pi / 2 / 4^bits from below (Panter and Dite 1951).
  double before = 0.9;
  for (const int bits : {5, 6, 7, 8}) {
    const double relative =
        FindSetting(test::FindCodec("eden").Traits(), {.bits = bits}, 1)->relative_error_squared;
    const double share =
        relative / (1 + relative) * std::pow(4, bits) / (std::sqrt(3.0) * std::numbers::pi / 2);
    EXPECT_GT(share, before);
    EXPECT_LT(share, 1);
    before = std::max(0.94, share);
  }
}

TEST(EdenTest, HostileScalesAreRejectedWithTheirOffset) {
  const std::vector<float> x = test::NormalVector(3000, 6);
  const Codec& eden = test::FindCodec("eden");
  const EncodeContext context = ContextFor(eden, x, 1, 1, /*bits=*/1);
  for (const float bad : {-1.0f, 1e38f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<std::byte> payload = EncodeOrDie(eden, x, context).payload;
    std::memcpy(payload.data() + 132, &bad, sizeof(bad));
    const Status status = DecodeFor(eden, payload, context, x).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(Message(status).find("offset 132"), std::string::npos) << Message(status);
  }
}

TEST(EdenTest, ZeroAndConstantBlocksStaySo) {
  std::vector<float> x(4096, 0.0f);
  std::fill(x.begin() + 1024, x.begin() + 2048, 3.0f);
  const Codec& eden = test::FindCodec("eden");
  const EncodeContext context = ContextFor(eden, x, 1, 1, /*bits=*/1);
  const auto decoded = DecodeFor(eden, EncodeOrDie(eden, x, context).payload, context, x).value();
  for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(decoded[i], 0);
  for (size_t i = 2048; i < 4096; ++i) ASSERT_EQ(decoded[i], 0);
}

// --- thc -----------------------------------------------------------------------------------------

TEST(ThcTest, RangesHaveTheLeastError) {
  // Uniform grids: no range on a raster of 0.05 is better than the one in use by 1 %.
  for (const CodecSetting& setting : test::FindCodec("thc_uniform").Traits().settings) {
    const int centre = ((1 << (setting.bits - 1)) - 1) / setting.world_max;
    if (centre > 127) continue;
    std::vector<int> all(2 * centre + 1);
    for (int i = 0; i <= 2 * centre; ++i) all[i] = i;
    double least = 1e9;
    for (double range = 0.8; range < 4.5; range += 0.05) {
      least = std::min(least, ThcRoundingError({.granularity = 2 * centre, .range = range}, all) +
                                  ThcClippingError(range));
    }
    EXPECT_LT(setting.relative_error_squared, 1.01 * least) << centre;
  }
}

TEST(ThcTest, GranularitiesAreNearTheBest) {
  // Every even granularity that the world's lanes can hold, and every tail from 1/8 to 1/1024.
  for (const CodecSetting& setting : test::FindCodec("thc").Traits().settings) {
    const int most = 2 * (((1 << (setting.bits - 1)) - 1) / setting.world_max);
    double least = 1e9;
    for (int granularity = 4; granularity <= std::min(most, 64); granularity += 2) {
      for (int k = 3; k <= 10; ++k) {
        const ThcTableSpec spec{.granularity = granularity, .range = ThcRange(std::exp2(-k))};
        least = std::min(
            least, ThcRoundingError(spec, OptimalThcTable(spec)) + ThcClippingError(spec.range));
      }
    }
    EXPECT_LT(setting.relative_error_squared, 1.02 * least) << setting.world_max;
  }
}

/// All ranks at once, each at the largest lane: the sum must not wrap at world_max.
void CheckFullWorld(const std::string& name, const CodecSetting& setting) {
  const Codec& codec = test::FindCodec(name);
  const size_t n = 2048;
  std::vector<float> spike(n, 0.0f);
  spike[5] = 100;  // spreads evenly over its rotation: +-100/32 in every coordinate
  spike[1500] = -0.1f;
  EncodeContext context = ContextFor(codec, spike, setting.world_max, 1, setting.bits);
  for (float& norm : context.shared_max.values())
    norm /= 4;  // so that all coordinates of the first rotation are clamped
  const std::vector<std::byte> one = EncodeOrDie(codec, spike, context).payload;
  std::vector<std::byte> sum = one;
  for (int rank = 1; rank < setting.world_max; ++rank) codec.Accumulate(context, sum, one);
  const auto single = DecodeFor(codec, one, context, spike).value();
  const auto all = DecodeFor(codec, sum, context, spike).value();
  EXPECT_GT(single[5], 10);
  for (size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(all[i], single[i] * setting.world_max, 1e-4 * setting.world_max)
        << name << setting.bits << " world " << setting.world_max << " at " << i;
  }
}

TEST(ThcTest, SumsOfFullWorldsDoNotWrap) {
  for (const char* name : {"thc_uniform", "thc"}) {
    for (const CodecSetting& setting : test::FindCodec(name).Traits().settings) {
      CheckFullWorld(name, setting);
    }
  }
}

TEST(ThcTest, WorldsBeyondTheLanesAreRefused) {
  EXPECT_FALSE(test::FindCodec("thc").Validate({.bits = 8}, 64).ok());
  EXPECT_TRUE(test::FindCodec("thc").Validate({}, 64).ok());  // in 16-bit lanes
  EXPECT_FALSE(test::FindCodec("thc").Validate({}, 1130).ok());
  EXPECT_FALSE(test::FindCodec("thc_uniform").Validate({.bits = 4}, 8).ok());
  EXPECT_FALSE(test::FindCodec("thc_uniform").Validate({.bits = 8}, 128).ok());
  EncodeContext context;
  context.world = 5000;
  const std::vector<float> x(16, 1.0f);
  std::vector<std::byte> out(64);
  const Codec& codec = test::FindCodec("thc_uniform");
  EXPECT_EQ(codec.Encode(x, context, out).status().code(), StatusCode::kInvalidArgument);
  std::vector<float> sum(16);
  EXPECT_EQ(codec.DecodeAdd(out, context, 1, sum).code(), StatusCode::kInvalidArgument);
}

TEST(ThcTest, LanesAreLevelsOfTheTable) {
  const std::vector<float> x = test::NormalVector(4096, 9);
  const Codec& thc = test::FindCodec("thc");
  const EncodeContext context = ContextFor(thc, x, 4);
  const auto levels = OptimalThcTable({.granularity = 58, .range = ThcRange(1.0 / 64)});
  std::vector<int> counts(59, 0);
  for (const std::byte lane : EncodeOrDie(thc, x, context).payload) {
    const int level = static_cast<int8_t>(lane) + 29;
    ASSERT_TRUE(level >= 0 && level <= 58);
    ++counts[level];
  }
  for (int level = 0; level <= 58; ++level) {
    EXPECT_EQ(counts[level] > 0, std::find(levels.begin(), levels.end(), level) != levels.end())
        << level;
  }
}

TEST(ThcTest, RoundingIsUnbiasedInsideTheRange) {
  // A range that clamps nothing: the mean over seeds of the noise approaches the input.
  const std::vector<float> x = test::NormalVector(1024, 10);
  for (const char* name : {"thc_uniform", "thc"}) {
    const Codec& codec = test::FindCodec(name);
    const int draws = 400;
    std::vector<double> mean(x.size(), 0.0);
    double loss = 0;
    for (int draw = 0; draw < draws; ++draw) {
      EncodeContext context = ContextFor(codec, x, 8);
      for (float& norm : context.shared_max.values()) norm *= 2;
      context.rank = draw;  // other noise, the same rotation
      const test::Encoded encoded = EncodeOrDie(codec, x, context);
      const auto decoded = DecodeFor(codec, encoded.payload, context, x).value();
      for (size_t i = 0; i < x.size(); ++i) mean[i] += decoded[i] / draws;
      loss += encoded.result.energy_lost / draws;
    }
    double bias = 0;
    for (size_t i = 0; i < x.size(); ++i) bias += std::pow(mean[i] - x[i], 2);
    EXPECT_NEAR(bias / (loss / draws), 1, 0.2) << name;  // 1024 degrees of freedom: 4 % and 5 sigma
  }
}

TEST(ThcTest, EveryRotationLosesItsShareWhateverTheOthersHold) {
  // Dense, sparse and empty regions in one bucket, as in real gradients. With one norm for all, the
  // first would be clipped and the others rounded to noise.
  constexpr size_t kRotation = 1024;
  const double scales[] = {100, 1, 1e-3, 0, 1e-6, 7};
  std::vector<float> x = test::NormalVector(std::size(scales) * kRotation - 300, 21);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= static_cast<float>(scales[i / kRotation]);
  for (const char* name : {"thc_uniform", "thc"}) {
    const Codec& codec = test::FindCodec(name);
    for (const CodecSetting& setting : codec.Traits().settings) {
      const EncodeContext context = ContextFor(codec, x, setting.world_max, 1, setting.bits);
      const auto decoded =
          DecodeFor(codec, EncodeOrDie(codec, x, context).payload, context, x).value();
      for (size_t at = 0; at < x.size(); at += kRotation) {
        double lost = 0, energy = 0;
        for (size_t i = at; i < std::min(at + kRotation, x.size()); ++i) {
          lost += std::pow(decoded[i] - x[i], 2);
          energy += std::pow(x[i], 2);
        }
        EXPECT_NEAR(lost, setting.relative_error_squared * energy,
                    0.5 * setting.relative_error_squared * energy)
            << name << setting.bits << " world " << setting.world_max << " at " << at;
      }
    }
  }
}

TEST(ThcTest, OneOutlierDoesNotDestroyResolution) {
  // An outlier ruins a grid that is scaled to the maximum; here it costs its own block little more
  // than its share.
  std::vector<float> x = test::NormalVector(1 << 16, 11);
  x[12345] = 200;
  const auto error_elsewhere = [&](const char* name) {
    const Codec& codec = test::FindCodec(name);
    const EncodeContext context = ContextFor(codec, x, 4);
    const auto decoded = DecodeFor(codec, EncodeOrDie(codec, x, context).payload, context, x);
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (i / 1024 != 12345 / 1024) error += std::pow((*decoded)[i] - x[i], 2);
    }
    return error / x.size();
  };
  EXPECT_LT(error_elsewhere("thc_uniform"), 0.004);
  EXPECT_GT(error_elsewhere("qsgd"), 0.5);
}

}  // namespace
}  // namespace weir
