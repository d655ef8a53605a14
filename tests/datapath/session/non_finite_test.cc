// SPDX-License-Identifier: Apache-2.0
// Steps in which a rank meets NaN or infinity: all ranks skip them, keep their residuals, and tell
// the agent which rank and which gradient it was.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::CompatibleChoices;
using testing::FakeAgentPort;
using testing::RandomGradients;
using testing::SessionWorld;
using testing::UniformPlan;

// Only rank 1 met NaN, in bucket `key`, and it says so if it has encoded it. Only rank 0 may not
// know who it was.
void CheckSkipTold(const FakeAgentPort& port, int rank, uint64_t key) {
  const std::vector<RankEvent> events = port.All<RankEvent>();
  if (rank != 1) {
    EXPECT_EQ(events.size(), rank == 0 ? 1u : 0u) << "rank " << rank;
  }
  EXPECT_LE(events.size(), 1u);
  for (const RankEvent& event : events) {
    EXPECT_EQ(event.kind, "non_finite");
    EXPECT_EQ(event.guilty_rank, rank == 1 ? 1 : -1);
    EXPECT_EQ(event.bucket, rank == 1 ? key : 0);
    EXPECT_EQ(event.parameter, rank == 1 ? "a" : "");
  }
}

void CheckNonFinite(const Choice& choice, float poison) {
  SCOPED_TRACE(StrCat(choice.codec, " ", choice.collective, " ", poison));
  SessionWorld job({.world = 3, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define({{"a", 500}});
  const uint64_t other = job.Define({{"b", 300}});
  job.Switch(UniformPlan(2, choice), key, 500);
  const auto step = [&](bool poisoned) {
    auto a = RandomGradients(3, 500, 1), b = RandomGradients(3, 300, 2);
    if (poisoned) a[1][77] = poison;
    job.Begin();
    job.AllReduce(key, a);
    job.AllReduce(other, b);
    EXPECT_EQ(job.End(), poisoned);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(std::isnan(a[rank][0]) && std::isnan(a[rank][499]), poisoned);
      for (const float value : b[rank]) ASSERT_TRUE(std::isfinite(value));
    }
  };
  step(false);
  std::vector<std::vector<std::byte>> before;
  for (int rank = 0; rank < 3; ++rank) before.push_back(job.ExportResiduals(rank));
  step(true);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.ExportResiduals(rank), before[rank]);
  for (int rank = 0; rank < 3; ++rank) CheckSkipTold(*job.ports[rank], rank, key);
  ASSERT_TRUE(job.sessions[1]->ReportNonFinite("a").ok());
  const RankEvent named = job.ports[1]->All<RankEvent>().back();
  EXPECT_EQ(named.guilty_rank, 1);
  EXPECT_EQ(named.bucket, key);
  EXPECT_EQ(named.parameter, "a");
  EXPECT_EQ(named.step, job.sessions[0]->Stats().step);
  step(false);
  EXPECT_EQ(job.sessions[1]->ReportNonFinite("a").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.sessions[2]->Stats().steps_skipped, 1u);
}

TEST(SessionTest, OneRanksNonFiniteGradientSkipsTheStepOnAllRanks) {
  for (const Choice& choice : CompatibleChoices(3)) {
    CheckNonFinite(choice, std::numeric_limits<float>::quiet_NaN());
    CheckNonFinite(choice, -std::numeric_limits<float>::infinity());
  }
}

TEST(SessionTest, OfSeveralBucketsTheFirstOneWithNanIsTold) {
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t last_layer = job.Define({{"c", 100}, {"d", 20}});
  const uint64_t first_layer = job.Define({{"a", 100}});
  Choice choice;
  choice.codec = "top_k";
  choice.collective = "sparse_all_gather";
  choice.ratio = 0.1;
  job.Switch(UniformPlan(1, choice), first_layer, 100);
  auto late = RandomGradients(2, 120, 1), early = RandomGradients(2, 100, 2);
  late[1][7] = early[1][9] = std::numeric_limits<float>::quiet_NaN();
  job.Begin();
  job.AllReduce(last_layer, late);
  job.AllReduce(first_layer, early);
  EXPECT_TRUE(job.End());
  const auto events = job.ports[1]->All<RankEvent>();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].bucket, last_layer);
  EXPECT_EQ(events[0].parameter, "") << "either of two";
}

}  // namespace
}  // namespace weir
