// SPDX-License-Identifier: Apache-2.0
// Rules for NCCL, from policies to the agents of the nodes that they are for.

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

constexpr char kRing[] =
    "name: ring\npriority: 1\nnccl: {nodes: [gpu-*], rules: [{algorithm: ring, protocol: ll}]}\n";

class NcclRulesTest : public FleetFixture {
 protected:
  std::shared_ptr<FakeAgent> Connect(const std::string& node) {
    auto agent = std::make_shared<FakeAgent>();
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(node);
    hello.mutable_hello()->set_address("10.0.0.1");
    EXPECT_TRUE(plane_->agents.OnMessage(agent, hello).ok());
    return agent;
  }
  void Delete(const std::string& name) {
    v1::DeletePolicyRequest request;
    request.set_name(name);
    v1::DeletePolicyResponse response;
    ASSERT_TRUE(plane_->admin.DeletePolicy(request, &response).ok());
  }
  /// The algorithms of the newest table that an agent was sent, also with its welcome, since the
  /// last call; none: no table.
  static std::optional<std::string> Told(FakeAgent& agent) {
    std::optional<std::string> told;
    for (const v1::ControllerMessage& message : agent.inbox) {
      if (!message.has_nccl_table() && !message.welcome().has_nccl_table()) continue;
      const v1::NcclTable& table =
          message.has_nccl_table() ? message.nccl_table() : message.welcome().nccl_table();
      told = "";
      for (const v1::NcclRule& rule : table.rules()) *told += rule.algorithm() + " ";
    }
    agent.inbox.clear();
    return told;
  }
};

TEST_F(NcclRulesTest, ReachTheAgentsOfTheirNodesAtOnceAndAtTheirGreeting) {
  const auto gpu = Connect("gpu-1");
  const auto cpu = Connect("cpu-1");
  EXPECT_EQ(Told(*gpu), std::nullopt);
  Apply(kRing);
  EXPECT_EQ(Told(*gpu), "ring ");
  EXPECT_EQ(Told(*cpu), std::nullopt);
  const auto later = Connect("gpu-2");
  EXPECT_EQ(Told(*later), "ring ");
  // A change that does not concern them sends nothing.
  Apply("name: other\nbounds: {ratio_min: 0.1}\n");
  EXPECT_EQ(Told(*gpu), std::nullopt);
  Delete("ring");
  EXPECT_EQ(Told(*gpu), "");
  EXPECT_EQ(Told(*later), "");
  EXPECT_EQ(Told(*cpu), std::nullopt);
}

TEST_F(NcclRulesTest, AreThoseOfTheFirstPolicyThatHasSome) {
  const auto gpu = Connect("gpu-1");
  Apply("name: all\nnccl: {rules: [{algorithm: tree, protocol: ll}]}\n");
  EXPECT_EQ(Told(*gpu), "tree ");
  Apply(kRing);
  EXPECT_EQ(Told(*gpu), "ring ");
  // Policies without rules do not count, however high their priority.
  Apply("name: high\npriority: 9\n");
  EXPECT_EQ(Told(*gpu), std::nullopt);
  Delete("ring");
  EXPECT_EQ(Told(*gpu), "tree ");
}

}  // namespace
}  // namespace weir
