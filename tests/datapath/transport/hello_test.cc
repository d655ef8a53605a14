// The handshake's frames against their recorded bytes.

#include "datapath/transport/mesh/hello.h"

#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace weir::mesh {
namespace {

TEST(HelloTest, FramesHaveTheirRecordedBytes) {
  auto golden = weir::testing::ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/frames_v2.hex");
  EXPECT_EQ(EncodeHello({.job = 0x0123456789abcdef, .rank = 1, .world = 4, .expected_peer = 0}),
            golden["hello of rank 1 to rank 0, world 4, job 0x0123456789abcdef"].bytes);
  EXPECT_EQ(EncodeFrame(FrameType::kAbort, 1, {}), golden["goodbye of rank 1"].bytes);
  const std::string text = "rank 3 is gone";
  EXPECT_EQ(EncodeFrame(FrameType::kAbort, 1, std::as_bytes(std::span(text))),
            golden["abort of rank 1"].bytes);
}

TEST(HelloTest, RoundTripAndSizeCheck) {
  const std::vector<std::byte> frame =
      EncodeHello({.job = 1, .rank = 2, .world = 3, .expected_peer = 0});
  const std::span<const std::byte> payload = std::span(frame).subspan(kFrameHeaderBytes);
  const StatusOr<Hello> hello = DecodeHello(payload);
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->job, 1u);
  EXPECT_EQ(hello->rank, 2u);
  EXPECT_EQ(hello->world, 3u);
  EXPECT_EQ(hello->expected_peer, 0u);
  EXPECT_EQ(hello->connections, 1);
  EXPECT_EQ(DecodeHello(payload.first(23)).status().code(), StatusCode::kDataLoss);
}

TEST(HelloTest, NamesTheConnectionWhereThereAreSeveral) {
  for (const std::string rendezvous : {"", "0123456789abcdef"}) {
    const std::vector<std::byte> frame = EncodeHello({.job = 1,
                                                      .rank = 2,
                                                      .world = 3,
                                                      .expected_peer = 0,
                                                      .rendezvous = rendezvous,
                                                      .connections = 5,
                                                      .connection = 4});
    std::vector<std::byte> payload(frame.begin() + kFrameHeaderBytes, frame.end());
    EXPECT_EQ(payload.size(), 28 + rendezvous.size());
    const StatusOr<Hello> hello = DecodeHello(payload);
    ASSERT_TRUE(hello.ok()) << hello.status();
    EXPECT_EQ(hello->rendezvous, rendezvous);
    EXPECT_EQ(hello->connections, 5);
    EXPECT_EQ(hello->connection, 4);
    payload[26] = std::byte{5};  // the sixth of five
    EXPECT_EQ(DecodeHello(payload).status().code(), StatusCode::kDataLoss);
    payload[24] = payload[26] = std::byte{0};  // the first of none
    EXPECT_EQ(DecodeHello(payload).status().code(), StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace weir::mesh
