// SPDX-License-Identifier: Apache-2.0
// Leases: the plan to which a job switches when no rank hears from the controller. The tests run
// message by message first and then with whole sessions.

#include <gmock/gmock.h>

#include <thread>

#include "datapath/session/session.h"
#include "tests/datapath/plan/activation_reply.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing::SessionWorld;
using testing::UniformPlan;

std::shared_ptr<const Plan> LeasedPlan(uint64_t version, const char* codec = "fp16") {
  Plan plan;
  plan.version = version;
  plan.fallback.codec = codec;
  return std::make_shared<const Plan>(plan);
}
std::shared_ptr<const Plan> Dense(uint64_t version) { return LeasedPlan(version, "identity"); }

// Ranks 0 and 1 run plan 1, whose lease plan is 2.
class LeaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (PlanActivation* rank : {&zero_, &one_}) {
      EXPECT_EQ(NackOf(rank->OnOffer(LeasedPlan(1), "n", OkStatus(), Dense(2))), "");
    }
    zero_.OnArm(1);
    Step();
    Step();
    ASSERT_EQ(zero_.active()->version, 1u);
  }
  // Runs a step of both ranks, with an operation that carries rank 0's control word.
  void Step(bool expired = false) {
    zero_.BeginStep(step_, expired);
    one_.BeginStep(step_, false);
    ++step_;
    const ControlWord word = zero_.announced();
    for (PlanActivation* rank : {&zero_, &one_}) {
      const Status done = rank->OnOperationDone(word);
      EXPECT_TRUE(done.ok()) << ToString(done);
    }
    EXPECT_EQ(zero_.active()->version, one_.active()->version);
  }

  PlanActivation zero_{0, 2, std::make_shared<const Plan>()};
  PlanActivation one_{1, 2, std::make_shared<const Plan>()};
  uint64_t step_ = 0;
};

TEST_F(LeaseTest, WhenItRunsOutEveryRankSwapsToItsPlanAtTheSameStep) {
  Step(true);
  EXPECT_EQ(zero_.announced(), (ControlWord{2, step_}));
  EXPECT_EQ(zero_.active()->version, 1u);
  Step(true);
  EXPECT_EQ(zero_.active()->version, 2u);
  EXPECT_EQ(one_.active()->fallback.codec, "identity");
  EXPECT_EQ(zero_.announced(), ControlWord{}) << "the lease plan itself has no lease";
  EXPECT_EQ(one_.lease_plan(), nullptr);
  // The controller is back and continues with a version above both.
  for (PlanActivation* rank : {&zero_, &one_}) {
    EXPECT_EQ(NackOf(rank->OnOffer(LeasedPlan(3), "n", OkStatus(), Dense(4))), "");
  }
  zero_.OnArm(3);
  Step();
  Step();
  EXPECT_EQ(one_.active()->version, 3u);
  EXPECT_EQ(one_.lease_plan()->version, 4u);
}

TEST_F(LeaseTest, OnlyRankZeroAnnouncesAndOnlyWhatIsPromised) {
  one_.BeginStep(step_, true);
  EXPECT_EQ(one_.announced(), ControlWord{});
  PlanActivation bare(0, 2, LeasedPlan(5));
  bare.BeginStep(0, true);
  EXPECT_EQ(bare.announced(), ControlWord{});
}

TEST_F(LeaseTest, ThePlanStaysHeldWhateverElseIsOffered) {
  for (uint64_t version = 3; version < 3 + 2 * kHeldPlansMax; version += 2) {
    for (PlanActivation* rank : {&zero_, &one_}) {
      EXPECT_EQ(NackOf(rank->OnOffer(LeasedPlan(version), "n", OkStatus(), Dense(version + 1))),
                "");
      rank->OnWithdraw(version);
      rank->OnWithdraw(2);
    }
  }
  Step(true);
  Step();
  EXPECT_EQ(one_.active()->version, 2u);
}

TEST_F(LeaseTest, AnArmedPlanGoesFirst) {
  for (PlanActivation* rank : {&zero_, &one_})
    rank->OnOffer(LeasedPlan(3), "n", OkStatus(), Dense(4));
  zero_.OnArm(3);
  Step(true);
  EXPECT_EQ(zero_.announced().version, 3u);
  Step(false);
  EXPECT_EQ(one_.active()->version, 3u);
  // A plan is armed after the lease plan was announced. The lease plan comes first, then that plan.
  for (PlanActivation* rank : {&zero_, &one_})
    rank->OnOffer(LeasedPlan(5), "n", OkStatus(), Dense(6));
  Step(true);
  zero_.OnArm(5);
  Step(true);
  EXPECT_EQ(one_.active()->version, 4u);
  EXPECT_EQ(zero_.announced().version, 5u);
  Step(true);
  EXPECT_EQ(one_.active()->version, 5u);
}

TEST_F(LeaseTest, AnnouncedInAStepWithoutOperationsItMayStillBeRenewed) {
  zero_.BeginStep(step_++, true);
  EXPECT_EQ(zero_.announced().version, 2u);
  zero_.BeginStep(step_++, true);  // no rank has seen it, so it is announced again
  EXPECT_EQ(zero_.announced(), (ControlWord{2, step_}));
  zero_.BeginStep(step_++, false);
  EXPECT_EQ(zero_.announced(), ControlWord{});
  EXPECT_EQ(zero_.active()->version, 1u);
}

TEST_F(LeaseTest, AVersionStandsForOneContent) {
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(2), "n", OkStatus())), HasSubstr("promised"));
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(3), "n", OkStatus(), Dense(2))), HasSubstr("is held"));
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(3), "n", OkStatus(), Dense(3))), HasSubstr("above 3"));
  EXPECT_EQ(NackOf(one_.OnOffer(LeasedPlan(3), "n", OkStatus(), Dense(4))), "");
  EXPECT_EQ(NackOf(one_.OnOffer(LeasedPlan(3), "m", OkStatus(), Dense(4))), "") << "a repetition";
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(3), "n", OkStatus(), Dense(5))), HasSubstr("digest"));
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(3), "n", OkStatus())), HasSubstr("digest"));
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(4), "n", OkStatus())), HasSubstr("promised"));
  EXPECT_THAT(NackOf(one_.OnOffer(LeasedPlan(5), "n", OkStatus(), Dense(4))), HasSubstr("is held"));
  EXPECT_EQ(NackOf(one_.OnOffer(LeasedPlan(1), "n", OkStatus(), Dense(2))), "") << "the active one";
}

// --- Whole sessions

Choice TopK() {
  Choice choice;
  choice.codec = "top_k";
  choice.collective = "sparse_all_gather";
  choice.ratio = 0.1;
  return choice;
}

class LeasedWorldTest : public ::testing::Test {
 protected:
  LeasedWorldTest() : job_({.world = 3, .transport = "inproc", .lease_min_s = 0.02}) {
    job_.Up();
    key_ = job_.Define({{"p", 100}});
    const Plan plan = UniformPlan(7, TopK());
    for (auto& session : job_.sessions) {
      session->OnCommand(PlanOffer{7, "n", plan, UniformPlan(8, DenseChoice())});
    }
    job_.sessions[0]->OnCommand(PlanArm{7});
    Step();
    Step();
  }
  // Returns the version that every rank runs in this step.
  uint64_t Step() {
    std::vector<std::vector<float>> data(3, std::vector<float>(100, 1.0f));
    job_.Begin();
    const uint64_t version = job_.sessions[0]->ActivePlan()->version;
    for (auto& session : job_.sessions) EXPECT_EQ(session->ActivePlan()->version, version);
    job_.AllReduce(key_, data);
    job_.End();
    return version;
  }
  static void Pause(double seconds) {
    const TimePoint end = testing::Within(seconds);
    while (RealClock().Now() < end) std::this_thread::yield();
  }

  SessionWorld job_;
  uint64_t key_ = 0;
};

TEST_F(LeasedWorldTest, WithoutAWordOfTheControllerAllRanksTurnDenseTogether) {
  EXPECT_EQ(Step(), 7u);
  job_.sessions[0]->OnCommand(PlanLease{0.02});
  EXPECT_EQ(job_.sessions[0]->Stance(), "keeping plan 7 for 0.02 s, then dense");
  Pause(0.03);
  EXPECT_EQ(Step(), 7u) << "this step carries the announcement";
  EXPECT_EQ(Step(), 8u);
  EXPECT_EQ(Step(), 8u);
  for (auto& port : job_.ports) {
    const auto active = port->All<PlanActive>();
    ASSERT_FALSE(active.empty());
    EXPECT_EQ(active.back().version, 8u);
  }
  const auto events = job_.ports[0]->All<RankEvent>();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().kind, "lease_expired");
  EXPECT_THAT(job_.sessions[1]->Stance(), HasSubstr("keeping plan 8"));
}

TEST_F(LeasedWorldTest, RenewalsOrNoBoundKeepThePlan) {
  job_.sessions[0]->OnCommand(PlanLease{0.02});
  Pause(0.03);
  job_.sessions[0]->OnCommand(PlanLease{1000});
  EXPECT_EQ(Step(), 7u);
  EXPECT_EQ(Step(), 7u);
  job_.sessions[0]->OnCommand(PlanLease{0});
  Pause(0.03);
  EXPECT_EQ(Step(), 7u);
  EXPECT_EQ(Step(), 7u);
  // Ranks other than 0 decide nothing.
  job_.sessions[1]->OnCommand(PlanLease{0.001});
  Pause(0.03);
  EXPECT_EQ(Step(), 7u);
  EXPECT_EQ(Step(), 7u);
}

TEST(LeaseOfferTest, ALeasePlanThatCannotRunIsNacked) {
  SessionWorld job({.world = 1, .transport = "inproc"});
  job.Up();
  Choice strange;
  strange.codec = "mystery";
  job.sessions[0]->OnCommand(PlanOffer{7, "n", UniformPlan(7, TopK()), UniformPlan(8, strange)});
  const auto nacks = job.ports[0]->All<PlanNack>();
  ASSERT_EQ(nacks.size(), 1u);
  EXPECT_THAT(nacks[0].reason, HasSubstr("lease plan"));
}

}  // namespace
}  // namespace weir
