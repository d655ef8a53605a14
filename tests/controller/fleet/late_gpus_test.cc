// SPDX-License-Identifier: Apache-2.0
// Agents report what NCCL's transfers wait for: a node whose GPUs are late is named wherever people
// look at its job, and the plan stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

using testing::HasSubstr;
using testing::Not;

class LateGpusTest : public FleetFixture {
 protected:
  static constexpr int kRanks = 4;

  void Heartbeat(int rank, double own_gpu_s, double wire_s, double arrival_s) {
    v1::NcclSummary& sums = sums_[rank];
    sums.set_communicators(1);
    sums.set_sampled_operations(sums.sampled_operations() + 10);
    sums.set_own_gpu_s(sums.own_gpu_s() + own_gpu_s);
    sums.set_wire_s(sums.wire_s() + wire_s);
    sums.set_arrival_s(sums.arrival_s() + arrival_s);
    v1::AgentMessage message;
    *message.mutable_nccl() = sums;
    ASSERT_TRUE(plane_->agents.OnMessage(cluster_.agent(rank), message).ok());
  }
  /// Steps of the job for `seconds`, with the heartbeats of all agents every 5 s.
  void Run(double seconds, int late_rank, int wire_rank = -1) {
    const TimePoint end = clock_.Now() + FromSeconds(seconds);
    for (TimePoint next = clock_.Now(); next < end; next += std::chrono::seconds(5)) {
      while (clock_.Now() < next) cluster_.Step();
      for (int rank = 0; rank < kRanks; ++rank) {
        const bool late = rank == late_rank, sends = rank == wire_rank;
        Heartbeat(rank, late ? 0.72 : 0.1, sends ? 2 : 0.08, late ? 0.2 : 0.5);
      }
    }
  }
  std::string Explanation() {
    v1::ExplainRequest request;
    request.set_job("lm");
    v1::Explanation explanation;
    EXPECT_TRUE(plane_->admin.Explain(request, &explanation).ok());
    return explanation.text();
  }

  v1::NcclSummary sums_[kRanks];
};

TEST_F(LateGpusTest, TheNodeIsNamedAndThePlanStays) {
  cluster_.Connect(*plane_);
  Run(90, -1);
  const uint64_t version = cluster_.active().version();
  const v1::Job quiet = Job();
  for (const auto& rank : quiet.ranks()) EXPECT_FALSE(rank.has_nccl());
  EXPECT_THAT(Explanation(), Not(HasSubstr("GPUs")));
  EXPECT_THAT(plane_->admin.MetricsText(), HasSubstr("weir_late_gpu_nodes{training_job=\"lm\"} 0"));
  Run(90, 2);
  ASSERT_EQ(Job().ranks(2).nccl().cause(), v1::NCCL_CAUSE_GPUS_LATE);
  EXPECT_NEAR(Job().ranks(2).nccl().own_gpu_ratio(), 0.72, 1e-6);
  EXPECT_FALSE(Job().ranks(1).has_nccl());
  EXPECT_THAT(Explanation(),
              HasSubstr("Late: the GPUs of n2 are late: 72 % of NCCL's waiting there is for its "
                        "own GPUs, and the other 3 nodes wait for it; no plan helps"));
  EXPECT_THAT(plane_->admin.MetricsText(), HasSubstr("weir_late_gpu_nodes{training_job=\"lm\"} 1"));
  Run(90, -1);
  EXPECT_FALSE(Job().ranks(2).has_nccl());
  EXPECT_THAT(Explanation(), Not(HasSubstr("GPUs")));
  EXPECT_EQ(cluster_.active().version(), version);
}

TEST_F(LateGpusTest, AWireThatBindsIsNamedAndNoGpusAre) {
  cluster_.Connect(*plane_);
  Run(90, -1, 1);
  EXPECT_EQ(Job().ranks(1).nccl().cause(), v1::NCCL_CAUSE_WIRE_BINDS);
  EXPECT_THAT(Explanation(),
              HasSubstr("Network: the wire of n1 binds: 77 % of NCCL's waiting there "
                        "is for the network, and the other 3 nodes wait for it\n"));
  EXPECT_THAT(Explanation(), Not(HasSubstr("Late:")));
}

TEST_F(LateGpusTest, AnotherRunOfTheJobBeginsWithoutConclusions) {
  cluster_.Connect(*plane_);
  Run(90, 2);
  ASSERT_TRUE(Job().ranks(2).has_nccl());
  for (int rank = 0; rank < kRanks; ++rank) cluster_.LoseRank(rank);
  cluster_.pid = 200;
  cluster_.mesh_epoch = 1;
  for (int rank = 0; rank < kRanks; ++rank) cluster_.ConnectRank(rank);
  EXPECT_FALSE(Job().ranks(2).has_nccl());
}

}  // namespace
}  // namespace weir
