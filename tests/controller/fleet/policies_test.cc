// SPDX-License-Identifier: Apache-2.0
// Policies and the jobs that they rule: what a change would do, who is ruled by which, and policies
// that leave nothing to choose.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

using testing::HasSubstr;

constexpr char kDense[] = "name: careful\nbounds: {codecs: [dense]}\n";
// No simulated rank has this codec.
constexpr char kAbsent[] = "name: absent\nbounds: {codecs: [fp16], collectives: [ring]}\n";

class PoliciesTest : public FleetFixture {
 protected:
  void TrainCompressed() {
    cluster_.network.bandwidth_bytes_per_s = 10e6;
    cluster_.Connect(*plane_);
    Steps(40);
    ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) cluster_.Step();
  }
  Status Send(const std::string& source, bool dry_run, v1::ApplyPolicyResponse* response) {
    v1::ApplyPolicyRequest request;
    request.set_source(source);
    request.set_dry_run(dry_run);
    return plane_->admin.ApplyPolicy(request, response);
  }
  Status Delete(const std::string& name, bool dry_run, v1::DeletePolicyResponse* response) {
    v1::DeletePolicyRequest request;
    request.set_name(name);
    request.set_dry_run(dry_run);
    return plane_->admin.DeletePolicy(request, response);
  }
};

TEST_F(PoliciesTest, ADryRunSaysWhichJobsWouldChangeToWhat) {
  TrainCompressed();
  v1::ApplyPolicyResponse response;
  ASSERT_TRUE(Send(kDense, true, &response).ok());
  ASSERT_EQ(response.effects_size(), 1);
  const v1::PolicyEffect& effect = response.effects(0);
  EXPECT_EQ(effect.job(), "lm");
  EXPECT_EQ(effect.policy_before(), "default");
  EXPECT_EQ(effect.policy_after(), "careful");
  EXPECT_THAT(effect.running().label(), HasSubstr("top_k"));
  EXPECT_THAT(effect.chosen().label(), HasSubstr("dense"));
  EXPECT_GT(effect.chosen().step_s(), effect.running().step_s());
  EXPECT_TRUE(effect.switches());
  ASSERT_EQ(response.differences_size(), 2);
  EXPECT_EQ(response.differences(0).key(), "bounds.codecs");
  EXPECT_EQ(response.differences(0).before(), "[]");
  EXPECT_EQ(response.differences(0).after(), "[\"dense\"]");
  Steps(10);
  EXPECT_EQ(cluster_.ActiveCodec(), "top_k") << "a dry run changes nothing";
  EXPECT_EQ(Job().policy(), "default");

  // The decision is the foreseen one.
  ASSERT_TRUE(Send(kDense, false, &response).ok());
  Steps(10);
  EXPECT_EQ(cluster_.ActiveCodec(), "identity");
  EXPECT_EQ(Job().policy(), "careful");
  EXPECT_THAT(Job().policies(), testing::ElementsAre("careful", "default"));
  v1::ListPoliciesResponse list;
  ASSERT_TRUE(plane_->admin.ListPolicies({}, &list).ok());
  EXPECT_THAT(list.policies(0).ruled_jobs(), testing::ElementsAre("lm"));
  EXPECT_EQ(list.policies(0).precedence(), 1u);
  EXPECT_TRUE(list.policies(1).ruled_jobs().empty());
}

TEST_F(PoliciesTest, ADeletedPolicyNoLongerRulesAlsoAfterARestart) {
  TrainCompressed();
  v1::ApplyPolicyResponse applied;
  ASSERT_TRUE(Send(kDense, false, &applied).ok());
  Steps(10);
  ASSERT_EQ(cluster_.ActiveCodec(), "identity");
  v1::DeletePolicyResponse deleted;
  ASSERT_TRUE(Delete("careful", true, &deleted).ok());
  ASSERT_EQ(deleted.effects_size(), 1);
  EXPECT_EQ(deleted.effects(0).policy_after(), "default");
  EXPECT_THAT(deleted.effects(0).chosen().label(), HasSubstr("top_k"));
  EXPECT_EQ(Job().policy(), "careful");
  ASSERT_TRUE(Delete("careful", false, &deleted).ok());
  EXPECT_EQ(Job().policy(), "default");
  int steps = 0;
  for (; cluster_.ActiveCodec() != "top_k" && steps < 100; ++steps) Steps(1);
  EXPECT_LE(steps, 60);
  EXPECT_EQ(Delete("careful", false, &deleted).code(), StatusCode::kNotFound);
  plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
  ASSERT_TRUE(plane_->Recover().ok());
  v1::ListPoliciesResponse list;
  ASSERT_TRUE(plane_->admin.ListPolicies({}, &list).ok());
  EXPECT_EQ(list.policies_size(), 1);
}

TEST_F(PoliciesTest, APolicyThatLeavesAJobNothingIsRefused) {
  TrainCompressed();
  v1::ApplyPolicyResponse response;
  ASSERT_TRUE(Send(kAbsent, true, &response).ok()) << "a dry run shows every job";
  EXPECT_THAT(response.effects(0).nothing_to_choose(), HasSubstr("fp16"));
  EXPECT_THAT(response.policy().warnings(), testing::ElementsAre(HasSubstr("fp16")));
  const Status refused = Send(kAbsent, false, &response);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("would leave job lm nothing to choose"));
  EXPECT_EQ(Job().policy(), "default");
  EXPECT_TRUE(store_->ListPolicies()->empty());

  // Bounds that nothing meets are found by the same measurements.
  EXPECT_EQ(Send("name: strict\nbounds: {codecs: [top_k], gain_min: 1, ratio_max: 0.5}\n", false,
                 &response)
                .code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(PoliciesTest, ListsThatFitNoJobAreRefusedWithoutAnyJob) {
  v1::ApplyPolicyResponse response;
  const Status refused =
      Send("name: odd\nbounds: {codecs: [top_k], collectives: [ring]}\n", false, &response);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << ToString(refused);
  EXPECT_THAT(Message(refused), HasSubstr("leaves every job nothing to choose"));
  EXPECT_TRUE(Send("name: odd\nbounds: {codecs: [top_k], gain_min: 0.99}\n", false, &response).ok())
      << "that depends on gradients";
}

TEST_F(PoliciesTest, AFileThatLeavesAJobNothingIsSaid) {
  TrainCompressed();
  const auto stuck = [&] {
    return plane_->admin.MetricsText().find("weir_job_nothing_to_choose{training_job=\"lm\"} 1") !=
           std::string::npos;
  };
  EXPECT_FALSE(stuck());
  EXPECT_TRUE(Job().nothing_to_choose().empty());
  plane_->fleet.OnPolicyFiles(std::map<std::string, std::string>{{"/p/a.yaml", kAbsent}});
  Steps(20);
  EXPECT_THAT(Job().nothing_to_choose(), HasSubstr("fp16"));
  EXPECT_TRUE(stuck());
  EXPECT_EQ(cluster_.ActiveCodec(), "top_k") << "what runs goes on";
  plane_->fleet.OnPolicyFiles(std::map<std::string, std::string>{});
  Steps(40);
  EXPECT_TRUE(Job().nothing_to_choose().empty());
  EXPECT_FALSE(stuck());
}

TEST_F(PoliciesTest, LabelsOfRanksSelectThePolicy) {
  v1::ApplyPolicyResponse response;
  ASSERT_TRUE(
      Send("name: team\nnamespaces: [team-a]\nlabels: {stage: dev*}\n", false, &response).ok());
  cluster_.Connect(*plane_);
  EXPECT_EQ(Job().policy(), "default");
  cluster_.labels = {{"namespace", "team-a"}, {"stage", "devel"}};
  cluster_.pid = 200;  // other processes: another incarnation
  for (int rank = 0; rank < 4; ++rank) cluster_.DisconnectRank(rank);
  cluster_.Connect(*plane_);
  EXPECT_EQ(Job().policy(), "team");
  EXPECT_EQ(Job().labels().at("stage"), "devel");
}

TEST_F(PoliciesTest, NodesAndJobsAreForgottenOnceTheyAreGone) {
  TrainCompressed();
  const uint64_t version = cluster_.active().version();
  v1::ForgetJobRequest job;
  job.set_name("lm");
  v1::ForgetJobResponse no_job;
  v1::ForgetNodeRequest node;
  node.set_name(FakeCluster::Node(3));
  v1::ForgetNodeResponse no_node;
  EXPECT_EQ(plane_->admin.ForgetJob(job, &no_job).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(plane_->admin.ForgetNode(node, &no_node).code(), StatusCode::kFailedPrecondition);
  for (int rank = 0; rank < 4; ++rank) cluster_.DisconnectRank(rank);
  ASSERT_TRUE(plane_->admin.ForgetNode(node, &no_node).ok());
  ASSERT_TRUE(plane_->admin.ForgetJob(job, &no_job).ok());
  EXPECT_EQ(plane_->admin.ForgetNode(node, &no_node).code(), StatusCode::kNotFound);
  EXPECT_EQ(plane_->admin.ForgetJob(job, &no_job).code(), StatusCode::kNotFound);
  EXPECT_THAT(plane_->admin.MetricsText(), testing::Not(HasSubstr("training_job=\"lm\"")));
  EXPECT_THAT(plane_->admin.MetricsText(), testing::Not(HasSubstr("node=\"n3\"")));
  EXPECT_TRUE(PlansNewestFirst().empty());
  plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
  ASSERT_TRUE(plane_->Recover().ok());
  EXPECT_EQ(plane_->fleet.nodes().all().size(), 3u);
  EXPECT_TRUE(plane_->fleet.jobs().all().empty());
  EXPECT_GE(*store_->HighestPlanVersion("lm"), version) << "a version is never given twice";
}

}  // namespace
}  // namespace weir
