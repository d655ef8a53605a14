// SPDX-License-Identifier: Apache-2.0
// A rank closes its session from another thread at any moment of a step of many buckets. All ranks
// end that step with an error that names it and continue in another mesh. In the end sums and
// residuals are the same as without the interruption.

#include <thread>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {
namespace {

constexpr int kRanks = 3;
constexpr uint64_t kEnd = 7, kBroken = 4;  // steps; the plan is active by then
constexpr size_t kBuckets = 12;

// All codecs here keep only residuals, which outlive a mesh.
const std::vector<Choice>& Choices() {
  static const auto* const choices = new std::vector<Choice>{
      {.codec = "identity", .collective = "ring"},
      {.codec = "qsgd", .collective = "ring"},
      {.codec = "ef_signsgd", .collective = "sparse_all_gather"},
      {.codec = "ef_signsgd", .collective = "reencode"},
      {.codec = "ef_signsgd", .collective = "node_sums"},
      {.codec = "random_k", .collective = "ring", .ratio = 0.1},
  };
  return *choices;
}

size_t ElementsOf(size_t bucket) { return 500 + 700 * bucket; }

class InterruptedJob {
 public:
  explicit InterruptedJob(const std::string& transport)
      : job_({.world = kRanks,
              .transport = transport,
              .encode_workers_of = {1, 2, 3},
              .job = "interrupted"}),
        delivered_(kRanks) {
    job_.Up();
    Plan plan;
    plan.version = 1;
    for (size_t b = 0; b < kBuckets; ++b) {
      keys_.push_back(job_.Define({{StrCat("p", b), ElementsOf(b)}}));
      plan.buckets[keys_.back()] = Choices()[b % Choices().size()];
    }
    for (auto& session : job_.sessions) session->OnCommand(PlanOffer{1, "n", plan});
    job_.sessions[0]->OnCommand(PlanArm{1});
  }

  /// Runs until step kEnd or a failure. Returns the outcome of every rank.
  std::vector<Status> Run() {
    std::vector<Status> ended(kRanks);
    RunRanks(kRanks, [&](int rank) {
      while (ended[rank].ok() && job_.sessions[rank]->Stats().next_step < kEnd) {
        ended[rank] = Step(rank, job_.sessions[rank]->Stats().next_step);
      }
    });
    return ended;
  }

  /// As Run, but `victim` closes its session a given time after it began step kBroken.
  std::vector<Status> Interrupt(int victim, Duration after) {
    std::thread closing([&] {
      const TimePoint deadline = Within(kPatience);
      while (job_.sessions[victim]->Stats().next_step <= kBroken && RealClock().Now() < deadline) {
        std::this_thread::yield();
      }
      std::this_thread::sleep_for(after);
      job_.sessions[victim]->Close();
    });
    std::vector<Status> ended = Run();
    closing.join();
    return ended;
  }

  void Reform() {
    std::vector<TransportAddress> addresses;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::unique_ptr<Session>& session = job_.sessions[rank];
      session->Close();
      SessionOptions options = session->options();
      options.epoch = 1;
      auto made = Session::Create(
          options,
          {.transport = nullptr, .agent = job_.ports[rank].get(), .former = session.get()});
      ASSERT_TRUE(made.ok()) << ToString(made.status());
      session = std::move(made).value();
      addresses.push_back(session->address());
    }
    RunRanks(kRanks, [&](int rank) {
      const Status status = job_.sessions[rank]->Connect(addresses);
      EXPECT_TRUE(status.ok()) << ToString(status);
    });
  }

  uint64_t plan_version() const { return job_.sessions[0]->ActivePlan()->version; }
  /// By rank, step and bucket, the last time.
  const auto& delivered() const { return delivered_; }
  std::vector<std::byte> Residuals(int rank) { return job_.ExportResiduals(rank); }

 private:
  Status Step(int rank, uint64_t step) {
    Session& session = *job_.sessions[rank];
    WEIR_RETURN_IF_ERROR(session.BeginStep());
    std::vector<std::vector<float>> data;
    Status failed;
    for (size_t b = 0; b < kBuckets; ++b) {
      data.push_back(RandomGradients(kRanks, ElementsOf(b), 100 * step + b)[rank]);
      const Status status = session.AllReduce(keys_[b], data[b].data(), 1, nullptr);
      if (failed.ok()) failed = status;
    }
    const StatusOr<bool> skipped =
        session.EndStep();  // also after an error, because buffers are in use
    WEIR_RETURN_IF_ERROR(failed);
    WEIR_RETURN_IF_ERROR(skipped.status());
    delivered_[rank][step] = std::move(data);
    return OkStatus();
  }

  SessionWorld job_;
  std::vector<uint64_t> keys_;
  std::vector<std::map<uint64_t, std::vector<std::vector<float>>>> delivered_;
};

void CheckInterruptions(const std::string& transport) {
  InterruptedJob whole(transport);
  for (const Status& status : whole.Run()) ASSERT_TRUE(status.ok()) << ToString(status);
  int interrupted = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(StrCat(transport, " seed ", seed));
    Random random(seed);
    const int victim = static_cast<int>(random.Below(kRanks));
    InterruptedJob job(transport);
    const TimePoint begin = RealClock().Now();
    const auto ended =
        job.Interrupt(victim, std::chrono::microseconds(random.Below(seed < 5 ? 500 : 5000)));
    EXPECT_LT(ToSeconds(RealClock().Now() - begin), 15);
    for (int rank = 0; rank < kRanks; ++rank) {
      // All steps may have ended before, or the rank itself may find its session closed.
      const bool knows =
          ended[rank].ok() ||
          (rank == victim && ended[rank].code() == StatusCode::kFailedPrecondition) ||
          Message(ended[rank]).find(StrCat("rank ", victim)) != std::string::npos;
      interrupted += !ended[rank].ok();
      EXPECT_TRUE(knows) << "rank " << rank << ": " << ToString(ended[rank]);
    }
    job.Reform();
    for (const Status& status : job.Run()) ASSERT_TRUE(status.ok()) << ToString(status);
    EXPECT_EQ(job.plan_version(), 1u);
    for (int rank = 0; rank < kRanks; ++rank) {
      for (uint64_t step = 0; step < kEnd; ++step) {
        for (size_t b = 0; b < kBuckets; ++b) {
          EXPECT_TRUE(job.delivered()[rank].at(step)[b] == whole.delivered()[rank].at(step)[b])
              << "rank " << rank << " step " << step << " bucket " << b;
        }
      }
      EXPECT_TRUE(job.Residuals(rank) == whole.Residuals(rank)) << rank;
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(interrupted, 0);
}

TEST(InterruptedStepsTest, ASessionClosedInTheMiddleOverSockets) { CheckInterruptions("tcp"); }
TEST(InterruptedStepsTest, ASessionClosedInTheMiddleOverSharedMemory) { CheckInterruptions("shm"); }

}  // namespace
}  // namespace weir::testing
