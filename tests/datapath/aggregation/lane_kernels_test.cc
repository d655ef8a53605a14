// SPDX-License-Identifier: Apache-2.0
// The vectorised kernels against their definition, at every length and alignment.
#include "datapath/aggregation/lane_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "datapath/base/random.h"

namespace weir::aggregation {
namespace {

constexpr size_t kCountMax = 67;

uint32_t LaneOf(const std::byte* in, size_t i, bool little) {
  const auto* octets = reinterpret_cast<const uint8_t*>(in) + i * 4;
  uint32_t lane = 0;
  for (int o = 0; o < 4; ++o) lane = lane << 8 | octets[little ? 3 - o : o];
  return lane;
}

struct LaneCase {
  std::vector<std::byte> octets;  // one in front, so that lanes are not aligned
  std::vector<uint32_t> state;
  const std::byte* in() const { return octets.data() + 1; }
};

/// Numbers below 2^30 in magnitude, whose sums fit.
LaneCase RandomLanes(size_t count, uint64_t seed, bool little) {
  Random random(seed);
  LaneCase c{.octets = std::vector<std::byte>(count * 4 + 1), .state = {}};
  for (size_t i = 0; i < count; ++i) {
    const auto lane = static_cast<uint32_t>(static_cast<int32_t>(random.Next()) >> 2);
    for (int o = 0; o < 4; ++o) {
      c.octets[1 + i * 4 + static_cast<size_t>(o)] =
          static_cast<std::byte>(lane >> 8 * (little ? o : 3 - o));
    }
    c.state.push_back(static_cast<uint32_t>(static_cast<int32_t>(random.Next()) >> 2));
  }
  return c;
}

TEST(LaneKernelsTest, AddFollowsTheDefinition) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    for (const bool little : {false, true}) {
      LaneCase c = RandomLanes(count, count, little);
      std::vector<uint32_t> expected = c.state;
      for (size_t i = 0; i < count; ++i) expected[i] += LaneOf(c.in(), i, little);
      std::vector<std::byte> sums(count * 4 + 1);
      EXPECT_FALSE(AddLanesTo(c.in(), little, c.state.data(), sums.data() + 1, count));
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(LaneOf(sums.data() + 1, i, little), expected[i]) << i << " of " << count;
      }
      EXPECT_FALSE(AddLanes(c.in(), little, c.state.data(), count));
      ASSERT_EQ(c.state, expected) << count << " lanes, little " << little;
    }
  }
}

TEST(LaneKernelsTest, EveryLaneThatWrapsIsNoticed) {
  for (size_t count = 1; count <= kCountMax; ++count) {
    for (size_t at = 0; at < count; ++at) {
      for (const uint32_t sign : {0u, 0x80000000u}) {
        LaneCase c = RandomLanes(count, at, true);
        const uint32_t lane = sign == 0 ? 0x7FFFFFFFu : 0x80000000u;
        std::memcpy(c.octets.data() + 1 + at * 4, &lane, sizeof lane);
        c.state[at] = sign == 0 ? 1 : 0xFFFFFFFFu;
        std::vector<std::byte> sums(count * 4);
        ASSERT_TRUE(AddLanesTo(c.in(), true, c.state.data(), sums.data(), count)) << at;
        ASSERT_TRUE(AddLanes(c.in(), true, c.state.data(), count)) << at << " of " << count;
      }
    }
  }
}

TEST(LaneKernelsTest, RaiseTakesTheGreaterWithoutSign) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    for (const bool little : {false, true}) {
      LaneCase c = RandomLanes(count, count, little);
      std::vector<uint32_t> expected = c.state;
      for (size_t i = 0; i < count; ++i) {
        expected[i] = std::max(expected[i], LaneOf(c.in(), i, little));
      }
      RaiseLanes(c.in(), little, c.state.data(), count);
      ASSERT_EQ(c.state, expected) << count;
    }
  }
}

TEST(LaneKernelsTest, LevelsOfBothHalvesAreAdded) {
  Random random(1);
  uint8_t levels[16];
  for (uint8_t& level : levels) level = static_cast<uint8_t>(random.Below(256));
  for (size_t count = 0; count <= 140; count += 2) {
    LaneCase c = RandomLanes(count, count, false);
    std::vector<uint32_t> expected = c.state;
    for (size_t i = 0; i < count; ++i) {
      const auto pair = static_cast<uint8_t>(c.in()[i / 2]);
      expected[i] += levels[i % 2 == 0 ? pair >> 4 : pair & 15];
    }
    AddLevels(c.in(), levels, c.state.data(), count);
    ASSERT_EQ(c.state, expected) << count;
  }
}

template <typename Lane>
void CheckPacking(size_t count) {
  Random random(count);
  std::vector<uint8_t> levels = {30, 0, 2, 3, 5, 7, 9, 11, 13, 17, 19, 21, 23, 25, 28, 30};
  constexpr int kHalf = 15;
  std::vector<std::byte> octets(count * sizeof(Lane) + 1);  // from the second one on: unaligned
  std::vector<std::byte> expected((count + 1) / 2, std::byte(0));
  for (size_t i = 0; i < count; ++i) {
    const size_t k = random.Below(16);
    const auto lane = static_cast<Lane>(levels[k] - kHalf);
    std::memcpy(octets.data() + 1 + i * sizeof lane, &lane, sizeof lane);
    const size_t first = levels[k] == 30 ? 0 : k;
    expected[i / 2] |= static_cast<std::byte>(i % 2 == 0 ? first << 4 : first);
  }
  const LevelLanes lanes = {octets.data() + 1, count, sizeof(Lane), levels.data(), kHalf};
  EXPECT_TRUE(AreLevels(lanes)) << count;
  std::vector<std::byte> out(expected.size() + 1, std::byte{0x5A});
  PackLevels(lanes, out.data());
  EXPECT_EQ(out.back(), std::byte{0x5A}) << count;
  out.pop_back();
  EXPECT_EQ(out, expected) << count;
  for (size_t at = 0; at < count; ++at) {
    const std::vector<std::byte> before = octets;
    const auto lane = static_cast<Lane>(1 - kHalf);  // no level
    std::memcpy(octets.data() + 1 + at * sizeof lane, &lane, sizeof lane);
    EXPECT_FALSE(AreLevels(lanes)) << at << " of " << count;
    octets = before;
  }
}

TEST(LaneKernelsTest, LevelsAreKnownAndPackedByTheFirstIndex) {
  for (size_t count = 0; count <= 140; ++count) {
    CheckPacking<int8_t>(count);
    CheckPacking<int16_t>(count);
  }
}

TEST(LaneKernelsTest, SwapTurnsEveryLaneAndNothingElse) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    const LaneCase c = RandomLanes(count, count, false);
    std::vector<std::byte> out(count * 4 + 2, std::byte{0x5A});
    SwapLanes(c.in(), out.data() + 1, count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(LaneOf(out.data() + 1, i, true), LaneOf(c.in(), i, false)) << i << " of " << count;
    }
    EXPECT_EQ(out.front(), std::byte{0x5A});
    EXPECT_EQ(out.back(), std::byte{0x5A});
  }
}

/// Floats of every exponent, subnormal ones and zeros of both signs included; a quarter are halves.
std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> x;
  while (x.size() < count) {
    const auto bits = static_cast<uint32_t>(random.Next());
    if (random.Next() % 4 == 0) {
      x.push_back(static_cast<float>(static_cast<int32_t>(bits) >> 16) + 0.5f);
    } else if (const float value = std::bit_cast<float>(bits); std::isfinite(value)) {
      x.push_back(random.Next() % 16 == 0 ? std::copysign(0.0f, value) : value);
    }
  }
  return x;
}

TEST(LaneKernelsTest, TheGreatestMagnitudeIsFoundWhereverItIs) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    std::vector<float> x = RandomFloats(count, count);
    uint32_t expected = 0;
    for (const float value : x) {
      expected = std::max(expected, std::bit_cast<uint32_t>(std::fabs(value)));
    }
    ASSERT_EQ(GreatestMagnitude(x.data(), count), expected) << count;
    for (size_t at = 0; at < count; ++at) {
      for (const float odd : {-std::numeric_limits<float>::infinity(), std::nanf("")}) {
        const float kept = std::exchange(x[at], odd);
        ASSERT_GE(GreatestMagnitude(x.data(), count), 0x7F800000u) << at << " of " << count;
        x[at] = kept;
      }
    }
  }
}

TEST(LaneKernelsTest, LanesAreRoundedToTheGridAsNearbyintDoesAndKeptWithinTheLimit) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    const std::vector<float> x = RandomFloats(count, 100 + count);
    for (const int power : {-120, -3, 0, 1, 27, 150}) {
      const LaneGrid grid{.scale = std::ldexp(1.0, power), .limit = std::ldexp(1.0, 29)};
      std::vector<uint32_t> lanes(count + 1, 0x5A5A5A5A);
      RoundLanes(x.data(), grid, lanes.data(), count);
      for (size_t i = 0; i < count; ++i) {
        const double exact = std::nearbyint(std::ldexp(static_cast<double>(x[i]), power));
        ASSERT_EQ(static_cast<int32_t>(lanes[i]), std::clamp(exact, -grid.limit, grid.limit))
            << x[i] << " at " << i << " of " << count << ", scaled by 2^" << power;
      }
      EXPECT_EQ(lanes.back(), 0x5A5A5A5Au);
    }
  }
}

TEST(LaneKernelsTest, LanesComeBackAsTheNearestNumber) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    const std::vector<uint32_t> lanes = RandomLanes(count, 7 + count, false).state;
    for (const int power : {-149, -30, 0, 90}) {
      std::vector<float> x(count + 1, 3.0f);
      ScaleLanes(lanes.data(), std::ldexp(1.0, power), x.data(), count);
      for (size_t i = 0; i < count; ++i) {
        const double exact = std::ldexp(static_cast<int32_t>(lanes[i]), power);
        ASSERT_EQ(x[i], static_cast<float>(exact)) << i << " of " << count << ", 2^" << power;
      }
      EXPECT_EQ(x.back(), 3.0f);
    }
  }
}

TEST(LaneKernelsTest, NarrowKeepsTheLowOctet) {
  for (size_t count = 0; count <= kCountMax; ++count) {
    const std::vector<uint32_t> lanes = RandomLanes(count, count, false).state;
    std::vector<std::byte> out(count + 1, std::byte{0x5A});
    NarrowLanes(lanes.data(), out.data(), count);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], static_cast<std::byte>(lanes[i] & 0xFF));
    EXPECT_EQ(out.back(), std::byte{0x5A});
  }
}

}  // namespace
}  // namespace weir::aggregation
