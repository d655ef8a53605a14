// SPDX-License-Identifier: Apache-2.0
// Jobs that share links say so, and with whom.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/fleet/link_sharing.h"
#include "controller/messages/explain.h"
#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

TEST(LinkSharingTest, IsByPairsOfNodesInCommonMostFirst) {
  const std::map<std::string, std::vector<std::string>> nodes_of = {{"a", {"n0", "n1", "n2"}},
                                                                    {"b", {"n1", "n2"}},
                                                                    {"c", {"n2", "n3"}},
                                                                    {"d", {"n0", "n1", "n2"}}};
  const auto sharing = SharingOf("a", nodes_of);
  ASSERT_EQ(sharing.size(), 2u) << "c has one node in common, and no link";
  EXPECT_EQ(sharing[0].job, "d");
  EXPECT_EQ(sharing[0].nodes, 3u);
  EXPECT_EQ(sharing[0].node_pairs(), 3u);
  EXPECT_EQ(sharing[1].job, "b");
  EXPECT_EQ(sharing[1].node_pairs(), 1u);
  EXPECT_EQ(SharingText(sharing),
            "shares the links between 3 nodes with job d, 2 nodes with job b");
  EXPECT_TRUE(SharingOf("c", nodes_of).empty());
  EXPECT_TRUE(SharingOf("unknown", nodes_of).empty());
  const std::map<std::string, size_t> counts = {{"a", 2}, {"b", 2}, {"d", 2}};
  EXPECT_EQ(SharingCounts(nodes_of), counts);
}

class SharedFleetTest : public FleetFixture {
 protected:
  /// Rank `rank` of a second job of two ranks greets through the agent of the same node.
  void GreetAs(const std::string& job, int rank) {
    v1::AgentMessage message;
    message.mutable_rank()->set_job(job);
    message.mutable_rank()->set_rank(static_cast<uint32_t>(rank));
    auto* hello = message.mutable_rank()->mutable_message()->mutable_hello();
    hello->set_job(job);
    hello->set_rank(static_cast<uint32_t>(rank));
    hello->set_world(2);
    hello->set_pid(7);
    *hello->mutable_capabilities() = FakeCapabilities();
    ASSERT_TRUE(plane_->agents.OnMessage(cluster_.agent(rank), message).ok());
  }
};

TEST_F(SharedFleetTest, JobAndExplanationNameTheOther) {
  cluster_.Connect(*plane_);
  for (int i = 0; i < 20; ++i) cluster_.Step();
  EXPECT_EQ(Job().sharing_size(), 0);
  GreetAs("other", 0);
  EXPECT_EQ(Job().sharing_size(), 0) << "one node in common is no link";
  GreetAs("other", 1);
  ASSERT_EQ(Job().sharing_size(), 1);
  EXPECT_EQ(Job().sharing(0).job(), "other");
  EXPECT_EQ(Job().sharing(0).node_pairs(), 1u);
  v1::ExplainRequest request;
  request.set_job("lm");
  v1::Explanation explanation;
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  ASSERT_EQ(explanation.sharing_size(), 1);
  EXPECT_EQ(explanation.sharing(0).job(), "other");
  EXPECT_THAT(explanation.text(),
              testing::HasSubstr("The job shares the links between 2 nodes with job other"));
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_job_sharing_jobs{training_job=\"lm\"} 1"));
  // Records say with whom links were shared then.
  v1::ApplyPolicyRequest policy;
  policy.set_source("name: dense\njobs: [lm]\nobjective: throughput\nbounds: {codecs: [dense]}\n");
  v1::ApplyPolicyResponse applied;
  ASSERT_TRUE(plane_->admin.ApplyPolicy(policy, &applied).ok());
  for (int i = 0; i < 20; ++i) cluster_.Step();
  v1::ListDecisionsRequest list;
  list.set_job("lm");
  v1::ListDecisionsResponse decisions;
  ASSERT_TRUE(plane_->admin.ListDecisions(list, &decisions).ok());
  ASSERT_GE(decisions.decisions_size(), 2);
  const v1::Decision& newest = decisions.decisions(0);
  ASSERT_EQ(newest.sharing_size(), 1);
  EXPECT_EQ(newest.sharing(0).job(), "other");
  EXPECT_EQ(newest.sharing(0).node_pairs(), 1u);
  EXPECT_THAT(newest.summary(),
              testing::HasSubstr("shares the links between 2 nodes with job other"));
  EXPECT_EQ(decisions.decisions(decisions.decisions_size() - 1).sharing_size(), 0)
      << "not yet then";
}

}  // namespace
}  // namespace weir
