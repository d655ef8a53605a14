// SPDX-License-Identifier: Apache-2.0
// The lanes of every codec in every collective that sums them: however a codec adds, all ranks end
// with the same bytes, and these are a sum.

#include "datapath/codec/codec.h"

#include <cmath>

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

constexpr size_t kElements = 30'011;

/// Returns what each rank sends in the first round of `codec`.
std::vector<Contribution> Payloads(const Codec& codec, std::vector<EncodeContext>& contexts) {
  std::vector<std::vector<float>> inputs;
  SharedMax shared_max;
  for (EncodeContext& context : contexts) {
    Random random(10 + inputs.size());
    inputs.emplace_back();
    for (size_t i = 0; i < kElements; ++i) {
      inputs.back().push_back(static_cast<float>(random.Normal()));
    }
    context.world = static_cast<int>(contexts.size());
    context.rank = static_cast<int>(inputs.size()) - 1;
    context.seed = 99;
    context.params.ratio = codec.Traits().uses_ratio ? 0.1 : 1;
    shared_max.Merge(codec.LocalMax(inputs.back(), {}, context));
  }
  std::vector<Contribution> in(contexts.size());
  for (size_t rank = 0; rank < in.size(); ++rank) {
    contexts[rank].shared_max = shared_max;
    in[rank].lanes.resize(codec.MaxEncodedBytes(kElements, contexts[rank]));
    const auto encoded = codec.Encode(inputs[rank], contexts[rank], in[rank].lanes);
    EXPECT_TRUE(encoded.ok());
    in[rank].lanes.resize(encoded->bytes);
    in[rank].lane_bytes = codec.LaneBytes(contexts[rank]);
    in[rank].accumulate = [&codec, &context = contexts[rank]](auto sum, auto addend) {
      codec.Accumulate(context, sum, addend);
    };
  }
  return in;
}

TEST(CodecLanesTest, AllRanksEndWithTheSameBytes) {
  for (const Collective* collective : Collectives().All()) {
    if (collective->Traits().form != "lanes") continue;
    for (const int world_size : {2, 3, 4, 7}) {
      World world = MakeWorld("inproc", world_size);
      ASSERT_EQ(world.size(), static_cast<size_t>(world_size));
      for (const Codec* codec : Codecs().All()) {
        if (codec->Traits().form != PayloadForm::kLanes) continue;
        if (!codec->Validate({}, world_size).ok()) continue;
        std::vector<EncodeContext> contexts(world_size);
        const std::vector<Contribution> in = Payloads(*codec, contexts);
        const std::vector<Outcome> out = RunAll(world, *collective, in, 4096);
        for (const Outcome& outcome : out) {
          ASSERT_TRUE(outcome.status.ok()) << outcome.status;
          ASSERT_GT(outcome.lanes.size(), 0u);
          ASSERT_EQ(outcome.lanes, out[0].lanes) << codec->Traits().name << " over "
                                                 << collective->Traits().name << ", " << world_size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir::testing
