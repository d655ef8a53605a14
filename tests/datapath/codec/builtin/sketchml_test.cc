// SPDX-License-Identifier: Apache-2.0
// Values as numbers of quantile buckets.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "datapath/codec/select/value_coding.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

constexpr ValueFormat kFormats[] = {ValueFormat::kQuantiles8, ValueFormat::kQuantiles6};

struct CodedSketch {
  std::vector<std::byte> bytes;
  std::vector<float> decoded, errors;
};

CodedSketch Encode(ValueFormat format, const std::vector<float>& values) {
  CodedSketch coded{std::vector<std::byte>(ValueBytes(format, values.size())),
                    std::vector<float>(values.size()), values};
  EncodeValues(format, coded.errors, coded.bytes.data());
  ValueDecoder decoder(format, 0, coded.bytes, 0, values.size());
  for (size_t at = 0; at < values.size(); at += 1024) {
    const size_t size = std::min<size_t>(1024, values.size() - at);
    EXPECT_TRUE(decoder.Next(size, coded.decoded.data() + at).ok());
  }
  return coded;
}

std::vector<float> Tail(size_t n, uint64_t seed) {
  std::vector<float> x = test::NormalVector(4 * n, seed);
  std::erase_if(x, [](float v) { return std::abs(v) < 1; });
  x.resize(std::min(n, x.size()));
  return x;
}

TEST(QuantilesTest, BucketsHoldEquallyManyValuesOfOneSignAndSendTheirMean) {
  for (const ValueFormat format : kFormats) {
    const std::vector<float> values = Tail(40000, 3);
    const CodedSketch coded = Encode(format, values);
    struct Bucket {
      size_t count = 0;
      double sum = 0;
    };
    std::map<float, Bucket> buckets;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(coded.decoded[i] + coded.errors[i], values[i]);
      ASSERT_GT(coded.decoded[i] * values[i], 0);
      Bucket& bucket = buckets[coded.decoded[i]];
      ++bucket.count;
      bucket.sum += values[i];
    }
    const size_t most = format == ValueFormat::kQuantiles8 ? 256 : 64;
    EXPECT_GT(buckets.size(), most * 9 / 10);
    EXPECT_LE(buckets.size(), most);
    for (const auto& [mean, bucket] : buckets) {
      EXPECT_NEAR(bucket.sum / bucket.count, mean, 1e-6 * std::abs(mean));
      EXPECT_LT(bucket.count, 2 * values.size() / most);
    }
  }
}

TEST(QuantilesTest, FewValuesAndEqualOnesAreExact) {
  for (const ValueFormat format : kFormats) {
    for (const std::vector<float>& values :
         {std::vector<float>{3}, std::vector<float>{-3}, std::vector<float>{1, -1},
          std::vector<float>{5, 1, -2, 1e-30f}, std::vector<float>(1000, -0.25f)}) {
      EXPECT_EQ(Encode(format, values).decoded, values);
    }
  }
}

TEST(QuantilesTest, AnyMagnitudesAreTakenApart) {
  Random random(4);
  std::vector<float> values(20000);
  for (float& v : values) {
    v = static_cast<float>(test::Sign(random) * std::pow(10.0, -36 + 74 * random.Uniform()));
  }
  for (const ValueFormat format : kFormats) {
    const CodedSketch coded = Encode(format, values);
    // About 130 (32) buckets a sign for 74 decades: no error is much above the largest of a bucket.
    const double worst = format == ValueFormat::kQuantiles8 ? 1.5 : 3;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(coded.decoded[i]));
      ASSERT_LT(std::abs(std::log10(coded.decoded[i] / values[i])), worst) << values[i];
    }
  }
}

TEST(QuantilesTest, DecoderTrustsNothing) {
  const std::vector<float> values = Tail(101, 5);
  ASSERT_EQ(values.size(), 101u);
  for (const ValueFormat format : kFormats) {
    const std::vector<std::byte> good = Encode(format, values).bytes;
    const auto message = [&](const std::vector<std::byte>& bytes) {
      ValueDecoder decoder(format, 0, bytes, 0, values.size());
      std::vector<float> decoded(values.size());
      return Message(decoder.Next(values.size(), decoded.data()));
    };
    EXPECT_EQ(message(good), "");
    std::vector<std::byte> bad = good;
    bad[3] = std::byte{0x7F};
    bad[2] = std::byte{0xFF};
    EXPECT_NE(message(bad).find("mean of a bucket, from offset 0"), std::string::npos);
    bad = good;
    bad[32] |= std::byte{8};  // of 8 buckets
    EXPECT_NE(message(bad).find("batch at offset 32"), std::string::npos) << message(bad);
    if (format == ValueFormat::kQuantiles8) continue;
    bad = good;
    bad.back() |= std::byte{0x80};
    EXPECT_NE(message(bad).find("padding at offset"), std::string::npos) << message(bad);
  }
}

TEST(SketchMlTest, MostValuesAreCloserThanWithEqualSteps) {
  // The paper's case: values crowd near the threshold, and equal steps waste codes on the few large
  // ones, which quantiles tell apart least.
  const size_t n = 1 << 20;
  const test::Distribution student = test::SevenDistributions()[4];
  const std::vector<float> x = test::Draw(student, n, 9);
  const auto typical_error = [&](const char* name, int bits) {
    const Codec& codec = test::FindCodec(name);
    const EncodeContext context = test::ContextFor(codec, x, 1, 0.05, bits);
    const test::Encoded encoded = test::EncodeOrDie(codec, x, context);
    std::vector<uint32_t> indices;
    EXPECT_TRUE(codec.DecodeIndices(encoded.payload, n, &indices).ok());
    const auto decoded = test::DecodeFor(codec, encoded.payload, context, x).value();
    std::vector<double> errors;
    for (const uint32_t i : indices) errors.push_back(std::abs(decoded[i] / x[i] - 1));
    std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
    return errors[errors.size() / 2];
  };
  EXPECT_LT(typical_error("sketchml", 8), 0.5 * typical_error("top_k", 8));
}

}  // namespace
}  // namespace weir
