// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/scratch_pool.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(ScratchPoolTest, ReusesTheTightestFitAndBoundsWhatIsIdle) {
  ScratchPool pool(2);
  std::byte* first = nullptr;
  {
    ScratchBuffer buffer = pool.Take(100000);
    first = buffer.bytes().data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    EXPECT_EQ(buffer.bytes().size(), 100000u);
  }
  {
    ScratchBuffer small = pool.Take(10);  // far smaller: not the idle large one
    EXPECT_NE(small.bytes().data(), first);
    ScratchBuffer same = pool.Take(90000);
    EXPECT_EQ(same.bytes().data(), first);
    EXPECT_EQ(same.bytes().size(), 90000u);
    ScratchBuffer moved = std::move(same);
    EXPECT_TRUE(same.empty());
    EXPECT_EQ(moved.bytes().data(), first);
  }
}

TEST(ScratchPoolTest, FreesWhatWasReturnedLongestAgoBeyondItsBytes) {
  ScratchPool pool(8, 3 * 4096);
  std::byte *oldest = nullptr, *newest = nullptr;
  {
    ScratchBuffer a = pool.Take(4096), b = pool.Take(4096), c = pool.Take(8192);
    oldest = a.bytes().data();
    newest = c.bytes().data();
    a.Release();
    b.Release();
  }
  ScratchBuffer large = pool.Take(8192);
  EXPECT_EQ(large.bytes().data(), newest);
  ScratchBuffer small = pool.Take(4096);  // b is kept, a is not
  ScratchBuffer fresh = pool.Take(4096);
  EXPECT_NE(small.bytes().data(), oldest);
  {
    // A buffer larger than the bound is not kept, and neither are others beside it.
    ScratchBuffer vast = pool.Take(5 * 4096);
    small.Release();
  }
  large.Release();
  EXPECT_EQ(pool.Take(8192).bytes().data(), newest);
}

}  // namespace
}  // namespace weir
