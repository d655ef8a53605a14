// What ranks tell each other through RDMA's connection manager, and how much memory each of them
// gets. No device is needed.

#if WEIR_HAVE_Verbs
#include "datapath/transport/builtin/verbs/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "datapath/transport/builtin/verbs/stream.h"
#include "datapath/transport/builtin/verbs/window.h"
#include "tests/support/golden.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// ---- private data

verbs::Hello SomeHello() {
  return {
      .job = 0x0123456789abcdef, .rank = 1, .world = 4, .expected_peer = 0, .window = {32768, 16}};
}

TEST(VerbsHelloTest, PrivateDataHasItsRecordedBytesAndTheDocumentShowsThem) {
  auto golden = ReadGolden(WEIR_TEST_SOURCE_DIR "/golden/wire/verbs_hello_v1.hex");
  const GoldenBytes& recorded = golden
      ["request of rank 1 to rank 0, world 4, job 0x0123456789abcdef, 16 slots of 32768 octets"];
  const auto encoded = verbs::EncodeHello(SomeHello());
  EXPECT_EQ(Bytes(encoded.begin(), encoded.end()), recorded.bytes);
  EXPECT_THAT(ReadText(WEIR_TEST_SOURCE_DIR "/../proto/WIRE.md"), HasSubstr(recorded.dump));
}

TEST(VerbsHelloTest, RoundTripIgnoresThePaddingOfConnectionManagers) {
  const auto encoded = verbs::EncodeHello(SomeHello());
  Bytes padded(encoded.begin(), encoded.end());
  padded.resize(196);
  const auto hello = verbs::DecodeHello(padded);
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->job, SomeHello().job);
  EXPECT_EQ(hello->rank, 1u);
  EXPECT_EQ(hello->world, 4u);
  EXPECT_EQ(hello->expected_peer, 0u);
  EXPECT_EQ(hello->window.slot_bytes, 32768u);
  EXPECT_EQ(hello->window.slots, 16u);
}

TEST(VerbsHelloTest, EveryFlippedBitAndMissingByteIsFound) {
  const auto encoded = verbs::EncodeHello(SomeHello());
  for (size_t bit = 0; bit < encoded.size() * 8; ++bit) {
    auto damaged = encoded;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(verbs::DecodeHello(damaged).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
  for (size_t size = 0; size < encoded.size(); ++size) {
    EXPECT_EQ(verbs::DecodeHello(std::span(encoded).first(size)).status().code(),
              StatusCode::kDataLoss);
  }
}

TEST(VerbsHelloTest, WindowsOutOfBoundsAreRefused) {
  for (const verbs::Window window :
       {verbs::Window{4095, 16}, {(1 << 20) + 1, 16}, {4096, 3}, {4096, 1025}, {0, 0}}) {
    verbs::Hello hello = SomeHello();
    hello.window = window;
    EXPECT_EQ(verbs::DecodeHello(verbs::EncodeHello(hello)).status().code(), StatusCode::kDataLoss);
  }
}

// ---- how much memory

constexpr verbs::DeviceLimits kLargeDevice = {.completions_max = 4 << 20,
                                              .work_requests_max = 32768};

TEST(VerbsWindowTest, PoolStaysBelowTheDefaultLimitOfLockedMemory) {
  for (const int peers : {1, 3, 7, 15, 63}) {
    const auto plan = verbs::PlanFlow(peers, {}, kLargeDevice);
    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->PeerBytes() * peers, 6u << 20) << peers;
    EXPECT_GE(plan->PeerBytes() * peers, peers == 1 ? 1u << 20 : 2u << 20) << peers;
    EXPECT_GE(plan->receive.slots, verbs::kSlotsMin);
    EXPECT_GE(plan->send_slots, verbs::kSendSlotsMin);
  }
}

TEST(VerbsWindowTest, WishesAndDeviceLimitsAreKept) {
  TransportOptions options;
  options.receive_buffer_bytes = 4 << 20;
  options.send_buffer_bytes = 1 << 20;
  const auto wished = verbs::PlanFlow(1, options, kLargeDevice);
  ASSERT_TRUE(wished.ok());
  EXPECT_EQ(wished->receive.slots * wished->receive.slot_bytes, 4u << 20);
  EXPECT_EQ((wished->send_slots - verbs::kReservedSendSlots) * wished->receive.slot_bytes,
            1u << 20);
  for (const uint32_t completions : {16u, 20u, 100u}) {
    const auto small = verbs::PlanFlow(1, options, {completions, 64});
    ASSERT_TRUE(small.ok()) << small.status();
    EXPECT_LE(small->PeerCompletions(), completions);
    EXPECT_LE(small->receive_slots(), 64u);
  }
  const auto none = verbs::PlanFlow(2, options, {16, 64});
  EXPECT_EQ(none.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(weir::Message(none.status()), HasSubstr("2 peers need 30 completion entries"));
}

}  // namespace
}  // namespace weir::testing
#endif  // WEIR_HAVE_Verbs
