// SPDX-License-Identifier: Apache-2.0
// Jobs whose ranks share memory: the controller learns that from their hellos and chooses sums by
// nodes.

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

class SharedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-memory-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    auto store = OpenSqliteStore(directory_ / "state.db");
    ASSERT_TRUE(store.ok()) << ToString(store.status());
    store_ = std::move(*store);
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    ASSERT_TRUE(plane_->Recover().ok());
    v1::ApplyPolicyRequest policy;
    policy.set_source("name: lossless\nbounds: {codecs: [identity]}\n");
    v1::ApplyPolicyResponse applied;
    ASSERT_TRUE(plane_->admin.ApplyPolicy(policy, &applied).ok());
  }
  void TearDown() override {
    plane_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::filesystem::path directory_;
  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{4, clock_};
};

TEST_F(SharedMemoryTest, RanksThatShareItSumByNodes) {
  cluster_.memory_ranks = 2;
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  cluster_.Connect(*plane_);
  const double ring_s = cluster_.Step();
  int steps = 0;
  while (cluster_.ActiveCollective() != "hierarchical" && ++steps < 60) cluster_.Step();
  ASSERT_EQ(cluster_.ActiveCollective(), "hierarchical");
  // One payload leaves each node where the ring sent one and a half.
  EXPECT_LT(cluster_.Step(), 0.8 * ring_s);
  for (int i = 0; i < 40; ++i) cluster_.Step();
  EXPECT_EQ(cluster_.ActiveCollective(), "hierarchical");
  v1::ExplainRequest request;
  request.set_job("lm");
  v1::Explanation explanation;
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  const double predicted_s = explanation.decision().predicted_step_s();
  EXPECT_NEAR(cluster_.Step(), predicted_s, 0.15 * predicted_s);
  EXPECT_NEAR(explanation.bandwidth_bytes_per_s().value(), 20e6, 5e6);
  v1::ReplayRequest again;
  again.set_id(explanation.decision().id());
  v1::ReplayResponse replayed;
  ASSERT_TRUE(plane_->admin.Replay(again, &replayed).ok());
  EXPECT_TRUE(replayed.identical());
}

}  // namespace
}  // namespace weir
