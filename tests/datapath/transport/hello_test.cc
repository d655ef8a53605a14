// SPDX-License-Identifier: Apache-2.0
// The handshake's frames against their recorded bytes.

#include "datapath/transport/mesh/hello.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace weir::mesh {
namespace {

using Bytes = std::vector<std::byte>;

Nonce Filled(int value) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

TEST(HelloTest, FramesHaveTheirRecordedBytes) {
  auto golden = weir::testing::ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/frames_v3.hex");
  EXPECT_EQ(EncodeHello({.job = 0x0123456789abcdef, .rank = 1, .world = 4, .expected_peer = 0}),
            golden["hello of rank 1 to rank 0, world 4, job 0x0123456789abcdef"].bytes);
  EXPECT_EQ(EncodeFrame(FrameType::kAbort, 1, {}), golden["shutdown notice of rank 1"].bytes);
  EXPECT_EQ(EncodeAbort(1, "rank 3 is gone"), golden["abort of rank 1"].bytes);
}

// The recorded bytes were checked with Python's hmac, hashlib and cryptography.
TEST(HelloTest, FramesWithAKeyHaveTheirRecordedBytes) {
  auto golden = weir::testing::ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/frames_v3.hex");
  JobKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  const Hello dialer = {.job = 0x0123456789abcdef,
                        .rank = 1,
                        .world = 4,
                        .expected_peer = 0,
                        .protection = Protection::kAuthenticated,
                        .nonce = Filled(0xd0)};
  const Hello acceptor = {.job = 0x0123456789abcdef,
                          .rank = 0,
                          .world = 4,
                          .expected_peer = UINT32_MAX,
                          .protection = Protection::kAuthenticated,
                          .nonce = Filled(0xa0)};
  const auto secrets = DeriveChannel(key, dialer.nonce, acceptor.nonce, EncodeHelloPayload(dialer),
                                     EncodeHelloPayload(acceptor));
  ASSERT_TRUE(secrets.ok()) << secrets.status();
  EXPECT_EQ(EncodeHello(dialer), golden["hello of rank 1 to rank 0 with a key"].bytes);
  EXPECT_EQ(EncodeHello(acceptor, &secrets->acceptor_proof),
            golden["answer of rank 0 with its proof"].bytes);
  EXPECT_EQ(EncodeFrame(FrameType::kProof, 1, secrets->dialer_proof),
            golden["proof of rank 1"].bytes);
  const auto to_dialer = MakeFrameChannel(*secrets, false, Protection::kAuthenticated);
  ASSERT_TRUE(to_dialer.ok()) << to_dialer.status();
  EXPECT_EQ(EncodeFrame(FrameType::kProof, 0, {}, to_dialer->sealer.get()),
            golden["welcome of rank 0"].bytes);
  for (const auto& [protection, name] :
       {std::pair(Protection::kAuthenticated,
                  "the same data as the first frame of rank 1 to rank 0, with its tag"),
        {Protection::kEncrypted, "the same, encrypted"}}) {
    const auto to_acceptor = MakeFrameChannel(*secrets, true, protection);
    const Bytes& recorded = golden[name].bytes;
    const std::string text = "gradient";
    Bytes body(text.size());
    FrameTag tag;
    to_acceptor->sealer->Seal(std::span(recorded).first(kFrameHeaderBytes),
                              std::as_bytes(std::span(text)), body, &tag);
    if (protection == Protection::kEncrypted) {
      EXPECT_TRUE(std::equal(body.begin(), body.end(), recorded.begin() + kFrameHeaderBytes));
    }
    EXPECT_TRUE(std::equal(tag.begin(), tag.end(), recorded.end() - kFrameTagBytes)) << name;
  }
}

TEST(HelloTest, RoundTripAndSizeCheck) {
  Secret proof;
  proof.fill(std::byte{9});
  for (const std::string rendezvous : {"", "0123456789abcdef"}) {
    for (const Secret* const proven : std::initializer_list<const Secret*>{nullptr, &proof}) {
      const Bytes frame = EncodeHello({.job = 1,
                                       .rank = 2,
                                       .world = 3,
                                       .expected_peer = 4,
                                       .node = 5,
                                       .rendezvous = rendezvous,
                                       .connections = 7,
                                       .connection = 6,
                                       .protection = Protection::kEncrypted,
                                       .nonce = Filled(8)},
                                      proven);
      const std::span<const std::byte> payload = std::span(frame).subspan(kFrameHeaderBytes);
      EXPECT_EQ(payload.size(), 64 + rendezvous.size() + (proven ? 32 : 0));
      const StatusOr<DecodedHello> decoded = DecodeHello(payload);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      const Hello& hello = decoded->hello;
      EXPECT_EQ(hello.job, 1u);
      EXPECT_EQ(hello.rank, 2u);
      EXPECT_EQ(hello.world, 3u);
      EXPECT_EQ(hello.expected_peer, 4u);
      EXPECT_EQ(hello.node, 5u);
      EXPECT_EQ(hello.rendezvous, rendezvous);
      EXPECT_EQ(hello.connections, 7);
      EXPECT_EQ(hello.connection, 6);
      EXPECT_EQ(hello.protection, Protection::kEncrypted);
      EXPECT_EQ(hello.nonce, Filled(8));
      EXPECT_EQ(decoded->proof.size(), proven ? 32u : 0u);
      EXPECT_EQ(proven != nullptr, SameSecret(decoded->proof, proof));
      EXPECT_EQ(DecodeHello(payload.first(payload.size() - 1)).status().code(),
                StatusCode::kDataLoss);
    }
  }
}

TEST(HelloTest, WrongFieldsAreNamed) {
  const auto with = [](size_t offset, int value) {
    Bytes payload = EncodeHelloPayload({.job = 1, .rank = 2, .world = 3});
    payload[offset] = static_cast<std::byte>(value);
    return Message(DecodeHello(payload).status());
  };
  EXPECT_EQ(with(0, 9), "");
  EXPECT_EQ(with(24, 0), "hello: connection 0 of 0");
  EXPECT_EQ(with(26, 1), "hello: connection 1 of 1");
  EXPECT_EQ(with(28, 3), "hello: protection: expected 0..2, found 3");
}

}  // namespace
}  // namespace weir::mesh
