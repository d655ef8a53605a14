// SPDX-License-Identifier: Apache-2.0
// Sessions of one job over loopback: sums, residual bookkeeping, non-finite gradients,
// redefinition, checkpoints and dead ranks.

#include "datapath/session/session.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/base/half.h"
#include "datapath/transport/fault.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::CompatibleChoices;
using testing::RandomGradients;
using testing::RunRanks;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;

// This rank's residual, by handing its exported state to a store that flushes it.
std::vector<float> ResidualOf(SessionWorld& world, int rank,
                              const std::vector<ResidualParameter>& parameters) {
  uint64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.elements;
  std::vector<float> residual(elements);
  ResidualStore store;
  EXPECT_TRUE(store.Define(1, parameters).ok());
  const Status imported = store.Import(world.Export(rank));
  EXPECT_TRUE(imported.ok()) << ToString(imported);
  EXPECT_TRUE(store.Flush(1, residual).ok());
  return residual;
}

// Compares the gradients of several steps with the outputs plus the residuals.
void CheckConservation(int world, const Choice& choice) {
  // Codecs with internal momentum repeat gradients by design, and so do estimates.
  const CodecTraits& codec = (*Codecs().Find(choice.codec))->Traits();
  if (codec.needs_momentum || codec.ef21) return;
  SCOPED_TRACE(StrCat("world ", world, " ", choice.codec, " ", choice.collective));
  // Seeds depend on the name. A name that counts jobs would give other noise whenever other tests
  // ran before, and the bound below holds for almost all noise, but not for all.
  SessionWorld job({.world = world,
                    .transport = "inproc",
                    .job = StrCat("conserve ", choice.codec, " ", choice.collective)});
  job.Up();
  const std::vector<ResidualParameter> parameters = {{"a", 700}, {"b", 1301}};
  const size_t n = 2001;
  const uint64_t key = job.Define(parameters);
  job.Switch(UniformPlan(3, choice), key, n);
  std::vector<double> expected(n), delivered(n);
  for (int step = 0; step < 4; ++step) {
    auto data = RandomGradients(world, n, static_cast<uint64_t>(step));
    const auto sum = SumOver(data);
    for (size_t i = 0; i < n; ++i) expected[i] += sum[i];
    job.Begin();
    job.AllReduce(key, data);
    EXPECT_FALSE(job.End());
    for (int rank = 1; rank < world; ++rank) {
      ASSERT_EQ(0, std::memcmp(data[0].data(), data[rank].data(), n * 4)) << "rank " << rank;
    }
    for (size_t i = 0; i < n; ++i) delivered[i] += data[0][i];
  }
  EXPECT_EQ(job.sessions[0]->ActivePlan()->version, 3u);
  const CodecTraits& traits = (*Codecs().Find(choice.codec))->Traits();
  double error = 0, left = 0;
  for (int rank = 0; rank < world; ++rank) {
    const auto residual = ResidualOf(job, rank, parameters);
    for (size_t i = 0; i < n; ++i) {
      delivered[i] += residual[i];
      left += std::fabs(residual[i]);
    }
  }
  for (size_t i = 0; i < n; ++i) error = std::max(error, std::fabs(delivered[i] - expected[i]));
  if (traits.uses_ratio && !traits.size_in_steps) {  // these leave vectors whole
    EXPECT_GT(left, 1.0);                            // otherwise nothing was compressed
  }
  // bfloat16 keeps 8 bits of sums up to about 4 * world; unbiased codecs add noise of known
  // variance in every step and rank; codecs with feedback lose nothing.
  double bound = 2e-3 * world;
  if (traits.lossy && !traits.needs_error_feedback) {
    const CodecSetting* setting = FindSetting(traits, {.ratio = choice.ratio}, world);
    bound = 0.25 * world + 6 * std::sqrt(4.0 * world * setting->relative_error_squared);
    // If sums are rounded, errors depend on the sums' sizes, some of which are far above their
    // deviation.
    bound += 12 * std::sqrt(4.0 * world * world * traits.sum_error_squared);
    // The same holds for sums that are encoded again, which include the noise of the first
    // encoding.
    const double loss = setting->relative_error_squared;
    const CollectiveTraits& collective = (*Collectives().Find(choice.collective))->Traits();
    if (collective.form == "regions") {
      bound += 12 * std::sqrt(4.0 * world * (1 + loss) * loss);
    }
  }
  EXPECT_LE(error, bound);
}

TEST(SessionTest, EveryCodecOnEveryCollectiveConservesTheGradient) {
  for (int world = 1; world <= 4; ++world) {
    const auto choices = CompatibleChoices(world);
    ASSERT_GE(choices.size(), 10u);
    for (const Choice& choice : choices) CheckConservation(world, choice);
  }
}

TEST(SessionTest, DenseOverTcpIsTheExactMeanForAnyWorld) {
  for (int world = 1; world <= 4; ++world) {
    SessionWorld job({.world = world});
    job.Up();
    std::vector<uint64_t> keys;
    for (int b = 0; b < 5; ++b) {
      keys.push_back(job.Define({{StrCat("p", b), static_cast<uint64_t>(1000 * b + 1)}}));
    }
    for (int step = 0; step < 3; ++step) {
      // Small integers add exactly in any order.
      std::vector<std::vector<std::vector<float>>> data(5);
      job.Begin();
      for (int b = 0; b < 5; ++b) {
        data[b].assign(world, std::vector<float>(1000 * b + 1));
        for (int r = 0; r < world; ++r) {
          for (size_t i = 0; i < data[b][r].size(); ++i) {
            data[b][r][i] = static_cast<float>((i * 7 + r * 13 + step) % 100);
          }
        }
      }
      auto expected = data;
      for (int b = 0; b < 5; ++b) job.AllReduce(keys[b], data[b], 0.5);
      EXPECT_FALSE(job.End());
      for (int b = 0; b < 5; ++b) {
        const auto sum = SumOver(expected[b]);
        for (int r = 0; r < world; ++r) {
          for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(data[b][r][i], sum[i] * 0.5);
        }
      }
    }
  }
}

TEST(SessionTest, SixteenBitBucketsRoundOnce) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBrain16}) {
    SessionWorld job({.world = 3});
    job.Up();
    const size_t n = 1003;
    const uint64_t key = job.Define({{"p", n}}, dtype);
    std::vector<std::vector<uint16_t>> data(3, std::vector<uint16_t>(n));
    std::vector<float> wide(n);
    for (auto& part : data) {
      for (size_t i = 0; i < n; ++i) wide[i] = static_cast<float>(i % 16) - 8;
      dtype == Dtype::kFloat16 ? FloatToHalf(wide, part) : FloatToBrain(wide, part);
    }
    for (const bool planned : {false, true}) {  // 16 and 32 bits on the wire
      if (planned) job.Switch(UniformPlan(1, DenseChoice()), job.Define({{"q", 8}}), 8);
      auto buffers = data;
      job.Begin();
      job.AllReduce(key, buffers, 1.0);
      EXPECT_FALSE(job.End());
      for (const auto& part : buffers) {
        dtype == Dtype::kFloat16 ? HalfToFloat(part, wide) : BrainToFloat(part, wide);
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(wide[i], 3 * (static_cast<float>(i % 16) - 8));
      }
    }
  }
}

TEST(SessionTest, HalfOverflowOfTheSumIsASkippedStep) {
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({{"p", 4}}, Dtype::kFloat16);
  job.Switch(UniformPlan(1, DenseChoice()), job.Define({{"q", 8}}), 8);
  std::vector<std::vector<uint16_t>> data(2, std::vector<uint16_t>(4, 0x7BFF));  // 65504 each
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_TRUE(job.End());
  EXPECT_EQ(data[0][0] & 0x7C00, 0x7C00);
}

TEST(SessionTest, AllZeroGradientsUnderEveryChoiceStayZeroAndCarryTheSwitch) {
  for (const Choice& choice : CompatibleChoices(3)) {
    SCOPED_TRACE(StrCat(choice.codec, " ", choice.collective));
    SessionWorld job({.world = 3, .transport = "inproc"});
    job.Up();
    const uint64_t key = job.Define({{"a", 50}});
    job.Switch(UniformPlan(1, choice), key, 50);
    // An empty selection must still announce the next plan to every rank.
    job.Switch(UniformPlan(2, choice), key, 50);
    std::vector<std::vector<float>> zeros(3, std::vector<float>(50));
    job.Begin();
    job.AllReduce(key, zeros);
    EXPECT_FALSE(job.End());
    for (const auto& session : job.sessions) EXPECT_EQ(session->ActivePlan()->version, 2u);
    for (const float value : zeros[1]) EXPECT_EQ(value, 0.0f);
  }
}

TEST(SessionTest, EmptyBucketsAndStepsWithoutBucketsPass) {
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({});
  std::vector<std::vector<float>> nothing(2);
  for (int step = 0; step < 3; ++step) {
    job.Begin();
    if (step > 0) job.AllReduce(key, nothing);
    EXPECT_FALSE(job.End());
  }
}

TEST(SessionTest, ArmInAStepWithoutOperationsWaitsForOneThatCarriesIt) {
  SessionWorld job({.world = 3, .compare_every_steps = 0});
  job.Up();
  const uint64_t key = job.Define({{"p", 10}});
  const Plan plan = UniformPlan(4, DenseChoice());
  for (auto& session : job.sessions) session->OnCommand(PlanOffer{4, "n", plan});
  job.sessions[0]->OnCommand(PlanArm{4});
  for (int empty = 0; empty < 3; ++empty) {
    job.Begin();
    job.End();
    for (auto& session : job.sessions) EXPECT_EQ(session->ActivePlan()->version, 0u);
  }
  std::vector<std::vector<float>> data(3, std::vector<float>(10, 1));
  job.Begin();
  job.AllReduce(key, data);
  job.End();
  job.Begin();
  for (auto& session : job.sessions) EXPECT_EQ(session->ActivePlan()->version, 4u);
  job.End();
  const auto active = job.ports[2]->All<PlanActive>();
  ASSERT_EQ(active.size(), 1u);
  EXPECT_EQ(active[0], (PlanActive{4, 4}));
}

TEST(SessionTest, ResidualFollowsParametersAcrossRedefinitionAndIsFlushedWhenDense) {
  Choice sparse;
  sparse.codec = "top_k";
  sparse.collective = "sparse_all_gather";
  sparse.ratio = 0.05;
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t ab = job.Define({{"a", 400}, {"b", 600}});
  job.Switch(UniformPlan(1, sparse), ab, 1000);
  auto data = RandomGradients(2, 1000, 5);
  auto expected = SumOver(data);
  job.Begin();
  job.AllReduce(ab, data);
  job.End();
  for (size_t i = 0; i < 1000; ++i) expected[i] -= data[0][i];
  // The buckets are regrouped: b alone, then a. A dense step flushes the residuals of both.
  const uint64_t b = job.Define({{"b", 600}}), a = job.Define({{"a", 400}});
  EXPECT_EQ(job.sessions[0]->AllReduce(ab, data[0].data(), 1, nullptr).code(),
            StatusCode::kFailedPrecondition);
  std::vector<std::vector<float>> one(2, std::vector<float>(8));
  job.Switch(UniformPlan(2, DenseChoice()), job.Define({{"c", 8}}), 8);
  std::vector<std::vector<float>> db(2, std::vector<float>(600)), da(2, std::vector<float>(400));
  job.Begin();
  EXPECT_EQ(job.sessions[0]->AllReduce(ab, data[0].data(), 1, nullptr).code(),
            StatusCode::kNotFound);
  job.AllReduce(b, db);
  job.AllReduce(a, da);
  job.End();
  for (size_t i = 0; i < 400; ++i) ASSERT_NEAR(da[0][i], expected[i], 1e-3);
  for (size_t i = 0; i < 600; ++i) ASSERT_NEAR(db[1][i], expected[400 + i], 1e-3);
  std::vector<std::vector<float>> again(2, std::vector<float>(600));
  job.Begin();
  job.AllReduce(b, again);
  job.End();
  for (const float value : again[0]) ASSERT_EQ(value, 0.0f);
}

TEST(SessionTest, StateExportedFromOneJobContinuesInAnother) {
  Choice sparse;
  sparse.codec = "top_k";
  sparse.collective = "sparse_all_gather";
  sparse.ratio = 0.05;
  std::vector<std::vector<std::byte>> saved;
  std::vector<float> expected;
  const auto run = [&](SessionWorld& job, uint64_t key) {
    auto data = RandomGradients(2, 500, 9);
    job.Begin();
    job.AllReduce(key, data);
    job.End();
    return data[0];
  };
  for (const bool restored : {false, true}) {
    SessionWorld job({.world = 2, .transport = "inproc"});
    job.Up();
    const uint64_t key = job.Define({{"w", 500}});
    job.Switch(UniformPlan(1, sparse), key, 500);
    if (!restored) {
      run(job, key);
      for (int rank = 0; rank < 2; ++rank) saved.push_back(job.Export(rank));
      expected = run(job, key);
    } else {
      for (int rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(job.sessions[rank]->ImportState(saved[rank]).ok());
      }
      EXPECT_EQ(run(job, key), expected);
      auto corrupt = saved[0];
      corrupt[corrupt.size() / 2] ^= std::byte{1};
      EXPECT_FALSE(job.sessions[0]->ImportState(corrupt).ok());
    }
  }
}

TEST(SessionTest, WrongUseIsRefusedWithTheReason) {
  SessionWorld job({.world = 1});
  std::vector<float> data(4);
  Session& session = *job.sessions[0];
  EXPECT_EQ(session.BeginStep().code(), StatusCode::kFailedPrecondition);
  job.Up();
  const uint64_t key = job.Define({{"p", 4}});
  EXPECT_EQ(session.EndStep().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.AllReduce(key, data.data(), 1, nullptr).code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(session.BeginStep().ok());
  EXPECT_EQ(session.BeginStep().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.AllReduce(key + 1, data.data(), 1, nullptr).code(), StatusCode::kNotFound);
  EXPECT_EQ(session.AllReduce(key, nullptr, 1, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session.AllReduce(key, data.data(), NAN, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(session.AllReduce(key, data.data(), 1, nullptr).ok());
  EXPECT_EQ(session.AllReduce(key, data.data(), 1, nullptr).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(session.EndStep().ok());
  EXPECT_EQ(session.DefineBucket({{"", 4}}, Dtype::kFloat32).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(session.DefineBucket({{"x", 4}, {"x", 4}}, Dtype::kFloat32).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SessionTest, UnlikePlanFilesAreFoundBeforeTraining) {
  const std::string paths[] = {
      testing::TempFile("a.json", R"({"fallback": {"codec": "fp16", "collective": "ring"}})"),
      testing::TempFile("b.json", R"({"fallback": {"codec": "bf16", "collective": "ring"}})")};
  SessionOptions options;
  options.job = "files";
  options.world = 2;
  options.connect_timeout = std::chrono::seconds(10);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<TransportAddress> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    options.rank = rank;
    options.plan_file = paths[rank];
    auto session = Session::Create(options);
    ASSERT_TRUE(session.ok()) << ToString(session.status());
    addresses.push_back((*session)->address());
    sessions.push_back(std::move(session).value());
  }
  std::vector<Status> statuses(2);
  RunRanks(2, [&](int rank) { statuses[rank] = sessions[rank]->Connect(addresses); });
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_NE((Message(statuses[0]) + Message(statuses[1])).find("plan file"), std::string::npos)
      << ToString(statuses[0]) << "; " << ToString(statuses[1]);
}

TEST(SessionTest, ADifferentBucketOnOneRankFailsBothAndNamesThem) {
  SessionWorld job({.world = 2, .operation_timeout_s = 5});
  job.Up();
  std::vector<float> a(4), b(4);
  const uint64_t ka = job.Define({{"a", 4}}), kb = job.Define({{"b", 4}});
  job.Begin();
  ASSERT_TRUE(job.sessions[0]->AllReduce(ka, a.data(), 1, nullptr).ok());
  ASSERT_TRUE(job.sessions[1]->AllReduce(kb, b.data(), 1, nullptr).ok());
  const Status first = job.sessions[0]->EndStep().status();
  const Status second = job.sessions[1]->EndStep().status();
  EXPECT_FALSE(first.ok());
  EXPECT_FALSE(second.ok());
  EXPECT_NE(Message(first).find("bucket"), std::string::npos) << ToString(first);
}

TEST(SessionTest, OthersNameTheRankThatDied) {
  for (const std::string transport : {"auto", "tcp", "inproc"}) {
    SessionWorld job({.world = 4, .transport = transport, .operation_timeout_s = 10});
    job.Up();
    const uint64_t key = job.Define({{"p", 100000}});
    auto data = RandomGradients(4, 100000, 1);
    job.Begin();
    job.AllReduce(key, data);
    job.End();
    job.Begin();
    for (int rank : {0, 1, 3}) {
      ASSERT_TRUE(job.sessions[rank]->AllReduce(key, data[rank].data(), 1, nullptr).ok());
    }
    const TimePoint begin = RealClock().Now();
    job.sessions[2]->Close();  // leaves in the middle of a step
    job.sessions[2].reset();
    for (int rank : {0, 1, 3}) {
      const Status status = job.sessions[rank]->EndStep().status();
      EXPECT_FALSE(status.ok());
      EXPECT_NE(Message(status).find("rank 2"), std::string::npos) << ToString(status);
      EXPECT_FALSE(job.sessions[rank]->BeginStep().ok());
      bool reported = false;
      for (const RankEvent& event : job.ports[rank]->All<RankEvent>()) {
        reported = reported || (event.kind == "peer_failed" && event.guilty_rank == 2);
      }
      EXPECT_TRUE(reported) << "rank " << rank << ": " << ToString(status);
    }
    EXPECT_LT(RealClock().Now() - begin, std::chrono::seconds(9));
  }
}

TEST(SessionTest, ARankThatNeverComesIsNamedAtTheDeadline) {
  SessionWorld job({.world = 3, .operation_timeout_s = 1});
  job.Up();
  const uint64_t key = job.Define({{"p", 100}});
  auto data = RandomGradients(3, 100, 1);
  job.Begin();
  for (int rank : {0, 1}) {
    ASSERT_TRUE(job.sessions[rank]->AllReduce(key, data[rank].data(), 1, nullptr).ok());
  }
  for (int rank : {0, 1}) {
    const Status status = job.sessions[rank]->EndStep().status();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(Message(status).find("rank 2"), std::string::npos) << ToString(status);
  }
}

TEST(SessionTest, ACorruptPayloadFailsTheStepAndNamesItsSender) {
  FaultOptions faults;
  faults.rank = 1;
  faults.every_peer.corrupt_probability = 0.02;
  faults.seed = 1;
  const auto factory = MakeFaultFactory(**Transports().Find("tcp"), faults);
  SessionWorld job({.world = 3, .operation_timeout_s = 10, .factory = factory.get()});
  job.Up();
  const uint64_t key = job.Define({{"p", 1000}});
  std::vector<Status> ended(3);
  for (int step = 0; step < 1000 && ended[0].ok(); ++step) {
    auto data = RandomGradients(3, 1000, 1);
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(job.sessions[rank]->BeginStep().ok());
      ASSERT_TRUE(job.sessions[rank]->AllReduce(key, data[rank].data(), 1, nullptr).ok());
    }
    for (int rank = 0; rank < 3; ++rank) ended[rank] = job.sessions[rank]->EndStep().status();
    if (!ended[2].ok()) break;
  }
  for (int rank : {0, 2}) {
    EXPECT_FALSE(ended[rank].ok());
    EXPECT_NE(Message(ended[rank]).find("rank 1"), std::string::npos) << ToString(ended[rank]);
  }
}

TEST(SessionTest, CloseInTheMiddleOfAStepCompletesEveryOperation) {
  SessionWorld job({.world = 2, .operation_timeout_s = 30});
  job.Up();
  std::vector<std::vector<float>> data(8, std::vector<float>(1000));
  std::atomic<int> completed{0}, failed{0};
  ASSERT_TRUE(job.sessions[0]->BeginStep().ok());
  for (int b = 0; b < 8; ++b) {
    const uint64_t key = *job.sessions[0]->DefineBucket({{StrCat("p", b), 1000}}, Dtype::kFloat32);
    ASSERT_TRUE(job.sessions[0]
                    ->AllReduce(key, data[b].data(), 1,
                                [&](const Status& status) {
                                  ++completed;
                                  failed += status.ok() ? 0 : 1;
                                })
                    .ok());
  }
  const TimePoint begin = RealClock().Now();
  job.sessions[0]->Close();
  EXPECT_EQ(completed, 8);
  EXPECT_EQ(failed, 8);
  EXPECT_LT(RealClock().Now() - begin, std::chrono::seconds(5));
}

TEST(SessionTest, ReportsSayWhatHappened) {
  Choice sparse;
  sparse.codec = "top_k";
  sparse.collective = "sparse_all_gather";
  sparse.ratio = 0.1;
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t big = job.Define({{"big", 50000}}), small = job.Define({{"small", 100}});
  job.Switch(UniformPlan(1, sparse), big, 50000);
  for (int step = 1; step <= 21; ++step) {
    auto x = RandomGradients(2, 50000, step), y = RandomGradients(2, 100, step);
    job.Begin();
    job.AllReduce(big, x);
    job.AllReduce(small, y);
    job.sessions[0]->ReportLoss(2.5);
    job.End();
  }
  job.Begin();
  job.End();
  const auto reports = job.ports[0]->All<StepReport>();
  ASSERT_EQ(reports.size(), 22u);
  for (const StepReport& report : reports) {
    if (report.step == 0) continue;
    EXPECT_EQ(report.plan_version, 1u);
    EXPECT_TRUE(report.has_loss);
    EXPECT_EQ(report.loss, 2.5);
    EXPECT_GE(report.step_s, report.compute_s + report.backward_s + report.exposed_s);
    ASSERT_EQ(report.buckets.size(), 2u);
    const BucketSample& sample = report.buckets[0];
    EXPECT_EQ(sample.bucket, big);
    EXPECT_EQ(sample.codec, "top_k");
    EXPECT_GT(sample.encode_s, 0);
    EXPECT_GT(sample.network_s, 0);
    EXPECT_GT(sample.decode_s, 0);
    EXPECT_GT(sample.payload_bytes, 5000u);
    EXPECT_LT(sample.payload_bytes, 50000u);
    EXPECT_GT(sample.bytes_sent, sample.payload_bytes);
    EXPECT_GT(sample.gain, 0.2);
    EXPECT_LT(sample.gain, 0.999);
    const bool sampled = report.step < 10 || report.step % 10 == 0;
    EXPECT_EQ(report.gains.size(), sampled ? 2u : 0u) << report.step;
    if (report.step >= 10) {
      EXPECT_GT(sample.residual_ratio, 0.5);
    }
  }
  const GainCurve& curve = reports[10].gains[0];
  EXPECT_NEAR(curve.gains.front(), 1.0, 1e-6);
  EXPECT_GT(curve.peak_over_rms, 1.5);
  const auto tables = job.ports[0]->All<BucketTable>();
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.back().buckets.size(), 2u);
  const auto paths = job.ports[0]->All<PathReport>();
  ASSERT_FALSE(paths.empty());
  ASSERT_EQ(paths[0].addresses.size(), job.sessions.size());
  EXPECT_EQ(paths[0].addresses[1], job.sessions[1]->address());
  EXPECT_EQ(paths[0].paths[0].medium, "shm");
}

TEST(SessionTest, DenseBucketsReportGainCurvesFromASample) {
  SessionWorld job({.world = 2, .transport = "inproc"});
  job.Up();
  const uint64_t key = job.Define({{"p", 200000}});
  auto data = RandomGradients(2, 200000, 3);
  job.Begin();
  job.AllReduce(key, data);
  job.End();
  job.Begin();
  job.End();
  const auto reports = job.ports[1]->All<StepReport>();
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].gains.size(), 1u);
  // Normal gradients: the largest tenth holds about 0.44 of the energy.
  for (size_t i = 0; i < reports[0].gains[0].ratios.size(); ++i) {
    if (reports[0].gains[0].ratios[i] != 0.1) continue;
    EXPECT_NEAR(reports[0].gains[0].gains[i], 0.44, 0.05);
  }
}

}  // namespace
}  // namespace weir
