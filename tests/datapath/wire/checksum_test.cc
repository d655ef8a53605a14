// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/wire/frame.h"
#include "tests/support/every_target.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weir {
namespace {

using test::OnEveryTarget;

constexpr size_t kRun = 128, kBlock = 16;

std::vector<std::byte> Pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  Random random(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
  return bytes;
}

uint32_t LowXxh3(const std::vector<std::byte>& bytes) {
  return static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

uint8_t Product(uint8_t a, uint8_t b) {  // in GF(2^8) of AES
  uint8_t product = 0;
  for (; b != 0; b >>= 1) {
    if ((b & 1) != 0) product ^= a;
    a = static_cast<uint8_t>((a << 1) ^ ((a & 0x80) != 0 ? 0x1b : 0));
  }
  return product;
}

uint8_t SubstituteByte(uint8_t x) {
  uint8_t inverse = 1;
  for (int i = 0; i < 254; ++i) inverse = Product(inverse, x);  // x^254
  uint8_t y = 0x63;
  for (int turn = 0; turn < 5; ++turn) {
    y ^= static_cast<uint8_t>(inverse << turn | inverse >> (8 - turn));
  }
  return y;
}

/// FIPS 197 as it stands there: byte by byte, row r + 4 * column.
std::array<uint8_t, kBlock> Round(const uint8_t* state, const uint8_t* key) {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> made;
    for (int x = 0; x < 256; ++x) made.push_back(SubstituteByte(static_cast<uint8_t>(x)));
    return made;
  }();
  std::array<uint8_t, kBlock> out;
  for (size_t column = 0; column < 4; ++column) {
    for (size_t row = 0; row < 4; ++row) {
      uint8_t sum = key[4 * column + row];
      for (size_t r = 0; r < 4; ++r) {
        constexpr uint8_t kMix[4] = {2, 3, 1, 1};
        sum ^= Product(table[state[4 * ((column + r) % 4) + r]], kMix[(r + 4 - row) % 4]);
      }
      out[4 * column + row] = sum;
    }
  }
  return out;
}

/// The definition in proto/WIRE.md, a byte at a time.
uint32_t Defined(const std::vector<std::byte>& bytes) {
  const size_t runs = bytes.size() / kRun;
  if (runs == 0) return LowXxh3(bytes);
  std::vector<std::byte> left(bytes.begin(), bytes.begin() + kRun);
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  auto* states = reinterpret_cast<uint8_t*>(left.data());
  for (size_t block = kRun / kBlock; block < runs * kRun / kBlock; ++block) {
    uint8_t* const state = states + block % (kRun / kBlock) * kBlock;
    const auto next = Round(state, at + block * kBlock);
    std::copy(next.begin(), next.end(), state);
  }
  left.insert(left.end(), bytes.begin() + static_cast<ptrdiff_t>(runs * kRun), bytes.end());
  return LowXxh3(left);
}

// Lengths around runs, and around every block size of XXH3.
const std::vector<size_t> kSizes = {0,   1,    3,    4,    8,    9,     16,    17,    127,
                                    128, 129,  240,  241,  255,  256,   257,   383,   384,
                                    385, 1023, 1024, 1025, 4096, 65535, 65536, 300001};

TEST(ChecksumTest, OfWhatIsShortIsTheLowHalfOfXxh3) {
  // XXH3-64 of nothing, seed 0, is 0x2d06800538d394c2.
  EXPECT_EQ(Checksum({}), 0x38d394c2u);
  for (const size_t size : kSizes) {
    if (size >= 2 * kRun) continue;
    EXPECT_EQ(Checksum(Pattern(size)), LowXxh3(Pattern(size))) << size;
  }
}

// FIPS 197, appendix B: the state at the start of round 1, its key, and the state behind it.
TEST(ChecksumTest, FoldsByTheRoundOfFips197) {
  constexpr std::array<uint8_t, kBlock> kState = {0x19, 0x3d, 0xe3, 0xbe, 0xa0, 0xf4, 0xe2, 0x2b,
                                                  0x9a, 0xc6, 0x8d, 0x2a, 0xe9, 0xf8, 0x48, 0x08};
  constexpr std::array<uint8_t, kBlock> kKey = {0xa0, 0xfa, 0xfe, 0x17, 0x88, 0x54, 0x2c, 0xb1,
                                                0x23, 0xa3, 0x39, 0x39, 0x2a, 0x6c, 0x76, 0x05};
  constexpr std::array<uint8_t, kBlock> kNext = {0xa4, 0x9c, 0x7f, 0xf2, 0x68, 0x9f, 0x35, 0x2b,
                                                 0x6b, 0x5b, 0xea, 0x43, 0x02, 0x6a, 0x50, 0x49};
  EXPECT_EQ(Round(kState.data(), kKey.data()), kNext);
  std::vector<std::byte> bytes, states;
  for (const auto& each : {kState, kKey, kNext}) {
    std::vector<std::byte>& to = each == kNext ? states : bytes;
    for (size_t block = 0; block < kRun / kBlock; ++block) {
      const auto* const from = reinterpret_cast<const std::byte*>(each.data());
      to.insert(to.end(), from, from + kBlock);
    }
  }
  OnEveryTarget([&](const char* target) { EXPECT_EQ(Checksum(bytes), LowXxh3(states)) << target; });
}

TEST(ChecksumTest, IsAsDefinedOnEveryTarget) {
  for (const size_t size : kSizes) {
    const auto bytes = Pattern(size);
    const uint32_t defined = Defined(bytes);
    OnEveryTarget(
        [&](const char* target) { EXPECT_EQ(Checksum(bytes), defined) << size << " " << target; });
  }
}

TEST(ChecksumTest, StreamEqualsWholeHoweverItIsCut) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  ChecksumStream stream;
  for (const size_t size : kSizes) {
    const auto bytes = Pattern(size);
    for (int round = 0; round < 5; ++round) {
      stream.Reset();
      for (size_t at = 0; at < size;) {
        const size_t piece = 1 + random.Below(round == 0 ? 64 : size);
        const size_t taken = std::min(piece, size - at);
        stream.Update(std::span(bytes).subspan(at, taken));
        at += taken;
      }
      EXPECT_EQ(stream.Digest(), Checksum(bytes)) << size;
    }
  }
}

TEST(ChecksumTest, EveryFlippedBitShows) {
  for (const size_t size : {size_t{100}, 5 * kRun + 9}) {
    auto bytes = Pattern(size);
    const uint32_t whole = Checksum(bytes);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_NE(Checksum(bytes), whole) << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
  }
}

// Typical damage by failing hardware: one line of a bus, a page in another's place, a lost page.
TEST(ChecksumTest, RegularDamageShows) {
  constexpr size_t kSize = 1 << 16;
  for (const bool zeros : {false, true}) {
    SCOPED_TRACE(zeros ? "zeros" : "noise");
    const auto sound = zeros ? std::vector<std::byte>(kSize) : Pattern(kSize);
    const uint32_t whole = Checksum(sound);
    for (size_t stride = 16; stride <= kSize / 2; stride *= 2) {
      for (const size_t bit : {size_t{0}, size_t{31}, size_t{63}, size_t{127}}) {
        for (size_t count = 2; count <= kSize / stride; count *= 2) {
          auto damaged = sound;
          for (size_t i = 0; i < count; ++i) {
            damaged[i * stride + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
          }
          EXPECT_NE(Checksum(damaged), whole) << stride << " " << bit << " " << count;
        }
      }
    }
    for (size_t page = kRun; !zeros && page <= kSize / 2; page *= 2) {
      auto swapped = sound;
      std::swap_ranges(swapped.begin(), swapped.begin() + static_cast<ptrdiff_t>(page),
                       swapped.end() - static_cast<ptrdiff_t>(page));
      EXPECT_NE(Checksum(swapped), whole) << page;
      auto lost = sound;
      std::fill_n(lost.end() - static_cast<ptrdiff_t>(page), page, std::byte{});
      EXPECT_NE(Checksum(lost), whole) << page;
    }
  }
}

}  // namespace
}  // namespace weir
