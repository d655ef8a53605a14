// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/measure/codec_timing.h"

#include <gtest/gtest.h>

#include "datapath/codec/codec.h"

namespace weir {
namespace {

// The times themselves have no bounds, because machines differ. Only properties that hold on any
// machine are tested.
TEST(CodecTimingTest, EveryCodecIsMeasuredOnce) {
  const auto& timings = CodecTimings();
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    ASSERT_TRUE(timings.contains(traits.name)) << traits.name;
    const CodecTiming& timing = timings.at(traits.name);
    for (const CodecTime& time : {timing.encode, timing.decode}) {
      EXPECT_GE(time.per_element_s, 0) << traits.name;
      EXPECT_GE(time.per_kept_s, 0) << traits.name;
      EXPECT_LT(time.per_element_s + time.per_kept_s, 1) << traits.name << ": not in seconds";
    }
    EXPECT_GT(timing.encode.per_element_s + timing.encode.per_kept_s, 0) << traits.name;
    if (!traits.uses_ratio) {
      EXPECT_EQ(timing.encode.per_kept_s, 0) << traits.name;
    }
  }
  EXPECT_EQ(&timings, &CodecTimings());
}

}  // namespace
}  // namespace weir
