// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/identity/rank_proof.h"

#include <gtest/gtest.h>

#include <numeric>

namespace weir {
namespace {

std::string CountingKey() {
  std::string key(kJobKeyBytes, '\0');
  std::iota(key.begin(), key.end(), '\0');
  return key;
}

RankStatement Example() {
  return {"train-7", "node-a", 2, 4, 1, "00112233445566778899aabbccddeeff"};
}

// Computed with Python's "cryptography": HKDF without salt, then Ed25519 over the bytes that
// proto/WIRE.md section 2 shows.
TEST(RankProofTest, KnownAnswer) {
  const auto proof = ProveRank(CountingKey(), Example());
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_EQ(proof->public_key, "0074403d909acdbd416655360729a7489cdba907d7101418ddb9324638ff41d9");
  EXPECT_EQ(proof->signature,
            "69c1ad69121d2a626afe78a20c469a3410579829e8a686756ff7f57997ab0e99"
            "a844e5a107f4f541e2041c56e850d8bc48c20d0466647cce8577635d16f2ff00");
  EXPECT_EQ(KeyId(proof->public_key), "0074403d909acdbd");
  EXPECT_EQ(KeyId(""), "");
  EXPECT_EQ(proof->node, "node-a");
  EXPECT_EQ(proof->challenge, Example().challenge);
  EXPECT_TRUE(CheckRankProof(Example(), *proof).ok());
}

TEST(RankProofTest, SpeaksForNothingElse) {
  const auto proof = ProveRank(CountingKey(), Example());
  ASSERT_TRUE(proof.ok());
  RankStatement other = Example();
  other.job = "train-8";
  EXPECT_EQ(CheckRankProof(other, *proof).code(), StatusCode::kInvalidArgument);
  other = Example();
  other.rank = 3;
  EXPECT_FALSE(CheckRankProof(other, *proof).ok());
  other = Example();
  other.world = 5;
  EXPECT_FALSE(CheckRankProof(other, *proof).ok());
  other = Example();
  other.epoch = 999;
  EXPECT_FALSE(CheckRankProof(other, *proof).ok());
  // The proof is for this node and this challenge, so nobody else can use it.
  RankProof passed_on = *proof;
  other = Example();
  other.node = passed_on.node = "node-b";
  EXPECT_FALSE(CheckRankProof(other, *proof).ok());
  EXPECT_FALSE(CheckRankProof(other, passed_on).ok());
  other = Example();
  other.challenge = passed_on.challenge = "00112233445566778899aabbccddeefe";
  passed_on.node = proof->node;
  EXPECT_FALSE(CheckRankProof(other, *proof).ok());
  EXPECT_FALSE(CheckRankProof(other, passed_on).ok());
}

// The border between job and node is signed, too: "ab" + "c" is not "a" + "bc".
TEST(RankProofTest, TextsDoNotRunIntoEachOther) {
  RankStatement one = Example(), two = Example();
  one.job = "ab", one.node = "c";
  two.job = "a", two.node = "bc";
  const auto proof = ProveRank(CountingKey(), one);
  ASSERT_TRUE(proof.ok());
  RankProof moved = *proof;
  moved.node = "bc";
  EXPECT_FALSE(CheckRankProof(two, moved).ok());
}

TEST(RankProofTest, EveryFlippedDigitIsRefused) {
  const auto proof = ProveRank(CountingKey(), Example());
  ASSERT_TRUE(proof.ok());
  for (std::string RankProof::*member : {&RankProof::public_key, &RankProof::signature}) {
    for (size_t i = 0; i < ((*proof).*member).size(); ++i) {
      RankProof changed = *proof;
      char& digit = (changed.*member)[i];
      digit = digit == '0' ? '1' : '0';
      EXPECT_FALSE(CheckRankProof(Example(), changed).ok()) << i;
    }
  }
}

TEST(RankProofTest, MalformedMembersAreRefused) {
  const auto proof = ProveRank(CountingKey(), Example());
  ASSERT_TRUE(proof.ok());
  EXPECT_FALSE(CheckRankProof(Example(), RankProof{}).ok());
  for (std::string RankProof::*member : {&RankProof::public_key, &RankProof::signature}) {
    for (const std::string& text :
         {std::string(), (*proof).*member + "00", std::string(64, 'g'), std::string(128, 'A'),
          std::string(128, '\0'), std::string(64, '0')}) {
      RankProof changed = *proof;
      changed.*member = text;
      EXPECT_FALSE(CheckRankProof(Example(), changed).ok()) << text;
    }
  }
  RankStatement statement = Example();
  statement.challenge = "short";
  EXPECT_EQ(ProveRank(CountingKey(), statement).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ProveRank("too short", Example()).status().code(), StatusCode::kInvalidArgument);
}

TEST(RankProofTest, KeysOfOtherJobsAreOthers) {
  std::string other = CountingKey();
  other.back() ^= 1;
  const auto a = ProveRank(CountingKey(), Example()), b = ProveRank(other, Example());
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->public_key, b->public_key);
  RankProof mixed = *b;
  mixed.public_key = a->public_key;
  EXPECT_FALSE(CheckRankProof(Example(), mixed).ok());
}

TEST(RankProofTest, ChallengesAreFreshAndTokensAreNot) {
  const auto a = NewChallenge(), b = NewChallenge();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), kChallengeDigits);
  EXPECT_NE(*a, *b);
  const auto token = DeriveToken("secret", "purpose");
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->size(), 32u);
  EXPECT_EQ(*DeriveToken("secret", "purpose"), *token);
  EXPECT_NE(*DeriveToken("secret", "purpos"), *token);
  EXPECT_NE(*DeriveToken("secre", "purpose"), *token);
}

TEST(ConstantTimeEqualsTest, ComparesWholeStrings) {
  EXPECT_TRUE(ConstantTimeEquals("abc", "abc"));
  EXPECT_TRUE(ConstantTimeEquals("", ""));
  EXPECT_FALSE(ConstantTimeEquals("abc", "abd"));
  EXPECT_FALSE(ConstantTimeEquals("abc", "ab"));
  EXPECT_FALSE(ConstantTimeEquals("abab", "ab"));
  EXPECT_FALSE(ConstantTimeEquals("", "a"));
  EXPECT_FALSE(ConstantTimeEquals("a", ""));
}

// Computed by another implementation of RFC 5869.
TEST(RankProofTest, ATokensProofIsThatOfTheWireFormat) {
  EXPECT_EQ(*ProveToken("correct horse battery", "node-a", "00112233445566778899aabbccddeeff"),
            "da107249767d52b6a895c33101d2c716");
}

}  // namespace
}  // namespace weir
