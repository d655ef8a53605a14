// SPDX-License-Identifier: Apache-2.0
// power_sgd on the device against the host codec. What ranks must agree on (P after the sum,
// decoded sums, the next start) has the same bits. This rank's own factors are sums in another
// order; they are held to kBound of their norm.

#include <gtest/gtest.h>

#include <limits>

#include "datapath/codec/low_rank.h"
#include "tests/datapath/cuda/device_rig.h"

namespace weir::cuda {
namespace {

using test::Caller;
using test::DeviceEncoded;
using test::Patterns;

constexpr double kBound = 1e-5;

struct Bucket {
  std::vector<TensorShape> shape;
  double ratio;
  size_t n = 0;  // of a bucket without shapes
};

/// Matrices with sides around the tiles' sizes, ranks around what a pass finds, vectors, and more
/// factors than a launch takes.
std::vector<Bucket> Buckets() {
  std::vector<Bucket> buckets = {
      {{}, 0.1, 0},
      {{}, 0.1, 1},
      {{}, 0.02, 10007},
      {{}, 0.6, 3000},
      {{{1, 500}}, 0.1},
      {{{64, 64}, {1, 64}, {8, 8}, {1, 1}}, 0.2},
      {{{9, 4097}, {1, 9}}, 0.3},
      {{{700, 257}, {1, 300}, {300, 3}}, 0.05},
      {{{130, 130}}, 0.16},  // rank 10
      {{{65, 8200}}, 0.01},
      {{{0, 7}, {40, 40}, {1, 0}}, 0.1},
  };
  Bucket many{{}, 0.1};
  for (size_t i = 0; i < 70; ++i) {
    many.shape.push_back(i % 3 == 0 ? TensorShape{1, 11 + i} : TensorShape{16 + i, 20});
  }
  buckets.push_back(many);
  return buckets;
}

size_t SizeOf(const Bucket& bucket) {
  size_t n = bucket.n;
  for (const TensorShape& tensor : bucket.shape) n += tensor.elements();
  return n;
}

std::vector<float> FloatsOf(std::span<const std::byte> bytes) {
  return LoadFloats(bytes, 0, bytes.size() / sizeof(float));
}

void ExpectNear(std::span<const float> expected, std::span<const float> found) {
  ASSERT_EQ(expected.size(), found.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double each = static_cast<double>(found[i]) - expected[i];
    difference += each * each;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  EXPECT_LE(std::sqrt(difference), kBound * std::sqrt(norm));
}

class LowRankTest : public testing::Test {
 protected:
  static const DeviceCodec& device() { return *FindDeviceCodec("power_sgd"); }
  static const Codec& host() { return device().host(); }
  static std::vector<Stream> Streams() {
    if (DeviceName().value() != "host") return {Stream{}};
    static const StatusOr<OwnStream> deferring = OwnStream::Make();
    return {Stream{}, Stream{kBackwards}, deferring->get()};
  }
  static EncodeContext ContextOf(const Bucket& bucket) {
    EncodeContext context;
    context.params.ratio = bucket.ratio;
    context.world = 2;
    context.seed = 5;
    context.shape = bucket.shape;
    return context;
  }
};

TEST_F(LowRankTest, StepsAreThoseOfTheHost) {
  size_t turn = 0;
  for (const Bucket& bucket : Buckets()) {
    for (const Stream stream : Streams()) {
      const size_t n = SizeOf(bucket);
      SCOPED_TRACE(testing::Message() << "n " << n << ", ratio " << bucket.ratio);
      EncodeContext context = ContextOf(bucket);
      const auto host_state = host().NewState(n, context), state = host().NewState(n, context);
      std::vector<float> residual(n, 0.0f);
      for (int step = 0; step < 3; ++step, ++turn) {
        const std::vector<float> g = weir::test::NormalVector(n, turn);
        context.seed = turn;
        GradientStatistics statistics;
        std::vector<std::byte> sum;
        std::vector<float> rest(n), sums;
        DeviceEncoded found;
        for (int round = 0; round < 2; ++round) {
          context.round = round;
          context.previous = sum;
          context.state = host_state.get();
          context.statistics = &statistics;
          std::vector<std::byte> expected(host().MaxEncodedBytes(n, context) - sum.size());
          const auto result = host().EncodeWithFeedback(g, residual, rest, context, expected);
          ASSERT_TRUE(result.ok()) << ToString(result.status());
          expected.resize(result->bytes);

          context.state = state.get();
          Caller caller(device(), context, n, stream);
          const auto encoded = caller.Encode(g, residual, /*feedback=*/true, step % 2 == 0);
          ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
          found = *encoded;
          ASSERT_EQ(expected.size(), found.payload.size());
          ExpectNear(FloatsOf(expected), FloatsOf(found.payload));
          sum.insert(sum.end(), expected.begin(), expected.end());
          if (round == 0) continue;
          EXPECT_NEAR(found.result.energy_in, result->energy_in, 1e-6 * result->energy_in);
          EXPECT_NEAR(found.result.energy_lost, result->energy_lost, 1e-5 * result->energy_in);
        }
        EXPECT_EQ(statistics.bins(), found.statistics.bins());
        // The rest is what this rank's own factor lacks.
        std::vector<float> whole = found.rest;
        context.state = nullptr;
        std::vector<std::byte> own(sum.begin(), sum.end() - found.payload.size());
        own.insert(own.end(), found.payload.begin(), found.payload.end());
        ASSERT_TRUE(host().DecodeAdd(own, context, 1.0f, whole).ok());
        std::vector<float> e(n);
        for (size_t i = 0; i < n; ++i) e[i] = g[i] + residual[i];
        ExpectNear(e, whole);
        ExpectNear(e, [&] {  // as the host's, to the same bound
          std::vector<float> off(e);
          for (size_t i = 0; i < n; ++i) off[i] += found.rest[i] - rest[i];
          return off;
        }());

        // All ranks decode the same bits, and begin the next step with the same start.
        std::vector<float> expected(n, 0.5f), decoded = expected;
        context.state = host_state.get();
        ASSERT_TRUE(host().DecodeAdd(sum, context, 0.25f, expected).ok());
        context.state = state.get();
        Caller caller(device(), context, n, stream);
        ASSERT_TRUE(caller.DecodeAdd(sum, 0.25f, decoded).ok());
        ASSERT_EQ(Patterns(expected), Patterns(decoded));
        ASSERT_TRUE(host_state->Save() == state->Save());
        residual = rest;
      }
    }
  }
}

/// The recorded payload holds P, whose sum is that of one rank, and Q.
TEST_F(LowRankTest, ReadsTheGoldenBytesAndMakesThemToTheBound) {
  const std::vector<float> x = weir::test::GoldenInput(203);
  const std::vector<std::byte> golden = weir::test::BytesOfHex(test::GoldenPayload("power_sgd"));
  ASSERT_FALSE(golden.empty());
  for (const Stream stream : Streams()) {
    EncodeContext context = weir::test::ContextFor(host(), x, 3);
    Caller first(device(), context, x.size(), stream);
    const auto p = first.Encode(x, {}, /*feedback=*/false);
    ASSERT_TRUE(p.ok()) << ToString(p.status());
    ASSERT_LT(p->payload.size(), golden.size());
    const auto sum_of_p = std::span(golden).first(p->payload.size());
    ExpectNear(FloatsOf(sum_of_p), FloatsOf(p->payload));

    context.round = 1;
    context.previous = sum_of_p;
    Caller last(device(), context, x.size(), stream);
    const auto q = last.Encode(x, {}, /*feedback=*/false);
    ASSERT_TRUE(q.ok()) << ToString(q.status());
    ExpectNear(FloatsOf(std::span(golden).subspan(sum_of_p.size())), FloatsOf(q->payload));

    std::vector<float> expected(x.size(), 0.5f), decoded = expected;
    ASSERT_TRUE(host().DecodeAdd(golden, context, 0.25f, expected).ok());
    ASSERT_TRUE(last.DecodeAdd(golden, 0.25f, decoded).ok());
    EXPECT_EQ(Patterns(expected), Patterns(decoded));
  }
}

TEST_F(LowRankTest, AddsLanesAsTheHost) {
  const Bucket bucket{{{700, 257}, {1, 300}}, 0.05};
  const size_t n = SizeOf(bucket);
  const EncodeContext context = ContextOf(bucket);
  const auto payload_of = [&](uint64_t seed) {
    return weir::test::EncodeOrDie(host(), weir::test::NormalVector(n, seed), context).payload;
  };
  const std::vector<std::byte> first = payload_of(1), second = payload_of(2);
  std::vector<std::byte> expected = first;
  host().Accumulate(context, expected, second);
  ASSERT_NE(expected, first);
  for (const Stream stream : Streams()) {
    Caller caller(device(), context, n, stream);
    const test::OnDevice<std::byte> sum{std::span<const std::byte>(first)},
        addend{std::span<const std::byte>(second)};
    ASSERT_TRUE(device().Accumulate(caller.call(), sum.span(), addend.span()).ok());
    ASSERT_TRUE(Synchronise(stream).ok());
    EXPECT_EQ(sum.Read(), expected);
    const std::span<std::byte> lanes = sum.span();
    EXPECT_EQ(device().Accumulate(caller.call(), lanes.first(8), addend.span().first(4)).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(
        device().Accumulate(caller.call(), lanes.subspan(1, 8), addend.span().first(8)).code(),
        StatusCode::kInvalidArgument);
  }
}

TEST_F(LowRankTest, NonFiniteInputSendsZerosInBothRounds) {
  const Bucket bucket{{{40, 50}, {1, 30}}, 0.1};
  const size_t n = SizeOf(bucket);
  for (const size_t place : {size_t{7}, n - 3}) {  // of the matrix, and of the vector
    for (const float value :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = weir::test::NormalVector(n, 1);
      EncodeContext context = ContextOf(bucket);
      std::vector<std::byte> sum;
      for (int round = 0; round < 2; ++round) {
        context.round = round;
        context.previous = sum;
        Caller caller(device(), context, n);
        x[place] = value;
        const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
        ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
        EXPECT_TRUE(encoded->result.non_finite);
        EXPECT_EQ(encoded->payload, std::vector<std::byte>(encoded->payload.size()));
        x[place] = 1;  // another rank's was not finite in the first round
        const auto finite = caller.Encode(x, {}, /*feedback=*/false);
        ASSERT_TRUE(finite.ok());
        sum.insert(sum.end(), finite->payload.begin(), finite->payload.end());
      }
    }
  }
}

TEST_F(LowRankTest, RefusesDamageAndWrongCalls) {
  const Bucket bucket{{{40, 50}, {1, 30}}, 0.1};
  const size_t n = SizeOf(bucket);
  EncodeContext context = ContextOf(bucket);
  const std::vector<float> x = weir::test::NormalVector(n, 1);
  const size_t bytes = host().MaxEncodedBytes(n, context);
  std::vector<std::byte> payload(bytes);
  std::vector<float> sum(n, 0.0f);
  Caller caller(device(), context, n);
  ASSERT_TRUE(caller.DecodeAdd(payload, 1, sum).ok());
  EXPECT_EQ(caller.DecodeAdd(std::span(payload).first(bytes - 4), 1, sum).code(),
            StatusCode::kDataLoss);
  StoreFloats(std::vector{std::numeric_limits<float>::infinity()}, payload, 3);
  EXPECT_EQ(caller.DecodeAdd(payload, 1, sum).code(), StatusCode::kDataLoss);

  const test::OnDevice<float> g{std::span<const float>(x)};
  const test::OnDevice<std::byte> out(bytes);
  const PassOperands operands{.gradient = g.span()};
  EXPECT_TRUE(device().Encode(operands, caller.call(), out.span()).ok());
  EXPECT_FALSE(device().Encode(operands, caller.call(), out.span().first(bytes - 1)).ok());
  const std::span<std::byte> pinned = caller.call().pinned;
  caller.call().pinned = pinned.first(pinned.size() - 1);
  EXPECT_EQ(device().Encode(operands, caller.call(), out.span()).code(),
            StatusCode::kInvalidArgument);
  caller.call().pinned = pinned;
  caller.call().context.round = 1;  // without the sums of the first
  EXPECT_FALSE(device().Encode(operands, caller.call(), out.span()).ok());
  const std::vector<TensorShape> wrong = {{40, 51}};
  caller.call().context.round = 0;
  caller.call().context.shape = wrong;
  EXPECT_EQ(device().Encode(operands, caller.call(), out.span()).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir::cuda
