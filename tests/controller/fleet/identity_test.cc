// SPDX-License-Identifier: Apache-2.0
// The ranks that may speak for a job: those of its key, or without a key those of its nodes.
// Messages of others do not disturb the job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

const std::string kKey(kJobKeyBytes, 'k'), kOtherKey(kJobKeyBytes, 'o');

struct Claim {
  uint32_t rank = 0;
  uint32_t world = 4;
  uint64_t epoch = 0;
  std::string key = {};        // empty: no proof
  std::string proven_to = {};  // the node that it was signed for; empty: its own
  std::optional<uint64_t> proven_epoch = {};
};

/// Another node's agent, which claims to have ranks of job "lm".
class Stranger {
 public:
  Stranger(ControlPlane& plane, const std::string& node) : plane_(plane), node_(node) {
    v1::AgentMessage message;
    message.mutable_hello()->set_node(node);
    message.mutable_hello()->set_instance(node);  // as the agent of that node
    EXPECT_TRUE(plane_.agents.OnMessage(agent_, message).ok());
  }
  ~Stranger() { plane_.agents.OnClosed(agent_); }

  /// Sends a hello and returns the reason of the refusal; empty: there was none.
  std::string Greet(const Claim& claim) {
    agent_->inbox.clear();
    v1::AgentMessage message;
    message.mutable_rank()->set_job("lm");
    message.mutable_rank()->set_rank(claim.rank);
    auto* hello = message.mutable_rank()->mutable_message()->mutable_hello();
    hello->set_job("lm");
    hello->set_rank(claim.rank);
    hello->set_world(claim.world);
    hello->set_pid(1000 + claim.rank);
    hello->set_epoch(claim.proven_epoch.value_or(claim.epoch));
    if (!claim.key.empty()) {
      AddProof(claim.key, claim.proven_to.empty() ? node_ : claim.proven_to, hello);
    }
    hello->set_epoch(claim.epoch);
    EXPECT_TRUE(plane_.agents.OnMessage(agent_, message).ok());
    std::string refusal;
    for (const auto& answer : agent_->inbox) {
      if (!answer.rank().command().has_refusal()) continue;
      refusal = answer.rank().command().refusal().reason();
      retry_after_s_ = answer.rank().command().refusal().retry_after_s();
    }
    return refusal;
  }
  double retry_after_s() const { return retry_after_s_; }  // of the last refusal

 private:
  ControlPlane& plane_;
  const std::string node_;
  const std::shared_ptr<FakeAgent> agent_ = std::make_shared<FakeAgent>();
  double retry_after_s_ = 0;
};

class IdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-identity-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    auto store = OpenSqliteStore(directory_ / "state.db");
    ASSERT_TRUE(store.ok()) << ToString(store.status());
    store_ = std::move(*store);
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    ASSERT_TRUE(plane_->Recover().ok());
  }
  void TearDown() override {
    plane_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  v1::Job Job() {
    v1::Job job;
    v1::GetJobRequest request;
    request.set_name("lm");
    EXPECT_TRUE(plane_->admin.GetJob(request, &job).ok());
    return job;
  }
  /// The texts of the kept rank events of `kind`.
  std::vector<std::string> Events(const std::string& kind) {
    std::vector<std::string> texts;
    v1::WatchRequest request;
    request.set_replay(true);
    const auto watch = events_.Subscribe(request);
    EXPECT_TRUE(watch.ok());
    while (const auto event = (*watch)->TryNext()) {
      if (event->rank_event().kind() == kind) texts.push_back(event->text());
    }
    events_.Unsubscribe(*watch);
    return texts;
  }
  /// Checks that the job is unchanged, and that its next plan, for a network that has changed,
  /// activates.
  void ExpectUndisturbed(uint64_t version) {
    EXPECT_EQ(Job().world(), 4u);
    EXPECT_EQ(Job().state(), "running");
    EXPECT_EQ(cluster_.active().version(), version);
    cluster_.network.bandwidth_bytes_per_s *= 500;
    for (int i = 0; i < 2000 && cluster_.active().version() == version; ++i) cluster_.Step();
    EXPECT_GT(cluster_.active().version(), version);
    EXPECT_TRUE(cluster_.refusals().empty());
  }

  std::filesystem::path directory_;
  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{4, clock_};
};

TEST_F(IdentityTest, RanksThatFormAMeshAgainBeginANewEpoch) {
  cluster_.Connect(*plane_);
  ASSERT_EQ(Job().state(), "running");
  // The former ranks 2 and 3 are ranks 1 and 2 now; the notice that they left may come later.
  Stranger survivor(*plane_, FakeCluster::Node(2));
  EXPECT_EQ(survivor.Greet({.rank = 1, .world = 3, .epoch = 1}), "");
  EXPECT_EQ(Job().world(), 3u);
  EXPECT_EQ(Job().state(), "waiting");
  Stranger other(*plane_, "x");
  EXPECT_THAT(other.Greet({.rank = 3, .world = 4}), testing::HasSubstr("runs in epoch 1"));
  EXPECT_EQ(other.Greet({.rank = 2, .world = 3, .epoch = 1}), "");  // has replaced one of them
  EXPECT_EQ(other.Greet({.rank = 0, .world = 3, .epoch = 1}), "");
  EXPECT_EQ(Job().state(), "running");
}

TEST_F(IdentityTest, AnEpochOfANodeThatDoesNotCarryTheJobChangesNothing) {
  cluster_.Connect(*plane_);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  const uint64_t version = cluster_.active().version();
  ASSERT_GT(version, 0u);
  Stranger stranger(*plane_, "x");
  for (const uint32_t rank : {0u, 3u}) {
    const std::string refusal = stranger.Greet({.rank = rank, .epoch = 999});
    EXPECT_THAT(refusal, testing::HasSubstr(StrCat("rank ", rank, " on node x (process ")));
    EXPECT_THAT(refusal, testing::HasSubstr("says epoch 999"));
    EXPECT_THAT(refusal, testing::HasSubstr("rank 0 on node n0 (process 100)"));
    EXPECT_GT(stranger.retry_after_s(), 0);
  }
  ExpectUndisturbed(version);
}

TEST_F(IdentityTest, OnlyRanksThatProveTheJobsKeyAreAccepted) {
  cluster_.job_key = kKey;
  cluster_.Connect(*plane_);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  const uint64_t version = cluster_.active().version();
  ASSERT_GT(version, 0u);
  Stranger stranger(*plane_, "x");
  EXPECT_THAT(stranger.Greet({.rank = 0, .epoch = 999}),
              testing::HasSubstr("does not prove the job's key"));
  EXPECT_THAT(stranger.Greet({.rank = 1, .epoch = 999, .key = kOtherKey}),
              testing::AllOf(testing::HasSubstr("rank 1 on node x (process 1001)"),
                             testing::HasSubstr("proves another job key"),
                             testing::HasSubstr("rank 0 on node n0 (process 100)")));
  EXPECT_THAT(stranger.Greet({.rank = 0, .world = 8, .key = kOtherKey}),
              testing::HasSubstr("proves another job key"));
  EXPECT_THAT(Events("refused"),
              testing::Contains(testing::HasSubstr("rank 1 on node x (process 1001)")));
  // The proof that a rank gave the agent of its own node is not valid for another agent.
  EXPECT_THAT(stranger.Greet({.rank = 0, .key = kKey, .proven_to = "n0"}),
              testing::HasSubstr("another node's"));
  // A proof is not valid for another rank or epoch than the one that it was made for.
  EXPECT_THAT(stranger.Greet({.rank = 0, .epoch = 999, .key = kKey, .proven_epoch = 0}),
              testing::HasSubstr("did not prove the job's key"));
  ExpectUndisturbed(version);
  // A replacement on another node, ahead of all survivors.
  EXPECT_EQ(stranger.Greet({.rank = 1, .world = 3, .epoch = 1, .key = kKey}), "");
  EXPECT_EQ(Job().world(), 3u);
}

TEST_F(IdentityTest, ARunWithAnotherKeyTakesTheNameWhenNoRankIsAttached) {
  cluster_.job_key = kKey;
  cluster_.Connect(*plane_);
  for (int i = 0; i < 60; ++i) cluster_.Step();
  const uint64_t version = cluster_.active().version();
  for (int rank = 0; rank < 4; ++rank) cluster_.LoseRank(rank);
  FakeCluster again(4, clock_);
  again.job_key = kOtherKey;
  again.network = cluster_.network;
  again.Connect(*plane_);  // its processes have the numbers of the former ones
  EXPECT_EQ(Job().state(), "running");
  for (int i = 0; i < 60; ++i) again.Step();
  EXPECT_GT(again.active().version(), version);
  Stranger late(*plane_, "x");
  EXPECT_THAT(late.Greet({.rank = 1, .epoch = 1, .key = kKey}),
              testing::HasSubstr("proves another job key"));
}

TEST_F(IdentityTest, AJobShowsItsKeyAndHowItsFramesAreProtected) {
  cluster_.job_key = kKey;
  cluster_.frame_protection = v1::FRAME_PROTECTION_ENCRYPTED;
  cluster_.Connect(*plane_);
  const std::string key_id =
      KeyId(ProveRank(kKey, {"lm", "n0", 0, 4, 0, std::string(kChallengeDigits, '1')})->public_key);
  ASSERT_EQ(key_id.size(), 16u);
  EXPECT_EQ(Job().key_id(), key_id);
  EXPECT_EQ(Job().frame_protection(), v1::FRAME_PROTECTION_ENCRYPTED);
  EXPECT_EQ(Job().unauthenticated_peers(), 0u);
  EXPECT_THAT(
      plane_->admin.MetricsText(),
      testing::AllOf(testing::HasSubstr("weir_job_unauthenticated_peers{training_job=\"lm\"} 0\n"),
                     testing::HasSubstr(StrCat("weir_job_identity_info{training_job=\"lm\",frames="
                                               "\"encrypted\",key_id=\"",
                                               key_id, "\"} 1\n"))));
}

TEST_F(IdentityTest, AJobIsProtectedAsItsLeastProtectedRank) {
  cluster_.frame_protection = v1::FRAME_PROTECTION_AUTHENTICATED;
  cluster_.Connect(*plane_);
  EXPECT_EQ(ProtectionText(Job()), "authenticated");
  EXPECT_EQ(Job().key_id(), "");  // it was stated but not proven
  cluster_.DisconnectRank(2);
  cluster_.frame_protection = v1::FRAME_PROTECTION_CHECKED;
  cluster_.strange_rank = 2;
  cluster_.ConnectRank(2);
  EXPECT_EQ(Job().frame_protection(), v1::FRAME_PROTECTION_CHECKED);
  EXPECT_EQ(Job().unauthenticated_peers(), 3u);
  EXPECT_EQ(ProtectionText(Job()), "unauthenticated");
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_job_unauthenticated_peers{training_job=\"lm\"} 3\n"));
  cluster_.DisconnectRank(2);
  cluster_.frame_protection = v1::FRAME_PROTECTION_UNSPECIFIED;  // of a former version
  cluster_.strange_rank = -1;
  cluster_.ConnectRank(2);
  EXPECT_EQ(ProtectionText(Job()), "");
}

// Anybody who could claim a node's name took the node, and with it its ranks, from its agent.
TEST_F(IdentityTest, ASecondAgentOfALivingNodeIsRefused) {
  const auto greet = [&](const std::shared_ptr<FakeAgent>& agent, const std::string& node,
                         const std::string& instance) {
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(node);
    hello.mutable_hello()->set_address("10.0.0.1");
    hello.mutable_hello()->set_instance(instance);
    return plane_->agents.OnMessage(agent, hello);
  };
  const auto first = std::make_shared<FakeAgent>(), second = std::make_shared<FakeAgent>(),
             third = std::make_shared<FakeAgent>();
  ASSERT_TRUE(greet(first, "n", "one").ok());
  EXPECT_EQ(greet(first, "m", "one").code(), StatusCode::kFailedPrecondition) << "another name";
  for (const char* instance : {"two", ""}) {
    const Status refused = greet(second, "n", instance);
    EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
    EXPECT_THAT(Message(refused), testing::HasSubstr("has a living agent at 10.0.0.1"));
  }
  EXPECT_FALSE(first->closed);
  // The agent itself knows that its former stream is dead, although nobody else noticed yet.
  EXPECT_TRUE(greet(third, "n", "one").ok());
  EXPECT_TRUE(first->closed);
  // Another agent may come when a heartbeat is missing.
  clock_.Advance(FromSeconds(7.4));
  EXPECT_FALSE(greet(second, "n", "two").ok());
  clock_.Advance(FromSeconds(0.2));
  EXPECT_TRUE(greet(second, "n", "two").ok());
  EXPECT_TRUE(third->closed);
}

}  // namespace
}  // namespace weir
