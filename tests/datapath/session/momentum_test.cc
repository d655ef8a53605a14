// SPDX-License-Identifier: Apache-2.0
// Codecs with internal momentum in a session: the effect of a skipped step and of a checkpoint.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "datapath/codec/residual/error_feedback.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
using testing::UniformPlan;

TEST(SessionMomentumTest, MomentumIsCheckpointedAndSurvivesASkippedStepUntouched) {
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const std::vector<ResidualParameter> parameters = {{"a", 300}, {"b", 200}};
  const uint64_t key = job.Define(parameters);
  Choice choice;
  choice.codec = "dgc";
  choice.collective = "sparse_all_gather";
  choice.ratio = 0.1;
  job.Switch(UniformPlan(1, choice), key, 500);
  const auto momentum_of = [&](int rank) {
    ResidualStore store;
    EXPECT_TRUE(store.Define(1, parameters).ok());
    EXPECT_TRUE(store.Import(job.Export(rank)).ok());
    EXPECT_TRUE(store.BeginEncode(1).ok());
    const MomentumBuffers buffers = store.BeginMomentum(1).value();
    return std::vector<float>(buffers.current.begin(), buffers.current.end());
  };
  const auto step = [&](bool poisoned) {
    auto data = RandomGradients(2, 500, 1);
    if (poisoned) data[1][77] = std::numeric_limits<float>::quiet_NaN();
    job.Begin();
    job.AllReduce(key, data);
    EXPECT_EQ(job.End(), poisoned);
  };
  step(false);
  const std::vector<float> first = momentum_of(0);
  EXPECT_GT(std::count_if(first.begin(), first.end(), [](float v) { return v != 0; }), 100);
  step(true);
  EXPECT_EQ(momentum_of(0), first);
  EXPECT_NE(momentum_of(1), first);
  step(false);
  EXPECT_NE(momentum_of(0), first);
}

TEST(SessionMomentumTest, SignumVotesWithTheMovingSum) {
  SessionWorld job({.world = 3, .transport = "inproc"});
  job.Up();
  const size_t n = 100;
  const uint64_t key = job.Define({{"a", n}});
  Choice choice;
  choice.codec = "signum";
  choice.collective = "ring";
  job.Switch(UniformPlan(1, choice), key, n);
  const auto step = [&](float gradient) {
    std::vector<std::vector<float>> data(3, std::vector<float>(n, gradient));
    job.Begin();
    job.AllReduce(key, data, 1.0 / 3);
    EXPECT_FALSE(job.End());
    EXPECT_EQ(data[0], data[1]);
    return data[0][n / 2];
  };
  EXPECT_GT(step(1), 0);
  EXPECT_GT(step(-0.05f), 0) << "0.9 * 0.1 - 0.1 * 0.05 is positive";
  EXPECT_LT(step(-5), 0);
}

}  // namespace
}  // namespace weir
