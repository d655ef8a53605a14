// SPDX-License-Identifier: Apache-2.0
// All ranks' selections are used, and a malformed one fails the operation.

#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

std::vector<Outcome> RunUnion(const std::vector<Contribution>& in) {
  World world = MakeWorld("inproc", static_cast<int>(in.size()));
  return RunAll(world, **Collectives().Find("ar_topk_union"), in);
}

TEST(ArTopkUnionTest, SumsAtTheUnionOfSelections) {
  std::vector<Contribution> in(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    in[rank].dense.assign(10, static_cast<float>(rank + 1));
    in[rank].selection = {rank, 5};
  }
  in[1].selection.clear();  // may be empty
  for (const Outcome& outcome : RunUnion(in)) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.indices, (std::vector<uint32_t>{0, 2, 5}));
    EXPECT_EQ(outcome.values, (std::vector<float>{6, 6, 6}));
    EXPECT_EQ(outcome.report.leader, -1);
  }
}

TEST(ArTopkUnionTest, BrokenSelectionFailsEveryRank) {
  std::vector<Contribution> in(3);
  for (Contribution& c : in) c.dense.assign(10, 1);
  in[2].selection = {11};  // past the end
  for (const Outcome& outcome : RunUnion(in)) EXPECT_FALSE(outcome.status.ok());
}

}  // namespace
}  // namespace weir::testing
