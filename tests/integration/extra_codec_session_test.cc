// SPDX-License-Identifier: Apache-2.0
// See extra_codec_test.cc: sessions run the added codec.

#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

TEST(ExtraCodecTest, RunsInSessions) {
  const std::string plan = testing::TempFile(
      "plan.json", R"({"fallback": {"codec": "block_mean", "collective": "tree"}})");
  testing::SessionWorld job({.world = 3, .plan_file = plan});
  job.Up();
  const size_t n = 1000;
  const uint64_t key = job.Define({{"p", n}});
  std::vector<std::vector<float>> data;
  for (int rank = 0; rank < 3; ++rank) data.emplace_back(n, 1.0f + static_cast<float>(rank));
  job.Begin();
  job.AllReduce(key, data);
  job.End();
  for (const auto& sum : data) EXPECT_EQ(sum, std::vector<float>(n, 6.0f)) << "1 + 2 + 3";
}

}  // namespace
}  // namespace weir
