// SPDX-License-Identifier: Apache-2.0
// One job's lease on an aggregator, from the request to its end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/fleet/aggregator_api.h"
#include "controller/job/job_lease.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobLeaseTest : public testing::Test, public LeaseHost {
 protected:
  void SetUp() override {
    Add("sum-1", 128);
    lease_.Begin(2);
    lease_.SetAddress(0, "10.0.0.1:5");
    lease_.SetAddress(1, "10.0.0.2:5");
    network_.world = 2;
    network_.latency_s.value = 1e-4;
    network_.bandwidth_bytes_per_s.value = 1e8;
  }
  AggregatorReport& Add(const std::string& name, uint32_t free) {
    AggregatorState& state = states_[name];
    state.said.name = name;
    state.said.reachable = true;
    state.said.shards = 1;
    state.said.slots_free_of_shard = free;
    state.said.slots_per_job = 512;
    state.said.leases_free = 4;
    state.said.lanes_max = 256;
    state.said.workers_max = 64;
    state.answered_at = state.since = clock_.Now();
    return state.said;
  }
  const AggregatorMap& aggregators() const override { return states_; }
  bool AskLease(const LeaseAsk& ask) override {
    asks_.push_back(ask);
    return true;
  }
  void EndLease(const std::string& aggregator, const std::string&, uint32_t epoch) override {
    ended_.push_back(StrCat(aggregator, " ", epoch));
  }

  CollectiveModel Describe() {
    CollectiveModel model;
    model.name = "switchml";
    model.needs_lease = true;
    lease_.Describe(network_, &model);
    return model;
  }
  std::string WhyNot() { return Describe().lease_why_not; }
  SlotGrant Granted(uint32_t epoch) {
    SlotGrant lease;
    lease.collective = "switchml";
    lease.aggregator = "sum-1";
    lease.epoch = epoch;
    lease.slots = 64;
    lease.lanes = 256;
    lease.cookie = "0123456789abcdef";
    return lease;
  }
  void Hold(uint32_t epoch) {
    lease_.Ask(network_, "switchml");
    ASSERT_TRUE(lease_.asking());
    lease_.OnAnswer(asks_.back().id, Granted(epoch));
    ASSERT_TRUE(lease_.held().has_value());
  }
  void Lists(uint32_t epoch) {
    AggregatorReport& said = states_["sum-1"].said;
    said.leases.clear();
    auto* one = &said.leases.emplace_back();
    one->job = "lm";
    one->epoch = epoch;
    one->workers.push_back("10.0.0.1:5");
    one->workers.push_back("10.0.0.2:5");
    clock_.Advance(std::chrono::milliseconds(1));
    states_["sum-1"].answered_at = clock_.Now();
  }

  FakeClock clock_;
  AggregatorMap states_;
  std::vector<LeaseAsk> asks_;
  std::vector<std::string> ended_;
  Snapshot network_;
  JobLease lease_{"lm", *this, clock_};
};

TEST_F(JobLeaseTest, SaysWhyThereIsNone) {
  EXPECT_TRUE(Describe().lease_available);
  EXPECT_EQ(WhyNot(), "");
  lease_.SetAddress(1, "");
  EXPECT_EQ(WhyNot(), "switchml: rank 1 gave no aggregation address");
  lease_.SetAddress(1, "10.0.0.1:5");
  EXPECT_EQ(WhyNot(), "switchml: ranks 0 and 1 gave the same aggregation address 10.0.0.1:5");
  lease_.SetAddress(1, std::string(100, 'x'));
  EXPECT_EQ(WhyNot(), "switchml: rank 1 gave no aggregation address");
  lease_.SetAddress(1, "10.0.0.2:5");
  states_["sum-1"].said.slots_free_of_shard = 12;
  EXPECT_EQ(WhyNot(), "switchml: no aggregator has 64 free slots (sum-1 has 12)");
  Add("sum-2", 500).leases_free = 0;
  EXPECT_EQ(WhyNot(),
            "switchml: no aggregator has 64 free slots (sum-1 has 12, sum-2 has no lease left)");
  states_.erase("sum-2");
  states_["sum-1"].said.workers_max = 1;
  EXPECT_EQ(WhyNot(), "switchml: no aggregator takes 2 workers (sum-1 takes 1)");
  states_["sum-1"].said.reachable = false;
  states_["sum-1"].said.error = "Connection";
  EXPECT_EQ(WhyNot(), "switchml: no aggregator is reachable (sum-1: Connection)");
  states_.clear();
  EXPECT_EQ(WhyNot(), "switchml: no aggregator is registered");
}

TEST_F(JobLeaseTest, AsksTheFreestForABandwidthDelayProduct) {
  Add("sum-2", 2000);
  Add("sum-3", 100);
  network_.latency_s.value = 1e-3;  // twice 200 kB in flight: 391 packets
  lease_.Ask(network_, "switchml");
  ASSERT_EQ(asks_.size(), 1u);
  EXPECT_EQ(asks_[0].aggregator, "sum-2");
  EXPECT_EQ(asks_[0].slots, 512u);
  EXPECT_EQ(asks_[0].lanes, 256u);
  EXPECT_EQ(asks_[0].mode, "sum");
  EXPECT_THAT(asks_[0].workers, ElementsAre("10.0.0.1:5", "10.0.0.2:5"));
  EXPECT_EQ(lease_.Waiting(), "waiting for sum-2 to grant 512 slots");
  lease_.Ask(network_, "switchml");
  EXPECT_EQ(asks_.size(), 1u) << "one at a time";
}

TEST_F(JobLeaseTest, AsksForBlocksInColumnsAsThePacketsHaveRoom) {
  lease_.Ask(network_, "omnireduce");
  ASSERT_EQ(asks_.size(), 1u);
  EXPECT_EQ(asks_[0].mode, "sparse");
  EXPECT_EQ(asks_[0].lanes, 64u);
  EXPECT_EQ(asks_[0].columns, 4u);
  lease_.OnAnswer(asks_[0].id, Unavailable("later"));
  clock_.Advance(FromSeconds(JobLease::kBackoffMinS));
  states_["sum-1"].said.lanes_max = 128;
  lease_.Ask(network_, "omnireduce");
  ASSERT_EQ(asks_.size(), 2u);
  EXPECT_EQ(asks_[1].lanes, 64u);
  EXPECT_EQ(asks_[1].columns, 2u);
}

TEST_F(JobLeaseTest, AsksForATableAndAsManyNarrowLanesAsThePacketsHaveRoom) {
  const LeaseTable table{8, {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30}};
  lease_.Ask(network_, "thc_table", table);
  ASSERT_EQ(asks_.size(), 1u);
  EXPECT_EQ(asks_[0].mode, "table");
  EXPECT_EQ(asks_[0].lanes, 1024u);
  EXPECT_EQ(asks_[0].columns, 0u);
  EXPECT_THAT(LeaseAskJson(asks_[0]), HasSubstr(R"("levels":[0,3,5,7,9,11,13,14,16,17,)"));
  EXPECT_THAT(LeaseAskJson(asks_[0]), HasSubstr(R"("sum_bits":8)"));
  const auto answer = [&](int first) {
    return ReadGrant(
        StrCat(R"({"address":"a:1","cookie":"5ad1c0ffee5ad1c0","epoch":7,"lanes":1024,)"
               R"("lease":3,"mode":"table","slots":64,"sum_bits":8,"levels":[)",
               first, ",3,5,7,9,11,13,14,16,17,19,21,23,25,27,30]}"),
        asks_[0]);
  };
  const auto granted = answer(0);
  ASSERT_TRUE(granted.ok()) << ToString(granted.status());
  EXPECT_EQ(granted->sum_bits, 8u);
  EXPECT_EQ(granted->levels.size(), 16u);
  EXPECT_FALSE(answer(1).ok()) << "other levels than were asked for";
}

TEST(WishOfTest, IsAShareOfTheRanksRoundedUpAndZeroIfThatIsAll) {
  const auto quorum = [](double share, int world) {
    Policy policy;
    policy.quorum = share;
    policy.cutoff_ms = 20;
    const LeaseWish wish = WishOf(policy, world);
    EXPECT_EQ(wish.cutoff_ms, wish.quorum > 0 ? 20u : 0u);
    return wish.quorum;
  };
  EXPECT_EQ(quorum(0.75, 4), 3u);
  EXPECT_EQ(quorum(0.7, 10), 7u);
  EXPECT_EQ(quorum(0.5, 5), 3u);
  EXPECT_EQ(quorum(0.01, 5), 1u);
  EXPECT_EQ(quorum(0.75, 3), 0u) << "all three";
  EXPECT_EQ(quorum(1, 64), 0u);
  EXPECT_EQ(quorum(0, 64), 0u);
}

TEST_F(JobLeaseTest, AQuorumIsAskedForWhereSumsAreOfATableAndMustBeGrantedAsAsked) {
  const LeaseWish wish{.quorum = 3, .cutoff_ms = 20};
  const LeaseTable table{8, {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30}};
  lease_.Ask(network_, "thc_table", table, wish);
  ASSERT_EQ(asks_.size(), 1u);
  EXPECT_THAT(LeaseAskJson(asks_[0]), HasSubstr(R"("cutoff_ms":20)"));
  EXPECT_THAT(LeaseAskJson(asks_[0]), HasSubstr(R"("quorum":3)"));
  const auto answer = [&](const std::string& more) {
    return ReadGrant(StrCat(R"({"address":"a:1","cookie":"5ad1c0ffee5ad1c0","epoch":7,)"
                            R"("lanes":1024,"lease":3,"mode":"table","slots":64,"sum_bits":8,)"
                            R"("levels":[0,3,5,7,9,11,13,14,16,17,19,21,23,25,27,30])",
                            more, "}"),
                     asks_[0]);
  };
  const auto granted = answer(R"(,"quorum":3,"cutoff_ms":20)");
  ASSERT_TRUE(granted.ok()) << ToString(granted.status());
  EXPECT_EQ(granted->quorum, 3u);
  EXPECT_EQ(granted->cutoff_us, 20000u);
  EXPECT_THAT(Message(answer("").status()), HasSubstr("expected a quorum of 3 after 20 ms"));
  EXPECT_FALSE(answer(R"(,"quorum":2,"cutoff_ms":20)").ok());
  lease_.OnAnswer(asks_[0].id, Unavailable("later"));
  clock_.Advance(FromSeconds(JobLease::kBackoffMinS));
  lease_.Ask(network_, "switchml", {}, wish);
  ASSERT_EQ(asks_.size(), 2u);
  EXPECT_EQ(asks_[1].wish.quorum, 0u) << "exact sums are of all ranks";
}

TEST_F(JobLeaseTest, ChecksumsAreLeftOutWhereThePolicySaysSoAndTheAggregatorAgrees) {
  Policy policy;
  policy.checksums = false;
  lease_.Ask(network_, "switchml", {}, WishOf(policy, 2));
  ASSERT_EQ(asks_.size(), 1u);
  EXPECT_THAT(LeaseAskJson(asks_[0]), HasSubstr(R"("checked":false)"));
  const auto answer = [](LeaseAsk ask, const std::string& more) {
    return ReadGrant(StrCat(R"({"address":"a:1","cookie":"5ad1c0ffee5ad1c0","epoch":7,"lanes":256,)"
                            R"("lease":3,"mode":"sum","slots":64)",
                            more, "}"),
                     ask);
  };
  const auto granted = answer(asks_[0], R"(,"checked":false)");
  ASSERT_TRUE(granted.ok()) << ToString(granted.status());
  EXPECT_TRUE(granted->unchecked);
  for (const char* other : {"", R"(,"checked":true)", R"(,"checked":0)", R"(,"checked":null)"}) {
    EXPECT_THAT(Message(answer(asks_[0], other).status()),
                HasSubstr("expected \"checked\": false"));
  }
  LeaseAsk with = asks_[0];
  with.wish.checked = true;
  EXPECT_THAT(LeaseAskJson(with), Not(HasSubstr("checked")));
  EXPECT_FALSE(answer(with, R"(,"checked":true)")->unchecked);
  EXPECT_FALSE(answer(with, R"(,"checked":false)").ok());
}

TEST_F(JobLeaseTest, GoodputIsSharedAndSlotsLimitARoundTrip) {
  // 64 slots of 1 KiB each 0.2 ms: 328 MB/s.
  EXPECT_NEAR(Describe().bandwidth_max_bytes_per_s, 64 * 1024 / 2e-4, 1);
  states_["sum-1"].said.goodput_bits_per_s = 8e8;
  EXPECT_NEAR(Describe().bandwidth_max_bytes_per_s, 50e6, 1) << "100 MB/s for two ranks";
  states_["sum-1"].said.leases.emplace_back().job = "other";
  EXPECT_NEAR(Describe().bandwidth_max_bytes_per_s, 25e6, 1) << "and for two jobs";
}

TEST_F(JobLeaseTest, RefusalsBackOffDoublingAndSaySo) {
  double wait = JobLease::kBackoffMinS;
  for (int i = 0; i < 3; ++i, wait *= 2) {
    lease_.Ask(network_, "switchml");
    ASSERT_EQ(asks_.size(), static_cast<size_t>(i + 1));
    lease_.OnAnswer(asks_.back().id, ResourceExhausted("all 4 leases are granted"));
    EXPECT_EQ(WhyNot(), "switchml: sum-1 gives no lease: all 4 leases are granted");
    clock_.Advance(FromSeconds(wait - 0.1));
    EXPECT_FALSE(Describe().lease_available);
    clock_.Advance(FromSeconds(0.2));
    EXPECT_TRUE(Describe().lease_available);
  }
}

TEST_F(JobLeaseTest, ALostJobsLeaseEndsWhenItSendsNothingEither) {
  Hold(5);
  const auto says = [&](double idle_s) {
    Lists(5);
    states_["sum-1"].said.leases[0].idle_s = idle_s;
    EXPECT_FALSE(lease_.OnTick({.planned = true, .lost = true}).has_value());
  };
  says(JobLease::kLostIdleMaxS - 1);
  EXPECT_TRUE(lease_.held().has_value()) << "ranks sum on while their agents are away";
  says(JobLease::kLostIdleMaxS + 1);
  EXPECT_FALSE(lease_.held().has_value());
  EXPECT_THAT(ended_, ElementsAre("sum-1 5"));
  lease_.Adopt(Granted(5));  // the ranks come back with it
  EXPECT_FALSE(lease_.held().has_value());
}

TEST_F(JobLeaseTest, AJobWithConnectedRanksMayPause) {
  Hold(5);
  Lists(5);
  states_["sum-1"].said.leases[0].idle_s = 10 * JobLease::kLostIdleMaxS;
  EXPECT_FALSE(lease_.OnTick({.planned = true, .lost = false}).has_value());
  EXPECT_TRUE(lease_.held().has_value());
}

TEST_F(JobLeaseTest, ALateGrantIsGivenBack) {
  lease_.Ask(network_, "switchml");
  clock_.Advance(FromSeconds(JobLease::kAskDeadlineS));
  EXPECT_THAT(lease_.OnTick({.planned = false}).value_or(""),
              HasSubstr("sum-1 did not answer within 8 s"));
  lease_.OnAnswer(asks_[0].id, Granted(5));
  EXPECT_FALSE(lease_.held().has_value());
  EXPECT_THAT(ended_, ElementsAre("sum-1 5"));
}

TEST_F(JobLeaseTest, IsLostWhenTheAggregatorNoLongerListsIt) {
  Hold(5);
  EXPECT_FALSE(lease_.OnTick({.planned = true}).has_value()) << "an older list says nothing";
  Lists(5);
  EXPECT_FALSE(lease_.OnTick({.planned = true}).has_value());
  Lists(6);
  EXPECT_THAT(lease_.OnTick({.planned = true}).value_or(""),
              HasSubstr("ended the lease of epoch 5"));
  EXPECT_FALSE(lease_.held().has_value());
  EXPECT_THAT(WhyNot(), HasSubstr("ended the lease"));
}

TEST_F(JobLeaseTest, OutlivesAShortSilenceOfItsAggregator) {
  Hold(5);
  Lists(5);
  states_["sum-1"].said.reachable = false;
  states_["sum-1"].since = clock_.Now();
  clock_.Advance(FromSeconds(JobLease::kUnreachableMaxS - 1));
  EXPECT_FALSE(lease_.OnTick({.planned = true}).has_value());
  EXPECT_TRUE(Describe().lease_available);
  clock_.Advance(FromSeconds(2));
  EXPECT_THAT(lease_.OnTick({.planned = true}).value_or(""), HasSubstr("sum-1 does not answer"));
}

TEST_F(JobLeaseTest, EndsWithTheRanksOfItsAddressesAndWithoutAUse) {
  Hold(5);
  Lists(5);
  lease_.SetAddress(1, "10.0.0.2:6");
  EXPECT_FALSE(lease_.held().has_value());
  EXPECT_THAT(ended_, ElementsAre("sum-1 5"));
  lease_.SetAddress(1, "10.0.0.2:5");
  Hold(6);
  Lists(6);
  EXPECT_FALSE(lease_.OnTick({.planned = false}).has_value());
  clock_.Advance(FromSeconds(JobLease::kUnusedMaxS + 1));
  EXPECT_FALSE(lease_.OnTick({.planned = false}).has_value());
  EXPECT_FALSE(lease_.held().has_value());
  EXPECT_TRUE(Describe().lease_available) << "nothing failed";
  Hold(7);
  lease_.Begin(2);
  EXPECT_FALSE(lease_.held().has_value());
  EXPECT_EQ(ended_.back(), "sum-1 7");
}

TEST_F(JobLeaseTest, AFailureCountsOnceUntilALeaseLastsLong) {
  Hold(5);
  EXPECT_TRUE(lease_.Fail("offload failed on rank 0: timeout"));
  EXPECT_FALSE(lease_.Fail("offload failed on rank 1: timeout"));
  EXPECT_EQ(WhyNot(), "switchml: offload failed on rank 0: timeout");
  clock_.Advance(FromSeconds(JobLease::kBackoffMinS));
  Hold(6);
  Lists(6);
  clock_.Advance(FromSeconds(JobLease::kGoodAfterS));
  EXPECT_TRUE(lease_.Fail("again"));
  clock_.Advance(FromSeconds(JobLease::kBackoffMinS));
  EXPECT_TRUE(Describe().lease_available) << "not twice as long";
}

TEST_F(JobLeaseTest, TakesOverTheLeaseOfTheRanks) {
  JobPlan plan;
  plan.grants.push_back(Granted(5));
  plan.grants[0].cookie.clear();
  lease_.Adopt(plan.grants[0]);
  EXPECT_FALSE(lease_.held().has_value()) << "a redacted plan cannot be offered again";
  plan.grants[0].cookie = "0123456789abcdef";
  plan.grants[0].aggregator = "unknown";
  lease_.Adopt(plan.grants[0]);
  EXPECT_FALSE(lease_.held().has_value());
  plan.grants[0].aggregator = "sum-1";
  lease_.Adopt(plan.grants[0]);
  EXPECT_TRUE(lease_.held().has_value());
}

}  // namespace
}  // namespace weir
