// SPDX-License-Identifier: Apache-2.0
// State that a session keeps between steps survives checkpoints and changes of scale, codec and
// ratio.

#include <algorithm>
#include <cstring>
#include <limits>

#include "datapath/wire/frame.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;
using Data = std::vector<std::vector<float>>;

const std::vector<ResidualParameter> kParameters = {{"w", 40 * 100, 100}, {"b", 1000}};
constexpr size_t kElements = 5000;

/// A job that uses one codec from its first step on.
std::unique_ptr<SessionWorld> JobWith(const std::string& codec, const std::string& collective) {
  const std::string path = testing::TempFile(
      "checkpoint.json", StrCat(R"({"fallback": {"codec": ")", codec, R"(", "collective": ")",
                                collective, R"(", "ratio": 0.05}})"));
  auto job = std::make_unique<SessionWorld>(
      testing::WorldOptions{.world = 2, .transport = "inproc", .plan_file = path});
  job->Up();
  return job;
}

/// Runs one step on gradients drawn from `draw` and returns rank 0's result.
std::vector<float> Step(SessionWorld& job, uint64_t key, uint64_t draw) {
  Data data = RandomGradients(2, kElements, draw);
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  return data[0];
}

std::vector<std::vector<std::byte>> ExportAll(SessionWorld& job) {
  return {job.Export(0), job.Export(1)};
}

void ImportAll(SessionWorld& job, const std::vector<std::vector<std::byte>>& saved) {
  for (size_t rank = 0; rank < saved.size(); ++rank) {
    const Status status = job.sessions[rank]->ImportState(saved[rank]);
    ASSERT_TRUE(status.ok()) << ToString(status);
  }
}

void SetChecksum(std::vector<std::byte>& state) {
  const auto body = std::span<const std::byte>(state).first(state.size() - 4);
  const uint32_t checksum = Checksum(body);
  std::memcpy(state.data() + body.size(), &checksum, sizeof(checksum));
}

TEST(CheckpointTest, CodecsGoOnWithTheSameBytes) {
  const std::pair<const char*, const char*> choices[] = {{"dgc", "sparse_all_gather"},
                                                         {"threshold", "sparse_all_gather"},
                                                         {"top_k", "sparse_all_gather"},
                                                         {"nominated_top_k", "ar_topk_union"},
                                                         {"power_sgd", "ring"}};
  for (const auto& [codec, collective] : choices) {
    SCOPED_TRACE(codec);
    const auto first = JobWith(codec, collective);
    const uint64_t key = first->Define(kParameters);
    for (uint64_t draw = 0; draw < 66; ++draw) Step(*first, key, draw);
    const auto saved = ExportAll(*first);
    const std::vector<std::vector<std::byte>> residuals = {first->ExportResiduals(0),
                                                           first->ExportResiduals(1)};
    const auto second = JobWith(codec, collective), third = JobWith(codec, collective);
    const auto without = JobWith(codec, collective);
    second->Define(kParameters);  // before the import
    ImportAll(*second, saved);
    ImportAll(*third, saved);
    EXPECT_EQ(ExportAll(*third), saved) << "kept until the bucket is defined";
    third->Define(kParameters);  // and after it
    EXPECT_EQ(ExportAll(*second), saved);
    EXPECT_EQ(ExportAll(*third), saved);
    without->Define(kParameters);
    ImportAll(*without, residuals);
    bool differs = false;
    for (uint64_t draw = 66; draw < 70; ++draw) {
      const std::vector<float> expected = Step(*first, key, draw);
      EXPECT_EQ(Step(*second, key, draw), expected) << "step " << draw;
      EXPECT_EQ(Step(*third, key, draw), expected) << "step " << draw;
      differs = differs || Step(*without, key, draw) != expected;
    }
    EXPECT_TRUE(differs) << "nothing depends on the state";
  }
}

TEST(CheckpointTest, AnImportReplacesWhatCodecsKept) {
  const auto job = JobWith("dgc", "sparse_all_gather");
  const uint64_t key = job->Define(kParameters);
  const auto empty = ExportAll(*job);
  Step(*job, key, 1);
  EXPECT_NE(job->Export(0), empty[0]);
  ImportAll(*job, empty);
  EXPECT_EQ(job->Export(0), empty[0]);
}

TEST(CheckpointTest, DamageIsRefusedOrHarmless) {
  const auto job = JobWith("dgc", "sparse_all_gather");
  const uint64_t key = job->Define(kParameters);
  Step(*job, key, 1);
  const std::vector<std::byte> saved = job->Export(0);
  Session& session = *job->sessions[0];
  for (size_t size = 0; size < saved.size(); size += size < 200 ? 1 : 1009) {
    const auto cut = std::span(saved).first(size);
    ASSERT_EQ(session.ImportState(cut).code(), StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(job->Export(0), saved) << "nothing changed";
  // Damages the codecs' part, the last 100 bytes, and corrects the checksum.
  Random random(5);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<std::byte> damaged = saved;
    damaged[saved.size() - 5 - random.Below(100)] = std::byte(random.Next());
    if (round % 4 == 0) damaged.erase(damaged.end() - 5 - random.Below(40));
    SetChecksum(damaged);
    const Status status = session.ImportState(damaged);
    if (status.ok()) continue;
    ++refused;
    ASSERT_TRUE(status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound)
        << ToString(status);
  }
  EXPECT_GT(refused, 100);
  ASSERT_TRUE(session.ImportState(saved).ok());
  Step(*job, key, 2);
}

TEST(CheckpointTest, StatesOfUnknownCodecsAndForeignBytesAreNamed) {
  ResidualStore store;
  const auto job = JobWith("dgc", "sparse_all_gather");
  const auto import = [&](const SavedCodecState& state) {
    std::vector<std::byte> bytes(store.ExportBytes({&state, 1}));
    EXPECT_TRUE(store.Export(bytes, {&state, 1}).ok());
    return job->sessions[0]->ImportState(bytes);
  };
  const std::vector<std::byte> some(5, std::byte{7});
  const Status unknown = import({1, "no_such_codec", {}, some});
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_NE(Message(unknown).find("dgc"), std::string::npos) << Message(unknown);
  const Status foreign = import({0xABC, "dgc", {}, some});
  EXPECT_EQ(foreign.code(), StatusCode::kDataLoss);
  EXPECT_NE(Message(foreign).find("dgc in bucket 0000000000000abc"), std::string::npos)
      << Message(foreign);
  EXPECT_EQ(import({1, "identity", {}, some}).code(), StatusCode::kDataLoss);
}

TEST(CheckpointTest, NothingIsExportedImportedOrScaledOnceAStepHasOperations) {
  const auto job = JobWith("top_k", "sparse_all_gather");
  const uint64_t key = job->Define(kParameters);
  const auto saved = ExportAll(*job);
  job->Begin();
  std::vector<std::byte> room(100000);
  Session& session = *job->sessions[0];
  EXPECT_TRUE(session.ExportBytes().ok());
  EXPECT_TRUE(session.ImportState(saved[0]).ok());
  EXPECT_TRUE(session.ScaleState(2).ok());
  Data data(job->sessions.size(), std::vector<float>(kElements, 1.0f));
  job->AllReduce(key, data);
  EXPECT_EQ(session.ExportBytes().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.ExportState(room).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.ImportState(saved[0]).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.ScaleState(2).code(), StatusCode::kFailedPrecondition);
  job->End();
}

// --- Scale ---------------------------------------------------------------------------------------

Choice Sparse(const std::string& codec, double ratio) {
  Choice choice;
  choice.codec = codec;
  choice.collective = "sparse_all_gather";
  choice.ratio = ratio;
  return choice;
}

/// Runs a dense step with zero gradients on all ranks, which returns the sum of all residuals.
std::vector<float> Flushed(SessionWorld& job, uint64_t key, uint64_t version) {
  // Another bucket announces the switch, because this one would deliver some of the residuals.
  job.Switch(UniformPlan(version, DenseChoice()), job.Define({{"carrier", 8}}), 8);
  Data zeros(job.sessions.size(), std::vector<float>(kElements));
  job.Begin();
  job.AllReduce(key, zeros);
  job.End();
  return zeros[0];
}

TEST(ScaleStateTest, AChangedLossScaleReachesWhatWasLeftBehind) {
  // Gradients of step 1 carry a loss scale of 1024, those of step 2 one of 512. Unscaled, what the
  // two steps and a flush deliver must be the sum of both gradients.
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define(kParameters);
  job.Switch(UniformPlan(1, Sparse("top_k", 0.05)), key, kElements);
  std::vector<double> expected(kElements), delivered(kElements);
  double scale = 1024;
  for (uint64_t step = 0; step < 2; ++step, scale /= 2) {
    Data data = RandomGradients(2, kElements, step);
    const auto sum = SumOver(data);
    for (auto& each : data) {
      for (float& v : each) v *= static_cast<float>(scale);
    }
    if (step > 0) {
      for (auto& session : job.sessions) ASSERT_TRUE(session->ScaleState(0.5).ok());
    }
    job.Begin();
    job.AllReduce(key, data);
    job.End();
    for (size_t i = 0; i < kElements; ++i) {
      expected[i] += sum[i];
      delivered[i] += data[0][i] / scale;
    }
  }
  const std::vector<float> rest = Flushed(job, key, 2);
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(delivered[i] + rest[i] / 512, expected[i], 1e-4) << i;
  }
}

TEST(ScaleStateTest, BadFactorsAndOverflowChangeNothing) {
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define(kParameters);
  job.Switch(UniformPlan(1, Sparse("top_k", 0.05)), key, kElements);
  Step(job, key, 1);
  const auto saved = ExportAll(job);
  for (const double factor :
       {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e39}) {
    EXPECT_EQ(job.sessions[0]->ScaleState(factor).code(), StatusCode::kInvalidArgument) << factor;
  }
  EXPECT_EQ(ExportAll(job), saved);
}

// --- Policy --------------------------------------------------------------------------------------

TEST(ResidualPolicyTest, ResidualsDoNotDependOnTheScaleOfTheSum) {
  // Residuals are kept undivided by the world size, so that a world of another size can use them.
  std::vector<std::vector<std::byte>> exported;
  for (const double scale : {1.0, 0.5}) {
    SessionWorld job({.world = 2, .transport = "inproc"});
    job.Up();
    const uint64_t key = job.Define(kParameters);
    job.Switch(UniformPlan(1, Sparse("top_k", 0.05)), key, kElements);
    Data data = RandomGradients(2, kElements, 3);
    job.Begin();
    job.AllReduce(key, data, scale);
    job.End();
    exported.push_back(job.Export(1));
  }
  EXPECT_EQ(exported[0], exported[1]);
}

TEST(ResidualPolicyTest, ChangesOfCodecAndRatioLoseNothing) {
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define(kParameters), carrier = job.Define({{"carrier", 8}});
  Choice quantised = Sparse("qsgd", 1), low_rank = Sparse("power_sgd", 0.1);
  Choice shared = Sparse("shared_top_k", 0.02);
  quantised.collective = low_rank.collective = "ring";
  shared.collective = "ar_topk_star";
  const Choice choices[] = {Sparse("top_k", 0.1),  quantised, Sparse("top_k", 0.001), low_rank,
                            Sparse("sidco", 0.05), shared,    Sparse("top_k", 0.5)};
  std::vector<double> expected(kElements), delivered(kElements);
  uint64_t version = 0;
  for (const Choice& choice : choices) {
    job.Switch(UniformPlan(++version, choice), carrier, 8);
    for (int step = 0; step < 2; ++step) {
      Data data = RandomGradients(2, kElements, 10 * version + step);
      const auto sum = SumOver(data);
      job.Begin();
      job.AllReduce(key, data);
      EXPECT_FALSE(job.End());
      for (size_t i = 0; i < kElements; ++i) {
        expected[i] += sum[i];
        delivered[i] += data[0][i];
      }
    }
  }
  const std::vector<float> rest = Flushed(job, key, ++version);
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(delivered[i] + rest[i], expected[i], 2e-3) << i;
  }
}

TEST(ResidualPolicyTest, PayloadsOfUnlikeSizesAreNotPadded) {
  // Rank 0 has nothing to send and rank 1 keeps half; lengths are sent before the payloads.
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define(kParameters);
  job.Switch(UniformPlan(1, Sparse("top_k", 0.5)), key, kElements);
  Data data(2, std::vector<float>(kElements));
  data[1] = RandomGradients(2, kElements, 4)[1];
  const uint64_t before[] = {job.sessions[0]->Stats().bytes_sent,
                             job.sessions[1]->Stats().bytes_sent};
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  EXPECT_EQ(data[0], data[1]);
  EXPECT_LT(job.sessions[0]->Stats().bytes_sent - before[0], 500u);
  EXPECT_GT(job.sessions[1]->Stats().bytes_sent - before[1], 3000u);
}

TEST(ResidualPolicyTest, NoiseDiffersBetweenBucketsOfEqualContent) {
  // The seed is a hash of job, bucket and step, not a sum of letters: anagrams differ.
  SessionWorld job({.world = 1, .transport = "inproc"});
  job.Up();
  Choice choice;
  choice.codec = "random_k";
  choice.collective = "ring";
  choice.ratio = 0.1;
  const uint64_t ab = job.Define({{"ab", 1000}}), ba = job.Define({{"ba", 1000}});
  job.Switch(UniformPlan(1, choice), ab, 1000);
  Data first(1, std::vector<float>(1000, 1.0f)), second = first, later = first;
  job.Begin();
  job.AllReduce(ab, first);
  job.AllReduce(ba, second);
  job.End();
  job.Begin();
  job.AllReduce(ab, later);
  job.End();
  const auto kept = [](const std::vector<float>& x) {
    std::vector<bool> positions(x.size());
    for (size_t i = 0; i < x.size(); ++i) positions[i] = x[i] != 0;
    return positions;
  };
  EXPECT_NE(kept(first[0]), kept(second[0]));
  EXPECT_NE(kept(first[0]), kept(later[0]));
}

}  // namespace
}  // namespace weir
