// SPDX-License-Identifier: Apache-2.0
// Scenarios of plan activation, then thousands of random ones against simulated ranks.

#include "controller/rollout/rollout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "datapath/base/random.h"

namespace weir {
namespace {

using Kind = RolloutMessage::Kind;
using LogKind = PlanLogEntry::Kind;

class RolloutTest : public testing::Test {
 protected:
  void ConnectAll(uint64_t version = 0) {
    for (int rank = 0; rank < 3; ++rank) rollout_.OnRankConnected(rank, version);
    rollout_.TakeMessages();
    rollout_.TakeLog();
  }
  void AckAll(uint64_t version, const std::string& nonce) {
    for (int rank = 0; rank < 3; ++rank) rollout_.OnAck(rank, version, nonce);
  }
  std::vector<LogKind> LogKinds() {
    std::vector<LogKind> kinds;
    for (const auto& entry : rollout_.TakeLog()) kinds.push_back(entry.kind);
    return kinds;
  }
  int Count(const std::vector<RolloutMessage>& messages, Kind kind) {
    return static_cast<int>(std::count_if(messages.begin(), messages.end(),
                                          [&](const auto& m) { return m.kind == kind; }));
  }

  FakeClock clock_;
  Rollout rollout_{3, clock_};
};

TEST_F(RolloutTest, OffersToAllThenArmsRankZeroOnlyThenBecomesStable) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  const auto offers = rollout_.TakeMessages();
  ASSERT_EQ(offers.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(offers[rank], (RolloutMessage{Kind::kOffer, rank, 1, "n1", "d1"}));
  }
  rollout_.OnAck(0, 1, "n1");
  rollout_.OnAck(2, 1, "n1");
  EXPECT_TRUE(rollout_.TakeMessages().empty()) << "armed before every ack";
  rollout_.OnAck(1, 1, "n1");
  const auto arm = rollout_.TakeMessages();
  ASSERT_EQ(arm.size(), 1u);
  EXPECT_EQ(arm[0], (RolloutMessage{Kind::kArm, 0, 1, "", ""}));
  EXPECT_EQ(rollout_.state(), RolloutState::kArmed);
  rollout_.OnActive(0, 1, 7);
  rollout_.OnActive(1, 1, 7);
  EXPECT_EQ(rollout_.active_version(), 0u);
  rollout_.OnActive(2, 1, 7);
  EXPECT_EQ(rollout_.state(), RolloutState::kStable);
  EXPECT_EQ(rollout_.active_version(), 1u);
  const auto log = rollout_.TakeLog();
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[2].kind, LogKind::kActive);
  EXPECT_EQ(log[2].step, 7u);
}

TEST_F(RolloutTest, NackWithdrawsAndBacksOff) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  rollout_.TakeMessages();
  rollout_.OnAck(0, 1, "n1");
  rollout_.OnNack(1, 1, "n1", "unknown codec 'x'");
  const auto messages = rollout_.TakeMessages();
  EXPECT_EQ(Count(messages, Kind::kWithdraw), 3);
  EXPECT_EQ(Count(messages, Kind::kArm), 0);
  EXPECT_EQ(rollout_.state(), RolloutState::kStable);
  EXPECT_EQ(rollout_.active_version(), 0u);
  EXPECT_THAT(LogKinds(),
              testing::ElementsAre(LogKind::kOffered, LogKind::kNacked, LogKind::kWithdrawn));
  const Status refused = rollout_.Offer(2, "n2", "d2");
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), testing::HasSubstr("back-off"));
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(rollout_.Offer(2, "n2", "d2").ok());
  rollout_.OnNack(0, 2, "n2", "again");
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_FALSE(rollout_.CanOffer().ok()) << "the back-off must double";
  rollout_.ClearBackoff();
  EXPECT_TRUE(rollout_.CanOffer().ok());
}

TEST_F(RolloutTest, StaleNonceAndStrangersAreIgnored) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  AckAll(1, "other");
  AckAll(2, "n1");
  rollout_.OnNack(1, 1, "other", "stale");
  rollout_.OnAck(-1, 1, "n1");
  rollout_.OnAck(3, 1, "n1");
  EXPECT_EQ(rollout_.state(), RolloutState::kOffered);
  AckAll(1, "n1");
  AckAll(1, "n1");
  EXPECT_EQ(rollout_.state(), RolloutState::kArmed);
  EXPECT_EQ(Count(rollout_.TakeMessages(), Kind::kArm), 1);
}

TEST_F(RolloutTest, SilentRankTimesOutByName) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  rollout_.OnAck(0, 1, "n1");
  rollout_.OnAck(1, 1, "n1");
  clock_.Advance(std::chrono::seconds(9));
  rollout_.OnTick();
  EXPECT_EQ(rollout_.state(), RolloutState::kOffered);
  clock_.Advance(std::chrono::seconds(1));
  rollout_.OnTick();
  EXPECT_EQ(rollout_.state(), RolloutState::kStable);
  EXPECT_THAT(rollout_.TakeLog().back().detail, testing::HasSubstr("from rank 2"));
  rollout_.OnAck(2, 1, "n1");
  EXPECT_EQ(rollout_.state(), RolloutState::kStable) << "a late ack revived a withdrawn plan";
}

TEST_F(RolloutTest, LosingARankMidOfferWithdrawsAndTheReturningRankIsTold) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  AckAll(1, "wrong");
  rollout_.TakeMessages();
  rollout_.OnRankLost(1, "stream closed");
  const auto messages = rollout_.TakeMessages();
  EXPECT_EQ(Count(messages, Kind::kWithdraw), 2);
  EXPECT_EQ(Message(rollout_.CanOffer()), "rank 1 is missing");
  rollout_.OnRankConnected(1, 0);
  const auto told = rollout_.TakeMessages();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], (RolloutMessage{Kind::kWithdraw, 1, 1, "", ""}));
}

TEST_F(RolloutTest, ReconnectGetsTheSameOfferAndRankZeroTheArmAgain) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  rollout_.TakeMessages();
  rollout_.OnRankConnected(2, 0);
  auto told = rollout_.TakeMessages();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], (RolloutMessage{Kind::kOffer, 2, 1, "n1", "d1"}));
  AckAll(1, "n1");
  rollout_.TakeMessages();
  rollout_.OnRankLost(0, "agent restarted");
  EXPECT_EQ(rollout_.state(), RolloutState::kArmed) << "an armed plan cannot be withdrawn";
  EXPECT_EQ(Count(rollout_.TakeMessages(), Kind::kWithdraw), 0);
  rollout_.OnRankConnected(0, 0);
  told = rollout_.TakeMessages();
  EXPECT_EQ(Count(told, Kind::kOffer), 1);
  EXPECT_EQ(Count(told, Kind::kArm), 1);
}

TEST_F(RolloutTest, ReconnectedRankThatAlreadyRunsThePlanCounts) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  AckAll(1, "n1");
  rollout_.OnRankLost(1, "agent restarted");
  rollout_.OnActive(0, 1, 5);
  rollout_.OnRankConnected(1, 1);
  rollout_.OnActive(2, 1, 5);
  EXPECT_EQ(rollout_.state(), RolloutState::kStable);
  EXPECT_EQ(rollout_.active_version(), 1u);
}

TEST_F(RolloutTest, UnansweredArmIsRepeated) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  AckAll(1, "n1");
  rollout_.TakeMessages();
  clock_.Advance(std::chrono::seconds(5));
  rollout_.OnTick();
  EXPECT_EQ(Count(rollout_.TakeMessages(), Kind::kArm), 1);
  rollout_.OnTick();
  EXPECT_TRUE(rollout_.TakeMessages().empty());
}

TEST_F(RolloutTest, RestartedControllerLearnsFromRanksAndNumbersAbove) {
  rollout_.ObserveVersion(9);
  rollout_.OnRankConnected(0, 6);
  rollout_.OnRankConnected(1, 6);
  EXPECT_FALSE(rollout_.CanOffer().ok());
  rollout_.OnRankConnected(2, 6);
  EXPECT_EQ(rollout_.active_version(), 6u);
  EXPECT_TRUE(rollout_.CanOffer().ok());
  EXPECT_EQ(rollout_.Offer(9, "n", "d").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(rollout_.Offer(10, "n", "d").ok());
}

TEST_F(RolloutTest, RestartBetweenArmAndActivationWaitsForTheSwap) {
  rollout_.OnRankConnected(0, 7);
  rollout_.OnRankConnected(1, 6);
  rollout_.OnRankConnected(2, 6);
  EXPECT_FALSE(rollout_.CanOffer().ok()) << "ranks disagree";
  rollout_.OnActive(1, 7, 31);
  rollout_.OnActive(2, 7, 31);
  EXPECT_EQ(rollout_.active_version(), 7u);
  EXPECT_TRUE(rollout_.CanOffer().ok());
}

TEST_F(RolloutTest, OneRolloutAtATime) {
  ConnectAll();
  ASSERT_TRUE(rollout_.Offer(1, "n1", "d1").ok());
  EXPECT_THAT(Message(rollout_.Offer(2, "n2", "d2")),
              testing::HasSubstr("plan 1 is still offered"));
}

// A rank as the session implements it: prepares offers, swaps when rank 0's frames say so.
struct SimulatedRank {
  uint64_t active = 0;
  uint64_t prepared = 0;
  uint64_t armed = 0;
  uint64_t highest_offer = 0;
  bool connected = true;
};

// Control messages may be late, duplicated and reordered; a lost connection drops messages in
// transit.
class Simulation {
 public:
  Simulation(uint64_t seed, int world) : random_(seed), ranks_(world), rollout_(world, clock_) {
    for (int rank = 0; rank < world; ++rank) rollout_.OnRankConnected(rank, 0);
  }

  void Run(int rounds) {
    for (int round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
      if (random_.Below(4) == 0 && rollout_.CanOffer().ok()) {
        const uint64_t version = rollout_.highest_version() + 1;
        ASSERT_TRUE(rollout_.Offer(version, StrCat("n", version), "d").ok());
      }
      Collect();
      Deliver();
      if (random_.Below(3) == 0) TrainingStep();
      if (random_.Below(60) == 0) Disconnect();
      if (random_.Below(6) == 0) Reconnect();
      if (random_.Below(400) == 0) RestartController();
      clock_.Advance(std::chrono::milliseconds(random_.Below(300)));
      rollout_.OnTick();
    }
  }

  // On a quiet network all ranks end on one plan.
  void Settle() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ReconnectRank(static_cast<int>(rank));
    for (int round = 0; round < 400; ++round) {
      Collect();
      while (!to_ranks_.empty() || !from_ranks_.empty()) Deliver(), Collect();
      TrainingStep();
      clock_.Advance(std::chrono::milliseconds(500));
      rollout_.OnTick();
    }
    EXPECT_EQ(rollout_.state(), RolloutState::kStable);
    for (const auto& rank : ranks_) EXPECT_EQ(rank.active, rollout_.active_version());
    EXPECT_TRUE(rollout_.CanOffer().ok()) << Message(rollout_.CanOffer());
  }

  int switches() const { return switches_; }

 private:
  struct Reply {
    enum Kind { kAck, kNack, kActive } kind;
    int rank;
    uint64_t version;
    std::string nonce;
  };

  void Collect() {
    for (auto& message : rollout_.TakeMessages()) {
      if (!ranks_[message.rank].connected) continue;
      if (random_.Below(8) == 0) to_ranks_.push_back(message);
      to_ranks_.push_back(std::move(message));
    }
    rollout_.TakeLog();
  }

  void Deliver() {
    for (int count = static_cast<int>(random_.Below(4)); count > 0 && !to_ranks_.empty(); --count) {
      const size_t at = random_.Below(to_ranks_.size());
      const RolloutMessage message = to_ranks_[at];
      to_ranks_.erase(to_ranks_.begin() + static_cast<long>(at));
      ToRank(message);
    }
    for (int count = static_cast<int>(random_.Below(4)); count > 0 && !from_ranks_.empty();
         --count) {
      const size_t at = random_.Below(from_ranks_.size());
      const Reply reply = from_ranks_[at];
      if (random_.Below(8) != 0) from_ranks_.erase(from_ranks_.begin() + static_cast<long>(at));
      if (reply.kind == Reply::kAck) rollout_.OnAck(reply.rank, reply.version, reply.nonce);
      if (reply.kind == Reply::kNack) rollout_.OnNack(reply.rank, reply.version, reply.nonce, "no");
      if (reply.kind == Reply::kActive) rollout_.OnActive(reply.rank, reply.version, step_);
    }
  }

  void ToRank(const RolloutMessage& message) {
    SimulatedRank& rank = ranks_[message.rank];
    if (!rank.connected) return;
    if (message.kind == Kind::kArm) {
      ASSERT_EQ(message.rank, 0) << "only rank 0 is armed";
      if (rank.prepared == message.version) rank.armed = message.version;
    } else if (message.kind == Kind::kWithdraw) {
      ASSERT_NE(rank.armed, message.version) << "withdrawn after the arm";
      if (rank.prepared == message.version) rank.prepared = 0;
    } else {
      if (message.version <= rank.active || message.version < rank.highest_offer) return;
      rank.highest_offer = message.version;
      if (random_.Below(12) == 0) {
        from_ranks_.push_back({Reply::kNack, message.rank, message.version, message.nonce});
        return;
      }
      rank.prepared = message.version;
      from_ranks_.push_back({Reply::kAck, message.rank, message.version, message.nonce});
    }
  }

  // Every rank finishes the step, so all learn rank 0's stamp, and all swap together.
  void TrainingStep() {
    ++step_;
    const uint64_t version = ranks_[0].armed;
    if (version == 0) return;
    ranks_[0].armed = 0;
    ++switches_;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ASSERT_EQ(ranks_[rank].prepared, version)
          << "rank " << rank << " must swap to a plan that it does not hold, step " << step_;
      ranks_[rank].active = version;
      ranks_[rank].prepared = 0;
      if (ranks_[rank].connected) {
        from_ranks_.push_back({Reply::kActive, static_cast<int>(rank), version, ""});
      }
    }
  }

  void Disconnect() {
    const int rank = static_cast<int>(random_.Below(ranks_.size()));
    if (!ranks_[rank].connected) return;
    ranks_[rank].connected = false;
    std::erase_if(to_ranks_, [&](const auto& m) { return m.rank == rank; });
    std::erase_if(from_ranks_, [&](const auto& m) { return m.rank == rank; });
    rollout_.OnRankLost(rank, "cut");
  }

  void Reconnect() { ReconnectRank(static_cast<int>(random_.Below(ranks_.size()))); }

  void ReconnectRank(int rank) {
    if (ranks_[rank].connected) return;
    ranks_[rank].connected = true;
    rollout_.OnRankConnected(rank, ranks_[rank].active);
  }

  // Only between rollouts: an armed plan at a restart needs the ranks' own ordering rule.
  void RestartController() {
    if (rollout_.state() != RolloutState::kStable) return;
    const uint64_t highest = rollout_.highest_version();
    to_ranks_.clear();
    from_ranks_.clear();
    rollout_.~Rollout();
    new (&rollout_) Rollout(static_cast<int>(ranks_.size()), clock_);
    rollout_.ObserveVersion(highest);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].connected = true;
      rollout_.OnRankConnected(static_cast<int>(rank), ranks_[rank].active);
    }
  }

  Random random_;
  FakeClock clock_;
  std::vector<SimulatedRank> ranks_;
  Rollout rollout_;
  std::deque<RolloutMessage> to_ranks_;
  std::deque<Reply> from_ranks_;
  uint64_t step_ = 0;
  int switches_ = 0;
};

TEST(RolloutSimulationTest, RandomRunsNeverMixPlansAndAlwaysSettle) {
  int switches = 0;
  for (uint64_t seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Simulation simulation(seed, 1 + static_cast<int>(seed % 7));
    simulation.Run(400);
    simulation.Settle();
    switches += simulation.switches();
  }
  EXPECT_GE(switches, 1000) << "too few switches for the test to mean anything";
}

}  // namespace
}  // namespace weir
