// SPDX-License-Identifier: Apache-2.0
// The recorded bytes of every codec, which a peer of another build must be able to read. After a
// deliberate change of format, increase the protocol version and rewrite the files by running this
// test with WEIR_WRITE_GOLDEN=1 in the environment.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "datapath/codec/residual/error_feedback.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/datapath/codec/golden_input.h"

namespace weir {
namespace {

void Compare(const std::string& name, std::span<const std::byte> bytes) {
  const std::string path = std::string(WEIR_TEST_SOURCE_DIR) + "/golden/codec/" + name + ".hex";
  if (std::getenv("WEIR_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path) << test::Hex(bytes);
    return;
  }
  const std::string golden = test::ReadPayloadFile(path);
  ASSERT_FALSE(golden.empty()) << "no golden file " << path;
  EXPECT_EQ(test::Hex(bytes), golden) << path;
}

TEST(GoldenTest, EveryCodecKeepsItsBytes) {
  const std::vector<float> x = test::GoldenInput(203);
  for (const Codec* codec : Codecs().All()) {
    const std::vector<CodecSetting>& settings = codec->Traits().settings;
    std::set<int> seen;
    for (const CodecSetting& setting : settings) {
      if (!seen.insert(setting.bits).second) continue;  // for other world sizes
      const EncodeContext context = test::GoldenContext(*codec, x, setting.bits);
      Compare(test::GoldenName(*codec, setting.bits),
              test::EncodeOrDie(*codec, x, context).payload);
    }
  }
}

TEST(GoldenTest, SelectionsHaveABitmapFormToo) {
  const std::vector<float> x = test::GoldenInput(203);
  for (const char* name : {"top_k", "shared_top_k"}) {
    const Codec& codec = test::FindCodec(name);
    const EncodeContext context = test::ContextFor(codec, x, 3, 0.6);
    Compare(std::string(name) + "_bitmap", test::EncodeOrDie(codec, x, context).payload);
  }
}

TEST(GoldenTest, SelectionsHaveAnOctetFormToo) {
  std::vector<float> x(40000, 0.0f);
  for (size_t i = 0; i < 100; ++i) x[i / 50 * 30000 + 77 + i % 50] = 1.0f + i;
  const Codec& codec = test::FindCodec("shared_top_k");
  const EncodeContext context = test::ContextFor(codec, x, 3, 0.0025);
  const std::vector<std::byte> payload = test::EncodeOrDie(codec, x, context).payload;
  EXPECT_EQ(payload.at(0), std::byte{2});
  Compare("shared_top_k_octets", payload);
}

TEST(GoldenTest, ResidualStateKeepsItsBytes) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"b.bias", 2}, {"a.weight", 3}}).ok());
  const ResidualBuffers buffers = store.BeginEncode(1).value();
  for (size_t i = 0; i < buffers.next.size(); ++i) buffers.next[i] = static_cast<float>(i + 1);
  const MomentumBuffers momentum = store.BeginMomentum(1).value();
  for (size_t i = 0; i < momentum.next.size(); ++i) momentum.next[i] = 0.5f * (i + 1);
  store.Commit();
  // A state that no codec wrote; those of codecs have their own version.
  const std::vector<SavedCodecState> codecs = {
      {0x0123456789ABCDEF, "dgc", {.ratio = 0.25, .bits = 8}, {std::byte{1}, std::byte{2}}}};
  std::vector<std::byte> bytes(store.ExportBytes(codecs));
  ASSERT_TRUE(store.Export(bytes, codecs).ok());
  Compare("residual_state", bytes);
}

TEST(GoldenTest, WireIdsAreStable) {
  const std::pair<const char*, int> expected[] = {{"identity", 1},
                                                  {"fp16", 2},
                                                  {"bf16", 3},
                                                  {"top_k", 4},
                                                  {"shared_top_k", 5},
                                                  {"random_k", 6},
                                                  {"random_k:memory=ef21", 6},
                                                  {"qsgd", 7},
                                                  {"qsgd:memory=none", 7},
                                                  {"qsgd:levels=exponential", 7},
                                                  {"threshold", 22},
                                                  {"threshold:selector=redsync", 22},
                                                  {"dgc", 24},
                                                  {"sidco", 28},
                                                  {"sidco:fit=gp", 28},
                                                  {"adaq", 31},
                                                  {"block_top_k", 32},
                                                  {"qsgd_bucketed", 40},
                                                  {"natural", 41},
                                                  {"terngrad", 42},
                                                  {"signsgd", 43},
                                                  {"signum", 44},
                                                  {"ef_signsgd", 45},
                                                  {"onebit", 46},
                                                  {"u8bit", 47},
                                                  {"inceptionn", 48},
                                                  {"sketchml", 49},
                                                  {"minmax", 52},
                                                  {"eden", 61},
                                                  {"thc_uniform", 62},
                                                  {"thc", 63},
                                                  {"power_sgd", 64},
                                                  {"arc_top_k", 65},
                                                  {"nominated_top_k", 66}};
  for (const auto& [name, id] : expected) EXPECT_EQ(Codecs().WireId(name), id) << name;
}

}  // namespace
}  // namespace weir
