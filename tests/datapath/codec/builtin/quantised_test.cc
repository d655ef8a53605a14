// SPDX-License-Identifier: Apache-2.0
// The properties that the papers of the quantisers promise, and kernels against references written
// from their formulas.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/codec/kernels/quantise.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

double RelativeLoss(std::span<const float> x, std::span<const float> decoded) {
  double lost = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    lost += std::pow(static_cast<double>(x[i]) - decoded[i], 2);
  }
  return lost / test::SquaredNorm(x);
}

/// Every rank's payload added up, decoded and finished, all ranks having the largest LocalMax.
std::vector<float> AllReduce(const Codec& codec, const std::vector<std::vector<float>>& inputs,
                             float scale, uint64_t seed = 0x5EED) {
  const int world = static_cast<int>(inputs.size());
  std::vector<EncodeContext> contexts;
  SharedMax shared_max;
  for (int rank = 0; rank < world; ++rank) {
    contexts.push_back(test::ContextFor(codec, inputs[rank], world));
    contexts.back().rank = rank;
    contexts.back().seed = seed;
    shared_max.Merge(contexts.back().shared_max);
  }
  for (EncodeContext& context : contexts) context.shared_max = shared_max;
  const test::Exchanged exchanged = test::ExchangeOrDie(codec, inputs, contexts);
  std::vector<float> out(inputs[0].size(), 0.0f);
  WEIR_CHECK(codec.DecodeAdd(exchanged.sum, contexts[0], scale, out).ok());
  codec.Finish(contexts[0], scale, out);
  return out;
}

// --- Bits ----------------------------------------------------------------------------------------

TEST(PackTest, CodesLieBesideEachOtherFromTheLowEnd) {
  Random random(1);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const size_t size : {1, 2, 7, 8, 9, 63, 64, 65, 511, 2047, 2048}) {
      std::vector<uint8_t> codes(size);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random.Next());
      std::vector<uint8_t> expected((size * bits + 7) / 8, 0), packed(expected.size(), 0xEE);
      for (size_t i = 0; i < size * bits; ++i) {
        expected[i / 8] |= (codes[i / bits] >> i % bits & 1) << i % 8;
      }
      kernels::PackBits(codes.data(), size, bits, packed.data());
      ASSERT_EQ(packed, expected) << bits << " bits, " << size;
      std::vector<uint8_t> unpacked(size);
      std::vector<int8_t> numbers(size);
      kernels::UnpackBits(packed.data(), size, bits, unpacked.data());
      kernels::UnpackSigned(packed.data(), size, bits, numbers.data());
      const int modulus = 1 << bits;
      for (size_t i = 0; i < size; ++i) {
        const int low = codes[i] % modulus;
        ASSERT_EQ(unpacked[i], low);
        ASSERT_EQ(numbers[i], low >= modulus / 2 ? low - modulus : low) << bits;
      }
    }
  }
}

TEST(PackTest, LanesAddWithoutTouchingTheirNeighbours) {
  Random random(2);
  for (const int bits : {1, 2, 4, 8, 16}) {
    for (const size_t bytes : {2, 30, 32, 62, 64, 66, 1000}) {
      std::vector<uint8_t> a(bytes), b(bytes);
      for (size_t i = 0; i < bytes; ++i) {
        a[i] = static_cast<uint8_t>(random.Next());
        b[i] = static_cast<uint8_t>(random.Next());
      }
      const auto lane = [&](const std::vector<uint8_t>& in, size_t i) {
        uint32_t value = 0;
        for (int bit = 0; bit < bits; ++bit) {
          const size_t at = i * bits + bit;
          value |= (in[at / 8] >> at % 8 & 1u) << bit;
        }
        return value;
      };
      std::vector<uint8_t> sum = a;
      kernels::AccumulateLanes(sum.data(), b.data(), bytes, bits);
      for (size_t i = 0; i < bytes * 8 / bits; ++i) {
        ASSERT_EQ(lane(sum, i), (lane(a, i) + lane(b, i)) % (1u << bits)) << bits << " bits " << i;
      }
    }
  }
}

TEST(PackingTest, SpreadBitsAreLanesOfOnesAndZeros) {
  Random random(8);
  for (const size_t n : {1, 7, 8, 9, 100, 2048}) {
    std::vector<uint8_t> codes(n), bits((n + 7) / 8);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.Below(2));
    kernels::PackBits(codes.data(), n, 1, bits.data());
    for (size_t i = 0; i < 8 * bits.size(); ++i) {
      EXPECT_EQ(bits[i / 8] >> (i % 8) & 1, i < n ? codes[i] : 0);
    }
    for (const int lane_bits : {1, 2, 4, 8}) {
      std::vector<uint8_t> expected((n * lane_bits + 7) / 8), found(expected.size());
      kernels::PackBits(codes.data(), n, lane_bits, expected.data());
      kernels::SpreadBits(bits.data(), n, lane_bits, found.data());
      EXPECT_EQ(found, expected) << n << " " << lane_bits;
    }
  }
}

TEST(BucketSumsTest, FollowTheirDefinitions) {
  for (const size_t n : {1, 15, 16, 33, 2048}) {
    const std::vector<float> g = test::NormalVector(n, 3), r = test::NormalVector(n, 4);
    double positive = 0, negative = 0, squares = 0;
    size_t negatives = 0;
    float least = std::numeric_limits<float>::max(), largest = -least;
    for (size_t i = 0; i < n; ++i) {
      const float e = g[i] + r[i];
      (e < 0 ? negative : positive) += e;
      negatives += e < 0;
      squares += static_cast<double>(e) * e;
      least = std::min(least, e);
      largest = std::max(largest, e);
    }
    const kernels::Block block{.gradient = g.data(), .residual = r.data(), .size = n};
    const kernels::Halves halves = kernels::SumHalves(block);
    EXPECT_NEAR(halves.positive, positive, 1e-5 * std::abs(positive));
    EXPECT_NEAR(halves.negative, negative, 1e-5 * std::abs(negative));
    EXPECT_EQ(halves.negatives, negatives);
    EXPECT_NEAR(kernels::SumSquares(block), squares, 1e-12 * squares);
    // The visit that also finds the signs sums in the same order.
    std::vector<uint8_t> bits((n + 7) / 8, 0xFF);
    kernels::Sums sums;
    const kernels::Halves found = kernels::FindSigns(block, bits.data(), &sums);
    EXPECT_EQ(found.positive, halves.positive);
    EXPECT_EQ(found.negative, halves.negative);
    EXPECT_EQ(found.negatives, negatives);
    EXPECT_NEAR(sums.energy_in, squares, 1e-12 * squares);
    for (size_t i = 0; i < 8 * bits.size(); ++i) {
      EXPECT_EQ(bits[i / 8] >> (i % 8) & 1, i < n && g[i] + r[i] >= 0) << i;
    }
    const kernels::SignValues values{.negative = -0.5f, .positive = 2.0f};
    std::vector<float> rest(n);
    kernels::SubtractSigns(block, values, rest.data());
    for (size_t i = 0; i < n; ++i) {
      const float e = g[i] + r[i];
      EXPECT_EQ(rest[i], e - (e >= 0 ? values.positive : values.negative));
    }
    const double beside = kernels::EnergyBesideSigns(sums.energy_in, found, n, values);
    EXPECT_NEAR(beside, test::SquaredNorm(rest), 1e-6 * (squares + beside));
    EXPECT_EQ(kernels::FindExtremes(block).least, least);
    EXPECT_EQ(kernels::FindExtremes(block).largest, largest);
  }
}

// --- Unbiased codecs -----------------------------------------------------------------------------

/// The mean of many decodings must approach x: the error of the mean, in units of its deviation, is
/// a normal number at every element, so that its mean square over n elements is 1 +- sqrt(2 / n).
void CheckUnbiased(const std::string& name, int bits, double allowed = 6) {
  const Codec& codec = test::FindCodec(name);
  const size_t n = 1500;
  const int draws = 400;
  const std::vector<float> x = test::NormalVector(n, 5, 0.01);
  EncodeContext context = test::ContextFor(codec, x, 1, 1, bits);
  std::vector<double> sum(n, 0.0), squares(n, 0.0);
  for (int draw = 0; draw < draws; ++draw) {
    context.seed = 1000 + draw;
    const std::vector<float> decoded = test::RoundTrip(codec, x, context);
    for (size_t i = 0; i < n; ++i) {
      const double error = static_cast<double>(decoded[i]) - x[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  double total = 0, variance = 0;
  for (size_t i = 0; i < n; ++i) {
    total += sum[i] * sum[i] / draws;
    variance += squares[i] / draws;
  }
  // The error must not be correlated with x either, as it would be if values shrank.
  double along = 0;
  for (size_t i = 0; i < n; ++i) along += sum[i] * (x[i] < 0 ? -1 : 1);
  EXPECT_NEAR(total / variance, 1, allowed * std::sqrt(2.0 / n)) << name << " " << bits;
  EXPECT_LT(std::abs(along), 5 * std::sqrt(variance * draws)) << name << " " << bits;
}

TEST(UnbiasedTest, MeanOfDecodingsIsTheInput) {
  for (const CodecSetting& setting : test::FindCodec("qsgd_bucketed").Traits().settings) {
    CheckUnbiased("qsgd_bucketed", setting.bits, setting.bits <= 3 ? 12 : 6);
  }
  for (const int bits : {8, 9}) CheckUnbiased("natural", bits);
  for (const int bits : {2, 4, 8, 16}) CheckUnbiased("qsgd", bits, bits == 2 ? 12 : 6);
  CheckUnbiased("qsgd:memory=none", 0);
}

TEST(QsgdBucketedTest, VarianceKeepsTheBoundOfItsPaper) {
  const Codec& codec = test::FindCodec("qsgd_bucketed");
  const size_t d = 512;
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    const std::vector<float> x = test::Draw(distribution, d, 6);
    for (const CodecSetting& setting : codec.Traits().settings) {
      if (setting.bits == 1) continue;  // another law
      const double s = (1 << (setting.bits - 1)) - 1;
      EncodeContext context = test::ContextFor(codec, x, 1, 1, setting.bits);
      double loss = 0;
      const int draws = 100;
      for (int draw = 0; draw < draws; ++draw) {
        context.seed = draw;
        loss += RelativeLoss(x, test::RoundTrip(codec, x, context)) / draws;
      }
      // The bound holds for the mean; 100 draws of 512 errors stray from theirs by a few percent.
      EXPECT_LT(loss, 1.1 * std::min(d / (s * s), std::sqrt(d) / s))
          << distribution.name << " " << setting.bits;
    }
  }
}

TEST(QsgdBucketedTest, OneBitIsTheLargestMagnitudeWithTheRightChances) {
  const Codec& codec = test::FindCodec("qsgd_bucketed");
  for (const test::Distribution& distribution : test::SevenDistributions()) {
    // 100 buckets, each with an error of x^2 in the mean square about plus and minus m.
    const size_t d = 512, buckets = 100;
    const std::vector<float> x = test::Draw(distribution, d * buckets, 6);
    const std::vector<float> decoded =
        test::RoundTrip(codec, x, test::ContextFor(codec, x, 1, 1, 1));
    double lost = 0, expected = 0;
    for (size_t at = 0; at < x.size(); at += d) {
      float m = 0;
      for (size_t i = at; i < at + d; ++i) m = std::max(m, std::abs(x[i]));
      for (size_t i = at; i < at + d; ++i) {
        ASSERT_EQ(std::abs(decoded[i]), m) << i;
        lost += std::pow(static_cast<double>(decoded[i]) - x[i], 2);
        expected += static_cast<double>(m) * m - static_cast<double>(x[i]) * x[i];
      }
    }
    EXPECT_NEAR(lost / expected, 1, 0.1) << distribution.name;
  }
  const std::vector<float> x(20000, -1.0f), edge(512, std::numeric_limits<float>::max());
  std::vector<float> mixed = x;
  for (size_t i = 0; i < mixed.size(); i += 100) mixed[i] = 4;
  const std::vector<float> decoded =
      test::RoundTrip(codec, mixed, test::ContextFor(codec, x, 1, 1, 1));
  // -1 of 4: up with chance 3/8.
  const auto up = std::count(decoded.begin(), decoded.end(), 4.0f) - 200;
  EXPECT_NEAR(static_cast<double>(up), 19800 * 0.375, 5 * std::sqrt(19800 * 0.375 * 0.625));
  for (const float v : test::RoundTrip(codec, edge, test::ContextFor(codec, edge, 1, 1, 1))) {
    ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(QsgdBucketedTest, BucketsHaveTheirOwnScale) {
  const Codec& codec = test::FindCodec("qsgd_bucketed");
  std::vector<float> x = test::NormalVector(1024, 7);
  for (size_t i = 512; i < 1024; ++i) x[i] *= 1e-6f;
  const std::vector<float> decoded = test::RoundTrip(codec, x, test::ContextFor(codec, x, 1, 1, 8));
  EXPECT_LT(RelativeLoss(std::span(x).subspan(512), std::span(decoded).subspan(512)), 0.01);
}

TEST(NaturalTest, RoundsToTheTwoPowersAroundWithTheRightChances) {
  const Codec& codec = test::FindCodec("natural");
  for (const int bits : {8, 9}) {
    const std::vector<float> x(20000, -5.0f);  // -4 with chance 3/4, -8 with chance 1/4
    const std::vector<float> decoded =
        test::RoundTrip(codec, x, test::ContextFor(codec, x, 1, 1, bits));
    const auto fours = std::count(decoded.begin(), decoded.end(), -4.0f);
    const auto eights = std::count(decoded.begin(), decoded.end(), -8.0f);
    EXPECT_EQ(fours + eights, 20000);
    EXPECT_NEAR(static_cast<double>(eights), 5000, 5 * std::sqrt(20000 * 0.25 * 0.75));
  }
}

TEST(NaturalTest, VarianceIsAtMostAnEighth) {
  // The worst input is 4/3 of a power of two: its variance is exactly an eighth of its square.
  const Codec& codec = test::FindCodec("natural");
  const std::vector<float> x(100000, 4.0f / 3);
  const double loss = RelativeLoss(x, test::RoundTrip(codec, x, test::ContextFor(codec, x)));
  EXPECT_NEAR(loss, 0.125, 0.002);
}

TEST(NaturalTest, PowersOfTwoZeroAndExtremesPassUnchanged) {
  const Codec& codec = test::FindCodec("natural");
  const std::vector<float> x = {0.0f, -0.0f, 1.0f, -2.0f, 0x1p-126f, 0x1p127f, -0x1p-100f};
  const std::vector<float> full = test::RoundTrip(codec, x, test::ContextFor(codec, x, 1, 1, 9));
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(full[i], x[i]);
  const std::vector<float> narrow = test::RoundTrip(codec, x, test::ContextFor(codec, x, 1, 1, 8));
  EXPECT_EQ(narrow, std::vector<float>({0, 0, 1, -2, 0, 0x1p18f, -0x1p-100f}));
  const std::vector<float> edge(1000, std::numeric_limits<float>::max());
  for (const float v : test::RoundTrip(codec, edge, test::ContextFor(codec, edge))) {
    ASSERT_EQ(v, 0x1p127f);
  }
}

TEST(NaturalTest, AnInfiniteExponentFromAPeerIsRejected) {
  const Codec& codec = test::FindCodec("natural");
  const std::vector<float> x(100, 1.0f);
  const EncodeContext context = test::ContextFor(codec, x, 1, 1, 9);
  std::vector<std::byte> payload = test::EncodeOrDie(codec, x, context).payload;
  payload[13 + 57] = std::byte{255};
  std::vector<float> out(100, 0.0f);
  const Status status = codec.DecodeAdd(payload, context, 1, out);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(Message(status).find("offset 70"), std::string::npos) << Message(status);
}

TEST(TernGradTest, SendsThreeValuesWithTheRightChances) {
  const Codec& codec = test::FindCodec("terngrad");
  std::vector<float> x(100000, 0.25f);
  EncodeContext context = test::ContextFor(codec, x);
  EXPECT_FLOAT_EQ(context.shared_max.one(), 0.25f);  // 2.5 times the root mean square would be more
  context.shared_max = 1;
  const std::vector<float> decoded = test::RoundTrip(codec, x, context);
  const auto ones = std::count(decoded.begin(), decoded.end(), 1.0f);
  EXPECT_EQ(ones + std::count(decoded.begin(), decoded.end(), 0.0f), 100000);
  EXPECT_NEAR(static_cast<double>(ones), 25000, 5 * std::sqrt(100000 * 0.25 * 0.75));
}

TEST(TernGradTest, OneOutlierDoesNotSetTheScale) {
  const Codec& codec = test::FindCodec("terngrad");
  std::vector<float> x = test::NormalVector(10000, 8);
  x[77] = 50;
  const double rms = std::sqrt(test::SquaredNorm(x) / 1e4);
  EXPECT_NEAR(codec.LocalMax(x, {}, {}).one(), 2.5 * rms, 1e-5);
  const std::vector<float> decoded = test::RoundTrip(codec, x, test::ContextFor(codec, x));
  EXPECT_NEAR(decoded[77], 2.5 * rms, 1e-5);
}

TEST(LaneWidthTest, SumsFitAtTheLargestWorldOfEveryWidth) {
  for (const char* name : {"qsgd", "terngrad", "qsgd:memory=none", "signsgd"}) {
    const Codec& codec = test::FindCodec(name);
    for (const CodecSetting& setting : codec.Traits().settings) {
      const int world = std::min(setting.world_max, 300);
      for (const float value : {2.0f, -2.0f}) {
        const std::vector<float> x(9, value);
        EncodeContext context = test::ContextFor(codec, x, world, 1, setting.bits);
        context.shared_max = 2;
        std::vector<std::byte> sum;
        for (context.rank = 0; context.rank < world; ++context.rank) {
          const std::vector<std::byte> payload = test::EncodeOrDie(codec, x, context).payload;
          if (context.rank == 0) {
            sum = payload;
          } else {
            codec.Accumulate(context, sum, payload);
          }
        }
        const std::vector<float> decoded = test::DecodeFor(codec, sum, context, x).value();
        for (const float v : decoded) {
          ASSERT_NEAR(v, world * value, 1e-4 * world) << name << " " << setting.fixed_bits;
        }
      }
    }
  }
}

// --- Votes ---------------------------------------------------------------------------------------

TEST(SignSgdTest, TheMajorityDecidesAndTiesAreZero) {
  const Codec& codec = test::FindCodec("signsgd");
  for (const int world : {1, 2, 3, 4, 5, 7, 15, 16, 40}) {
    const size_t n = 2111;
    Random random(9);
    std::vector<std::vector<float>> inputs(world);
    std::vector<int> balance(n, 0);
    float magnitude = 0;
    for (std::vector<float>& x : inputs) {
      x = test::NormalVector(n, random.Next());
      double mean = 0;
      for (size_t i = 0; i < n; ++i) {
        balance[i] += x[i] >= 0 ? 1 : -1;
        mean += std::abs(x[i]) / static_cast<double>(n);
      }
      magnitude = std::max(magnitude, static_cast<float>(mean));
    }
    const std::vector<float> voted = AllReduce(codec, inputs, 1.0f / world);
    for (size_t i = 0; i < n; ++i) {
      const int sign = (balance[i] > 0) - (balance[i] < 0);
      ASSERT_NEAR(voted[i], sign * magnitude, 1e-5) << i << " world " << world;
    }
  }
}

TEST(SignSgdTest, OneRankThatIsNotFiniteIsKnownToAll) {
  const Codec& codec = test::FindCodec("signsgd");
  std::vector<float> x = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(codec.LocalMax(x, {}, {}).one(), std::numeric_limits<float>::infinity());
  EncodeContext context;
  context.shared_max = std::numeric_limits<float>::infinity();
  x[1] = 2;
  EXPECT_TRUE(test::EncodeOrDie(codec, x, context).result.non_finite);
}

TEST(SignumTest, VotesWithTheMovingSum) {
  const Codec& codec = test::FindCodec("signum");
  const size_t n = 3001;
  std::vector<double> reference(n, 0.0);
  std::vector<float> momentum(n, 0.0f), next(n);
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> g = test::NormalVector(n, 100 + step);
    double mean = 0;
    for (size_t i = 0; i < n; ++i) {
      reference[i] = 0.9 * reference[i] + 0.1 * g[i];
      mean += std::abs(reference[i]) / static_cast<double>(n);
    }
    EncodeContext context;
    // In place and apart must be the same.
    context.momentum = {momentum, step % 2 == 0 ? std::span(next) : std::span(momentum)};
    context.shared_max = codec.LocalMax(g, {}, context);
    EXPECT_NEAR(context.shared_max.one(), mean, 1e-5);
    const std::vector<float> decoded = test::RoundTrip(codec, g, context);
    if (step % 2 == 0) momentum = next;
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(momentum[i], reference[i], 1e-5);
      if (std::abs(reference[i]) < 1e-5) continue;
      ASSERT_NEAR(decoded[i], reference[i] < 0 ? -mean : mean, 1e-5) << i << " step " << step;
    }
  }
}

// --- Deterministic codecs against their formulas -------------------------------------------------

TEST(EfSignSgdTest, IsTheMeanMagnitudeTimesTheSign) {
  const Codec& codec = test::FindCodec("ef_signsgd");
  const std::vector<float> x = test::NormalVector(5000, 10);
  const std::vector<float> decoded = test::RoundTrip(codec, x, {});
  for (size_t from = 0; from < x.size(); from += 2048) {
    const size_t size = std::min<size_t>(2048, x.size() - from);
    double mean = 0, squares = 0, lost = 0;
    for (size_t i = from; i < from + size; ++i) {
      mean += std::abs(x[i]) / static_cast<double>(size);
      squares += static_cast<double>(x[i]) * x[i];
    }
    for (size_t i = from; i < from + size; ++i) {
      ASSERT_NEAR(decoded[i], x[i] < 0 ? -mean : mean, 1e-5);
      lost += std::pow(x[i] - decoded[i], 2);
    }
    // The contraction of the paper, lemma 8: exactly 1 - |x|_1^2 / (d |x|_2^2).
    EXPECT_NEAR(lost / squares, 1 - mean * mean * static_cast<double>(size) / squares, 1e-5);
  }
}

TEST(OneBitTest, IsTheMeanOfTheHalf) {
  const Codec& codec = test::FindCodec("onebit");
  std::vector<float> x = test::NormalVector(4100, 11);
  for (float& v : x) v = v > 0 ? 3 * v : v;  // lopsided
  const std::vector<float> decoded = test::RoundTrip(codec, x, {});
  for (size_t from = 0; from < x.size(); from += 2048) {
    const size_t size = std::min<size_t>(2048, x.size() - from);
    double sum[2] = {}, count[2] = {};
    for (size_t i = from; i < from + size; ++i) {
      sum[x[i] >= 0] += x[i];
      ++count[x[i] >= 0];
    }
    for (size_t i = from; i < from + size; ++i) {
      ASSERT_NEAR(decoded[i], sum[x[i] >= 0] / count[x[i] >= 0], 1e-5) << i;
    }
  }
}

TEST(OneBitTest, OneSidedAndHugeInputsKeepTheirMean) {
  const Codec& codec = test::FindCodec("onebit");
  for (const float value : {-1.0f, 2.0f, 0.0f, 3e38f, -3e38f, 1e-30f}) {
    const std::vector<float> x(1000, value);
    for (const float v : test::RoundTrip(codec, x, {}))
      ASSERT_NEAR(v, value, 1e-5 * std::abs(value));
  }
}

TEST(MinMaxTest, ErrorIsAtMostHalfAStep) {
  const Codec& codec = test::FindCodec("minmax");
  const std::vector<float> x = test::NormalVector(5000, 12);
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<float> decoded =
        test::RoundTrip(codec, x, test::ContextFor(codec, x, 1, 1, bits));
    for (size_t from = 0; from < x.size(); from += 512) {
      const auto begin = x.begin() + from, end = begin + std::min<size_t>(512, x.size() - from);
      const auto [least, largest] = std::minmax_element(begin, end);
      const double step = (*largest - *least) / ((1 << bits) - 1);
      for (size_t i = from; i < static_cast<size_t>(end - x.begin()); ++i) {
        const double level = std::nearbyint((x[i] - *least) / step);
        ASSERT_NEAR(decoded[i], x[i], step / 2 * 1.0001) << bits;
        ASSERT_LE(std::abs(decoded[i] - (*least + level * step)), step * 1.0001);
      }
      EXPECT_EQ(decoded[least - x.begin()], *least);
      EXPECT_NEAR(decoded[largest - x.begin()], *largest, 1e-5);
    }
  }
}

TEST(MinMaxTest, FlatAndExtremeBucketsAreKept) {
  const Codec& codec = test::FindCodec("minmax");
  for (const float value : {0.0f, -3.5f, 1e-40f, 3e38f}) {
    const std::vector<float> x(700, value);
    EXPECT_EQ(test::RoundTrip(codec, x, {}), x);
  }
  // A range beyond single precision is cut short at the upper end, never infinite.
  const std::vector<float> wide = {-3e38f, 0.0f, 3e38f};
  const std::vector<float> decoded = test::RoundTrip(codec, wide, {});
  EXPECT_EQ(decoded[0], -3e38f);
  EXPECT_NEAR(decoded[1], 0, 1.5e37);
  EXPECT_NEAR(decoded[2], 4e37, 1.5e36);
}

TEST(U8BitTest, CodesAreDecadesAndTheirParts) {
  const Codec& codec = test::FindCodec("u8bit");
  Random random(13);
  std::vector<float> x(2048);
  for (float& v : x) {
    v = static_cast<float>(test::Sign(random) * 3 * std::pow(10.0, -8 * random.Uniform()));
  }
  x[5] = 3;  // the largest
  const std::vector<float> decoded = test::RoundTrip(codec, x, {});
  for (size_t i = 0; i < x.size(); ++i) {
    const double y = std::abs(x[i]) / 3.0;
    if (y < 2.7e-7) {
      ASSERT_EQ(decoded[i], 0) << x[i];
      continue;
    }
    // Half a part of the decade, and one ten-thousandth of it for rounding at its edges.
    const int k = std::clamp(static_cast<int>(std::floor(-std::log10(y) + 1e-6)), 0, 6);
    const double width = 0.9 * std::pow(10.0, -k) / (64 >> k);
    ASSERT_NEAR(decoded[i], x[i], 3 * width * 0.5001) << k;
  }
}

TEST(BucketCodecTest, AScaleThatIsNotFiniteIsRejectedWithItsOffset) {
  for (const char* name : {"ef_signsgd", "onebit", "minmax", "qsgd_bucketed", "u8bit"}) {
    const Codec& codec = test::FindCodec(name);
    const std::vector<float> x(3000, 1.0f);
    std::vector<std::byte> payload = test::EncodeOrDie(codec, x, {}).payload;
    const float bad = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(payload.data(), &bad, sizeof(bad));
    std::vector<float> out(3000, 0.0f);
    const Status status = codec.DecodeAdd(payload, {}, 1, out);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << name;
    EXPECT_NE(Message(status).find("offset 0"), std::string::npos) << Message(status);
  }
}

}  // namespace
}  // namespace weir
