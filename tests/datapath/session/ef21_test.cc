// SPDX-License-Identifier: Apache-2.0
// Codecs under EF21 in a session: estimates on all ranks, and what a switch, a skipped step and a
// checkpoint do to the memory.

#include <gtest/gtest.h>

#include <limits>

#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;

constexpr int kWorld = 2;
constexpr size_t kSize = 2000;

Choice ChoiceOf(const char* codec, double ratio = 0.1) {
  Choice choice;
  choice.codec = codec;
  choice.ratio = ratio;
  choice.collective = std::string_view(codec).starts_with("top_k") ? "sparse_all_gather" : "ring";
  return choice;
}

/// A job of two ranks whose gradients do not change.
class Ef21Job {
 public:
  Ef21Job() : world({.world = kWorld, .transport = "inproc"}) {
    world.Up();
    key = world.Define({{"a", kSize}});
  }

  /// The plan is active from the step after the next one.
  void Announce(const Choice& choice) {
    const Plan plan = UniformPlan(++version_, choice);
    for (auto& session : world.sessions) session->OnCommand(PlanOffer{version_, "n", plan});
    world.sessions[0]->OnCommand(PlanArm{version_});
  }

  /// Runs one step and returns what was delivered, which is equal on all ranks.
  std::vector<float> Step(bool poisoned = false) {
    auto data = gradients;
    if (poisoned) data[1][77] = std::numeric_limits<float>::quiet_NaN();
    world.Begin();
    world.AllReduce(key, data, 1.0 / kWorld);
    EXPECT_EQ(world.End(), poisoned);
    EXPECT_TRUE(poisoned || data[0] == data[1]);
    return data[0];
  }

  /// Squared distance of `delivered` from the mean gradient, over its energy.
  double Error(const std::vector<float>& delivered) const {
    const std::vector<double> sum = SumOver(gradients);
    double error = 0, energy = 0;
    for (size_t i = 0; i < kSize; ++i) {
      error += std::pow(delivered[i] - sum[i] / kWorld, 2);
      energy += std::pow(sum[i] / kWorld, 2);
    }
    return error / energy;
  }

  SessionWorld world;
  uint64_t key = 0;
  std::vector<std::vector<float>> gradients = RandomGradients(kWorld, kSize, 1);

 private:
  uint64_t version_ = 0;
};

TEST(SessionEf21Test, EstimatesApproachTheMeanOnAllRanks) {
  for (const char* codec : {"top_k:memory=ef21", "random_k:memory=ef21"}) {
    Ef21Job job;
    job.Announce(ChoiceOf(codec));
    job.Step();
    EXPECT_GT(job.Error(job.Step()), 0.2) << codec << ": a tenth was sent";
    for (int step = 0; step < 100; ++step) job.Step();
    EXPECT_LT(job.Error(job.Step()), 1e-4) << codec;
  }
}

TEST(SessionEf21Test, SwitchesAmongItsCodecsKeepTheMemoryAndOthersDropIt) {
  Ef21Job job;
  job.Announce(ChoiceOf("top_k:memory=ef21"));
  for (int step = 0; step < 100; ++step) job.Step();
  job.Announce(ChoiceOf("random_k:memory=ef21"));
  job.Step();
  EXPECT_LT(job.Error(job.Step()), 1e-3);
  job.Announce(DenseChoice());
  job.Step();
  EXPECT_LT(job.Error(job.Step()), 1e-12) << "a dense step owes nothing";
  job.Announce(ChoiceOf("top_k:memory=ef21"));
  job.Step();
  EXPECT_GT(job.Error(job.Step()), 0.2) << "from zero again";
  // A codec that keeps no residual drops it as well.
  for (int step = 0; step < 100; ++step) job.Step();
  job.Announce(ChoiceOf("fp16", 1));
  job.Step();
  EXPECT_LT(job.Error(job.Step()), 1e-5);
  job.Announce(ChoiceOf("top_k:memory=ef21"));
  job.Step();
  EXPECT_GT(job.Error(job.Step()), 0.2);
}

TEST(SessionEf21Test, AResidualLeavesWithTheFirstStep) {
  Ef21Job job;
  job.Announce(ChoiceOf("top_k"));
  std::vector<double> delivered(kSize);
  const auto take = [&](const std::vector<float>& step) {
    for (size_t i = 0; i < kSize; ++i) delivered[i] += step[i];
  };
  take(job.Step());  // dense
  take(job.Step());
  job.Announce(ChoiceOf("top_k:memory=ef21", 1));
  take(job.Step());  // top_k still
  take(job.Step());  // everything, and what was left over
  const std::vector<double> sum = SumOver(job.gradients);
  for (size_t i = 0; i < kSize; ++i) {
    ASSERT_NEAR(delivered[i], 4 * sum[i] / kWorld, 0.02) << i;
  }
  // The residual is delivered once, so the next estimate is of the gradient alone.
  EXPECT_LT(job.Error(job.Step()), 1e-5);
}

TEST(SessionEf21Test, SkippedStepsAndCheckpointsKeepTheMemory) {
  Ef21Job job;
  job.Announce(ChoiceOf("top_k:memory=ef21"));
  for (int step = 0; step < 100; ++step) job.Step();
  std::vector<std::vector<std::byte>> saved;
  for (int rank = 0; rank < kWorld; ++rank) saved.push_back(job.world.Export(rank));
  job.Step(/*poisoned=*/true);
  for (int rank = 0; rank < kWorld; ++rank) EXPECT_EQ(job.world.Export(rank), saved[rank]);
  EXPECT_LT(job.Error(job.Step()), 1e-4);
  Ef21Job later;
  later.Announce(ChoiceOf("top_k:memory=ef21"));
  later.Step();
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(later.world.sessions[rank]->ImportState(saved[rank]).ok());
  }
  EXPECT_LT(later.Error(later.Step()), 1e-4);
}

TEST(SessionEf21Test, PlansCountItsMemory) {
  const BucketSize size{.elements = 1000, .shape = {}};
  const uint64_t classic = MemoryOf(ChoiceOf("top_k"), size, kWorld).residual_bytes;
  EXPECT_EQ(classic, 8000u);
  EXPECT_EQ(MemoryOf(ChoiceOf("top_k:memory=ef21"), size, kWorld).residual_bytes, 16000u);
}

}  // namespace
}  // namespace weir
