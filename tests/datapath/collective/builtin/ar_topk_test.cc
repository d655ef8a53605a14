// SPDX-License-Identifier: Apache-2.0
// Which rank's indices are used: STAR chooses the ranks in turn, VAR by their norms.

#include <limits>

#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

std::vector<Contribution> Contributions(const std::vector<double>& norms, uint64_t step) {
  std::vector<Contribution> in(norms.size());
  for (uint32_t rank = 0; rank < in.size(); ++rank) {
    in[rank].dense.assign(10, static_cast<float>(rank + 1));
    in[rank].selection = {rank, rank + 1};
    in[rank].norm_squared = norms[rank];
    in[rank].step = step;
  }
  return in;
}

int LeaderOf(const char* name, const std::vector<double>& norms, uint64_t step = 0) {
  World world = MakeWorld("inproc", static_cast<int>(norms.size()));
  const Collective& collective = **Collectives().Find(name);
  const auto out = RunAll(world, collective, Contributions(norms, step));
  const auto leader = static_cast<uint32_t>(out[0].report.leader);
  for (const Outcome& outcome : out) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.report.leader, out[0].report.leader);
    EXPECT_EQ(outcome.indices, (std::vector<uint32_t>{leader, leader + 1}));
  }
  return out[0].report.leader;
}

TEST(ArTopkTest, StarTakesTheRanksInTurn) {
  for (uint64_t step = 0; step < 7; ++step) {
    EXPECT_EQ(LeaderOf("ar_topk_star", {9, 8, 7}, step), static_cast<int>(step % 3));
  }
}

TEST(ArTopkTest, VarTakesTheLargestNorm) {
  EXPECT_EQ(LeaderOf("ar_topk_var", {1, 4, 2, 3}), 1);
  EXPECT_EQ(LeaderOf("ar_topk_var", {1, 4, 2, 5}), 3);
}

TEST(ArTopkTest, VarBreaksTiesTowardTheLowerRank) {
  EXPECT_EQ(LeaderOf("ar_topk_var", {1, 4, 4, 4}), 1);
  EXPECT_EQ(LeaderOf("ar_topk_var", {0, 0, 0}), 0);
}

TEST(ArTopkTest, VarNeverTakesARankWithoutANorm) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(LeaderOf("ar_topk_var", {nan, 1, 2}), 2);
  EXPECT_EQ(LeaderOf("ar_topk_var", {nan, nan}), 0);
}

TEST(ArTopkTest, EveryRankOpensTheLeadersSelection) {
  World world = MakeWorld("inproc", 3);
  const Collective& collective = **Collectives().Find("ar_topk_star");
  RunRanks(3, [&](int rank) {
    Group group(*world[rank]);
    group.Begin({}, {}, 0, Within(5));
    const std::vector<std::byte> selection(4, static_cast<std::byte>(rank));
    std::vector<std::byte> opened;
    std::vector<float> values;
    SharedIndexOperand operand;
    operand.selection = selection;
    operand.step = 4;
    operand.values = &values;
    operand.open = [&](std::span<const std::byte> chosen) {
      opened.assign(chosen.begin(), chosen.end());
      values.assign(1, 1.0f);
      return OkStatus();
    };
    EXPECT_TRUE(RunCollective(collective, group, operand).ok());
    EXPECT_EQ(opened, std::vector<std::byte>(4, std::byte{1}));
    EXPECT_EQ(values, std::vector<float>{3.0f});
  });
}

}  // namespace
}  // namespace weir::testing
