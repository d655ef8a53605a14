// SPDX-License-Identifier: Apache-2.0
// The amount of decisions that a controller keeps: few and small ones, and all that changed the
// plan.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "controller/messages/builtin_capabilities.h"
#include "controller/solver/snapshot_parts.h"
#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

class DecisionBudgetTest : public FleetFixture {
 protected:
  void SetUp() override {
    FleetFixture::SetUp();
    // The capability tables of a real release; the simulated ranks run the simplest of its codecs.
    cluster_.capabilities = BuiltinCapabilities();
  }
  std::vector<StoredDecision> Stored() { return *store_->ListDecisions("lm", 0, 100000); }
  size_t BytesOf(const StoredDecision& one) {
    const StoredDecision whole = *store_->GetDecision(one.id);
    return whole.payload.size() + whole.snapshot.size();
  }
  /// Trains for `seconds` while the bandwidth changes every 2 s.
  void TrainOnAMovingNetwork(double seconds) {
    const TimePoint end = clock_.Now() + FromSeconds(seconds);
    TimePoint change = clock_.Now();
    for (int i = 0; clock_.Now() < end; ++i) {
      if (clock_.Now() >= change) {
        change = clock_.Now() + std::chrono::seconds(2);
        cluster_.network.bandwidth_bytes_per_s = i % 3 == 0 ? 100e6 : i % 3 == 1 ? 10e6 : 30e6;
      }
      cluster_.Step();
    }
  }
};

constexpr char kSimplest[] =
    "name: simple\njobs: ['*']\nbounds:\n  codecs: [identity, top_k]\n"
    "  collectives: [ring, sparse_all_gather]\n";

TEST_F(DecisionBudgetTest, AtMostOneRecordASecondAndTenKilobytesEach) {
  Apply(kSimplest);
  cluster_.Connect(*plane_);
  TrainOnAMovingNetwork(240);
  const std::vector<StoredDecision> stored = Stored();
  ASSERT_GT(stored.size(), 10u) << "the network moved";
  EXPECT_LE(stored.size(), 240u);
  size_t bytes = 0;
  std::set<std::string> bases;
  for (const StoredDecision& one : stored) {
    bytes += BytesOf(one);
    bases.insert(store_->GetDecision(one.id)->base);
  }
  EXPECT_LT(bytes / stored.size(), 10'000u);
  EXPECT_LT(bases.size(), 1 + stored.size() / 10) << "tables are shared";
  EXPECT_GT(Job().evaluations(), Job().decisions());
  EXPECT_EQ(Job().decisions(), stored.size());
}

TEST_F(DecisionBudgetTest, APolicyThatLeavesNoChoiceMakesAFewRecordsOnly) {
  Apply("name: dense\njobs: ['*']\nobjective: {name: fixed, codec: identity, collective: ring}\n");
  cluster_.Connect(*plane_);
  TrainOnAMovingNetwork(240);
  EXPECT_LE(Stored().size(), 8u) << "the first, and a sample a minute";
  EXPECT_GT(Job().evaluations(), 40u);
}

TEST_F(DecisionBudgetTest, EveryPlanIsInTheHistoryWithItsInputs) {
  Apply(kSimplest);
  cluster_.Connect(*plane_);
  std::set<uint64_t> ran;
  for (int i = 0; i < 600; ++i) {
    if (i % 100 == 0) cluster_.network.bandwidth_bytes_per_s = i % 200 == 0 ? 200e6 : 3e6;
    cluster_.Step();
    if (cluster_.active().version() != 0) ran.insert(cluster_.active().version());
  }
  ASSERT_GE(ran.size(), 2u);
  v1::ListDecisionsRequest request;
  request.set_job("lm");
  request.set_plans_only(true);
  v1::ListDecisionsResponse history;
  ASSERT_TRUE(plane_->admin.ListDecisions(request, &history).ok());
  std::set<uint64_t> offered;
  for (const v1::Decision& decision : history.decisions()) {
    offered.insert(decision.plan_version());
    v1::ReplayRequest again;
    again.set_id(decision.id());
    v1::ReplayResponse answer;
    ASSERT_TRUE(plane_->admin.Replay(again, &answer).ok());
    EXPECT_TRUE(answer.identical()) << decision.id();
    v1::ExplainRequest explain;
    explain.set_job("lm");
    explain.set_decision_id(decision.id());
    v1::Explanation explanation;
    ASSERT_TRUE(plane_->admin.Explain(explain, &explanation).ok());
    EXPECT_EQ(explanation.decision().id(), decision.id());
    EXPECT_EQ(explanation.decision().plan().version(), decision.plan_version());
    EXPECT_THAT(explanation.text(), testing::HasSubstr(StrCat("decision ", decision.id())));
  }
  for (const uint64_t version : ran) EXPECT_TRUE(offered.contains(version)) << version;
}

TEST_F(DecisionBudgetTest, DeletedInputsAreAClearError) {
  StoredDecision empty;
  empty.id = 7;
  EXPECT_EQ(SnapshotOf(empty).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(SnapshotOf(empty).status()), testing::HasSubstr("decision 7 were deleted"));
}

}  // namespace
}  // namespace weir
