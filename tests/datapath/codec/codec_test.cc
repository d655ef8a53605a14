// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/codec.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(FindSettingTest, TakesTheFirstThatTheWidthAndTheWorldAllow) {
  CodecTraits traits;
  traits.settings = {{.bits = 4, .fixed_bits = 8, .world_min = 8, .world_max = 100},
                     {.bits = 4, .fixed_bits = 4, .world_max = 7},
                     {.bits = 2, .fixed_bits = 2}};
  const auto fixed_bits = [&](int bits, int world) {
    const CodecSetting* found = FindSetting(traits, {.bits = bits}, world);
    return found == nullptr ? 0 : found->fixed_bits;
  };
  EXPECT_EQ(fixed_bits(4, 7), 4) << "the first begins at 8 ranks";
  EXPECT_EQ(fixed_bits(4, 8), 8);
  EXPECT_EQ(fixed_bits(4, 100), 8);
  EXPECT_EQ(fixed_bits(4, 101), 0);
  EXPECT_EQ(fixed_bits(2, 101), 2);
  EXPECT_EQ(fixed_bits(3, 4), 0);
  EXPECT_EQ(fixed_bits(0, 4), 4) << "no width asked for";
  EXPECT_EQ(fixed_bits(0, 101), 2);
}

TEST(CodecTest, LevelsOfTablesSumInTheirLanes) {
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    for (const CodecSetting& setting : traits.settings) {
      if (setting.lane_levels.empty()) continue;
      ASSERT_LE(setting.lane_levels.size(), 16u);
      EXPECT_EQ(setting.lane_levels.front(), 0);
      EXPECT_EQ(setting.lane_levels.back() % 2, 0);
      EXPECT_TRUE(std::is_sorted(setting.lane_levels.begin(), setting.lane_levels.end()));
      EXPECT_LT(setting.lane_levels.back() * setting.world_max, 1 << setting.bits);
    }
  }
}

TEST(CodecTest, IdentityAloneIsRawFloat) {
  for (const Codec* codec : Codecs().All()) {
    EXPECT_EQ(IsRawFloat(codec->Traits()), codec->Traits().name == "identity")
        << codec->Traits().name;
  }
}

}  // namespace
}  // namespace weir
