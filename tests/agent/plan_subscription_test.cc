// SPDX-License-Identifier: Apache-2.0
// The plan subscription as a pure state machine: every scenario is a list of events.
#include "agent/plan_subscription.h"

#include <gtest/gtest.h>

#include "datapath/base/random.h"
#include "datapath/base/status.h"

namespace weir::agent {
namespace {

v1::NodeHello Node() {
  v1::NodeHello node;
  node.set_node("node-a");
  return node;
}

v1::RankMessage Hello(uint32_t rank, uint64_t plan_version = 0) {
  v1::RankMessage message;
  v1::RankHello& hello = *message.mutable_hello();
  hello.set_job("job");
  hello.set_rank(rank);
  hello.set_world(4);
  hello.set_active_plan_version(plan_version);
  return message;
}

v1::RankMessage Ack(uint64_t version, const std::string& nonce) {
  v1::RankMessage message;
  message.mutable_ack()->set_version(version);
  message.mutable_ack()->set_nonce(nonce);
  return message;
}

v1::RankMessage Nack(uint64_t version, const std::string& nonce) {
  v1::RankMessage message;
  message.mutable_nack()->set_version(version);
  message.mutable_nack()->set_nonce(nonce);
  return message;
}

v1::RankMessage Active(uint64_t version, uint64_t step) {
  v1::RankMessage message;
  message.mutable_active()->set_version(version);
  message.mutable_active()->set_step(step);
  return message;
}

v1::RankMessage Step(uint64_t step, uint64_t version) {
  v1::RankMessage message;
  message.mutable_step()->set_step(step);
  message.mutable_step()->set_plan_version(version);
  return message;
}

v1::RankMessage Event(const std::string& kind) {
  v1::RankMessage message;
  message.mutable_event()->set_kind(kind);
  return message;
}

v1::ToRank Offer(uint32_t rank, uint64_t version, const std::string& nonce) {
  v1::ToRank command;
  command.set_job("job");
  command.set_rank(rank);
  v1::PlanOffer& offer = *command.mutable_command()->mutable_offer();
  offer.mutable_plan()->set_version(version);
  offer.mutable_plan()->set_digest(StrCat("digest-", version));
  offer.set_nonce(nonce);
  return command;
}

v1::ToRank Withdraw(uint32_t rank, uint64_t version) {
  v1::ToRank command;
  command.set_job("job");
  command.set_rank(rank);
  command.mutable_command()->mutable_withdraw()->set_version(version);
  return command;
}

std::vector<v1::AgentMessage> Up(const Effects& effects) {
  std::vector<v1::AgentMessage> messages;
  for (const Effect& effect : effects) {
    if (const auto* up = std::get_if<SendToController>(&effect)) messages.push_back(up->message);
  }
  return messages;
}

std::vector<SendToRank> Down(const Effects& effects) {
  std::vector<SendToRank> commands;
  for (const Effect& effect : effects) {
    if (const auto* down = std::get_if<SendToRank>(&effect)) commands.push_back(*down);
  }
  return commands;
}

std::vector<RefuseRank> Refusals(const Effects& effects) {
  std::vector<RefuseRank> refusals;
  for (const Effect& effect : effects) {
    if (const auto* refuse = std::get_if<RefuseRank>(&effect)) refusals.push_back(*refuse);
  }
  return refusals;
}

class PlanSubscriptionTest : public testing::Test {
 protected:
  void Reconnect() {
    machine_.OnControllerLost({});
    said_ = Up(machine_.OnControllerConnected());
  }
  PlanSubscription machine_{Node()};
  std::vector<v1::AgentMessage> said_;
};

TEST_F(PlanSubscriptionTest, FirstMessageMustBeAValidHello) {
  EXPECT_EQ(Refusals(machine_.OnRankMessage(1, Ack(1, "n"))).size(), 1u);
  EXPECT_EQ(Refusals(machine_.OnRankMessage(1, v1::RankMessage())).size(), 1u);
  v1::RankMessage bad = Hello(4);  // rank 4 of a world of 4
  const auto refusals = Refusals(machine_.OnRankMessage(1, bad));
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_NE(refusals[0].reason.find("below the world of 4"), std::string::npos);
  bad = Hello(0);
  bad.mutable_hello()->set_job("");
  EXPECT_EQ(Refusals(machine_.OnRankMessage(1, bad)).size(), 1u);
  bad.mutable_hello()->set_job(std::string(201, 'x'));
  EXPECT_EQ(Refusals(machine_.OnRankMessage(1, bad)).size(), 1u);
  EXPECT_EQ(machine_.rank_count(), 0u);
}

TEST_F(PlanSubscriptionTest, RanksWithUnauthenticatedPeersAreCountedWhileTheyAreAttached) {
  v1::RankMessage hello = Hello(0);
  (void)machine_.OnRankMessage(1, hello);
  EXPECT_EQ(machine_.unauthenticated_rank_count(), 0u);
  hello = Hello(1);
  hello.mutable_hello()->set_unauthenticated_peers(3);
  (void)machine_.OnRankMessage(2, hello);
  EXPECT_EQ(machine_.unauthenticated_rank_count(), 1u);
  (void)machine_.OnRankClosed(2, "ended");
  EXPECT_EQ(machine_.unauthenticated_rank_count(), 0u);
}

TEST_F(PlanSubscriptionTest, OfferReachesItsRankAndTheAckItsController) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnRankMessage(2, Hello(1));
  const auto down = Down(machine_.OnCommand(Offer(1, 7, "n7")));
  ASSERT_EQ(down.size(), 1u);
  EXPECT_EQ(down[0].connection, 2u);
  EXPECT_EQ(down[0].command.offer().plan().version(), 7u);
  const auto up = Up(machine_.OnRankMessage(2, Ack(7, "n7")));
  ASSERT_EQ(up.size(), 1u);
  EXPECT_EQ(up[0].rank().rank(), 1u);
  EXPECT_EQ(up[0].rank().message().ack().nonce(), "n7");
}

TEST_F(PlanSubscriptionTest, StaleAndRepeatedAnswersAreDropped) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  (void)machine_.OnCommand(Offer(0, 8, "n8"));
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(7, "n7")).empty());  // an older offer
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(8, "n7")).empty());  // wrong nonce
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(7, "n8")).empty());  // wrong version
  EXPECT_TRUE(machine_.OnRankMessage(1, Nack(7, "n7")).empty());
  EXPECT_EQ(Up(machine_.OnRankMessage(1, Ack(8, "n8"))).size(), 1u);
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(8, "n8")).empty());  // repeated
  EXPECT_EQ(machine_.counters().stale_answers, 5u);
}

TEST_F(PlanSubscriptionTest, AckMayTurnIntoANackButNotBack) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  EXPECT_EQ(Up(machine_.OnRankMessage(1, Ack(7, "n7"))).size(), 1u);
  EXPECT_EQ(Up(machine_.OnRankMessage(1, Nack(7, "n7"))).size(), 1u);
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(7, "n7")).empty());
}

TEST_F(PlanSubscriptionTest, AnswerAfterWithdrawIsStale) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  EXPECT_EQ(Down(machine_.OnCommand(Withdraw(0, 7))).size(), 1u);
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(7, "n7")).empty());
}

TEST_F(PlanSubscriptionTest, RepeatedOfferMayBeAnsweredAgain) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  (void)machine_.OnRankMessage(1, Ack(7, "n7"));
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  EXPECT_EQ(Up(machine_.OnRankMessage(1, Ack(7, "n7"))).size(), 1u);
}

TEST_F(PlanSubscriptionTest, ReconnectSendsThePresentState) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  v1::RankMessage buckets;
  buckets.mutable_buckets()->add_buckets()->set_key("00aa");
  (void)machine_.OnRankMessage(1, buckets);
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  (void)machine_.OnRankMessage(1, Ack(7, "n7"));
  (void)machine_.OnRankMessage(1, Active(7, 40));
  (void)machine_.OnRankMessage(1, Step(44, 7));
  (void)machine_.OnCommand(Offer(0, 8, "n8"));
  (void)machine_.OnRankMessage(1, Ack(8, "n8"));
  Reconnect();
  ASSERT_EQ(said_.size(), 4u);
  EXPECT_EQ(said_[0].hello().node(), "node-a");
  const v1::RankHello& hello = said_[1].rank().message().hello();
  EXPECT_EQ(hello.active_plan_version(), 7u);
  EXPECT_EQ(hello.active_plan().digest(), "digest-7");
  EXPECT_EQ(hello.step(), 44u);
  EXPECT_EQ(said_[2].rank().message().buckets().buckets(0).key(), "00aa");
  EXPECT_EQ(said_[3].rank().message().ack().nonce(), "n8");  // open: not active yet
}

TEST_F(PlanSubscriptionTest, PlanChangesWhileTheControllerIsAway) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnCommand(Offer(0, 7, "n7"));
  machine_.OnControllerLost({});
  EXPECT_TRUE(machine_.OnRankMessage(1, Ack(7, "n7")).empty());
  EXPECT_TRUE(machine_.OnRankMessage(1, Step(50, 7)).empty());  // activation seen in telemetry
  said_ = Up(machine_.OnControllerConnected());
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_EQ(said_[1].rank().message().hello().active_plan_version(), 7u);
  EXPECT_EQ(said_[1].rank().message().hello().active_plan().digest(), "digest-7");
}

TEST_F(PlanSubscriptionTest, UnknownActivePlanIsNotGuessed) {
  (void)machine_.OnControllerConnected();
  v1::RankMessage hello = Hello(0, 3);
  hello.mutable_hello()->mutable_active_plan()->set_version(3);
  (void)machine_.OnRankMessage(1, hello);
  (void)machine_.OnRankMessage(1, Active(3, 9));
  Reconnect();
  EXPECT_TRUE(said_[1].rank().message().hello().has_active_plan());
  (void)machine_.OnRankMessage(1, Active(5, 10));  // never offered through this agent
  Reconnect();
  EXPECT_EQ(said_[1].rank().message().hello().active_plan_version(), 5u);
  EXPECT_FALSE(said_[1].rank().message().hello().has_active_plan());
}

TEST_F(PlanSubscriptionTest, ControllerThatStartsOverWithLowerVersionsIsServed) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  for (uint64_t version = 101; version <= 106; ++version) {
    (void)machine_.OnCommand(Offer(0, version, "n"));
  }
  (void)machine_.OnCommand(Offer(0, 2, "n2"));
  (void)machine_.OnRankMessage(1, Ack(2, "n2"));
  (void)machine_.OnRankMessage(1, Active(2, 5));
  Reconnect();
  EXPECT_EQ(said_[1].rank().message().hello().active_plan().digest(), "digest-2");
}

TEST_F(PlanSubscriptionTest, RankGoneIsSentNowOrAfterReconnect) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  (void)machine_.OnRankMessage(2, Hello(1));
  const auto up = Up(machine_.OnRankClosed(1, "closed its connection"));
  ASSERT_EQ(up.size(), 1u);
  EXPECT_EQ(up[0].rank_gone().rank(), 0u);
  machine_.OnControllerLost({});
  EXPECT_TRUE(machine_.OnRankClosed(2, "closed its connection").empty());
  said_ = Up(machine_.OnControllerConnected());
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_EQ(said_[1].rank_gone().rank(), 1u);
  EXPECT_TRUE(machine_.OnRankClosed(2, "again").empty());
}

TEST_F(PlanSubscriptionTest, RankThatCameBackIsNotReportedGone) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  machine_.OnControllerLost({});
  (void)machine_.OnRankClosed(1, "closed its connection");
  (void)machine_.OnRankMessage(2, Hello(0));
  said_ = Up(machine_.OnControllerConnected());
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_TRUE(said_[1].rank().message().has_hello());
}

TEST_F(PlanSubscriptionTest, SecondConnectionOfARankReplacesTheFirst) {
  (void)machine_.OnControllerConnected();
  v1::RankMessage first = Hello(0), second = Hello(0);
  first.mutable_hello()->set_pid(71);
  second.mutable_hello()->set_pid(72);
  (void)machine_.OnRankMessage(1, first);
  const Effects effects = machine_.OnRankMessage(2, second);
  const auto refusals = Refusals(effects);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].connection, 1u);
  for (const char* part : {"rank 0 of job 'job'", "node 'node-a'", "process 72", "process 71"}) {
    EXPECT_NE(refusals[0].reason.find(part), std::string::npos) << refusals[0].reason;
  }
  EXPECT_EQ(Up(effects).size(), 1u);
  EXPECT_TRUE(machine_.OnRankClosed(1, "refused").empty());  // rank 0 is still here
  EXPECT_EQ(machine_.rank_count(), 1u);
  EXPECT_EQ(Down(machine_.OnCommand(Offer(0, 1, "n")))[0].connection, 2u);
  EXPECT_EQ(Refusals(machine_.OnRankMessage(1, Step(1, 0))).size(), 1u);
}

TEST_F(PlanSubscriptionTest, LeasesPassAndTheirPlanIsKnownWhenItRuns) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  v1::ToRank offer = Offer(0, 5, "n");
  offer.mutable_command()->mutable_offer()->mutable_lease_plan()->set_version(6);
  offer.mutable_command()->mutable_offer()->mutable_lease_plan()->set_digest("dense");
  (void)machine_.OnCommand(offer);
  v1::ToRank lease = Withdraw(0, 1);
  lease.mutable_command()->mutable_lease()->set_lease_s(4);
  const auto down = Down(machine_.OnCommand(lease));
  ASSERT_EQ(down.size(), 1u);
  EXPECT_EQ(down[0].command.lease().lease_s(), 4);
  (void)machine_.OnRankMessage(1, Active(5, 10));
  machine_.OnControllerLost({});
  (void)machine_.OnRankMessage(1, Active(6, 20));
  Reconnect();
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_EQ(said_[1].rank().message().hello().active_plan_version(), 6u);
  EXPECT_EQ(said_[1].rank().message().hello().active_plan().digest(), "dense");
}

TEST_F(PlanSubscriptionTest, ConnectionCannotBecomeAnotherRank) {
  (void)machine_.OnRankMessage(1, Hello(0));
  EXPECT_EQ(Refusals(machine_.OnRankMessage(1, Hello(1))).size(), 1u);
  EXPECT_EQ(machine_.rank_count(), 1u);
}

TEST_F(PlanSubscriptionTest, CommandForAnAbsentRankIsAnsweredWithRankGone) {
  (void)machine_.OnControllerConnected();
  const auto up = Up(machine_.OnCommand(Offer(3, 1, "n")));
  ASSERT_EQ(up.size(), 1u);
  EXPECT_EQ(up[0].rank_gone().rank(), 3u);
  EXPECT_NE(up[0].rank_gone().reason().find("node-a"), std::string::npos);
}

TEST_F(PlanSubscriptionTest, UnsentNoticesAndEventsAreSentAgain) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  std::vector<v1::AgentMessage> unsent = Up(machine_.OnRankMessage(1, Event("peer_failed")));
  for (auto& message : Up(machine_.OnRankClosed(1, "gone"))) unsent.push_back(message);
  machine_.OnControllerLost(unsent);
  said_ = Up(machine_.OnControllerConnected());
  ASSERT_EQ(said_.size(), 3u);
  EXPECT_EQ(said_[1].rank().message().event().kind(), "peer_failed");
  EXPECT_TRUE(said_[2].has_rank_gone());
  Reconnect();
  EXPECT_EQ(said_.size(), 1u);  // once only
}

TEST_F(PlanSubscriptionTest, UndeliveredMessagesAreBounded) {
  (void)machine_.OnRankMessage(1, Hello(0));
  for (int i = 0; i < 1000; ++i) (void)machine_.OnRankMessage(1, Event(StrCat("event-", i)));
  said_ = Up(machine_.OnControllerConnected());
  EXPECT_EQ(said_.size(), 2u + 256u);
  EXPECT_EQ(said_.back().rank().message().event().kind(), "event-999");
  EXPECT_EQ(machine_.counters().undelivered_dropped, 744u);
}

TEST_F(PlanSubscriptionTest, TelemetryIsNotKeptForLater) {
  (void)machine_.OnRankMessage(1, Hello(0));
  for (int i = 0; i < 100; ++i) (void)machine_.OnRankMessage(1, Step(i, 0));
  said_ = Up(machine_.OnControllerConnected());
  EXPECT_EQ(said_.size(), 2u);
  EXPECT_EQ(said_[1].rank().message().hello().step(), 99u);
}

TEST_F(PlanSubscriptionTest, MessageOfAnUnknownKindIsIgnoredAfterHello) {
  (void)machine_.OnControllerConnected();
  (void)machine_.OnRankMessage(1, Hello(0));
  EXPECT_TRUE(machine_.OnRankMessage(1, v1::RankMessage()).empty());
  EXPECT_EQ(machine_.counters().unknown_messages, 1u);
  EXPECT_EQ(machine_.rank_count(), 1u);
}

// Random events: a forwarded answer always matches the open offer of its rank, and a reconnect
// always reports exactly the attached ranks with their active plans.
TEST(PlanSubscriptionPropertyTest, RandomEventsKeepTheInvariants) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    PlanSubscription machine(Node());
    struct Model {
      ConnectionId connection = 0;
      uint64_t active = 0;
      uint64_t offered = 0;
    };
    std::map<uint32_t, Model> model;
    bool connected = false;
    ConnectionId next_connection = 1;
    uint64_t next_version = 1;
    for (int i = 0; i < 300; ++i) {
      const auto rank = static_cast<uint32_t>(random.Below(4));
      const auto found = model.find(rank);
      switch (random.Below(7)) {
        case 0: {
          (void)machine.OnRankMessage(next_connection,
                                      Hello(rank, found == model.end() ? 0 : found->second.active));
          const uint64_t active = found == model.end() ? 0 : found->second.active;
          model[rank] = {next_connection++, active, 0};
          break;
        }
        case 1:
          if (found == model.end()) break;
          (void)machine.OnRankClosed(found->second.connection, "x");
          model.erase(found);
          break;
        case 2: {
          if (!connected) break;
          const uint64_t version = next_version++;
          const Effects effects = machine.OnCommand(Offer(rank, version, StrCat("n", version)));
          EXPECT_EQ(Down(effects).size(), found == model.end() ? 0u : 1u) << seed;
          if (found != model.end()) found->second.offered = version;
          break;
        }
        case 3: {
          if (found == model.end()) break;
          const uint64_t version = random.Below(next_version + 1);
          for (const auto& up : Up(machine.OnRankMessage(found->second.connection,
                                                         Ack(version, StrCat("n", version))))) {
            EXPECT_EQ(up.rank().message().ack().version(), found->second.offered) << seed;
            EXPECT_TRUE(connected) << seed;
          }
          break;
        }
        case 4:
          if (found == model.end() || found->second.offered == 0) break;
          found->second.active = found->second.offered;
          (void)machine.OnRankMessage(found->second.connection, Active(found->second.active, 1));
          break;
        case 5:
          machine.OnControllerLost({});
          connected = false;
          break;
        case 6: {
          if (connected) break;
          connected = true;
          std::map<uint32_t, uint64_t> said;
          for (const auto& up : Up(machine.OnControllerConnected())) {
            if (up.has_rank() && up.rank().message().has_hello()) {
              said[up.rank().rank()] = up.rank().message().hello().active_plan_version();
            }
            if (up.has_rank_gone()) {
              EXPECT_FALSE(model.contains(up.rank_gone().rank())) << seed;
            }
          }
          std::map<uint32_t, uint64_t> expected;
          for (const auto& [r, m] : model) expected[r] = m.active;
          EXPECT_EQ(said, expected) << seed;
          break;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir::agent
