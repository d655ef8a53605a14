// SPDX-License-Identifier: Apache-2.0
// Which process may represent a rank, for users, sockets and namespaces that tests with real
// sockets cannot have.
#include "agent/rank_claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/status.h"

namespace weir::agent {
namespace {

using testing::HasSubstr;

const std::string kChallenge(kChallengeDigits, '1');

RankPeer Process(uint32_t pid, uint32_t uid = 1000) {
  RankPeer peer;
  peer.is_local = true;
  peer.pid = pid;
  peer.uid = uid;
  peer.name = pid == 0 ? "a process elsewhere" : StrCat("process ", pid, " of user ", uid);
  peer.challenge = kChallenge;
  return peer;
}

RankPeer Remote() {
  RankPeer peer;
  peer.name = "10.0.0.5:40000";
  peer.challenge = kChallenge;
  return peer;
}

v1::RankHello Greeting(uint32_t rank, uint64_t epoch = 0, const std::string& key = "") {
  v1::RankHello hello;
  hello.set_job("job");
  hello.set_rank(rank);
  hello.set_world(4);
  hello.set_epoch(epoch);
  if (key.empty()) return hello;
  const auto proof = ProveRank(key, {"job", "node-a", rank, 4, epoch, kChallenge});
  EXPECT_TRUE(proof.ok()) << proof.status();
  hello.mutable_proof()->set_public_key(proof->public_key);
  hello.mutable_proof()->set_node(proof->node);
  hello.mutable_proof()->set_challenge(proof->challenge);
  hello.mutable_proof()->set_signature(proof->signature);
  return hello;
}

class RankClaimsTest : public testing::Test {
 protected:
  /// The refusal's reason; empty: the rank is held from now on.
  std::string Claim(ConnectionId connection, const v1::RankHello& hello, const RankPeer& peer) {
    const auto refusal = claims_.Check(connection, hello, peer);
    retry_after_s_ = refusal ? refusal->retry_after_s() : 0;
    if (refusal) return refusal->reason();
    claims_.Hold(connection, hello, peer);
    return "";
  }
  const std::string key_ = std::string(kJobKeyBytes, 'k');
  RankClaims claims_{"node-a"};
  double retry_after_s_ = 0;
};

TEST_F(RankClaimsTest, AProcessMayComeAgainByAnotherConnection) {
  EXPECT_EQ(Claim(1, Greeting(0), Process(7)), "");
  EXPECT_EQ(Claim(2, Greeting(0), Process(7)), "");
  EXPECT_THAT(Claim(3, Greeting(0), Process(8)), HasSubstr("belongs to process 7 of user 1000"));
  EXPECT_EQ(retry_after_s_, 0);
}

TEST_F(RankClaimsTest, AnotherUserCannotJoinARunWithoutAKey) {
  EXPECT_EQ(Claim(1, Greeting(0), Process(7)), "");
  EXPECT_THAT(Claim(2, Greeting(1), Process(8, 1001)), HasSubstr("is another user's"));
  EXPECT_EQ(Claim(2, Greeting(1), Process(8, 1000)), "");
}

TEST_F(RankClaimsTest, OnTcpWithoutAKeyTheTokenIsAllThereIs) {
  EXPECT_EQ(Claim(1, Greeting(0), Remote()), "");
  EXPECT_EQ(Claim(2, Greeting(0), Remote()), "");
  EXPECT_EQ(Claim(3, Greeting(1), Process(7)), "");
  EXPECT_THAT(Claim(4, Greeting(1), Remote()), HasSubstr("belongs to process 7"));
  EXPECT_THAT(Claim(5, Greeting(2, 1), Remote()), HasSubstr("says epoch 1"));
  EXPECT_GT(retry_after_s_, 0);  // by then the survivors may have left the former mesh
}

TEST_F(RankClaimsTest, AKeyIdentifiesRanksIfTheKernelNamesNoProcess) {
  for (const RankPeer& peer : {Remote(), Process(0)}) {
    RankClaims claims("node-a");
    EXPECT_FALSE(claims.Check(1, Greeting(0, 0, key_), peer));
    claims.Hold(1, Greeting(0, 0, key_), peer);
    EXPECT_FALSE(claims.Check(2, Greeting(0, 0, key_), peer));
    EXPECT_TRUE(claims.Check(2, Greeting(0), peer));
    EXPECT_TRUE(claims.Check(2, Greeting(0, 999), peer));
  }
  // Without a process id nobody can tell whether it is the same process; the end of its connection
  // decides.
  EXPECT_EQ(Claim(1, Greeting(0), Process(0)), "");
  EXPECT_THAT(Claim(2, Greeting(0), Process(0)), HasSubstr("belongs to a process elsewhere"));
  EXPECT_GT(retry_after_s_, 0);
  claims_.Release("job", 0);
  EXPECT_EQ(Claim(2, Greeting(0), Process(0)), "");
}

TEST_F(RankClaimsTest, AProcessThatHeldARankMayRaiseTheEpoch) {
  EXPECT_EQ(Claim(1, Greeting(0), Process(7)), "");
  EXPECT_EQ(Claim(2, Greeting(1), Process(8)), "");
  EXPECT_EQ(Claim(3, Greeting(2), Process(9)), "");
  // 7 ended; 9 becomes rank 1, whose former process 8 is stopped and says nothing.
  claims_.Release("job", 0);
  claims_.Release("job", 2);
  EXPECT_THAT(Claim(4, Greeting(2, 1), Process(10)), HasSubstr("only a process that has held"));
  EXPECT_EQ(Claim(5, Greeting(1, 1), Process(9)), "");
  EXPECT_EQ(Claim(6, Greeting(2, 1), Process(10)), "");  // now it is the run's epoch
  EXPECT_THAT(Claim(7, Greeting(1), Process(8)), HasSubstr("belongs to process 9"));
}

TEST_F(RankClaimsTest, AReusedProcessIdIsAnotherProcess) {
  bool ended = false;
  RankPeer former = Process(7);
  former.ended = [&] { return ended; };
  EXPECT_EQ(Claim(1, Greeting(0), former), "");
  EXPECT_EQ(Claim(2, Greeting(1), Process(8)), "");
  ended = true;
  EXPECT_THAT(Claim(3, Greeting(2, 1), Process(7)), HasSubstr("says epoch 1"));
  EXPECT_EQ(Claim(3, Greeting(0), Process(7)), "") << "but its rank is free";
}

TEST_F(RankClaimsTest, ARunIsForgottenWithItsLastRank) {
  EXPECT_EQ(Claim(1, Greeting(0, 3, key_), Process(7)), "");
  EXPECT_EQ(Claim(2, Greeting(1, 3, key_), Process(8)), "");
  claims_.Release("job", 0);
  EXPECT_THAT(Claim(3, Greeting(0), Process(9, 1001)), HasSubstr("does not prove"));
  claims_.Release("job", 1);
  claims_.Release("job", 1);
  claims_.Release("another", 0);
  EXPECT_EQ(Claim(3, Greeting(0), Process(9, 1001)), "");
}

TEST_F(RankClaimsTest, AProofForAnotherNodeIsRejected) {
  RankClaims other("node-b");
  const auto refusal = other.Check(1, Greeting(0, 0, key_), Process(7));
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->reason(), HasSubstr("another node's"));
  v1::RankHello changed = Greeting(0, 0, key_);
  changed.set_epoch(999);
  ASSERT_TRUE(claims_.Check(1, changed, Process(7)));
}

}  // namespace
}  // namespace weir::agent
