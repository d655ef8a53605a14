// SPDX-License-Identifier: Apache-2.0
// Buckets that the callers of a job sum themselves: here the test adds the ranks' elements.

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <thread>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {
namespace {

constexpr size_t kElements = 1000;
using Gradients = std::vector<std::vector<float>>;

Choice Framework() { return {.codec = "identity", .collective = "framework"}; }
Choice TopK() { return {.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.1}; }
Choice ByWeir() { return {.codec = "identity", .collective = "ring"}; }

std::vector<float> Sum(const Gradients& data) {
  std::vector<float> sum = data[0];
  for (size_t rank = 1; rank < data.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += data[rank][i];
  }
  return sum;
}

class CallerSumsTest : public ::testing::Test {
 protected:
  static WorldOptions Options(int world = 2) {
    WorldOptions options;
    options.world = world;
    options.transport = "inproc";
    options.caller_sums = true;
    return options;
  }

  static CallerSumNeeds Needs(SessionWorld& job, uint64_t key) {
    const auto needs = job.sessions[0]->NeedsOf(key);
    EXPECT_TRUE(needs.ok()) << ToString(needs.status());
    return needs.value_or(CallerSumNeeds{});
  }

  /// Sums as a caller does. Leaves the sum, of `data` and what the session adds, in all of `data`.
  static void SumByCallers(SessionWorld& job, uint64_t key, Gradients& data) {
    for (size_t rank = 0; rank < job.sessions.size(); ++rank) {
      const Status begun = job.sessions[rank]->BeginSum(key, data[rank].data(), nullptr);
      ASSERT_TRUE(begun.ok()) << ToString(begun);
    }
    const std::vector<float> sum = Sum(data);
    const bool finite = std::ranges::all_of(sum, [](float x) { return std::isfinite(x); });
    for (size_t rank = 0; rank < job.sessions.size(); ++rank) {
      data[rank] = sum;
      CallerSum ended{.finite = finite, .sum = data[rank].data()};
      ended.network = std::chrono::milliseconds(2);
      ended.since_ready = std::chrono::milliseconds(3);
      const Status status = job.sessions[rank]->EndSum(key, ended);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
  }

  /// One step of one bucket, by whom the plan says.
  static bool Step(SessionWorld& job, uint64_t key, Gradients& data) {
    job.Begin();
    if (Needs(job, key).by_caller) {
      SumByCallers(job, key, data);
    } else {
      job.AllReduce(key, data);
    }
    return job.End();
  }

  /// Offers and arms; the plan is active in the step after the next.
  static void Announce(SessionWorld& job, const Plan& plan) {
    for (auto& session : job.sessions) session->OnCommand(PlanOffer{plan.version, "n", plan});
    for (auto& port : job.ports) {
      ASSERT_FALSE(port->All<PlanAck>().empty()) << port->All<PlanNack>().back().reason;
    }
    job.sessions[0]->OnCommand(PlanArm{plan.version});
  }
};

TEST_F(CallerSumsTest, PlansSwitchInTheSameStepAndNothingIsLost) {
  SessionWorld job(Options(3));
  const uint64_t key = job.Up().Define({{"w", kElements}});
  std::vector<double> fed(kElements), delivered(kElements);
  uint64_t version = 0;
  const std::vector<Choice> turns = {Framework(), TopK(), Framework(), ByWeir(), Framework()};
  for (uint64_t step = 0; step < 20; ++step) {
    if (step % 4 == 0) Announce(job, UniformPlan(++version, turns[step / 4]));
    Gradients data = RandomGradients(3, kElements, step);
    const std::vector<float> wanted = Sum(data);
    EXPECT_FALSE(Step(job, key, data));
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(job.sessions[rank]->Stats().plan_version, step % 4 == 0 ? version - 1 : version);
      EXPECT_EQ(data[rank], data[0]);
    }
    for (size_t i = 0; i < kElements; ++i) fed[i] += wanted[i], delivered[i] += data[0][i];
    // Lossy sums, and the first ones after these, which hold residuals. Those of Weir itself have
    // another order of addition.
    const bool by_weir = step > 12 && step < 17;
    if (!by_weir) {
      EXPECT_EQ(data[0] == wanted, step < 5 || step > 9) << step;
    }
  }
  for (size_t i = 0; i < kElements; ++i) EXPECT_NEAR(delivered[i], fed[i], 1e-4) << i;
}

TEST_F(CallerSumsTest, WithoutAPlanCallersSumWhereAllCan) {
  SessionWorld job(Options());
  const uint64_t key = job.Up().Define({{"w", kElements}});
  job.Begin();
  EXPECT_TRUE(Needs(job, key).by_caller);
  Gradients data = RandomGradients(2, kElements, 1);
  EXPECT_EQ(job.sessions[0]->AllReduce(key, data[0].data(), 1, nullptr).code(),
            StatusCode::kFailedPrecondition);
  SumByCallers(job, key, data);
  job.End();

  WorldOptions options = Options();
  options.callers_that_cannot = {1};
  SessionWorld other(options);
  const uint64_t same = other.Up().Define({{"w", kElements}});
  other.Begin();
  EXPECT_FALSE(Needs(other, same).by_caller);
  EXPECT_EQ(other.sessions[0]->BeginSum(same, data[0].data(), nullptr).code(),
            StatusCode::kFailedPrecondition);
  other.AllReduce(same, data);
  other.End();
  const Plan plan = UniformPlan(1, Framework());
  other.sessions[0]->OnCommand(PlanOffer{1, "n", plan});
  ASSERT_EQ(other.ports[0]->All<PlanNack>().size(), 1u);
  EXPECT_THAT(other.ports[0]->All<PlanNack>()[0].reason, ::testing::HasSubstr("process group"));
}

TEST_F(CallerSumsTest, APlanFileMayNeedThem) {
  WorldOptions options = Options(3);
  options.plan_file =
      TempFile("plan", R"({"fallback": {"codec": "identity", "collective": "framework"}})");
  SessionWorld(options).Up();
  // A rank that cannot refuses the file itself.
  SessionOptions unable;
  unable.job = "unable";
  unable.plan_file = options.plan_file;
  EXPECT_THAT(Message(Session::Create(unable).status()), ::testing::HasSubstr("process group"));
}

// An accelerator's sum may have ended long before anybody looks at it.
TEST_F(CallerSumsTest, TimesAreThoseOfTheSumItself) {
  SessionWorld job(Options());
  const uint64_t key = job.Up().Define({{"w", kElements}});
  Gradients data = RandomGradients(2, kElements, 1);
  constexpr auto kNoticedLate = std::chrono::milliseconds(80);
  const CallerSum ended{.sum = data[0].data(),
                        .network = std::chrono::milliseconds(2),
                        .since_ready = std::chrono::milliseconds(3),
                        .ended_ago = kNoticedLate};
  const TimePoint begin = RealClock().Now();
  job.Begin();
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.sessions[rank]->BeginSum(key, data[rank].data(), nullptr).ok());
  }
  std::this_thread::sleep_for(kNoticedLate + std::chrono::milliseconds(20));  // within the step
  for (auto& session : job.sessions) ASSERT_TRUE(session->EndSum(key, ended).ok());
  const double passed_s = ToSeconds(RealClock().Now() - begin);
  job.End();
  Step(job, key, data);  // begins with the report
  const std::vector<StepReport> reports = job.ports[0]->All<StepReport>();
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].buckets.size(), 1u);
  EXPECT_LE(reports[0].buckets[0].entry_offset_s, passed_s - 0.082);
  EXPECT_NEAR(reports[0].exposed_s, 0.003, 1e-9);
}

TEST_F(CallerSumsTest, OneMessageForEachPeerAndStep) {
  SessionWorld job(Options());
  const uint64_t a = job.Up().Define({{"a", kElements}}), b = job.Define({{"b", kElements}});
  const uint64_t before = job.sessions[0]->Stats().bytes_sent;
  for (int step = 0; step < 10; ++step) {
    job.Begin();
    Gradients data = RandomGradients(2, kElements, step);
    SumByCallers(job, a, data);
    SumByCallers(job, b, data);
    job.End();
  }
  EXPECT_LE(job.sessions[0]->Stats().bytes_sent - before, 10u * 200);
}

TEST_F(CallerSumsTest, SkippedStepsLeaveTheResidual) {
  SessionWorld job(Options());
  const uint64_t key = job.Up().Define({{"w", kElements}});
  Announce(job, UniformPlan(1, TopK()));
  Gradients data = RandomGradients(2, kElements, 1);
  Step(job, key, data);
  Announce(job, UniformPlan(2, Framework()));
  data = RandomGradients(2, kElements, 2);
  Step(job, key, data);
  const std::vector<std::byte> residual = job.ExportResiduals(1);
  data = RandomGradients(2, kElements, 3);
  data[0][7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(Step(job, key, data));
  EXPECT_EQ(job.ExportResiduals(1), residual);
  data = RandomGradients(2, kElements, 4);
  EXPECT_FALSE(Step(job, key, data));
  EXPECT_LT(job.ExportResiduals(1).size(), residual.size()) << "delivered by now";
}

TEST_F(CallerSumsTest, ASumThatOwesAResidualNeedsTheElements) {
  SessionWorld job(Options());
  const uint64_t key = job.Up().Define({{"w", kElements}});
  Announce(job, UniformPlan(1, TopK()));
  Gradients data = RandomGradients(2, kElements, 1);
  Step(job, key, data);
  Announce(job, UniformPlan(2, Framework()));
  Step(job, key, data);
  job.Begin();
  EXPECT_TRUE(Needs(job, key).residual);
  EXPECT_EQ(job.sessions[0]->BeginSum(key, nullptr, nullptr).code(), StatusCode::kInvalidArgument);
  SumByCallers(job, key, data);
  job.End();
  job.Begin();
  EXPECT_FALSE(Needs(job, key).residual);
  for (auto& session : job.sessions) {
    EXPECT_TRUE(session->BeginSum(key, nullptr, nullptr).ok());
    EXPECT_TRUE(session->EndSum(key, {}).ok());
    EXPECT_EQ(session->EndSum(key, {}).code(), StatusCode::kFailedPrecondition);
  }
  job.End();
}

TEST_F(CallerSumsTest, ReportsItAsACollectiveOfItsOwn) {
  SessionWorld job(Options());
  const uint64_t key = job.Up().Define({{"w", kElements}});
  Gradients data = RandomGradients(2, kElements, 1);
  Step(job, key, data);
  data = RandomGradients(2, kElements, 2);
  Step(job, key, data);
  const std::vector<StepReport> reports = job.ports[0]->All<StepReport>();
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].buckets.size(), 1u);
  const BucketSample& sample = reports[0].buckets[0];
  EXPECT_EQ(sample.collective, "framework");
  EXPECT_EQ(sample.codec, "identity");
  EXPECT_EQ(sample.payload_bytes, kElements * 4);
  EXPECT_NEAR(sample.network_s, 0.002, 1e-9);
  EXPECT_EQ(sample.encoded_on, EncodedOn::kNowhere);
  ASSERT_EQ(reports[0].gains.size(), 1u);  // measured in the first steps
}

TEST_F(CallerSumsTest, DifferingSumsAreFound) {
  WorldOptions options = Options();
  options.compare_every_steps = 1;
  SessionWorld job(options);
  const uint64_t key = job.Up().Define({{"w", kElements}});
  Gradients data = RandomGradients(2, kElements, 1);
  Step(job, key, data);
  Step(job, key, data);
  job.Begin();
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(job.sessions[rank]->BeginSum(key, data[rank].data(), nullptr).ok());
    data[rank][5] = static_cast<float>(rank);
    ASSERT_TRUE(job.sessions[rank]->EndSum(key, {.sum = data[rank].data()}).ok());
  }
  job.End();
  job.Begin();
  for (auto& session : job.sessions) (void)session->EndStep();
  for (auto& session : job.sessions) {
    EXPECT_EQ(session->failure().code(), StatusCode::kDataLoss) << ToString(session->failure());
  }
}

TEST_F(CallerSumsTest, AnErrorOfOneCallersGroupReachesAllRanks) {
  SessionWorld job(Options(3));
  const uint64_t key = job.Up().Define({{"w", kElements}});
  Gradients data = RandomGradients(3, kElements, 1);
  job.Begin();
  std::vector<Status> outcomes(3);
  for (size_t rank = 0; rank < 3; ++rank) {
    const Status begun = job.sessions[rank]->BeginSum(
        key, data[rank].data(),
        [&outcomes, rank](const Status& status) { outcomes[rank] = status; });
    ASSERT_TRUE(begun.ok());
  }
  EXPECT_FALSE(job.sessions[1]->EndSum(key, {.status = Aborted("cable pulled")}).ok());
  for (size_t rank = 0; rank < 3; ++rank) {
    const StatusOr<bool> ended = job.sessions[rank]->EndStep();
    ASSERT_FALSE(ended.ok());
    EXPECT_THAT(Message(ended.status()), ::testing::HasSubstr("rank 1: step 0 bucket"));
    EXPECT_THAT(Message(ended.status()), ::testing::HasSubstr("cable pulled"));
    EXPECT_FALSE(outcomes[rank].ok());
  }
}

TEST_F(CallerSumsTest, ASumThatNeverEndsIsAnError) {
  WorldOptions options = Options();
  options.operation_timeout_s = 0.3;
  SessionWorld job(options);
  const uint64_t key = job.Up().Define({{"w", kElements}});
  job.Begin();
  for (auto& session : job.sessions) ASSERT_TRUE(session->BeginSum(key, nullptr, nullptr).ok());
  const StatusOr<bool> ended = job.sessions[0]->EndStep();
  EXPECT_EQ(ended.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(ended.status()), ::testing::HasSubstr("process group has not summed it"));
}

TEST_F(CallerSumsTest, ARankThatIsMissingIsNamed) {
  WorldOptions options = Options();
  options.operation_timeout_s = 0.5;
  SessionWorld job(options);
  const uint64_t key = job.Up().Define({{"w", kElements}});
  job.Begin();
  ASSERT_TRUE(job.sessions[0]->BeginSum(key, nullptr, nullptr).ok());  // rank 1 does not
  const StatusOr<bool> ended = job.sessions[0]->EndStep();
  EXPECT_THAT(Message(ended.status()), ::testing::HasSubstr("rank 1"));
}

// After a reduce-scatter each rank has elements of its own.
TEST_F(CallerSumsTest, ShardsAreAgreedToBeFiniteAndNotCompared) {
  WorldOptions options = Options(3);
  options.compare_every_steps = 1;
  SessionWorld job(options);
  const uint64_t key = job.Up().Define({{"w", kElements}});
  for (auto& session : job.sessions) ASSERT_TRUE(session->SetSharded(key).ok());
  EXPECT_EQ(job.sessions[0]->SetSharded(key + 1).code(), StatusCode::kNotFound);
  for (uint64_t step = 0; step < 6; ++step) {
    job.Begin();
    EXPECT_TRUE(Needs(job, key).by_caller);
    EXPECT_FALSE(Needs(job, key).hash);
    Gradients shards = RandomGradients(3, kElements, step);
    for (size_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(job.sessions[rank]->BeginSum(key, shards[rank].data(), nullptr).ok());
      const bool finite = rank != 1 || step % 2 == 0;
      ASSERT_TRUE(
          job.sessions[rank]->EndSum(key, {.finite = finite, .sum = shards[rank].data()}).ok());
    }
    RunRanks(3, [&](int rank) {  // the ranks wait for each other at the end
      const StatusOr<bool> skipped = job.sessions[static_cast<size_t>(rank)]->EndStep();
      ASSERT_TRUE(skipped.ok()) << ToString(skipped.status());
      EXPECT_EQ(*skipped, step % 2 == 1) << step;
    });
  }
  ASSERT_FALSE(job.ports[1]->All<BucketTable>().empty());
  EXPECT_TRUE(job.ports[1]->All<BucketTable>().back().buckets[0].sharded);
}

TEST_F(CallerSumsTest, ClosingEndsThem) {
  SessionWorld job(Options());
  const uint64_t key = job.Up().Define({{"w", kElements}});
  job.Begin();
  Status outcome;
  ASSERT_TRUE(job.sessions[0]
                  ->BeginSum(key, nullptr, [&outcome](const Status& status) { outcome = status; })
                  .ok());
  job.sessions[0]->Close();
  EXPECT_EQ(outcome.code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace weir::testing
