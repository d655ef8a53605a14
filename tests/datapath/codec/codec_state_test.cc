// SPDX-License-Identifier: Apache-2.0
// Codec state through a checkpoint: the same bytes follow, and damaged bytes do no harm.

#include <gtest/gtest.h>

#include <set>

#include "datapath/codec/state_bytes.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using test::ForEachSetting;

constexpr size_t kStateSize = 5000;
const std::vector<TensorShape> kShape = {{40, 100}, {1, 1000}};

EncodeContext MatrixContext(const Codec& codec, int bits) {
  EncodeContext context = test::ContextFor(codec, {}, 1, 0.1, bits);
  context.shape = kShape;
  return context;
}

/// One rank in a world of one, with the state that a session keeps for it, except momentum.
class Steps {
 public:
  Steps(const Codec& codec, int bits)
      : codec_(codec), context_(MatrixContext(codec, bits)), residual_(kStateSize, 0.0f) {
    state_ = codec.NewState(kStateSize, context_);
  }

  CodecState* state() { return state_.get(); }
  std::vector<float>& residual() { return residual_; }

  /// The payload of step number `step`, whose gradient is drawn from it.
  std::vector<std::byte> Run(int step, float scale = 1) {
    std::vector<float> g = test::NormalVector(kStateSize, 100 + step, 0.01 * (1 + step % 3));
    for (float& v : g) v *= scale;
    context_.state = state_.get();
    context_.seed = step;
    context_.shared_max = codec_.LocalMax(g, residual_, context_);
    std::vector<std::byte> payload;
    std::vector<float> decoded(kStateSize, 0.0f);
    test::FeedbackOrDie(codec_, g, residual_, residual_, context_, &payload);
    if (HoldsIndicesOnly(codec_.Traits().form)) {
      std::vector<uint32_t> indices;
      EXPECT_TRUE(codec_.DecodeIndices(payload, kStateSize, &indices).ok());
      for (const uint32_t i : indices) residual_[i] = 0;
      codec_.LearnSelection(context_, indices.size(), kStateSize);
    } else {
      EXPECT_TRUE(codec_.DecodeAdd(payload, context_, 1, decoded).ok());
    }
    return payload;
  }

 private:
  const Codec& codec_;
  EncodeContext context_;
  std::vector<float> residual_;
  std::unique_ptr<CodecState> state_;
};

TEST(CodecStateTest, WhatIsLoadedGoesOnWithTheSameBytes) {
  std::set<std::string> kept, would_differ;
  ForEachSetting([&](const Codec& codec, int bits) {
    Steps first(codec, bits), second(codec, bits), anew(codec, bits);
    if (first.state() == nullptr) return;
    for (int step = 0; step < 70; ++step) first.Run(step);  // dgc's warm-up has gone on by then
    const std::vector<std::byte> saved = first.state()->Save();
    if (saved.empty()) return;
    kept.insert(codec.Traits().name);
    EXPECT_EQ(std::to_integer<int>(saved[0]), kCodecStateVersion);
    const Status loaded = second.state()->Load(saved);
    ASSERT_TRUE(loaded.ok()) << ToString(loaded);
    EXPECT_EQ(second.state()->Save(), saved);
    second.residual() = anew.residual() = first.residual();
    for (int step = 70; step < 76; ++step) {
      const std::vector<std::byte> expected = first.Run(step);
      ASSERT_EQ(second.Run(step), expected) << "step " << step;
      if (anew.Run(step) != expected) would_differ.insert(codec.Traits().name);
    }
  });
  // Otherwise the test would have tested nothing.
  for (const char* name : {"dgc", "threshold", "top_k", "power_sgd", "nominated_top_k"}) {
    EXPECT_TRUE(kept.contains(name)) << name;
    EXPECT_TRUE(would_differ.contains(name)) << name;
  }
}

TEST(CodecStateTest, TruncatedAndLongerStatesAreRejectedWithTheOffset) {
  ForEachSetting([&](const Codec& codec, int bits) {
    Steps first(codec, bits);
    if (first.state() == nullptr) return;
    for (int step = 0; step < 3; ++step) first.Run(step);
    std::vector<std::byte> saved = first.state()->Save();
    if (saved.empty()) return;
    for (size_t size = 0; size < saved.size(); size += size < 64 ? 1 : 7) {
      Steps other(codec, bits);
      const std::vector<std::byte> cut(saved.begin(), saved.begin() + size);
      const Status status = other.state()->Load(cut);
      ASSERT_EQ(status.code(), StatusCode::kDataLoss) << size;
      ASSERT_NE(Message(status).find("offset"), std::string::npos) << Message(status);
    }
    saved.push_back(std::byte{0});
    EXPECT_EQ(Steps(codec, bits).state()->Load(saved).code(), StatusCode::kDataLoss);
  });
}

TEST(CodecStateTest, DamagedStatesAreRejectedOrHarmless) {
  // A damaged state that is accepted may cost a second pass; it must lose nothing and stay within
  // the bounds (FeedbackOrDie gives exactly MaxEncodedBytes).
  Random random(9);
  ForEachSetting([&](const Codec& codec, int bits) {
    Steps first(codec, bits);
    if (first.state() == nullptr) return;
    for (int step = 0; step < 3; ++step) first.Run(step);
    const std::vector<std::byte> saved = first.state()->Save();
    if (saved.empty()) return;
    for (int round = 0; round < 150; ++round) {
      std::vector<std::byte> damaged = saved;
      const size_t at =
          random.Below(round % 2 == 0 ? std::min<size_t>(64, saved.size()) : saved.size());
      damaged[at] = std::byte(random.Next());
      Steps other(codec, bits);
      const Status status = other.state()->Load(damaged);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), StatusCode::kDataLoss) << ToString(status);
        continue;
      }
      for (int step = 3; step < 5; ++step) other.Run(step);
      for (const float v : other.residual()) ASSERT_TRUE(std::isfinite(v)) << at;
    }
  });
}

TEST(CodecStateTest, AStateWithoutBytesTakesNone) {
  class Plain : public CodecState {};
  Plain plain;
  EXPECT_TRUE(plain.Save().empty());
  EXPECT_TRUE(plain.Load({}).ok());
  const std::vector<std::byte> some(3);
  EXPECT_EQ(plain.Load(some).code(), StatusCode::kDataLoss);
}

TEST(CodecStateTest, AHeldThresholdFollowsTheScaleOfGradients) {
  // Values travel as half precision with an exponent, so a power of two changes nothing else.
  Steps plain(test::FindCodec("threshold"), 0), scaled(test::FindCodec("threshold"), 0);
  // Every third gradient is of one size; without residuals the threshold of the first holds.
  for (const int step : {0, 3, 6}) {
    EXPECT_EQ(plain.Run(step), scaled.Run(step));
    std::fill(plain.residual().begin(), plain.residual().end(), 0.0f);
    std::fill(scaled.residual().begin(), scaled.residual().end(), 0.0f);
  }
  scaled.state()->Scale(1024);
  std::vector<uint32_t> expected, found;
  const Codec& codec = test::FindCodec("threshold");
  ASSERT_TRUE(codec.DecodeIndices(plain.Run(9), kStateSize, &expected).ok());
  ASSERT_TRUE(codec.DecodeIndices(scaled.Run(9, 1024), kStateSize, &found).ok());
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(found, expected);
}

TEST(CodecStateTest, ScaledStatesLoseNothing) {
  ForEachSetting([&](const Codec& codec, int bits) {
    Steps steps(codec, bits);
    if (steps.state() == nullptr || codec.Traits().needs_momentum) return;
    for (int step = 0; step < 3; ++step) steps.Run(step);
    const double before = test::SquaredNorm(steps.residual());
    for (const float factor : {65536.0f, 0x1p-30f}) {
      steps.state()->Scale(factor);
      for (float& v : steps.residual()) v *= factor;
      steps.Run(3, factor);
      for (float& v : steps.residual()) v /= factor;
      // The residual keeps its size: there is no burst, and no element waits for ever.
      const double after = test::SquaredNorm(steps.residual());
      EXPECT_LT(after, 4 * before + 4 * 0.03 * 0.03 * kStateSize) << factor;
      steps.state()->Scale(1 / factor);
    }
  });
}

}  // namespace
}  // namespace weir
