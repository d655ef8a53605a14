// SPDX-License-Identifier: Apache-2.0
// Streams and the order of their work. Built for the host, work begins only when somebody waits.

#include <gtest/gtest.h>

#include "tests/datapath/cuda/device_rig.h"

namespace weir::cuda {
namespace {

Stream Make(std::vector<OwnStream>& owned) {
  StatusOr<OwnStream> made = OwnStream::Make();
  WEIR_CHECK(made.ok());
  owned.push_back(*std::move(made));
  return owned.back().get();
}

TEST(StreamTest, AStreamFollowsWhatAnotherHasByThen) {
  std::vector<OwnStream> owned;
  const Stream first = Make(owned), second = Make(owned);
  const std::vector<int> early(1000, 1), late(1000, 2);
  const test::OnDevice<int> from{std::span(early)};
  std::vector<int> seen(1000);
  // So much that a second stream that did not wait would be ahead.
  const test::OnDevice<std::byte> ballast(size_t{64} << 20);
  ASSERT_TRUE(FillDevice(from.data(), 0, 4000, first).ok());
  ASSERT_TRUE(FillDevice(ballast.data(), 3, ballast.span().size(), first).ok());
  ASSERT_TRUE(CopyToDevice(from.data(), late.data(), 4000, first).ok());
  ASSERT_TRUE(Follow(second, first).ok());
  ASSERT_TRUE(CopyToHost(seen.data(), from.data(), 4000, second).ok());
  ASSERT_TRUE(Synchronise(second).ok());
  EXPECT_EQ(seen, late);
  ASSERT_TRUE(Synchronise(first).ok());
}

TEST(StreamTest, OnTheHostWorkOutlivesItsStream) {
  if (DeviceName().value() != "host") GTEST_SKIP() << "nobody could wait for it";
  const std::vector<int> values(1000, 7);
  const test::OnDevice<int> to(1000);
  {
    StatusOr<OwnStream> stream = OwnStream::Make();
    ASSERT_TRUE(stream.ok());
    ASSERT_TRUE(CopyToDevice(to.data(), values.data(), 4000, stream->get()).ok());
  }
  EXPECT_EQ(to.Read(), values);
}

TEST(StreamTest, OnTheHostWorkWaitsForSomebodyWhoWaits) {
  if (DeviceName().value() != "host") GTEST_SKIP() << "a device begins when it likes";
  std::vector<OwnStream> owned;
  const Stream own = Make(owned), other = Make(owned);
  int value = 0;
  ASSERT_TRUE(FillDevice(&value, 1, sizeof(value), own).ok());
  ASSERT_TRUE(Synchronise(other).ok());
  EXPECT_EQ(value, 0);
  ASSERT_TRUE(Follow(other, own).ok());
  ASSERT_TRUE(FillDevice(&value, 2, sizeof(value), own).ok());
  ASSERT_TRUE(Synchronise(other).ok());
  EXPECT_EQ(value, 0x01010101) << "only what the stream had by then";
  ASSERT_TRUE(Synchronise(own).ok());
  EXPECT_EQ(value, 0x02020202);
}

}  // namespace
}  // namespace weir::cuda
