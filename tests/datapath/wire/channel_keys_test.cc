// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/channel_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace weir {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : bytes) {
    hex += kDigits[static_cast<int>(byte) >> 4];
    hex += kDigits[static_cast<int>(byte) & 15];
  }
  return hex;
}

JobKey Counting() {
  JobKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}

Nonce Filled(int value, int last) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  nonce.back() = static_cast<std::byte>(last);
  return nonce;
}

StatusOr<ChannelSecrets> Derive(const JobKey& key = Counting(), int last = 1,
                                std::string_view dialer = "dialer hello",
                                std::string_view acceptor = "acceptor hello") {
  return DeriveChannel(key, Filled(0xd0, last), Filled(0xa0, 2), AsBytes(dialer),
                       AsBytes(acceptor));
}

std::string All(const ChannelSecrets& s) {
  return StrCat(Hex(s.acceptor_proof), Hex(s.dialer_proof), Hex(s.to_acceptor.key),
                Hex(s.to_dialer.key), Hex(s.to_acceptor.salt), Hex(s.to_dialer.salt),
                Hex(s.memory));
}

// Recorded from Python's hmac and hashlib, by RFC 5869's definition.
TEST(ChannelKeysTest, SecretsAreHkdfOverNoncesAndHellos) {
  const StatusOr<ChannelSecrets> secrets = Derive();
  ASSERT_TRUE(secrets.ok()) << secrets.status();
  EXPECT_EQ(All(*secrets),
            "47f020fee7e8c1319a950b283b1f32051b290075666d006a87e169ab8bbdc9ce"
            "99fae6d6cb46e63a9097937c9dd5b4b10ee9640d6d568a863655bf132915e093"
            "ebf1f3cc71a4613bb3dbd19c60b6adab00feb169d609330fc4f2817f4dbc93c9"
            "55cf80788736fd55b073f550abf866b898f62141766f42fba38a01bb2ea0a07e"
            "7c938d63d4fcc24e"
            "d53adfea568009c6ab2ff9dda6ec05c88df1ed409a7dfefbd505dc0cc1ae69cf");
}

TEST(ChannelKeysTest, EveryInputChangesAllSecrets) {
  JobKey other = Counting();
  other[31] ^= std::byte{1};
  const std::string good = All(*Derive());
  EXPECT_EQ(All(*Derive()), good);
  for (const auto& secrets :
       {Derive(other), Derive(Counting(), 2), Derive(Counting(), 1, "dialer hellp"),
        Derive(Counting(), 1, "dialer hello", "acceptor hellp")}) {
    ASSERT_TRUE(secrets.ok());
    const std::string changed = All(*secrets);
    for (size_t at = 0; at < good.size(); at += 8) {
      EXPECT_NE(changed.substr(at, 8), good.substr(at, 8)) << at;
    }
  }
}

TEST(ChannelKeysTest, ProofIsHmacOverLabelAndBytes) {
  const StatusOr<Secret> proof = MakeProof(Counting(), "label", AsBytes("bytes"));
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_EQ(Hex(*proof), "795bab621f5b5e6184327762b214d7680265e8d10f948e7605b3f05c7bd24844");
  EXPECT_TRUE(SameSecret(*proof, *proof));
  Secret other = *proof;
  other[0] ^= std::byte{1};
  EXPECT_FALSE(SameSecret(other, *proof));
  EXPECT_FALSE(SameSecret(std::span(*proof).first(31), *proof));
}

TEST(ChannelKeysTest, AJobKeyHas32UnequalBytes) {
  std::vector<std::byte> bytes(32);
  EXPECT_THAT(Message(ToJobKey(bytes).status()), HasSubstr("expected random bytes"));
  bytes[4] = std::byte{1};
  EXPECT_TRUE(ToJobKey(bytes).ok());
  bytes.pop_back();
  EXPECT_THAT(Message(ToJobKey(bytes).status()), HasSubstr("expected 32 bytes, found 31"));
  EXPECT_NE(*NewNonce(), *NewNonce());
}

}  // namespace
}  // namespace weir
