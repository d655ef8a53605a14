// SPDX-License-Identifier: Apache-2.0
// The aggregate residuals of a ResidualStore, which belong to sums that a rank encodes for all
// ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "datapath/codec/residual/error_feedback.h"

namespace weir {
namespace {

using Values = std::vector<float>;

/// One step that leaves first, first + 1, ... in the residual and says nothing of the second one.
void LeaveResidual(ResidualStore& store, uint64_t key, float first) {
  const ResidualBuffers buffers = store.BeginEncode(key).value();
  std::iota(buffers.next.begin(), buffers.next.end(), first);
  store.Commit();
}

std::vector<std::byte> StateOf(const ResidualStore& store) {
  std::vector<std::byte> bytes(store.ExportBytes());
  EXPECT_EQ(store.Export(bytes).value(), bytes.size());
  return bytes;
}

/// One step that leaves zero in the residual and `value` in the second one over `region`. Returns
/// what it added to a zero gradient of `size` elements.
Values LeaveAggregate(ResidualStore& store, uint64_t key, size_t size, ResidualStore::Range region,
                      float value) {
  Values gradient(size);
  const ResidualBuffers buffers = store.BeginEncode(key).value();
  std::fill(buffers.next.begin(), buffers.next.end(), 0.0f);
  const ResidualBuffers aggregate = store.BeginAggregate(key, region, gradient).value();
  EXPECT_EQ(aggregate.next.size(), region.size);
  std::fill(aggregate.next.begin(), aggregate.next.end(), value);
  store.Commit();
  return gradient;
}

/// The aggregate residual over the whole bucket.
Values SecondOf(ResidualStore& store, uint64_t key, size_t size) {
  Values gradient(size);
  EXPECT_TRUE(store.BeginEncode(key).ok());
  const ResidualBuffers buffers = store.BeginAggregate(key, {0, size}, gradient).value();
  const Values copy(buffers.current.begin(), buffers.current.end());
  store.Discard();
  return copy;
}

TEST(ResidualStoreServerTest, CommitKeepsDiscardForgets) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 4}}).ok());
  EXPECT_EQ(SecondOf(store, 1, 4), Values(4, 0.0f));
  EXPECT_EQ(LeaveAggregate(store, 1, 4, {1, 2}, 5), Values(4, 0.0f));
  EXPECT_EQ(SecondOf(store, 1, 4), Values({0, 5, 5, 0}));
  Values gradient(4);
  ASSERT_TRUE(store.BeginEncode(1).ok());
  const ResidualBuffers buffers = store.BeginAggregate(1, {1, 2}, gradient).value();
  EXPECT_EQ(buffers.current[0], 5);
  std::fill(buffers.next.begin(), buffers.next.end(), -1.0f);
  EXPECT_EQ(store.BeginAggregate(1, {1, 2}, gradient).status().code(),
            StatusCode::kFailedPrecondition);
  store.Discard();
  EXPECT_EQ(SecondOf(store, 1, 4), Values({0, 5, 5, 0}));
  EXPECT_TRUE(store.HasResidual(1));
}

TEST(ResidualStoreServerTest, AnotherRegionHandsTheRestToTheGradient) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 6}}).ok());
  LeaveAggregate(store, 1, 6, {0, 4}, 5);
  EXPECT_EQ(LeaveAggregate(store, 1, 6, {2, 4}, 7), Values({5, 5, 0, 0, 0, 0}));
  EXPECT_EQ(SecondOf(store, 1, 6), Values({0, 0, 7, 7, 7, 7}));
  // The contents of the buffers two steps ago do not come back.
  EXPECT_EQ(LeaveAggregate(store, 1, 6, {0, 2}, 9), Values({0, 0, 7, 7, 7, 7}));
  EXPECT_EQ(SecondOf(store, 1, 6), Values({9, 9, 0, 0, 0, 0}));
  EXPECT_EQ(LeaveAggregate(store, 1, 6, {6, 0}, 1), Values({9, 9, 0, 0, 0, 0}));
  EXPECT_EQ(SecondOf(store, 1, 6), Values(6, 0.0f));
}

TEST(ResidualStoreServerTest, UndoReturnsToBeforeTheCommit) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 6}}).ok());
  LeaveAggregate(store, 1, 6, {0, 4}, 5);
  LeaveAggregate(store, 1, 6, {2, 4}, 7);
  EXPECT_EQ(SecondOf(store, 1, 6), Values({0, 0, 7, 7, 7, 7})) << "the next step has begun";
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(SecondOf(store, 1, 6), Values({5, 5, 5, 5, 0, 0}));
  ASSERT_TRUE(store.Undo().ok()) << "nothing more to undo";
  EXPECT_EQ(LeaveAggregate(store, 1, 6, {2, 4}, 9), Values({5, 5, 0, 0, 0, 0}));
  EXPECT_EQ(SecondOf(store, 1, 6), Values({0, 0, 9, 9, 9, 9}));
  store.Confirm();
  ASSERT_TRUE(store.Undo().ok()) << "it is final";
  EXPECT_EQ(SecondOf(store, 1, 6), Values({0, 0, 9, 9, 9, 9}));
}

TEST(ResidualStoreServerTest, UndoOfAStepThatKeptItLeavesItAndOfOneThatFlushedItBringsItBack) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  LeaveAggregate(store, 1, 3, {0, 2}, 4);
  LeaveAggregate(store, 1, 3, {0, 2}, 5);
  LeaveResidual(store, 1, 1);
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(SecondOf(store, 1, 3), Values({5, 5, 0}));
  Values gradient(3);
  EXPECT_TRUE(store.Flush(1, gradient).value());
  store.Commit();
  EXPECT_FALSE(store.HasResidual(1));
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(SecondOf(store, 1, 3), Values({5, 5, 0}));
}

TEST(ResidualStoreServerTest, StepsWithoutItKeepOrFlush) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  LeaveAggregate(store, 1, 3, {0, 2}, 5);
  LeaveResidual(store, 1, 1);  // says nothing: kept
  EXPECT_EQ(SecondOf(store, 1, 3), Values({5, 5, 0}));
  Values gradient(3);
  ASSERT_TRUE(store.BeginEncode(1).ok());
  ASSERT_TRUE(store.FlushAggregate(1, gradient).ok());
  EXPECT_EQ(gradient, Values({5, 5, 0}));
  store.Discard();  // a skipped step keeps it
  EXPECT_EQ(SecondOf(store, 1, 3), Values({5, 5, 0}));
  const ResidualBuffers buffers = store.BeginEncode(1).value();
  std::copy(buffers.current.begin(), buffers.current.end(), buffers.next.begin());
  ASSERT_TRUE(store.FlushAggregate(1, gradient).ok());
  store.Commit();
  EXPECT_EQ(SecondOf(store, 1, 3), Values(3, 0.0f));
  LeaveAggregate(store, 1, 3, {0, 2}, 5);
  LeaveResidual(store, 1, 1);
  Values dense(3);
  EXPECT_TRUE(store.Flush(1, dense).value());
  EXPECT_EQ(dense, Values({6, 7, 3}));
  store.Commit();
  store.Confirm();
  EXPECT_EQ(store.MemoryBytes(), 0u);
  LeaveAggregate(store, 1, 3, {0, 2}, 5);
  Values ef21(3);
  ASSERT_TRUE(store.BeginEf21(1, ef21).ok());
  EXPECT_EQ(ef21, Values({5, 5, 0}));
}

TEST(ResidualStoreServerTest, FollowsParametersThroughRebuildScaleAndCheckpoint) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 3}, {"c", 4}}).ok());
  LeaveAggregate(store, 1, 9, {1, 3}, 5);
  ASSERT_TRUE(store.Scale(2).ok());
  EXPECT_EQ(store.MemoryBytes(), 9u * 8 + 3 * 4u) << "the region's size, not the bucket's";
  const std::vector<std::byte> state = StateOf(store);
  EXPECT_LT(state.size(), 9u * 4 + 5 * 4 + 200) << "c holds none";
  ASSERT_TRUE(store.Define(2, {{"b", 3}}).ok());
  EXPECT_EQ(SecondOf(store, 2, 3), Values({10, 10, 0}));
  ASSERT_TRUE(store.Define(3, {{"c", 4}, {"a", 2}}).ok());
  EXPECT_EQ(SecondOf(store, 3, 6), Values({0, 0, 0, 0, 0, 10}));
  ResidualStore other;
  ASSERT_TRUE(other.Import(state).ok());
  EXPECT_EQ(StateOf(other), state);
  ASSERT_TRUE(other.Define(7, {{"b", 3}, {"a", 2}}).ok());
  // In another world, the parts that are not encoded again are added to the gradient.
  EXPECT_EQ(LeaveAggregate(other, 7, 5, {0, 1}, 1), Values({0, 10, 0, 0, 10}));
  ASSERT_TRUE(other.Import(StateOf(ResidualStore())).ok());
  EXPECT_EQ(SecondOf(other, 7, 5), Values(5, 0.0f));
}

TEST(ResidualStoreServerTest, ASumTakesTheResidualAlongAndKeepsItsOwnPart) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 4}}).ok());
  LeaveAggregate(store, 1, 4, {0, 3}, 5);
  LeaveResidual(store, 1, 1);  // 1, 2, ...
  Values gradient(4);
  ResidualBuffers part = store.BeginSum(1, {2, 2}, gradient).value();
  EXPECT_EQ(gradient, Values({6, 7, 3, 4})) << "the residual, and the second one outside the part";
  EXPECT_EQ(part.current[0], 5);
  EXPECT_EQ(part.current[1], 0);
  std::fill(part.next.begin(), part.next.end(), 9.0f);
  EXPECT_EQ(store.BeginEncode(1).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.BeginAggregate(1, {0, 1}, gradient).status().code(),
            StatusCode::kFailedPrecondition);
  const std::vector<std::byte> before = [&] {
    store.Discard();
    return StateOf(store);
  }();
  gradient.assign(4, 0);
  part = store.BeginSum(1, {2, 2}, gradient).value();
  EXPECT_EQ(gradient, Values({6, 7, 3, 4})) << "a skipped step changes nothing";
  std::fill(part.next.begin(), part.next.end(), 9.0f);
  store.Commit();
  EXPECT_EQ(SecondOf(store, 1, 4), Values({0, 0, 9, 9}));
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(StateOf(store), before);
  gradient.assign(4, 0);
  part = store.BeginSum(1, {2, 2}, gradient).value();
  std::fill(part.next.begin(), part.next.end(), 9.0f);
  store.Commit();
  store.Confirm();
  EXPECT_LE(store.MemoryBytes(), 2 * 3 * 4u) << "no residual of the bucket beside it";
  // A rank without a part gives all of it back.
  gradient.assign(4, 0);
  ASSERT_TRUE(store.BeginSum(1, {0, 0}, gradient).ok());
  EXPECT_EQ(gradient, Values({0, 0, 9, 9}));
  store.Commit();
  gradient.assign(4, 0);
  EXPECT_TRUE(store.Flush(1, gradient).ok());
  EXPECT_EQ(gradient, Values(4, 0.0f));
}

TEST(ResidualStoreServerTest, WrongUseIsRefused) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Values gradient(3), shorter(2);
  EXPECT_EQ(store.BeginAggregate(2, {0, 1}, gradient).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.BeginAggregate(1, {0, 1}, gradient).status().code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store.BeginEncode(1).ok());
  EXPECT_EQ(store.BeginAggregate(1, {0, 1}, shorter).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store.BeginAggregate(1, {2, 2}, gradient).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(store.BeginAggregate(1, {1, SIZE_MAX}, gradient).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(store.BeginSum(2, {0, 1}, gradient).status().code(), StatusCode::kNotFound);
  ResidualStore unused;
  ASSERT_TRUE(unused.Define(1, {{"a", 3}}).ok());
  EXPECT_EQ(unused.BeginSum(1, {0, 1}, shorter).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unused.BeginSum(1, {2, 2}, gradient).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(unused.BeginEncode(1).ok()) << "nothing has changed";
  EXPECT_TRUE(store.FlushAggregate(1, gradient).ok());
  EXPECT_EQ(store.FlushAggregate(1, gradient).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weir
