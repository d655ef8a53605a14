// SPDX-License-Identifier: Apache-2.0
// A job whose ranks exchange shards: a slow host gets a smaller share, which is explained; equal
// hosts get equal shares.

#include <gmock/gmock.h>

#include "controller/store/store.h"
#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

class ShardFleetTest : public testing::Test {
 protected:
  ShardFleetTest() {
    StartFleet();
    v1::ApplyPolicyRequest policy;
    policy.set_source("name: lossless\nbounds: {codecs: [identity]}\n");
    v1::ApplyPolicyResponse applied;
    EXPECT_TRUE(plane_->admin.ApplyPolicy(policy, &applied).ok());
    cluster_.mesh = true;
  }
  void StartFleet() {
    plane_.reset();
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    EXPECT_TRUE(plane_->Recover().ok());
  }
  void Run(int steps) {
    for (int i = 0; i < steps; ++i) cluster_.Step();
  }
  int StepsUntil(const std::function<bool()>& done, int limit) {
    int steps = 0;
    while (steps++ < limit) {
      cluster_.Step();
      if (done()) break;
    }
    return steps;
  }
  v1::Explanation Explain() {
    v1::ExplainRequest request;
    request.set_job("lm");
    v1::Explanation explanation;
    EXPECT_TRUE(plane_->admin.Explain(request, &explanation).ok());
    return explanation;
  }

  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_ = std::move(*OpenSqliteStore(":memory:"));
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{4, clock_};
};

TEST_F(ShardFleetTest, ARankThatComputesLateIsNamedAndIsNoSlowLink) {
  cluster_.late_rank = 2;
  cluster_.late = 2.2;  // of a third of the time
  cluster_.Connect(*plane_);
  Run(40);
  EXPECT_THAT(Explain().text(),
              testing::ContainsRegex(
                  "Late: rank 2 on [a-z0-9]+ computes 1.4 times slower than the middle"));
  EXPECT_THAT(Explain().text(), testing::Not(testing::HasSubstr("Late: rank 1")));
  v1::GetJobRequest request;
  request.set_name("lm");
  v1::Job job;
  ASSERT_TRUE(plane_->admin.GetJob(request, &job).ok());
  EXPECT_NEAR(job.ranks(2).slower(), 1.4, 0.1);
  EXPECT_EQ(job.ranks(1).slower(), 1);
  EXPECT_EQ(cluster_.active().shard_shares_size(), 0);
  EXPECT_EQ(cluster_.active().ring_order_size(), 0);
}

TEST_F(ShardFleetTest, ASlowHostOwnsLessAndStepsGetShorter) {
  cluster_.network.slow_host_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  const double even_s = cluster_.Step();  // the ring, which takes what even shards would
  ASSERT_LE(StepsUntil([&] { return cluster_.active().shard_shares_size() > 0; }, 200), 200);
  ASSERT_EQ(cluster_.active().shard_shares_size(), 4);
  EXPECT_LT(cluster_.active().shard_shares(3), 65536u / 50);
  EXPECT_EQ(cluster_.ActiveCollective(), "mesh");
  EXPECT_LT(cluster_.Step(), 0.8 * even_s);
  EXPECT_THAT(Explain().text(), testing::HasSubstr("Shards: ranks own 33 33 33 0 % of a bucket"));
  EXPECT_THAT(Explain().text(), testing::HasSubstr("rank 3 owns least, its fastest link gives"));
  // The shorter steps are attributed to the shares, and not to a faster network.
  Run(60);
  EXPECT_GT(cluster_.active().shard_shares_size(), 0);
  const double predicted_s = Explain().decision().predicted_step_s();
  EXPECT_NEAR(cluster_.Step(), predicted_s, 0.3 * predicted_s);
  // A restarted controller continues with the shares that it finds.
  const std::string before = cluster_.active().SerializeAsString();
  StartFleet();
  cluster_.Connect(*plane_);
  Run(60);
  EXPECT_EQ(cluster_.active().SerializeAsString(), before);
  // The host becomes as fast as the others and gets an equal share.
  cluster_.network.slow_host_bytes_per_s = 0;
  EXPECT_LE(StepsUntil([&] { return cluster_.active().shard_shares_size() == 0; }, 400), 400);
}

TEST_F(ShardFleetTest, EqualHostsStayEven) {
  cluster_.network.bandwidth_bytes_per_s = 30e6;
  cluster_.Connect(*plane_);
  for (int i = 0; i < 200; ++i) {
    cluster_.Step();
    ASSERT_EQ(cluster_.active().shard_shares_size(), 0) << i;
  }
  EXPECT_EQ(cluster_.ActiveCollective(), "mesh") << "which two latencies make the faster one";
  EXPECT_THAT(Explain().text(), testing::Not(testing::HasSubstr("Shards:")));
}

}  // namespace
}  // namespace weir
