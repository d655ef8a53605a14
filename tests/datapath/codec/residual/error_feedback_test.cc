// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/residual/error_feedback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "datapath/wire/frame.h"

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
  store.Confirm();
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

// Leaves a step's residual unconfirmed, as it is until Confirm says that all ranks completed it.
void CommitUnconfirmed(ResidualStore& store, uint64_t key, float first) {
  const ResidualBuffers buffers = store.BeginEncode(key).value();
  std::iota(buffers.next.begin(), buffers.next.end(), first);
  store.Commit();
}

TEST(ResidualStoreTest, UndoReturnsToBeforeTheCommitThoughTheNextStepHasBegun) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  ASSERT_TRUE(store.Define(2, {{"b", 3}}).ok());
  Leave(store, 1, 5);
  CommitUnconfirmed(store, 1, 8);
  EXPECT_EQ(store.MemoryBytes(), 24u) << "no third buffer unless the next step needs one";
  const ResidualBuffers buffers = store.BeginEncode(1).value();
  EXPECT_EQ(Floats(buffers.current.begin(), buffers.current.end()), Floats({8, 9, 10}));
  std::fill(buffers.next.begin(), buffers.next.end(), -1.0f);
  EXPECT_EQ(store.Undo().code(), StatusCode::kFailedPrecondition) << "within a step";
  store.Discard();
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
  ASSERT_TRUE(store.Undo().ok()) << "nothing more to undo";
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
  EXPECT_FALSE(store.HasResidual(2));
}

TEST(ResidualStoreTest, ConfirmAndALaterCommitMakeTheFormerOneFinal) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  ASSERT_TRUE(store.Define(2, {{"b", 3}}).ok());
  CommitUnconfirmed(store, 1, 8);
  store.Confirm();
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(Current(store, 1), Floats({8, 9, 10}));
  CommitUnconfirmed(store, 1, 1);
  CommitUnconfirmed(store, 2, 2);  // a step without bucket 1
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(Current(store, 1), Floats({1, 2, 3}));
  EXPECT_EQ(Current(store, 2), Floats({0, 0, 0}));
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(store.BeginEncode(1).ok());
    store.Confirm();  // the first operation of the step is done after the bucket was encoded
    store.Commit();
  }
  EXPECT_LE(store.MemoryBytes(), 3u * 12 + 2 * 12) << "never more than three buffers";
}

TEST(ResidualStoreTest, UndoBringsBackWhatWasFlushedAtTheScaleOfNow) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Leave(store, 1, 5);
  Floats gradient(3);
  ASSERT_TRUE(store.Flush(1, gradient).value());
  store.Commit();
  EXPECT_FALSE(store.HasResidual(1));
  ASSERT_TRUE(store.Scale(2).ok());
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(Current(store, 1), Floats({10, 12, 14}));
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
  store.Confirm();
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

TEST(ResidualStoreTest, CodecStatesTravelAlong) {
  ResidualStore store, other;
  ASSERT_TRUE(store.Define(1, {{"a", 2}}).ok());
  Leave(store, 1, 1);
  const std::vector<SavedCodecState> codecs = {
      {7, "dgc", {.ratio = 0.25, .bits = 8}, {std::byte{1}, std::byte{2}}}, {9, "x", {}, {}}};
  std::vector<std::byte> state(store.ExportBytes(codecs));
  EXPECT_EQ(store.Export(state, codecs).value(), state.size());
  std::vector<SavedCodecState> found;
  ASSERT_TRUE(other
                  .Import(state,
                          [&](std::vector<SavedCodecState> states) {
                            found = std::move(states);
                            return OkStatus();
                          })
                  .ok());
  EXPECT_EQ(found, codecs);
  EXPECT_EQ(Exported(other), Exported(store));
  // Who refuses them refuses it all.
  ResidualStore third;
  const Status refused = third.Import(state, [](const auto&) { return DataLoss("not for me"); });
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_EQ(Exported(third).size(), third.ExportBytes());
  EXPECT_LT(Exported(third).size(), Exported(store).size());
}

TEST(ResidualStoreTest, DamageBehindARightChecksumIsRefusedOrHarmless) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 1}}).ok());
  Leave(store, 1, 1);
  const std::vector<SavedCodecState> codecs = {
      {7, "dgc", {.ratio = 0.25, .bits = 8}, {std::byte{1}, std::byte{2}}}, {9, "x", {}, {}}};
  std::vector<std::byte> state(store.ExportBytes(codecs));
  ASSERT_TRUE(store.Export(state, codecs).ok());
  const auto import = [](std::vector<std::byte> bytes) {
    const auto body = std::span<const std::byte>(bytes).first(bytes.size() - 4);
    const uint32_t checksum = Checksum(body);
    std::memcpy(bytes.data() + body.size(), &checksum, sizeof(checksum));
    ResidualStore other;
    return other.Import(bytes);
  };
  size_t refused = 0;
  for (size_t bit = 0; bit < (state.size() - 4) * 8; ++bit) {
    std::vector<std::byte> damaged = state;
    damaged[bit / 8] ^= std::byte(1u << (bit % 8));
    const Status status = import(damaged);
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << ToString(status);
    EXPECT_NE(Message(status).find("offset"), std::string::npos) << Message(status);
    ++refused;
  }
  EXPECT_GT(refused, state.size());
  for (size_t size = 16; size < state.size(); ++size) {
    const std::vector<std::byte> cut(state.begin(), state.begin() + size);
    EXPECT_EQ(import(cut).code(), StatusCode::kDataLoss) << size;
  }
  std::vector<SavedCodecState> twice = {codecs[0], codecs[0]};
  state.resize(store.ExportBytes(twice));
  ASSERT_TRUE(store.Export(state, twice).ok());
  EXPECT_EQ(import(state).code(), StatusCode::kDataLoss) << "a bucket has one state";
}

TEST(ResidualStoreTest, AnotherVersionIsRefused) {
  ResidualStore store, other;
  ASSERT_TRUE(store.Define(1, {{"a", 2}}).ok());
  Leave(store, 1, 1);
  std::vector<std::byte> state = Exported(store);
  state[4] = std::byte{2};
  const uint32_t checksum = Checksum(std::span<const std::byte>(state).first(state.size() - 4));
  std::memcpy(state.data() + state.size() - 4, &checksum, sizeof(checksum));
  const Status refused = other.Import(state);
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_EQ(Message(refused), "residual state: version 2 at offset 4, expected 3");
}

TEST(ResidualStoreTest, ScaleReachesEveryBucketAndWhatIsKept) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 1}}).ok());
  Leave(store, 1, 1);
  ASSERT_TRUE(store.Define(2, {{"a", 2}}).ok());  // b is kept by name
  ASSERT_TRUE(store.Scale(0.5).ok());
  EXPECT_EQ(Current(store, 2), Floats({0.5f, 1.0f}));
  ASSERT_TRUE(store.Define(3, {{"b", 1}}).ok());
  EXPECT_EQ(Current(store, 3), Floats({1.5f}));
  const Status overflow = store.Scale(1e39);
  EXPECT_EQ(overflow.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(overflow).find("'a'"), std::string::npos) << Message(overflow);
  for (const double bad : {0.0, -2.0, std::nan("")}) {
    EXPECT_EQ(store.Scale(bad).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Current(store, 2), Floats({0.5f, 1.0f}));
  ASSERT_TRUE(store.BeginEncode(2).ok());
  EXPECT_EQ(store.Scale(2).code(), StatusCode::kFailedPrecondition);
}

// --- Momentum ------------------------------------------------------------------------------------

/// One step that leaves residuals from `first` and momenta from `momentum`.
void LeaveBoth(ResidualStore& store, uint64_t key, float first, float momentum) {
  const ResidualBuffers buffers = store.BeginEncode(key).value();
  std::iota(buffers.next.begin(), buffers.next.end(), first);
  const MomentumBuffers moving = store.BeginMomentum(key).value();
  std::iota(moving.next.begin(), moving.next.end(), momentum);
  store.Commit();
  store.Confirm();
}

Floats Momentum(ResidualStore& store, uint64_t key) {
  EXPECT_TRUE(store.BeginEncode(key).ok());
  const MomentumBuffers buffers = store.BeginMomentum(key).value();
  const Floats copy(buffers.current.begin(), buffers.current.end());
  store.Discard();
  return copy;
}

TEST(ResidualStoreTest, MomentumCommitsAndDiscardsWithTheResidual) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  EXPECT_EQ(Momentum(store, 1), Floats(3, 0.0f));
  LeaveBoth(store, 1, 5, 50);
  EXPECT_EQ(store.MemoryBytes(), 48u);
  EXPECT_EQ(Momentum(store, 1), Floats({50, 51, 52}));
  ASSERT_TRUE(store.BeginEncode(1).ok());
  const MomentumBuffers buffers = store.BeginMomentum(1).value();
  std::fill(buffers.next.begin(), buffers.next.end(), -1.0f);
  store.Discard();
  EXPECT_EQ(Momentum(store, 1), Floats({50, 51, 52}));
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
}

TEST(ResidualStoreTest, UndoBringsBackMomentum) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  LeaveBoth(store, 1, 5, 50);
  CommitUnconfirmed(store, 1, 8);  // without momentum, which is dropped
  ASSERT_TRUE(store.Undo().ok());
  EXPECT_EQ(Momentum(store, 1), Floats({50, 51, 52}));
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
}

TEST(ResidualStoreTest, MomentumIsTakenOncePerStepAfterTheResidual) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  EXPECT_EQ(store.BeginMomentum(2).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.BeginMomentum(1).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store.BeginEncode(1).ok());
  EXPECT_TRUE(store.BeginMomentum(1).ok());
  EXPECT_EQ(store.BeginMomentum(1).status().code(), StatusCode::kFailedPrecondition);
}

TEST(ResidualStoreTest, AStepWithoutMomentumDropsItAtCommitNotAtDiscard) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  LeaveBoth(store, 1, 5, 50);
  ASSERT_TRUE(store.Scale(2).ok());
  EXPECT_EQ(Momentum(store, 1), Floats({100, 102, 104}));
  ASSERT_TRUE(store.Scale(0.5).ok());
  ASSERT_TRUE(store.BeginEncode(1).ok());
  store.Discard();
  EXPECT_EQ(Momentum(store, 1), Floats({50, 51, 52}));
  Leave(store, 1, 8);
  EXPECT_EQ(store.MemoryBytes(), 24u);
  EXPECT_EQ(Momentum(store, 1), Floats(3, 0.0f));
  // A dense step drops both.
  LeaveBoth(store, 1, 5, 50);
  Floats gradient(3, 0.0f);
  ASSERT_TRUE(store.Flush(1, gradient).ok());
  store.Commit();
  store.Confirm();
  EXPECT_EQ(store.MemoryBytes(), 0u);
}

TEST(ResidualStoreTest, MomentumFollowsParametersThroughRebuildAndCheckpoint) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 2}, {"b", 3}}).ok());
  LeaveBoth(store, 1, 1, 10);
  const std::vector<std::byte> state = Exported(store);
  ASSERT_TRUE(store.Define(2, {{"b", 3}}).ok());
  EXPECT_EQ(Momentum(store, 2), Floats({12, 13, 14}));
  ASSERT_TRUE(store.Define(3, {{"a", 2}}).ok());
  EXPECT_EQ(Momentum(store, 3), Floats({10, 11}));
  EXPECT_EQ(Current(store, 3), Floats({1, 2}));
  ResidualStore other;
  ASSERT_TRUE(other.Import(state).ok());
  EXPECT_EQ(Exported(other), state);
  ASSERT_TRUE(other.Define(7, {{"b", 3}, {"a", 2}}).ok());
  EXPECT_EQ(Momentum(other, 7), Floats({12, 13, 14, 10, 11}));
  EXPECT_EQ(Current(other, 7), Floats({3, 4, 5, 1, 2}));
}

TEST(ResidualStoreTest, MomentumOfAnotherSizeIsRefusedByName) {
  ResidualStore store, other;
  ASSERT_TRUE(store.Define(1, {{"w", 3}}).ok());
  LeaveBoth(store, 1, 1, 10);
  ASSERT_TRUE(other.Define(1, {{"w", 4}}).ok());
  EXPECT_EQ(other.Import(Exported(store)).code(), StatusCode::kInvalidArgument);
}

// --- EF21 ----------------------------------------------------------------------------------------

/// One step that leaves -h = value and an estimate of value + 1 everywhere.
void Remember(ResidualStore& store, uint64_t key, float value, Floats gradient) {
  const Ef21Buffers buffers = store.BeginEf21(key, gradient).value();
  std::fill(buffers.next_negative.begin(), buffers.next_negative.end(), value);
  std::fill(buffers.next_estimate.begin(), buffers.next_estimate.end(), value + 1);
  store.Commit();
  store.Confirm();
}

/// -h and the estimate of the first element.
std::pair<float, float> Remembered(ResidualStore& store, uint64_t key, size_t size) {
  Floats gradient(size);
  const Ef21Buffers buffers = store.BeginEf21(key, gradient).value();
  store.Discard();
  return {buffers.negative[0], buffers.estimate[0]};
}

TEST(ResidualStoreEf21Test, CommitKeepsDiscardForgets) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  EXPECT_EQ(Remembered(store, 1, 3), std::pair(0.0f, 0.0f));
  Remember(store, 1, 5, Floats(3));
  EXPECT_EQ(Remembered(store, 1, 3), std::pair(5.0f, 6.0f));
  Floats gradient(3);
  const Ef21Buffers buffers = store.BeginEf21(1, gradient).value();
  std::fill(buffers.next_negative.begin(), buffers.next_negative.end(), -1.0f);
  store.Discard();
  EXPECT_EQ(Remembered(store, 1, 3), std::pair(5.0f, 6.0f));
  EXPECT_EQ(store.MemoryBytes(), 3u * 16);
  EXPECT_FALSE(store.HasResidual(1));
}

TEST(ResidualStoreEf21Test, TheFirstStepTakesTheResidualAlong) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Leave(store, 1, 5);
  Floats gradient = {1, 1, 1};
  ASSERT_TRUE(store.BeginEf21(1, gradient).ok());
  EXPECT_EQ(gradient, Floats({6, 7, 8}));
  EXPECT_EQ(store.BeginEf21(1, gradient).status().code(), StatusCode::kFailedPrecondition);
  store.Discard();  // a skipped step keeps it
  EXPECT_TRUE(store.HasResidual(1));
  Remember(store, 1, 2, gradient);
  EXPECT_FALSE(store.HasResidual(1));
  EXPECT_EQ(store.MemoryBytes(), 3u * 16);
  Floats wrong(2);
  EXPECT_EQ(store.BeginEf21(1, wrong).status().code(), StatusCode::kInvalidArgument);
}

TEST(ResidualStoreEf21Test, UndoBringsBackTheResidualAndForgetDropsTheMemory) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Leave(store, 1, 5);
  Floats gradient(3);
  ASSERT_TRUE(store.BeginEf21(1, gradient).ok());
  store.Commit();
  ASSERT_TRUE(store.Undo().ok());
  store.ForgetEf21();
  EXPECT_EQ(Current(store, 1), Floats({5, 6, 7}));
  EXPECT_EQ(Remembered(store, 1, 3), std::pair(0.0f, 0.0f));
}

TEST(ResidualStoreEf21Test, OtherCodecsDropTheMemory) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}}).ok());
  Remember(store, 1, 5, Floats(3));
  store.DropEf21(1);
  store.DropEf21(99);
  EXPECT_EQ(store.MemoryBytes(), 0u);
  EXPECT_EQ(Remembered(store, 1, 3), std::pair(0.0f, 0.0f));
  Remember(store, 1, 5, Floats(3));
  Floats gradient(3);
  EXPECT_FALSE(store.Flush(1, gradient).value()) << "the memory is nobody's due";
  store.Commit();
  store.Confirm();
  EXPECT_EQ(store.MemoryBytes(), 0u);
}

TEST(ResidualStoreEf21Test, MemoryFollowsParametersAndCheckpoints) {
  ResidualStore store;
  ASSERT_TRUE(store.Define(1, {{"a", 3}, {"b", 1}}).ok());
  Remember(store, 1, 5, Floats(4));
  ASSERT_TRUE(store.Define(2, {{"a", 3}}).ok());
  EXPECT_EQ(Remembered(store, 2, 3), std::pair(5.0f, 6.0f));
  ResidualStore other;
  ASSERT_TRUE(other.Define(7, {{"a", 3}}).ok());
  ASSERT_TRUE(other.Import(Exported(store)).ok());
  EXPECT_EQ(Remembered(other, 7, 3), std::pair(5.0f, 6.0f));
  EXPECT_EQ(Exported(other), Exported(store)) << "b is kept by name";
}

}  // namespace
}  // namespace weir
