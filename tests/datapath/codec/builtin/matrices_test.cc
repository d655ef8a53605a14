// SPDX-License-Identifier: Apache-2.0
// power_sgd and arc_top_k against their formulas.

#include "datapath/codec/matrices.h"

#include <gtest/gtest.h>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

using test::ContextFor;
using test::Encoded;

using Matrix = std::vector<std::vector<double>>;

/// rows x columns of rank `rank` plus noise.
std::vector<float> LowRank(TensorShape shape, int rank, double noise, uint64_t seed) {
  const std::vector<float> a = test::NormalVector(shape.rows * rank, seed),
                           b = test::NormalVector(shape.columns * rank, seed + 1);
  std::vector<float> x = test::NormalVector(shape.elements(), seed + 2, noise);
  for (size_t i = 0; i < shape.rows; ++i) {
    for (size_t j = 0; j < shape.columns; ++j) {
      for (int k = 0; k < rank; ++k) {
        x[i * shape.columns + j] += a[i * rank + k] * b[j * rank + k];
      }
    }
  }
  return x;
}

/// One exchange of several ranks and its decoded sum.
std::vector<float> ExchangeAndDecode(const Codec& codec, std::span<const std::vector<float>> inputs,
                                     const EncodeContext& context) {
  std::vector<EncodeContext> contexts(inputs.size(), context);
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    contexts[rank].rank = static_cast<int>(rank);
    contexts[rank].world = static_cast<int>(inputs.size());
  }
  const test::Exchanged exchanged = test::ExchangeOrDie(codec, inputs, contexts);
  std::vector<float> sum(inputs[0].size(), 0.0f);
  WEIR_CHECK(codec.DecodeAdd(exchanged.sum, contexts[0], 1, sum).ok());
  return sum;
}

double RelativeError(std::span<const float> seen, std::span<const float> wanted) {
  double error = 0;
  for (size_t i = 0; i < wanted.size(); ++i) error += std::pow(double{seen[i]} - wanted[i], 2);
  return error / test::SquaredNorm(wanted);
}

TEST(MatricesTest, ShapesMustAddUpToTheBucket) {
  for (const char* name : {"power_sgd", "arc_top_k"}) {
    const Codec& codec = test::FindCodec(name);
    const std::vector<float> x(100, 1.0f);
    std::vector<std::byte> out(4000);
    for (const TensorShape bad : {TensorShape{9, 11}, TensorShape{101, 1},
                                  TensorShape{uint64_t{1} << 40, uint64_t{1} << 40}}) {
      EncodeContext context = ContextFor(codec, x);
      context.shape = std::span(&bad, 1);
      EXPECT_EQ(codec.Encode(x, context, out).status().code(), StatusCode::kInvalidArgument);
      std::vector<float> sum(100);
      EXPECT_EQ(codec.DecodeAdd(out, context, 1, sum).code(), StatusCode::kInvalidArgument);
    }
  }
}

TEST(MatricesTest, SmallTensorsAndVectorsAreExact) {
  const TensorShape shapes[] = {{1, 500}, {3, 2}, {0, 7}, {40, 50}, {20, 1}};
  const std::vector<float> x = test::NormalVector(500 + 6 + 2000 + 20, 4);
  for (const char* name : {"power_sgd", "arc_top_k"}) {
    const Codec& codec = test::FindCodec(name);
    EncodeContext context = ContextFor(codec, x, 1, 0.1);
    context.shape = shapes;
    const std::vector<float> decoded = ExchangeAndDecode(codec, std::span(&x, 1), context);
    double matrix_error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (i >= 506 && i < 2506) {
        matrix_error += std::abs(x[i] - decoded[i]);
      } else {
        ASSERT_EQ(decoded[i], x[i]) << name << " " << i;
      }
    }
    EXPECT_GT(matrix_error, 1) << name;  // the matrix is compressed
  }
}

// --- power_sgd -----------------------------------------------------------------------------------

TEST(PowerSgdTest, MatricesOfTheRankComeBackWhole) {
  // The sum over ranks of rank-3 matrices with one column space; rank 3 is sent.
  const TensorShape shape{60, 5000};  // longer than one stretch
  const Codec& codec = test::FindCodec("power_sgd");
  const std::vector<float> x = LowRank(shape, 3, 0, 7);
  std::vector<std::vector<float>> inputs(3, x);
  for (float& v : inputs[1]) v *= -0.25f;
  EncodeContext context = ContextFor(codec, x, 1, 3.0 * (60 + 5000) / (60.0 * 5000));
  context.shape = std::span(&shape, 1);
  EXPECT_EQ(codec.MaxEncodedBytes(x.size(), context), 3u * 4 * (60 + 5000));
  const std::vector<float> sum = ExchangeAndDecode(codec, inputs, context);
  std::vector<float> expected(x);
  for (float& v : expected) v *= 1.75f;
  EXPECT_LT(RelativeError(sum, expected), 1e-9);
}

TEST(PowerSgdTest, IsAProjectionOntoTheSharedSketch) {
  // One round by the formula in double: P = M Q, orthonormalised, M_hat = P P^T M. Q is unknown to
  // the test, but M_hat's defining property is not: its rows' space has rank 1 and the error is
  // orthogonal to M_hat for a single rank.
  const TensorShape shape{37, 53};
  const Codec& codec = test::FindCodec("power_sgd");
  const std::vector<float> x = test::NormalVector(shape.elements(), 3);
  EncodeContext context = ContextFor(codec, x, 1, 0.001);
  context.shape = std::span(&shape, 1);
  const std::vector<float> decoded = ExchangeAndDecode(codec, std::span(&x, 1), context);
  double along = 0;
  for (size_t i = 0; i < x.size(); ++i) along += (double{x[i]} - decoded[i]) * decoded[i];
  EXPECT_NEAR(along / test::SquaredNorm(decoded), 0, 1e-5);
  for (size_t i = 1; i < shape.rows; ++i) {  // all 2 x 2 minors with the first row and column
    for (size_t j = 1; j < shape.columns; ++j) {
      const double minor = double{decoded[0]} * decoded[i * shape.columns + j] -
                           double{decoded[j]} * decoded[i * shape.columns];
      ASSERT_NEAR(minor, 0, 1e-5);
    }
  }
}

TEST(PowerSgdTest, WarmStartConvergesToTheBestApproximation) {
  // A fixed matrix with singular values 3 : 2 : 1 over noise, rank 1 sent: power iteration.
  const TensorShape shape{80, 120};
  const Codec& codec = test::FindCodec("power_sgd");
  std::vector<float> x = test::NormalVector(shape.elements(), 5, 0.02);
  for (int k = 0; k < 3; ++k) {
    const std::vector<float> one = LowRank(shape, 1, 0, 100 + 10 * k);
    for (size_t i = 0; i < x.size(); ++i) x[i] += one[i] * static_cast<float>(3 - k);
  }
  EncodeContext context = ContextFor(codec, x, 1, 0.001);
  context.shape = std::span(&shape, 1);
  const double cold = RelativeError(ExchangeAndDecode(codec, std::span(&x, 1), context), x);
  const auto state = codec.NewState(x.size(), context);
  context.state = state.get();
  double warm = 1;
  for (int step = 0; step < 30; ++step) {
    context.seed = step;
    const double now = RelativeError(ExchangeAndDecode(codec, std::span(&x, 1), context), x);
    if (step > 0) {
      EXPECT_LT(now, warm + 1e-6) << step;  // never worse
    }
    warm = now;
  }
  // Nine of fourteen parts of the energy lie in the first component, up to the components' overlap.
  EXPECT_LT(warm, 0.45);
  EXPECT_LT(warm, cold);
}

TEST(PowerSgdTest, DependentColumnsBecomeZeroNotNoise) {
  // Rank 1 in, rank 4 sent: three columns of P are what rounding left.
  const TensorShape shape{50, 70};
  const Codec& codec = test::FindCodec("power_sgd");
  const std::vector<float> x = LowRank(shape, 1, 0, 8);
  EncodeContext context = ContextFor(codec, x, 1, 4.0 * 120 / 3500);
  context.shape = std::span(&shape, 1);
  EXPECT_LT(RelativeError(ExchangeAndDecode(codec, std::span(&x, 1), context), x), 1e-9);
  const std::vector<float> zero(x.size(), 0.0f);
  EXPECT_EQ(test::SquaredNorm(ExchangeAndDecode(codec, std::span(&zero, 1), context)), 0);
}

TEST(PowerSgdTest, TinyGradientsDoNotVanishInAWarmStart) {
  const TensorShape shape{50, 70};
  const Codec& codec = test::FindCodec("power_sgd");
  std::vector<float> x = LowRank(shape, 1, 0, 9);
  for (float& v : x) v *= 1e-25f;  // the square is below the smallest float
  EncodeContext context = ContextFor(codec, x, 1, 0.001);
  context.shape = std::span(&shape, 1);
  const auto state = codec.NewState(x.size(), context);
  context.state = state.get();
  for (int step = 0; step < 3; ++step) {
    EXPECT_LT(RelativeError(ExchangeAndDecode(codec, std::span(&x, 1), context), x), 1e-6);
  }
}

// --- arc_top_k -----------------------------------------------------------------------------------

TEST(ArcTopKTest, KeepsTheRowsThatAreLongInTheSum) {
  // Rows 3 and 17 are long; row 30 is long on each rank but cancels in the sum.
  const TensorShape shape{40, 300};
  const Codec& codec = test::FindCodec("arc_top_k");
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < 2; ++rank) {
    inputs.push_back(test::NormalVector(shape.elements(), 20 + rank, 0.01));
    for (size_t j = 0; j < shape.columns; ++j) {
      inputs[rank][3 * shape.columns + j] += 1;
      inputs[rank][17 * shape.columns + j] -= 0.5f;
      inputs[rank][30 * shape.columns + j] += rank == 0 ? 5 : -5;
    }
  }
  EncodeContext context = ContextFor(codec, inputs[0], 1, 0.05);  // two rows of forty
  context.shape = std::span(&shape, 1);
  EXPECT_EQ(codec.MaxEncodedBytes(shape.elements(), context), 4u * (40 * 4 + 2 * 300));
  const std::vector<float> sum = ExchangeAndDecode(codec, inputs, context);
  for (size_t i = 0; i < sum.size(); ++i) {
    const size_t row = i / shape.columns;
    const float expected = row == 3 || row == 17 ? inputs[0][i] + inputs[1][i] : 0.0f;
    ASSERT_FLOAT_EQ(sum[i], expected) << i;
  }
}

TEST(ArcTopKTest, SketchEstimatesRowLengthsWithoutBias) {
  // Mean over seeds of the sketch's squared row length is the row's own: within 5 sigma, the
  // variance of one estimate being below 2 / 4 of its square.
  const TensorShape shape{10, 64};
  const Codec& codec = test::FindCodec("arc_top_k");
  const std::vector<float> x = test::NormalVector(shape.elements(), 31);
  const int draws = 2000;
  std::vector<double> mean(shape.rows, 0.0);
  for (int draw = 0; draw < draws; ++draw) {
    EncodeContext context = ContextFor(codec, x, 1, 0.1);
    context.shape = std::span(&shape, 1);
    context.seed = draw;
    const Encoded encoded = test::EncodeOrDie(codec, x, context);
    const std::vector<float> sketch = LoadFloats(encoded.payload, 0, shape.rows * 4);
    for (size_t i = 0; i < sketch.size(); ++i) {
      mean[i / 4] += double{sketch[i]} * sketch[i] / draws;
    }
  }
  for (size_t row = 0; row < shape.rows; ++row) {
    const double length = test::SquaredNorm(std::span(x).subspan(row * 64, 64));
    EXPECT_NEAR(mean[row] / length, 1, 5 * std::sqrt(0.5 / draws)) << row;
  }
}

TEST(ArcTopKTest, TiesKeepTheFirstRows) {
  const TensorShape shape{20, 50};
  const Codec& codec = test::FindCodec("arc_top_k");
  const std::vector<float> x(shape.elements(), 0.0f);
  EncodeContext context = ContextFor(codec, x, 1, 0.1);
  context.shape = std::span(&shape, 1);
  std::vector<std::byte> payload = test::EncodeOrDie(codec, x, context).payload;
  const float one = 1;  // into the first kept row: row 0
  std::memcpy(payload.data() + 4 * 20 * 4, &one, sizeof(one));
  std::vector<float> decoded(x.size(), 0.0f);
  ASSERT_TRUE(codec.DecodeAdd(payload, context, 1, decoded).ok());
  EXPECT_EQ(decoded[0], 1);
}

}  // namespace
}  // namespace weir
