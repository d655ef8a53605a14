// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/index_coding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "datapath/base/random.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/support/every_target.h"

namespace weir {
namespace {

std::vector<uint32_t> RandomSet(size_t n, double density, uint64_t seed) {
  Random random(seed);
  std::vector<uint32_t> set;
  for (size_t i = 0; i < n; ++i) {
    if (random.Uniform() < density) set.push_back(static_cast<uint32_t>(i));
  }
  return set;
}

struct CodedIndices {
  IndexFormat format;
  std::vector<std::byte> bytes;
};

CodedIndices Encode(const std::vector<uint32_t>& set, size_t n) {
  CodedIndices coded;
  coded.bytes.resize(MaxIndexBytes(n, set.size()));
  coded.bytes.resize(EncodeIndices(set, n, coded.bytes, &coded.format));
  return coded;
}

StatusOr<std::vector<uint32_t>> Decode(const CodedIndices& coded, size_t n, size_t count,
                                       size_t batch = 64) {
  IndexDecoder decoder(coded.format, coded.bytes, n, count, 0);
  std::vector<uint32_t> all, part(batch);
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const size_t size, decoder.Next(part));
    all.insert(all.end(), part.begin(), part.begin() + size);
    if (size < batch) break;
  }
  WEIR_RETURN_IF_ERROR(decoder.Finish());
  return all;
}

TEST(IndexCodingTest, RoundTripAtEveryDensity) {
  for (const size_t n : {size_t{1}, size_t{8}, size_t{63}, size_t{1000}, size_t{100003}}) {
    for (const double density : {0.0, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0}) {
      const std::vector<uint32_t> set = RandomSet(n, density, n);
      const CodedIndices coded = Encode(set, n);
      test::OnEveryTarget([&](const char* target) {
        for (const size_t batch : {1, 7, 64, 1000}) {
          const auto decoded = Decode(coded, n, set.size(), batch);
          ASSERT_TRUE(decoded.ok()) << n << " " << density << target << ToString(decoded.status());
          EXPECT_EQ(*decoded, set);
        }
      });
    }
  }
}

TEST(IndexCodingTest, ExtremesFitTheBound) {
  // Clusters, lone ends, and every count of a small n: the bound is exact enough to be the buffer.
  for (const size_t n : {size_t{1}, size_t{9}, size_t{64}, size_t{257}}) {
    for (size_t count = 0; count <= n; ++count) {
      std::vector<uint32_t> front(count), back(count);
      for (size_t i = 0; i < count; ++i) {
        front[i] = static_cast<uint32_t>(i);
        back[i] = static_cast<uint32_t>(n - count + i);
      }
      for (const auto& set : {front, back}) {
        const CodedIndices coded = Encode(set, n);
        EXPECT_LE(coded.bytes.size(), MaxIndexBytes(n, n));
        EXPECT_EQ(Decode(coded, n, count).value(), set);
      }
    }
  }
  const size_t huge = size_t{1} << 32;
  for (const std::vector<uint32_t>& set :
       {std::vector<uint32_t>{0xFFFFFFFFu}, std::vector<uint32_t>{0, 0xFFFFFFFFu}}) {
    EXPECT_EQ(Decode(Encode(set, huge), huge, set.size()).value(), set);
  }
}

TEST(IndexCodingTest, BoundGrowsWithTheCount) {
  for (const size_t n : {size_t{1000}, size_t{1} << 20}) {
    size_t before = 0;
    for (size_t count = 0; count <= n; count += 1 + n / 997) {
      EXPECT_GE(MaxIndexBytes(n, count), before);
      before = MaxIndexBytes(n, count);
    }
    EXPECT_EQ(before, (n + 7) / 8);
  }
}

TEST(IndexCodingTest, SizeIsWithinTwoPercentOfTheEntropy) {
  const size_t n = 1 << 20;
  for (const double density : {0.001, 0.01, 0.1}) {
    const std::vector<uint32_t> set = RandomSet(n, density, 5);
    const double p = static_cast<double>(set.size()) / n;
    const double entropy = n * (-p * std::log2(p) - (1 - p) * std::log2(1 - p)) / 8;
    const CodedIndices coded = Encode(set, n);
    EXPECT_EQ(coded.format.coding, IndexCoding::kRice);
    EXPECT_LT(static_cast<double>(coded.bytes.size()), 1.025 * entropy) << density;
  }
  EXPECT_EQ(Encode(RandomSet(n, 0.6, 6), n).format.coding, IndexCoding::kBitmap);
}

TEST(IndexCodingTest, KnownBytes) {
  // n = 16, {1, 6}: rice bits floor(log2(16 / 2)) = 3; gaps 1 and 4: 3 plain bits of each, then
  // the quotients 0 and 0.
  const CodedIndices coded = Encode({1, 6}, 16);
  EXPECT_EQ(coded.format.coding, IndexCoding::kRice);
  EXPECT_EQ(coded.format.rice_bits, 3);
  ASSERT_EQ(coded.bytes.size(), 1u);
  EXPECT_EQ(coded.bytes[0], std::byte{0b1110'0001});
}

/// Ten runs of `length` positions, far apart.
std::vector<uint32_t> Runs(size_t length, size_t n) {
  std::vector<uint32_t> set;
  for (size_t i = 0; i < 10 * length; ++i) {
    set.push_back(static_cast<uint32_t>(i / length * (n / 10) + 300 + i % length));
  }
  return set;
}

TEST(IndexCodingTest, CrowdsAreSentInOctets) {
  const size_t n = 1 << 20, length = 100;
  const std::vector<uint32_t> set = Runs(length, n);
  const CodedIndices coded = Encode(set, n);
  EXPECT_EQ(coded.format.coding, IndexCoding::kOctets);
  EXPECT_EQ(coded.format.rice_bits, 0);
  EXPECT_EQ(coded.bytes.size(), set.size() + 10 * 4);
  for (const size_t batch : {1, 7, 64, 4096}) {
    EXPECT_EQ(Decode(coded, n, set.size(), batch).value(), set);
  }
  // At 1000 of 2^20 a Rice code has 11 bits or more.
  EXPECT_LT(coded.bytes.size(), set.size() * 11 / 8);
}

TEST(IndexCodingTest, OctetsHoldGapsOfEverySize) {
  // 253 to 256 lie around the long form; the last position is the largest of all.
  std::vector<uint32_t> set = {0};
  for (const uint32_t gap : {253u, 254u, 255u, 256u, 70000u}) set.push_back(set.back() + 1 + gap);
  for (uint32_t i = 0; i < 100; ++i) set.push_back(set.back() + 1);
  set.push_back(0xFFFFFFFFu);
  const size_t n = size_t{1} << 32;
  const CodedIndices coded = Encode(set, n);
  EXPECT_EQ(coded.format.coding, IndexCoding::kOctets);
  EXPECT_EQ(coded.bytes.size(), set.size() + 4 * 4);
  EXPECT_EQ(Decode(coded, n, set.size()).value(), set);
}

TEST(IndexCodingTest, RejectsOctetsThatItDidNotWrite) {
  const auto code = [](std::vector<uint8_t> octets, size_t n, size_t count) {
    CodedIndices coded{{IndexCoding::kOctets, 0}, {}};
    for (const uint8_t octet : octets) coded.bytes.push_back(std::byte{octet});
    return Decode(coded, n, count).status().code();
  };
  EXPECT_EQ(code({3, 255, 0, 1, 0, 0}, 1000, 2), StatusCode::kOk);
  EXPECT_EQ(code({3, 255, 0, 1, 0, 0}, 260, 2), StatusCode::kDataLoss) << "index past the end";
  EXPECT_EQ(code({3, 255, 0, 1, 0, 0}, 1000, 3), StatusCode::kDataLoss) << "bytes ran out";
  EXPECT_EQ(code({3, 255, 0, 1, 0, 0}, 1000, 1), StatusCode::kDataLoss) << "surplus";
  EXPECT_EQ(code({3, 255, 0, 1, 0}, 1000, 2), StatusCode::kDataLoss) << "a long gap cut short";
  EXPECT_EQ(code({3, 255, 254, 0, 0, 0}, 1000, 2), StatusCode::kDataLoss) << "not long";
  EXPECT_EQ(code({255, 255, 255, 255, 255, 0}, size_t{1} << 32, 2), StatusCode::kDataLoss);
}

TEST(IndexCodingTest, RefusesCodingsWithoutAMeaning) {
  // 0 had quotients and plain bits together: read as 3 it would yield other positions.
  const std::vector<float> x(203, 1.0f);
  const Codec& codec = test::FindCodec("top_k");
  const EncodeContext context = test::ContextFor(codec, x, 3, 0.1);
  std::vector<std::byte> payload = test::EncodeOrDie(codec, x, context).payload;
  std::vector<float> out(x.size());
  ASSERT_TRUE(codec.DecodeAdd(payload, context, 1, out).ok());
  for (const int coding : {0, 4, 255}) {
    payload[0] = static_cast<std::byte>(coding);
    const Status status = codec.DecodeAdd(payload, context, 1, out);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << coding;
    EXPECT_NE(ToString(status).find("index coding at offset 0"), std::string::npos) << status;
  }
}

TEST(IndexCodingTest, RejectsWhatItDidNotWrite) {
  const std::vector<uint32_t> set = RandomSet(1000, 0.05, 9);
  const CodedIndices good = Encode(set, 1000);
  const auto code = [](const CodedIndices& coded, size_t n, size_t count) {
    return Decode(coded, n, count).status().code();
  };
  EXPECT_EQ(code(good, 1000, set.size()), StatusCode::kOk);
  EXPECT_EQ(code(good, set.back(), set.size()), StatusCode::kDataLoss) << "index past the end";
  EXPECT_EQ(code(good, 1000, set.size() + 20), StatusCode::kDataLoss) << "bits ran out";
  EXPECT_EQ(code(good, 1000, set.size() / 2), StatusCode::kDataLoss) << "surplus";
  CodedIndices bad = good;
  bad.format.rice_bits = 32;
  EXPECT_EQ(code(bad, 1000, set.size()), StatusCode::kDataLoss);
  bad.format.coding = static_cast<IndexCoding>(7);
  EXPECT_EQ(code(bad, 1000, set.size()), StatusCode::kDataLoss);
  // A quotient whose low 32 bits, or whose product with 2^31, would be a valid one.
  CodedIndices far{{IndexCoding::kRice, 0}, std::vector<std::byte>((size_t{1} << 29) + 1)};
  far.bytes.back() = std::byte{1};
  EXPECT_EQ(code(far, 1000, 1), StatusCode::kDataLoss);
  far = {{IndexCoding::kRice, 31}, std::vector<std::byte>(5)};
  far.bytes[4] = std::byte{2};
  EXPECT_EQ(code(far, size_t{1} << 32, 1), StatusCode::kDataLoss);
  far.bytes[4] = std::byte{1};
  EXPECT_EQ(code(far, size_t{1} << 32, 1), StatusCode::kOk);
  // Plain bits that the octets cannot hold, and a run of zeros that would never end.
  EXPECT_EQ(code({{IndexCoding::kRice, 31}, std::vector<std::byte>(8)}, 1000, 100),
            StatusCode::kDataLoss);
  EXPECT_EQ(code({{IndexCoding::kRice, 0}, std::vector<std::byte>(100000)}, 1000, 3),
            StatusCode::kDataLoss);
  // Bitmaps: wrong size, too few bits, a bit in the padding.
  CodedIndices bitmap{{IndexCoding::kBitmap, 0}, std::vector<std::byte>(2)};
  bitmap.bytes[0] = std::byte{0b101};
  EXPECT_EQ(code(bitmap, 10, 2), StatusCode::kOk);
  EXPECT_EQ(code(bitmap, 10, 1), StatusCode::kDataLoss);
  EXPECT_EQ(code(bitmap, 10, 3), StatusCode::kDataLoss);
  EXPECT_EQ(code(bitmap, 17, 2), StatusCode::kDataLoss);
  bitmap.bytes[1] = std::byte{0b100};
  EXPECT_EQ(code(bitmap, 10, 2), StatusCode::kDataLoss);
  EXPECT_EQ(code(bitmap, 10, 3), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace weir
