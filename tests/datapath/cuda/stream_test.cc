// SPDX-License-Identifier: Apache-2.0
// Streams and the order of their work. Built for the host, work begins only when somebody waits.

#include <gtest/gtest.h>

#include "tests/datapath/cuda/device_rig.h"

namespace weir::cuda {
namespace {

using test::OnHost;

TEST(StreamTest, AnEventIsDoneWithTheWorkBeforeIt) {
  const std::vector<int> values(1000, 7);
  const test::OnDevice<int> to(1000);
  StatusOr<OwnStream> stream = OwnStream::Make();
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(FillDevice(to.data(), 1, 4000, stream->get()).ok());
  ASSERT_TRUE(CopyToDevice(to.data(), values.data(), 4000, stream->get()).ok());
  const StatusOr<Event> event = Event::Record(stream->get());
  ASSERT_TRUE(event.ok());
  if (OnHost()) {  // what comes after it
    ASSERT_TRUE(FillDevice(to.data(), 2, 4000, stream->get()).ok());
  }
  int asked = 1;
  while (!*event->IsDone()) ++asked;
  if (OnHost()) {
    EXPECT_EQ(asked, 3);
  }
  EXPECT_EQ(to.Read(), values);
}

TEST(StreamTest, OnTheHostWorkWaitsForSomebodyWhoWaits) {
  if (!OnHost()) GTEST_SKIP() << "a device begins when it likes";
  StatusOr<OwnStream> own = OwnStream::Make(), other = OwnStream::Make();
  ASSERT_TRUE(own.ok() && other.ok());
  int value = 0;
  ASSERT_TRUE(FillDevice(&value, 1, sizeof(value), own->get()).ok());
  ASSERT_TRUE(Synchronise(other->get()).ok());
  EXPECT_EQ(value, 0);
  ASSERT_TRUE(Synchronise(own->get()).ok());
  EXPECT_EQ(value, 0x01010101);
}

TEST(StreamTest, OnTheHostWorkOutlivesItsStream) {
  if (!OnHost()) GTEST_SKIP() << "nobody could wait for it";
  int value = 0;
  {
    StatusOr<OwnStream> stream = OwnStream::Make();
    ASSERT_TRUE(stream.ok());
    ASSERT_TRUE(FillDevice(&value, 1, sizeof(value), stream->get()).ok());
    EXPECT_EQ(value, 0);
  }
  EXPECT_EQ(value, 0x01010101);
}

}  // namespace
}  // namespace weir::cuda
