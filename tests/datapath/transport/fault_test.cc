// SPDX-License-Identifier: Apache-2.0
// Faults follow their seed and hit the right peers. conformance_test.cc tests their effect on a
// job.

#include "datapath/transport/fault.h"

#include <gtest/gtest.h>

#include "tests/support/inproc_transport.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

// Which of 64 frames of rank 0 to `peer` are dropped: dropped ones are never counted as sent.
uint64_t DroppedFrames(const FaultOptions& faults, int peer) {
  static uint64_t job = 0;
  const auto inner = MakeInprocFactory();
  const auto factory = MakeFaultFactory(*inner, faults);
  TransportOptions options;
  options.job = ++job;
  auto world = ConnectWorld(*factory, 3, options);
  EXPECT_TRUE(world.ok()) << world.status();
  uint64_t dropped = 0;
  for (int i = 0; i < 64; ++i) {
    const uint64_t before = (*world)[0]->bytes_sent();
    const auto ticket = (*world)[0]->PostSend(peer, {}, {});
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_TRUE((*world)[0]->Wait(*ticket, Within(10)).ok());
    if ((*world)[0]->bytes_sent() == before) dropped |= uint64_t{1} << i;
  }
  return dropped;
}

TEST(FaultTest, SameSeedSameFaults) {
  FaultOptions faults;
  faults.seed = 1;
  faults.every_peer.drop_probability = 0.5;
  const uint64_t dropped = DroppedFrames(faults, 1);
  EXPECT_NE(dropped, 0u);
  EXPECT_NE(~dropped, 0u);
  EXPECT_EQ(DroppedFrames(faults, 1), dropped);
  EXPECT_NE(DroppedFrames(faults, 2), dropped);
  faults.seed = 2;
  EXPECT_NE(DroppedFrames(faults, 1), dropped);
}

TEST(FaultTest, OnlyTheNamedRankAndPeerSuffer) {
  FaultOptions faults;
  faults.rank = 2;
  faults.every_peer.drop_probability = 1;
  EXPECT_EQ(DroppedFrames(faults, 1), 0u);
  faults.rank = 0;
  faults.peers[1] = {};
  EXPECT_EQ(DroppedFrames(faults, 1), 0u);
  EXPECT_EQ(~DroppedFrames(faults, 2), 0u);
}

TEST(FaultTest, DisconnectComesAfterTheGivenFrames) {
  FaultOptions faults;
  faults.rank = 0;
  faults.disconnect_after_frames = 3;
  const auto inner = MakeInprocFactory();
  const auto factory = MakeFaultFactory(*inner, faults);
  auto world = ConnectWorld(*factory, 2);
  ASSERT_TRUE(world.ok()) << world.status();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE((*world)[0]->PostSend(1, {}, {}).ok());
  EXPECT_EQ((*world)[0]->PostSend(1, {}, {}).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weir::testing
