// SPDX-License-Identifier: Apache-2.0
// The activation state machine, message by message.

#include "datapath/plan/plan_activation.h"

#include <gtest/gtest.h>

#include "tests/datapath/plan/activation_reply.h"

namespace weir {
namespace {

std::shared_ptr<const Plan> PlanOf(uint64_t version, const char* codec = "identity") {
  Plan plan;
  plan.version = version;
  plan.fallback.codec = codec;
  return std::make_shared<const Plan>(plan);
}

PlanActivation Rank(int rank, int world = 2) {
  return PlanActivation(rank, world, std::make_shared<const Plan>());
}

bool Acked(const ActivationReply& reply) { return std::holds_alternative<PlanAck>(reply); }

TEST(PlanActivationTest, OfferArmAnnounceSwap) {
  PlanActivation zero = Rank(0), one = Rank(1);
  zero.BeginStep(0);
  one.BeginStep(0);
  EXPECT_EQ(std::get<PlanAck>(zero.OnOffer(PlanOf(5), "n", OkStatus())), (PlanAck{5, "n"}));
  EXPECT_TRUE(Acked(one.OnOffer(PlanOf(5), "m", OkStatus())));
  EXPECT_FALSE(zero.OnArm(5).has_value());
  // Armed within step 0: announced only from the next step's begin on.
  EXPECT_EQ(zero.announced(), ControlWord{});
  EXPECT_TRUE(zero.OnOperationDone({}).ok());
  EXPECT_FALSE(zero.BeginStep(1).has_value());
  EXPECT_FALSE(one.BeginStep(1).has_value());
  const ControlWord word{5, 2};
  EXPECT_EQ(zero.announced(), word);
  EXPECT_TRUE(zero.OnOperationDone(word).ok());
  EXPECT_TRUE(one.OnOperationDone(word).ok());
  EXPECT_EQ(one.announced(), word);  // rides along on what this rank sends from now on
  EXPECT_EQ(zero.active()->version, 0u);
  EXPECT_EQ(zero.BeginStep(2), (PlanActive{5, 2}));
  EXPECT_EQ(one.BeginStep(2), (PlanActive{5, 2}));
  EXPECT_EQ(one.active()->version, 5u);
  EXPECT_EQ(zero.announced(), ControlWord{});
}

TEST(PlanActivationTest, WorldOfOneSwitchesAtTheNextStep) {
  PlanActivation rank = Rank(0, 1);
  rank.OnOffer(PlanOf(1), "n", OkStatus());
  rank.OnArm(1);
  rank.BeginStep(0);
  EXPECT_EQ(rank.BeginStep(1), (PlanActive{1, 1}));
}

TEST(PlanActivationTest, InvalidAndStaleOffersAreNacked) {
  PlanActivation rank = Rank(1);
  EXPECT_EQ(NackOf(rank.OnOffer(PlanOf(3), "n", NotFound("unknown codec"))),
            "NOT_FOUND: unknown codec");
  EXPECT_EQ(rank.held_count(), 0u);
  rank.OnOffer(PlanOf(3), "n", OkStatus());
  rank.BeginStep(0);
  ASSERT_TRUE(rank.OnOperationDone({3, 1}).ok());
  rank.BeginStep(1);
  EXPECT_NE(NackOf(rank.OnOffer(PlanOf(2), "n", OkStatus())).find("not above 3"),
            std::string::npos);
  EXPECT_TRUE(Acked(rank.OnOffer(PlanOf(3), "again", OkStatus())));
  EXPECT_NE(NackOf(rank.OnOffer(PlanOf(3, "fp16"), "n", OkStatus())), "");
}

TEST(PlanActivationTest, AVersionNeverChangesItsContent) {
  PlanActivation rank = Rank(1);
  EXPECT_TRUE(Acked(rank.OnOffer(PlanOf(3), "a", OkStatus())));
  EXPECT_TRUE(Acked(rank.OnOffer(PlanOf(3), "b", OkStatus())));  // the same once more
  EXPECT_NE(NackOf(rank.OnOffer(PlanOf(3, "fp16"), "c", OkStatus())).find("digest"),
            std::string::npos);
}

TEST(PlanActivationTest, OnlyRankZeroObeysAnArmAndOnlyForWhatItHolds) {
  PlanActivation one = Rank(1), zero = Rank(0);
  one.OnOffer(PlanOf(1), "n", OkStatus());
  one.OnArm(1);
  one.BeginStep(0);
  EXPECT_EQ(one.announced(), ControlWord{});
  zero.OnArm(1);  // before its offer: stale or bogus, for this rank has not acked
  zero.OnOffer(PlanOf(1), "n", OkStatus());
  zero.BeginStep(0);
  EXPECT_EQ(zero.announced(), ControlWord{});
}

TEST(PlanActivationTest, ARepeatedArmAfterTheSwapReportsItAgain) {
  PlanActivation zero = Rank(0, 1);
  zero.OnOffer(PlanOf(1), "n", OkStatus());
  zero.OnArm(1);
  zero.BeginStep(0);
  zero.BeginStep(1);
  const auto reply = zero.OnArm(1);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(std::get<PlanActive>(*reply), (PlanActive{1, 1}));
  zero.BeginStep(2);
  EXPECT_EQ(zero.announced(), ControlWord{});
}

TEST(PlanActivationTest, WithdrawBeforeTheAnnouncementDisarms) {
  PlanActivation zero = Rank(0);
  zero.OnOffer(PlanOf(1), "n", OkStatus());
  zero.OnArm(1);
  zero.OnWithdraw(1);
  zero.BeginStep(0);
  EXPECT_EQ(zero.announced(), ControlWord{});
  EXPECT_EQ(zero.held_count(), 0u);
}

TEST(PlanActivationTest, WithdrawAfterTheAnnouncementComesTooLateEverywhere) {
  PlanActivation zero = Rank(0), one = Rank(1);
  for (PlanActivation* rank : {&zero, &one}) rank->OnOffer(PlanOf(1), "n", OkStatus());
  zero.OnArm(1);
  zero.BeginStep(0);
  one.BeginStep(0);
  zero.OnWithdraw(1);
  one.OnWithdraw(1);
  EXPECT_TRUE(zero.OnOperationDone({1, 1}).ok());
  EXPECT_TRUE(one.OnOperationDone({1, 1}).ok());
  EXPECT_TRUE(zero.BeginStep(1).has_value());
  EXPECT_TRUE(one.BeginStep(1).has_value());
}

TEST(PlanActivationTest, ANewerOfferReplacesButDoesNotForget) {
  PlanActivation zero = Rank(0), one = Rank(1);
  for (PlanActivation* rank : {&zero, &one}) rank->OnOffer(PlanOf(1), "n", OkStatus());
  zero.OnArm(1);
  for (PlanActivation* rank : {&zero, &one}) rank->BeginStep(0);
  for (PlanActivation* rank : {&zero, &one}) rank->OnOffer(PlanOf(2), "n", OkStatus());
  for (PlanActivation* rank : {&zero, &one}) {
    EXPECT_TRUE(rank->OnOperationDone({1, 1}).ok());
    EXPECT_EQ(rank->BeginStep(1), (PlanActive{1, 1}));
  }
  zero.OnArm(2);
  zero.BeginStep(2);
  EXPECT_EQ(zero.announced(), (ControlWord{2, 3}));
}

TEST(PlanActivationTest, ALateOfferOfAnOlderPlanDoesNotDisarmTheNewer) {
  PlanActivation zero = Rank(0);
  zero.OnOffer(PlanOf(1), "n", OkStatus());
  zero.OnOffer(PlanOf(2), "n", OkStatus());
  zero.OnArm(2);
  EXPECT_TRUE(Acked(zero.OnOffer(PlanOf(1), "n", OkStatus())));
  zero.OnArm(1);  // replaced: ignored
  zero.BeginStep(0);
  EXPECT_EQ(zero.announced(), (ControlWord{2, 1}));
}

TEST(PlanActivationTest, AStepWithoutOperationsAnnouncesAgainUnlessWithdrawn) {
  for (const bool withdrawn : {false, true}) {
    PlanActivation zero = Rank(0);
    zero.OnOffer(PlanOf(1), "n", OkStatus());
    zero.OnArm(1);
    zero.BeginStep(0);
    if (withdrawn) zero.OnWithdraw(1);
    EXPECT_FALSE(zero.BeginStep(1).has_value());
    EXPECT_EQ(zero.announced(), withdrawn ? ControlWord{} : (ControlWord{1, 2}));
  }
}

TEST(PlanActivationTest, WordsThatCannotBeObeyedAreErrors) {
  PlanActivation one = Rank(1);
  one.OnOffer(PlanOf(4), "n", OkStatus());
  one.BeginStep(7);
  const Status unknown = one.OnOperationDone({5, 8});
  EXPECT_EQ(unknown.code(), StatusCode::kInternal);
  EXPECT_NE(Message(unknown).find("plan 5"), std::string::npos);
  EXPECT_NE(Message(unknown).find("does not hold"), std::string::npos);
  EXPECT_EQ(one.OnOperationDone({4, 10}).code(), StatusCode::kInternal);
  EXPECT_TRUE(one.OnOperationDone({4, 8}).ok());
  EXPECT_EQ(one.OnOperationDone({}).code(), StatusCode::kInternal);
  PlanActivation zero = Rank(0);
  zero.OnOffer(PlanOf(4), "n", OkStatus());
  zero.BeginStep(0);
  EXPECT_EQ(zero.OnOperationDone({4, 1}).code(), StatusCode::kInternal);
}

TEST(PlanActivationTest, HeldPlansAreBoundedAndTheAnnouncedOneStays) {
  PlanActivation one = Rank(1);
  one.OnOffer(PlanOf(1), "n", OkStatus());
  one.BeginStep(0);
  ASSERT_TRUE(one.OnOperationDone({1, 1}).ok());
  for (uint64_t version = 2; version < 200; ++version) {
    EXPECT_TRUE(Acked(one.OnOffer(PlanOf(version), "n", OkStatus())));
    EXPECT_LE(one.held_count(), kHeldPlansMax);
  }
  EXPECT_EQ(one.BeginStep(1), (PlanActive{1, 1}));
}

}  // namespace
}  // namespace weir
