// SPDX-License-Identifier: Apache-2.0
// Sums that are encoded again on their way, in whole sessions: the two residuals together lose
// nothing, all ranks have the same bits, training converges, and state follows its parameters.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "datapath/exchange/regions.h"
#include "tests/datapath/session/account.h"

namespace weir {
namespace {

using testing::Account;
using testing::Owed;
using testing::RandomGradients;
using testing::ServerElements;
using testing::SumOver;
using testing::UniformPlan;
using Data = std::vector<std::vector<float>>;

Choice Reencoded(const char* codec, double ratio = 0.1) {
  Choice choice;
  choice.codec = codec;
  choice.ratio = ratio;
  choice.collective = "reencode";
  return choice;
}

class ReencodeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ReencodeTest, WhatIsNotDeliveredIsOwed) {
  for (const int world : {1, 2, 3, 5}) {
    for (const size_t elements : {size_t{7}, size_t{40}, size_t{3001}}) {
      SCOPED_TRACE(StrCat("world ", world, ", ", elements, " elements"));
      Account account(world, elements);
      account.Switch(Reencoded(GetParam()));
      for (uint64_t step = 0; step < 5; ++step) account.Step(step);
      account.ExpectBalance(2e-4);
      size_t held = 0;
      for (int rank = 0; rank < world; ++rank) {
        held += ServerElements(account.job, rank, account.parameters);
      }
      // A single rank's part comes from the codec, so encoding it again loses almost nothing.
      if (world > 1 && elements > 1000) {
        EXPECT_GT(held, elements / 4) << "the second encoding lost nothing";
      }
    }
  }
}

TEST_P(ReencodeTest, ASkippedStepChangesNoResidual) {
  Account account(3, 500);
  account.Switch(Reencoded(GetParam()));
  for (uint64_t step = 0; step < 3; ++step) account.Step(step);
  const std::vector<std::vector<std::byte>> before = {account.job.Export(0), account.job.Export(1),
                                                      account.job.Export(2)};
  Data data = RandomGradients(3, 500, 9);
  data[1][499] = std::numeric_limits<float>::quiet_NaN();
  account.job.Begin();
  account.job.AllReduce(account.key, data);
  EXPECT_TRUE(account.job.End());
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(account.job.Export(rank), before[rank]);
  account.Step(10);
  account.ExpectBalance(2e-4);
}

TEST_P(ReencodeTest, DenseAndOtherCollectivesTakeBothResidualsAlong) {
  Choice gathered = Reencoded(GetParam());
  gathered.collective = "sparse_all_gather";
  for (const Choice& next : {DenseChoice(), gathered}) {
    Account account(3, 900);
    account.Switch(Reencoded(GetParam()));
    for (uint64_t step = 0; step < 4; ++step) account.Step(step);
    account.Switch(next);
    account.Step(20);
    account.ExpectBalance(2e-4);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ServerElements(account.job, rank, account.parameters), 0u);
    }
  }
}

TEST_P(ReencodeTest, ResidualsFollowParametersIntoOtherBuckets) {
  Account account(3, 900);
  account.Switch(Reencoded(GetParam()));
  for (uint64_t step = 0; step < 4; ++step) account.Step(step);
  // The parameters are in the reverse order, so every region has different ones.
  account.key = account.job.Define({account.parameters[1], account.parameters[0]});
  Data data(3, std::vector<float>(900));
  account.job.Begin();
  account.job.AllReduce(account.key, data);
  EXPECT_FALSE(account.job.End());
  for (size_t i = 0; i < 900; ++i) account.out[i] += data[0][(i + 600) % 900];
  account.ExpectBalance(2e-4);
}

TEST_P(ReencodeTest, ACheckpointGoesOnAndScaleReachesBothResiduals) {
  Account account(2, 900), later(2, 900);
  account.Switch(Reencoded(GetParam()));
  for (uint64_t step = 0; step < 4; ++step) account.Step(step);
  later.Switch(Reencoded(GetParam()));
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(later.job.sessions[rank]->ImportState(account.job.Export(rank)).ok());
    EXPECT_EQ(later.job.ExportResiduals(rank), account.job.ExportResiduals(rank));
    ASSERT_TRUE(later.job.sessions[rank]->ScaleState(0.5).ok());
  }
  const std::vector<double> owed = Owed(account.job, account.parameters);
  const std::vector<double> halved = Owed(later.job, later.parameters);
  for (size_t i = 0; i < owed.size(); ++i) ASSERT_NEAR(halved[i], owed[i] / 2, 1e-5) << i;
  later.in.assign(900, 0);
  later.out.assign(900, 0);
  for (size_t i = 0; i < owed.size(); ++i) later.in[i] = halved[i];
  later.Step(30);
  later.ExpectBalance(2e-4);
}

INSTANTIATE_TEST_SUITE_P(Codecs, ReencodeTest,
                         ::testing::Values("top_k", "ef_signsgd", "threshold:selector=layer_wise"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

TEST(ReencodeSessionTest, EveryOpaqueCodecRunsOrIsRefusedByName) {
  int ran = 0;
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    const Plan plan = UniformPlan(1, Reencoded(traits.name.c_str(), traits.ratio_max));
    PlanLimits limits;
    limits.world = 3;
    const Status valid = ValidatePlan(plan, limits);
    if (!valid.ok()) {
      EXPECT_NE(Message(valid).find("'reencode' carries regions"), std::string::npos)
          << Message(valid);
      continue;
    }
    SCOPED_TRACE(traits.name);
    Account account(3, 700);
    account.Switch(Reencoded(traits.name.c_str(), std::min(0.3, traits.ratio_max)));
    for (uint64_t step = 0; step < 3; ++step) account.Step(step);
    if (traits.needs_error_feedback) account.ExpectBalance(1e-3);
    ++ran;
  }
  EXPECT_GT(ran, 10);
}

TEST(ReencodeSessionTest, ASumThatOverflowsIsSkippedEverywhere) {
  Account account(3, 300);
  account.Switch(Reencoded("ef_signsgd"));
  Data data(3, std::vector<float>(300));
  for (auto& gradient : data) gradient.assign(300, 2e38f);  // each is finite, the sum is not
  account.job.Begin();
  account.job.AllReduce(account.key, data);
  EXPECT_TRUE(account.job.End());
  for (const auto& gradient : data) EXPECT_TRUE(std::isnan(gradient[0]));
}

/// A second implementation of algorithm 1 of DoubleSqueeze with regions, for signs times the mean
/// magnitude of a region: every rank encodes its gradient plus residual and keeps the error, and
/// the owner of a region does the same with the sum.
class PlainReference {
 public:
  PlainReference(int world, size_t elements)
      : regions_(CutRegions({elements, {}}, world)),
        worker_(world, std::vector<double>(elements)),
        server_(elements) {}

  std::vector<double> Step(const Data& gradients) {
    std::vector<double> delivered(server_.size());
    for (const Region& region : regions_) {
      std::vector<double> sum(region.size);
      for (size_t i = 0; i < region.size; ++i) sum[i] = server_[region.begin + i];
      for (size_t rank = 0; rank < gradients.size(); ++rank) {
        std::vector<double> x(region.size);
        for (size_t i = 0; i < region.size; ++i) {
          x[i] = worker_[rank][region.begin + i] + gradients[rank][region.begin + i];
        }
        const std::vector<double> kept = Signs(x);
        for (size_t i = 0; i < region.size; ++i) {
          worker_[rank][region.begin + i] = x[i] - kept[i];
          sum[i] += kept[i];
        }
      }
      const std::vector<double> kept = Signs(sum);
      for (size_t i = 0; i < region.size; ++i) {
        server_[region.begin + i] = sum[i] - kept[i];
        delivered[region.begin + i] = kept[i];
      }
    }
    return delivered;
  }

 private:
  static std::vector<double> Signs(const std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += std::fabs(v);
    const double scale = sum / static_cast<double>(x.size());
    std::vector<double> signs;
    for (const double v : x) signs.push_back(v < 0 ? -scale : scale);
    return signs;
  }

  std::vector<Region> regions_;
  std::vector<std::vector<double>> worker_;
  std::vector<double> server_;
};

/// f(x) = mean over ranks of |x - target of the rank|^2 / 2: the optimum is the targets' mean.
/// Returns the squared distance from it after every step, over the first one.
template <typename Exchange>
std::vector<double> Descend(int world, size_t n, int steps, double rate, Exchange&& exchange) {
  const Data targets = RandomGradients(world, n, 77);
  std::vector<double> optimum = SumOver(targets), x(n, 10), errors;
  for (double& v : optimum) v /= world;
  for (int step = 0; step < steps; ++step) {
    Data gradients(world, std::vector<float>(n));
    for (int rank = 0; rank < world; ++rank) {
      for (size_t i = 0; i < n; ++i) {
        gradients[rank][i] = static_cast<float>(x[i] - targets[rank][i]);
      }
    }
    const auto sum = exchange(gradients);
    double error = 0;
    for (size_t i = 0; i < n; ++i) {
      x[i] -= rate * static_cast<double>(sum[i]) / world;
      error += (x[i] - optimum[i]) * (x[i] - optimum[i]);
    }
    errors.push_back(error);
  }
  return errors;
}

TEST(ReencodeSessionTest, TwoResidualsConvergeAsTheReferenceDoes) {
  constexpr int kWorld = 3, kSteps = 200;
  constexpr size_t kSize = 600;
  constexpr double kRate = 0.05;
  Account account(kWorld, kSize);
  account.Announce(Reencoded("ef_signsgd"));
  account.Run(Data(kWorld, std::vector<float>(kSize)));  // announces and leaves nothing behind
  const auto session =
      Descend(kWorld, kSize, kSteps, kRate, [&](const Data& g) { return account.Run(g); });
  PlainReference plain(kWorld, kSize);
  const auto reference =
      Descend(kWorld, kSize, kSteps, kRate, [&](const Data& g) { return plain.Step(g); });
  EXPECT_LT(session.back(), 1e-2 * session.front());
  for (int step = 0; step < kSteps; ++step) {
    // Rounding changes a sign now and then.
    ASSERT_NEAR(session[step], reference[step], (step < 20 ? 1e-4 : 0.05) * reference[step])
        << step;
  }
  account.ExpectBalance(2e-3);
}

TEST(ReencodeSessionTest, SelectionsConvergeToo) {
  Account account(3, 600);
  account.Switch(Reencoded("top_k", 0.1));
  const auto errors = Descend(3, 600, 250, 0.03, [&](const Data& g) { return account.Run(g); });
  EXPECT_LT(errors.back(), 1e-3 * errors.front());
}

TEST(RegionsTest, CutsCoverTheBucketInWholeCacheLines) {
  for (const int world : {1, 2, 3, 7}) {
    for (const uint64_t elements : {0, 1, 15, 16, 17, 100, 1000, 4099}) {
      const auto regions = CutRegions({elements, {}}, world);
      ASSERT_EQ(regions.size(), static_cast<size_t>(world));
      size_t at = 0;
      for (const Region& region : regions) {
        EXPECT_EQ(region.begin, at);
        EXPECT_TRUE(region.size == 0 || region.begin % 16 == 0);
        at += region.size;
      }
      EXPECT_EQ(at, elements);
    }
  }
}

TEST(RegionsTest, WholeTensorsKeepTheirShape) {
  // 96, 4 and 100 elements; regions of 80, 64 and 56.
  const BucketSize bucket{200, {{8, 12}, {1, 4}, {10, 10}}};
  const auto regions = CutRegions(bucket, 3);
  EXPECT_EQ(regions[0].shape, (std::vector<TensorShape>{{1, 80}}));
  EXPECT_EQ(regions[1].shape, (std::vector<TensorShape>{{1, 16}, {1, 4}, {1, 44}}));
  EXPECT_EQ(regions[2].shape, (std::vector<TensorShape>{{1, 56}}));
  EXPECT_EQ(CutRegions(bucket, 1)[0].shape, bucket.shape);
}

TEST(RegionsTest, PlansCountWhatAReencodedBucketHolds) {
  const BucketSize size{.elements = 16000, .shape = {}};
  const ExchangeMemory gathered = [&] {
    Choice choice = Reencoded("top_k");
    choice.collective = "sparse_all_gather";
    return MemoryOf(choice, size, 10);
  }();
  const ExchangeMemory memory = MemoryOf(Reencoded("top_k"), size, 10);
  EXPECT_EQ(memory.residual_bytes, gathered.residual_bytes + 2 * 1600 * 4);
  EXPECT_LT(memory.payload_bytes, gathered.payload_bytes);
  EXPECT_GT(memory.payload_bytes, gathered.payload_bytes / 11);
}

}  // namespace
}  // namespace weir
