#include "datapath/codec/error_feedback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weir {
namespace {

using Floats = std::vector<float>;

Floats Current(ResidualStore& store, uint64_t key) {
  const ResidualBuffers buffers = store.BeginEncode(key).value();
  const Floats copy(buffers.current.begin(), buffers.current.end());
  store.Discard();
  return copy;
}

/// One step that leaves first, first + 1, ... behind.
void Leave(ResidualStore& store, uint64_t key, float first) {
  const ResidualBuffers buffers = store.BeginEncode(key).value();
  std::iota(buffers.next.begin(), buffers.next.end(), first);
  store.Commit();
}

std::vector<std::byte> Exported(const ResidualStore& store) {
  std::vector<std::byte> bytes(store.ExportBytes());
  EXPECT_EQ(store.Export(bytes).value(), bytes.size());
  return bytes;
}

TEST(ResidualStoreTest, StartsAtZeroWithoutMemory) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 3}}).ok());
  EXPECT_EQ(store.MemoryBytes(), 0u);
  EXPECT_FALSE(store.HasResidual(1));
  EXPECT_EQ(Current(store, 1), Floats(5, 0.0f));
  EXPECT_EQ(store.MemoryBytes(), 40u);
}

TEST(ResidualStoreTest, CommitKeepsDiscardForgets) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Leave(store, 1, 5);
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
  const ResidualBuffers buffers = store.BeginEncode(1).value();
  std::fill(buffers.next.begin(), buffers.next.end(), -1.0f);
  store.Discard();
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
}

TEST(ResidualStoreTest, UnusedBucketsAreUntouchedByCommit) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}}).ok());
  ASSERT_TRUE(store.Define(2, {{"b", 2}}).ok());
  Leave(store, 1, 1);
  Leave(store, 2, 10);
  EXPECT_EQ(Current(store, 1), Floats({1, 2}));
  EXPECT_EQ(Current(store, 2), Floats({10, 11}));
}

TEST(ResidualStoreTest, BuffersAreAlignedAndApart) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 1000003}}).ok());
  const ResidualBuffers buffers = store.BeginEncode(1).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.current.data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.next.data()) % 64, 0u);
  EXPECT_NE(buffers.current.data(), buffers.next.data());
  EXPECT_EQ(buffers.next.size(), 1000003u);
}

TEST(ResidualStoreTest, ABucketIsUsedOncePerStep) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}}).ok());
  ASSERT_TRUE(store.BeginEncode(1).ok());
  EXPECT_EQ(store.BeginEncode(1).status().code(), StatusCode::kFailedPrecondition);
  Floats gradient(2);
  EXPECT_EQ(store.Flush(1, gradient).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.BeginEncode(9).status().code(), StatusCode::kNotFound);
}

TEST(ResidualStoreTest, FlushAddsTheResidualAndFreesItAtCommit) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Floats gradient = {100, 100, 100};
  EXPECT_FALSE(store.Flush(1, gradient).value());  // nothing yet
  store.Commit();
  Leave(store, 1, 1);
  EXPECT_TRUE(store.Flush(1, gradient).value());
  EXPECT_EQ(gradient, Floats({101, 102, 103}));
  store.Discard();  // the step was skipped: still there
  EXPECT_TRUE(store.HasResidual(1));
  EXPECT_EQ(Current(store, 1), Floats({1, 2, 3}));
  EXPECT_TRUE(store.Flush(1, gradient).value());
  store.Commit();
  EXPECT_FALSE(store.HasResidual(1));
  EXPECT_EQ(store.MemoryBytes(), 0u);
  EXPECT_EQ(Current(store, 1), Floats({0, 0, 0}));
  Floats wrong(2);
  EXPECT_EQ(store.Flush(1, wrong).status().code(), StatusCode::kInvalidArgument);
}

TEST(ResidualStoreTest, ResidualsFollowParametersAcrossARebuild) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 3}}).ok());
  ASSERT_TRUE(store.Define(2, {{"c", 2}}).ok());
  Leave(store, 1, 1);   // a: 1 2, b: 3 4 5
  Leave(store, 2, 10);  // c: 10 11
  ASSERT_TRUE(store.Define(3, {{"c", 2}, {"a", 2}, {"d", 1}}).ok());
  EXPECT_EQ(Current(store, 3), Floats({10, 11, 1, 2, 0}));
  EXPECT_EQ(store.BeginEncode(1).status().code(), StatusCode::kNotFound);
  // b belongs to no bucket now and is kept.
  ASSERT_TRUE(store.Define(4, {{"b", 3}}).ok());
  EXPECT_EQ(Current(store, 4), Floats({3, 4, 5}));
}

TEST(ResidualStoreTest, TheSameKeyMayBeRedefined) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 1}}).ok());
  Leave(store, 1, 1);
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 1}}).ok());  // no-op, in a step as well
  ASSERT_TRUE(store.Define(1, {{"b", 1}, {"a", 2}}).ok());
  EXPECT_EQ(Current(store, 1), Floats({3, 1, 2}));
}

TEST(ResidualStoreTest, RebuildWithinAStepWorksForUnusedBucketsOnly) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}}).ok());
  ASSERT_TRUE(store.Define(2, {{"b", 2}}).ok());
  Leave(store, 2, 7);
  ASSERT_TRUE(store.BeginEncode(1).ok());
  const Status taken = store.Define(3, {{"a", 2}});
  EXPECT_EQ(taken.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store.Define(3, {{"b", 2}}).ok());
  store.Commit();
  EXPECT_EQ(Current(store, 3), Floats({7, 8}));
}

TEST(ResidualStoreTest, DefinitionErrorsNameTheParameter) {
  ResidualStore store;
  const Status twice = store.Define(1, {{"w", 2}, {"w", 2}});
  EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(twice).find("'w'"), std::string::npos);
  ASSERT_TRUE(store.Define(1, {{"w", 2}}).ok());
  Leave(store, 1, 1);
  const Status resized = store.Define(2, {{"w", 5}});
  EXPECT_EQ(resized.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(resized).find("'w': expected 2 elements, found 5"), std::string::npos)
      << Message(resized);
  EXPECT_EQ(Current(store, 1), Floats({1, 2}));  // nothing changed
}

TEST(ResidualStoreTest, ExportImportRestoresEverything) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 3}}).ok());
  ASSERT_TRUE(store.Define(2, {{"never used", 4}}).ok());
  Leave(store, 1, 1);
  const std::vector<std::byte> state = Exported(store);
  // Another process with another layout, where "b" appears only later.
  ResidualStore other;
  ASSERT_TRUE(other.Define(9, {{"x", 1}, {"a", 2}}).ok());
  Leave(other, 9, 50);  // replaced: x is not in the state
  ASSERT_TRUE(other.Import(state).ok());
  EXPECT_EQ(Current(other, 9), Floats({0, 1, 2}));
  ASSERT_TRUE(other.Define(10, {{"b", 3}}).ok());
  EXPECT_EQ(Current(other, 10), Floats({3, 4, 5}));
  // The bytes do not depend on the layout.
  ResidualStore third;
  ASSERT_TRUE(third.Import(state).ok());
  EXPECT_EQ(Exported(third), state);
}

TEST(ResidualStoreTest, ExportHappensBetweenSteps) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}}).ok());
  std::vector<std::byte> bytes(1000);
  ASSERT_TRUE(store.BeginEncode(1).ok());
  EXPECT_EQ(store.Export(bytes).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.Import({}).code(), StatusCode::kFailedPrecondition);
  store.Commit();
  EXPECT_EQ(store.Export(std::span(bytes).first(store.ExportBytes() - 1)).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(ResidualStoreTest, ImportNamesTheParameterWhoseSizeDiffers) {
  ResidualStore store, other;
  ASSERT_TRUE(store.Define(1, {{"layer.weight", 3}}).ok());
  Leave(store, 1, 1);
  ASSERT_TRUE(other.Define(1, {{"layer.weight", 4}}).ok());
  Leave(other, 1, 20);
  const Status status = other.Import(Exported(store));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("'layer.weight': expected 4 elements, found 3"), std::string::npos)
      << Message(status);
  EXPECT_EQ(Current(other, 1), Floats({20, 21, 22, 23}));
}

TEST(ResidualStoreTest, EveryFlippedBitAndEveryTruncationIsRejected) {
  ResidualStore store, other;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 1}}).ok());
  Leave(store, 1, 1);
  std::vector<std::byte> state = Exported(store);
  for (size_t bit = 0; bit < state.size() * 8; ++bit) {
    state[bit / 8] ^= std::byte(1u << (bit % 8));
    EXPECT_EQ(other.Import(state).code(), StatusCode::kDataLoss) << bit;
    state[bit / 8] ^= std::byte(1u << (bit % 8));
  }
  for (size_t size = 0; size < state.size(); ++size) {
    EXPECT_EQ(other.Import(std::span(state).first(size)).code(), StatusCode::kDataLoss) << size;
  }
  EXPECT_TRUE(other.Import(state).ok());
}

}  // namespace
}  // namespace weir
