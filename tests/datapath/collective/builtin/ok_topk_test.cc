// SPDX-License-Identifier: Apache-2.0
// Selections summed by region, compared with a model in double precision over steps in which
// regions and thresholds change. Volume and balance must be as documented.

#include <cmath>
#include <map>

#include "datapath/base/random.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

constexpr size_t kOkElements = 20'000, kOkTarget = 400;

// Most large values are in the last tenth. Each rank selects different ones.
Contribution Selected(int rank, uint64_t step) {
  Contribution c;
  Random random(1000 * step + static_cast<uint64_t>(rank) + 1);
  c.dense.resize(kOkElements);
  std::vector<uint32_t> order(kOkElements);
  for (uint32_t i = 0; i < kOkElements; ++i) {
    order[i] = i;
    c.dense[i] = static_cast<float>(random.Uniform() - 0.5);
    if (i >= kOkElements / 10 * 9) c.dense[i] *= 10;
  }
  const auto larger = [&](uint32_t a, uint32_t b) {
    return std::fabs(c.dense[a]) > std::fabs(c.dense[b]);
  };
  std::nth_element(order.begin(), order.begin() + kOkTarget, order.end(), larger);
  c.selection.assign(order.begin(), order.begin() + kOkTarget);
  std::sort(c.selection.begin(), c.selection.end());
  c.kept_target = kOkTarget;
  return c;
}

std::map<uint32_t, double> ModelSums(const std::vector<Contribution>& in) {
  std::map<uint32_t, double> sums;
  for (const Contribution& c : in) {
    for (const uint32_t i : c.selection) sums[i] += c.dense[i];
  }
  return sums;
}

// Every kept sum is right, and about the wanted number of sums is kept, the largest ones.
void CheckStep(const std::vector<Contribution>& in, const std::vector<Outcome>& out, bool settled) {
  const auto sums = ModelSums(in);
  for (const Outcome& outcome : out) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    ASSERT_EQ(outcome.indices, out[0].indices);
    ASSERT_EQ(Bytes(outcome.values), Bytes(out[0].values));
  }
  ASSERT_EQ(out[0].indices.size(), out[0].values.size());
  double kept = 0;
  for (size_t i = 0; i < out[0].indices.size(); ++i) {
    const auto sum = sums.find(out[0].indices[i]);
    ASSERT_NE(sum, sums.end()) << "nobody selected " << out[0].indices[i];
    ASSERT_NEAR(out[0].values[i], sum->second, 1e-5);
    kept += sum->second * sum->second;
  }
  if (!settled) return;
  EXPECT_GT(out[0].indices.size(), kOkTarget * 2 / 3);
  EXPECT_LT(out[0].indices.size(), kOkTarget * 4 / 3);
  std::vector<double> squares;
  for (const auto& [index, sum] : sums) squares.push_back(sum * sum);
  std::sort(squares.rbegin(), squares.rend());
  double best = 0;
  for (size_t i = 0; i < out[0].indices.size(); ++i) best += squares[i];
  EXPECT_GT(kept, 0.98 * best);
}

class OkTopkTest : public ::testing::TestWithParam<int> {
 protected:
  const Collective& collective = **Collectives().Find("ok_topk");
};

TEST_P(OkTopkTest, FollowsTheModelAndKeepsItsBounds) {
  const int ranks = GetParam();
  World world = MakeWorld("inproc", ranks);
  std::vector<SparseBalance> balances(ranks);
  for (uint64_t step = 0; step < 70; ++step) {
    SCOPED_TRACE(step);
    std::vector<Contribution> in;
    for (int rank = 0; rank < ranks; ++rank) {
      in.push_back(Selected(rank, step));
      in.back().balance = &balances[rank];
    }
    const auto out = RunAll(world, collective, in);
    // From here on regions are balanced and the threshold is known.
    CheckStep(in, out, step >= 3);
    if (HasFatalFailure()) return;
    for (const SparseBalance& balance : balances) {
      ASSERT_EQ(balance.begins, balances[0].begins);
      ASSERT_EQ(balance.threshold, balances[0].threshold);
      ASSERT_EQ(balance.uses, step + 1);
    }
    if (step < 3) continue;
    for (const Outcome& outcome : out) {
      const double words = 6.0 * kOkTarget * (ranks - 1) / ranks;
      const double overhead = 2.0 * (ranks - 1) * (kFrameHeaderBytes + 28 + 264);
      EXPECT_LE(static_cast<double>(outcome.report.bytes_sent), 4 * words + overhead);
    }
  }
}

// All large values are in one rank's region while regions have equal sizes. Once regions are
// balanced, no owner receives twice its share.
TEST_P(OkTopkTest, RegionsShareTheLoad) {
  const int ranks = GetParam();
  World world = MakeWorld("inproc", ranks);
  std::vector<SparseBalance> balances(ranks);
  for (uint64_t step = 0; step < 4; ++step) {
    std::vector<Contribution> in;
    for (int rank = 0; rank < ranks; ++rank) {
      in.push_back(Selected(rank, step));
      in.back().balance = &balances[rank];
    }
    RunAll(world, collective, in);
    const auto regions = SparseRegions(balances[0], kOkElements, ranks);
    for (const SparseRange& region : regions) {
      size_t arrived = 0;
      for (const Contribution& c : in) {
        for (const uint32_t i : c.selection) {
          arrived += i >= region.begin && i < region.begin + region.size;
        }
      }
      if (step < 3) continue;
      EXPECT_LT(arrived, 1.5 * kOkTarget) << region.begin;
      EXPECT_GT(arrived, 0.5 * kOkTarget) << region.begin;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, OkTopkTest, ::testing::Values(1, 2, 3, 4, 7),
                         ::testing::PrintToStringParamName());

TEST(OkTopkErrorsTest, RanksWithAnotherBalanceFailAndSayWhy) {
  World world = MakeWorld("inproc", 2);
  std::vector<SparseBalance> balances(2);
  balances[1].begins = {kOkElements / 3};
  std::vector<Contribution> in = {Selected(0, 1), Selected(1, 1)};
  for (int rank = 0; rank < 2; ++rank) in[rank].balance = &balances[rank];
  for (const Outcome& outcome : RunAll(world, **Collectives().Find("ok_topk"), in)) {
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_THAT(Message(outcome.status), ::testing::HasSubstr("elements from"));
  }
}

TEST(OkTopkErrorsTest, IndicesPastTheEndFailEveryRank) {
  World world = MakeWorld("inproc", 3);
  std::vector<Contribution> in(3);
  for (Contribution& c : in) c.dense.assign(10, 1);
  in[2].selection = {3, 3};
  for (const Outcome& outcome : RunAll(world, **Collectives().Find("ok_topk"), in)) {
    EXPECT_FALSE(outcome.status.ok());
  }
}

}  // namespace
}  // namespace weir::testing
