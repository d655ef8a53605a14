// SPDX-License-Identifier: Apache-2.0
// Codecs that work on matrices, in whole sessions: real shapes, the compressed path, and the same
// numbers that the codec gives outside of a session.

#include <xxhash.h>

#include <cstring>

#include "tests/datapath/session/session_world.h"
#include "tests/support/codec_world.h"

namespace weir {
namespace {

using testing::CodecWorld;
using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;

const std::vector<ResidualParameter> kMatrixParameters = {
    {"first.weight", 96 * 80, 80}, {"first.bias", 96}, {"second.weight", 64 * 128, 128}};
const std::vector<TensorShape> kShape = {{96, 80}, {1, 96}, {64, 128}};
constexpr size_t kMatrixElements = 96 * 80 + 96 + 64 * 128;
constexpr int kMatrixWorld = 3;

/// Gradients of matrix rank one with some noise, different in every step.
std::vector<std::vector<float>> Structured(uint64_t step) {
  auto gradients = RandomGradients(kMatrixWorld, kMatrixElements, step);
  const auto ends = RandomGradients(2, kMatrixElements, 1000);
  for (auto& gradient : gradients) {
    for (float& v : gradient) v *= 0.1f;
    size_t at = 0;
    for (const TensorShape& tensor : kShape) {
      for (uint64_t row = 0; row < tensor.rows; ++row) {
        for (uint64_t column = 0; column < tensor.columns; ++column, ++at) {
          gradient[at] += ends[0][row] * ends[1][column];
        }
      }
    }
  }
  return gradients;
}

std::string PlanFile(const std::string& codec) {
  return testing::TempFile("matrix.json", StrCat(R"({"fallback": {"codec": ")", codec,
                                                 R"(", "collective": "ring", "ratio": 0.1}})"));
}

/// The same ranks without a session: the seed of step s is MixSeed(hash of the job ^ key, s).
std::unique_ptr<CodecWorld> Reference(const std::string& codec, const std::string& job,
                                      uint64_t key) {
  CodecWorld::Options options;
  options.codec = *Codecs().Find(codec);
  options.params.ratio = 0.1;
  options.world = kMatrixWorld;
  options.elements = kMatrixElements;
  options.shape = kShape;
  options.seed = XXH3_64bits(job.data(), job.size()) ^ key;
  return CodecWorld::Make(std::move(options)).value();
}

void CheckAgainstReference(const std::string& codec, const std::string& transport) {
  SCOPED_TRACE(codec + " over " + transport);
  SessionWorld job({.world = kMatrixWorld, .transport = transport, .plan_file = PlanFile(codec)});
  job.Up();
  const uint64_t key = job.Define(kMatrixParameters);
  const auto reference = Reference(codec, job.sessions[0]->options().job, key);
  std::vector<double> expected(kMatrixElements), delivered(kMatrixElements);
  for (uint64_t step = 0; step < 4; ++step) {
    auto data = Structured(step);
    std::vector<std::span<const float>> inputs(data.begin(), data.end());
    std::vector<float> mean(kMatrixElements);
    const auto outside = reference->Exchange(inputs, mean);
    ASSERT_TRUE(outside.ok()) << ToString(outside.status());
    const auto sum = SumOver(data);
    for (size_t i = 0; i < kMatrixElements; ++i) expected[i] += sum[i] / kMatrixWorld;
    job.Begin();
    job.AllReduce(key, data, 1.0 / kMatrixWorld);
    EXPECT_FALSE(job.End());
    for (int rank = 1; rank < kMatrixWorld; ++rank) {
      ASSERT_EQ(0, std::memcmp(data[0].data(), data[rank].data(), kMatrixElements * 4)) << rank;
    }
    // Collectives add in another order than the reference.
    for (size_t i = 0; i < kMatrixElements; ++i) {
      ASSERT_NEAR(data[0][i], mean[i], 2e-4) << "step " << step << " element " << i;
      delivered[i] += data[0][i];
    }
    EXPECT_LT(outside->payload_bytes, kMatrixElements * 4 / 4);
  }
  job.Begin();  // sends the last step's report
  job.End();
  const auto reports = job.ports[1]->All<StepReport>();
  ASSERT_FALSE(reports.empty());
  ASSERT_FALSE(reports[0].buckets.empty());
  EXPECT_LT(reports[0].buckets[0].payload_bytes, kMatrixElements * 4 / 4) << "not compressed";
  EXPECT_GT(reports[0].buckets[0].gain, 0.2);
  double error = 0, energy = 0;
  for (size_t i = 0; i < kMatrixElements; ++i) {
    error += std::pow(delivered[i] - expected[i], 2);
    energy += expected[i] * expected[i];
  }
  EXPECT_GT(error, 0) << "nothing was left out";
  EXPECT_LT(error, 0.8 * energy);
}

TEST(MatrixSessionTest, PowerSgdEqualsTheCodecOutsideOfASession) {
  for (const char* transport : {"tcp", "inproc"}) CheckAgainstReference("power_sgd", transport);
}

TEST(MatrixSessionTest, ArcTopKEqualsTheCodecOutsideOfASession) {
  for (const char* transport : {"tcp", "inproc"}) CheckAgainstReference("arc_top_k", transport);
}

TEST(MatrixSessionTest, RanksReportWhatRowsAndRanksWouldLose) {
  SessionWorld job({.world = kMatrixWorld, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define(kMatrixParameters);
  std::map<std::string, double> losses;
  for (uint64_t step = 0; step < 8; ++step) {
    auto data = Structured(step);
    job.Begin();
    job.AllReduce(key, data);
    job.End();
  }
  job.Begin();
  job.End();
  for (const StepReport& report : job.ports[0]->All<StepReport>()) {
    for (const CodecLoss& loss : report.codec_losses) losses[loss.codec] = loss.relative_loss;
  }
  ASSERT_TRUE(losses.contains("power_sgd"));
  ASSERT_TRUE(losses.contains("arc_top_k"));
  EXPECT_LT(losses["power_sgd"], 0.2) << "one rank holds nearly everything";
  EXPECT_GT(losses["arc_top_k"], losses["power_sgd"]);
}

}  // namespace
}  // namespace weir
