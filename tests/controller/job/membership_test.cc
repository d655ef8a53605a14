// SPDX-License-Identifier: Apache-2.0
// The ranks that belong to a job, and when other ranks begin a new epoch of it.

#include "controller/job/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankGreeting Hello(int rank, uint32_t pid = 7, uint64_t step = 0) {
  RankGreeting hello;
  hello.job = "lm";
  hello.rank = rank;
  hello.world = 2;
  hello.pid = pid;
  hello.step = step;
  return hello;
}

class MembershipTest : public testing::Test {
 protected:
  void SetUp() override {
    members_.Begin(Hello(0));
    members_.Admit("a", Hello(0));
  }
  Membership members_{"lm"};
};

TEST_F(MembershipTest, StatesFollowTheRanks) {
  EXPECT_EQ(members_.state(), "waiting");
  members_.Admit("b", Hello(1));
  EXPECT_EQ(members_.state(), "running");
  EXPECT_THAT(members_.nodes(), ElementsAre("a", "b"));
  EXPECT_THAT(members_.LoseNode("b"), ElementsAre(1));
  EXPECT_TRUE(members_.LoseNode("b").empty()) << "said once";
  EXPECT_EQ(members_.state(), "waiting");
  members_.Gone(0);
  EXPECT_EQ(members_.state(), "lost");
  members_.Gone(1);
  EXPECT_EQ(members_.state(), "ended");
}

TEST_F(MembershipTest, AnotherProcessOrAStepBackwardsBeginsAnother) {
  EXPECT_FALSE(*members_.BeginsAnother("a", Hello(0)));
  EXPECT_TRUE(*members_.BeginsAnother("a", Hello(0, 8)));
  members_.Find(0)->step = 100;
  EXPECT_FALSE(*members_.BeginsAnother("a", Hello(0, 7, 98)));
  EXPECT_TRUE(*members_.BeginsAnother("a", Hello(0, 7, 97)));
  RankGreeting formed = Hello(1);
  formed.epoch = 1;
  EXPECT_TRUE(*members_.BeginsAnother("b", formed));
}

TEST_F(MembershipTest, WhatContradictsAttachedRanksIsRefused) {
  RankGreeting large = Hello(1);
  large.world = 3;
  EXPECT_THAT(Message(members_.BeginsAnother("b", large).status()), HasSubstr("world size 2"));
  EXPECT_THAT(Message(members_.BeginsAnother("b", Hello(0)).status()),
              HasSubstr("is attached on node a by process 7"));
  members_.Gone(0);
  EXPECT_TRUE(*members_.BeginsAnother("b", large)) << "nobody is left";
}

TEST_F(MembershipTest, AJobIsProtectedAsItsLeastProtectedRankIs) {
  RankGreeting hello = Hello(1);
  hello.protection = FramesProtected::kEncrypted;
  hello.unauthenticated_peers = 3;
  members_.Admit("b", hello);
  JobView view;
  members_.Fill(&view);
  EXPECT_EQ(view.protection, FramesProtected::kNotSaid);
  EXPECT_EQ(view.unauthenticated_peers, 3u);
  ASSERT_EQ(view.ranks.size(), 2u);
  EXPECT_EQ(view.ranks[1].node, "b");
}

TEST_F(MembershipTest, ARefusalIsNewsOnce) {
  EXPECT_TRUE(members_.IsNewRefusal("rank 1 is of another run"));
  EXPECT_FALSE(members_.IsNewRefusal("rank 1 is of another run"));
  members_.Begin(Hello(0));
  EXPECT_TRUE(members_.IsNewRefusal("rank 1 is of another run"));
}

}  // namespace
}  // namespace weir
