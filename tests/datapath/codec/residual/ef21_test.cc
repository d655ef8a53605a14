// SPDX-License-Identifier: Apache-2.0
// EF21's promise: with gradients that stand still the estimate approaches their mean geometrically,
// and no faster than the codec contracts.

#include "datapath/codec/residual/ef21.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

constexpr size_t kEf21Size = 3000;
constexpr int kEf21World = 3;

/// One rank's memory, double-buffered as a session has it.
struct Memory {
  std::vector<float> negative = std::vector<float>(kEf21Size), next_negative = negative;
  std::vector<float> estimate = negative, next_estimate = negative;

  Ef21Buffers buffers() { return {negative, next_negative, estimate, next_estimate}; }
  void Commit() {
    negative.swap(next_negative);
    estimate.swap(next_estimate);
  }
};

class Ef21World {
 public:
  explicit Ef21World(const char* codec) : codec_(test::FindCodec(codec)), memories_(kEf21World) {
    for (int rank = 0; rank < kEf21World; ++rank) {
      gradients_.push_back(test::NormalVector(kEf21Size, 50 + rank));
    }
  }
  /// One step of all ranks; returns the estimate's squared error over the mean's energy.
  double Step(uint64_t seed) {
    EncodeContext context = test::ContextFor(codec_, {}, kEf21World, 0.1);
    context.seed = seed;
    context.shared_max = 0;
    for (int rank = 0; rank < kEf21World; ++rank) {
      context.shared_max.Merge(
          codec_.LocalMax(gradients_[rank], memories_[rank].negative, context));
    }
    std::vector<float> sum(kEf21Size);
    for (int rank = 0; rank < kEf21World; ++rank) {
      context.rank = rank;
      std::vector<std::byte> out(codec_.MaxEncodedBytes(kEf21Size, context));
      const auto result =
          Ef21Encode(codec_, gradients_[rank], memories_[rank].buffers(), context, out);
      WEIR_CHECK(result.ok());
      WEIR_CHECK(codec_.DecodeAdd(std::span(out).first(result->bytes), context, 1, sum).ok());
    }
    std::vector<float> delivered;
    std::vector<double> memories(kEf21Size);
    for (Memory& each : memories_) {
      delivered = sum;
      Ef21Deliver(each.buffers(), 1.0f / kEf21World, delivered);
      each.Commit();
      EXPECT_EQ(each.estimate, memories_[0].estimate);
      for (size_t i = 0; i < kEf21Size; ++i) memories[i] -= each.negative[i];
    }
    double error = 0, energy = 0;
    for (size_t i = 0; i < kEf21Size; ++i) {
      double mean = 0;
      for (const auto& gradient : gradients_) mean += gradient[i] / double{kEf21World};
      EXPECT_NEAR(memories[i], memories_[0].estimate[i], 1e-5);
      error += std::pow(delivered[i] - mean, 2);
      energy += mean * mean;
    }
    return error / energy;
  }

 private:
  const Codec& codec_;
  std::vector<Memory> memories_;
  std::vector<std::vector<float>> gradients_;
};

TEST(Ef21Test, ErrorShrinksByTheContractionEveryStep) {
  // top_k keeps a tenth of the elements: what is left of a memory's error is at most 0.9 of it, and
  // by Jensen the mean's error is at most the mean of the errors.
  for (const char* name : {"top_k", "top_k:memory=ef21", "random_k:memory=ef21"}) {
    Ef21World world(name);
    double error = 0;
    for (int step = 0; step < 60; ++step) error = world.Step(step);
    EXPECT_LT(error, kEf21World * std::pow(0.9, 60)) << name;
    for (int step = 60; step < 200; ++step) error = world.Step(step);
    EXPECT_LT(error, 1e-8) << name;  // without memory it would stay above a half
  }
}

TEST(Ef21Test, WorksOverSharedScales) {
  // The grid follows the difference, so the error of a coarse codec vanishes, too.
  Ef21World world("thc_uniform");
  double error = 0;
  for (int step = 0; step < 12; ++step) error = world.Step(step);
  EXPECT_LT(error, 1e-9);
}

TEST(Ef21Test, NonFiniteGradientSendsNothing) {
  const Codec& codec = test::FindCodec("top_k");
  std::vector<float> bad = test::NormalVector(kEf21Size, 1);
  bad[7] = std::numeric_limits<float>::quiet_NaN();
  Memory memory;
  const EncodeContext context = test::ContextFor(codec, bad);
  std::vector<std::byte> out(codec.MaxEncodedBytes(kEf21Size, context));
  const auto result = Ef21Encode(codec, bad, memory.buffers(), context, out);
  EXPECT_TRUE(result->non_finite);
  EXPECT_EQ(test::SquaredNorm(memory.negative), 0);
}

TEST(Ef21Test, VariantsUnderItHaveThePayloadsOfTheirCodecs) {
  const std::vector<float> x = test::NormalVector(kEf21Size, 2);
  for (const auto& [outer, inner] :
       {std::pair("top_k:memory=ef21", "top_k"), std::pair("random_k:memory=ef21", "random_k")}) {
    const Codec &a = test::FindCodec(outer), &b = test::FindCodec(inner);
    const EncodeContext context = test::ContextFor(a, x);
    EXPECT_EQ(test::EncodeOrDie(a, x, context).payload, test::EncodeOrDie(b, x, context).payload);
    EXPECT_TRUE(a.Traits().ef21 && a.Traits().opt_in && !b.Traits().ef21);
    EXPECT_EQ(a.Traits().form, b.Traits().form);
  }
}

}  // namespace
}  // namespace weir
