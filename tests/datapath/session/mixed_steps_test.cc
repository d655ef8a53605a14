// SPDX-License-Identifier: Apache-2.0
// Random whole jobs: buckets of every codec and collective in one step, callers that pause, ranks
// with different numbers of encode threads, nodes of unequal sizes, plans that change between
// steps, NaN on one rank. The order in which parts move must not matter: all ranks deliver the same
// bits as in a run in which only one operation is in progress at a time.

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "datapath/exchange/exchange.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::SessionWorld;
using RawBytes = std::vector<std::byte>;

constexpr uint64_t kSteps = 8;
constexpr uint64_t kPlans = 3;
constexpr int kWorldMax = 6;
constexpr std::array<size_t, 8> kSizes = {0, 1, 2, 5, 60, 900, 4099, 20011};

/// The description of a job, which all ranks know.
struct MixedJob {
  struct BucketOf {
    size_t elements = 0;
    Dtype dtype = Dtype::kFloat32;
    uint64_t columns = 0;
  };
  int world = 1;
  std::string transport;
  std::vector<int> nodes, workers;  // of each rank
  std::vector<BucketOf> buckets;
  uint64_t compare_every_steps = 0;
};

MixedJob DrawJob(uint64_t seed, const std::string& transport) {
  Random random(seed);
  MixedJob script;
  script.world = 1 + static_cast<int>(random.Below(kWorldMax));
  script.transport = transport;
  for (int rank = 0; rank < script.world; ++rank) {
    script.nodes.push_back(static_cast<int>(random.Below(3)));
    script.workers.push_back(1 + static_cast<int>(random.Below(3)));
  }
  for (uint64_t b = 1 + random.Below(20); b > 0; --b) {
    MixedJob::BucketOf bucket;
    bucket.elements = kSizes[random.Below(kSizes.size())];
    if (random.Below(4) == 0) bucket.dtype = Dtype::kBrain16;
    if (bucket.elements % 30 == 0) bucket.columns = bucket.elements / 30;
    script.buckets.push_back(bucket);
  }
  script.compare_every_steps = random.Below(3);
  return script;
}

std::vector<Choice> PossibleChoices(int world) {
  std::vector<Choice> choices;
  for (const Codec* codec : Codecs().All()) {
    for (const Collective* collective : Collectives().All()) {
      if (!Carries(FormOf(*collective).Traits(), codec->Traits())) continue;
      Plan plan;
      plan.fallback = {
          .codec = codec->Traits().name, .collective = collective->Traits().name, .ratio = 0.1};
      PlanLimits limits;
      limits.world = world;
      if (ValidatePlan(plan, limits).ok()) choices.push_back(plan.fallback);
    }
  }
  return choices;
}

Plan DrawPlan(const MixedJob& script, std::span<const uint64_t> keys, uint64_t version,
              uint64_t seed) {
  Random random(MixSeed(seed, version));
  const std::vector<Choice> choices = PossibleChoices(script.world);
  Plan plan;
  plan.version = version;
  for (const uint64_t key : keys) {
    Choice& choice = plan.buckets[key] = choices[random.Below(choices.size())];
    if (random.Below(3) == 0) choice.segment_bytes = 1024;
  }
  if (random.Below(2) == 0) {
    plan.ring_order.resize(static_cast<size_t>(script.world));
    std::iota(plan.ring_order.rbegin(), plan.ring_order.rend(), 0);
  }
  if (random.Below(2) == 0) {
    plan.shard_shares.assign(static_cast<size_t>(script.world), 0);
    plan.shard_shares[random.Below(plan.shard_shares.size())] = 65536;
  }
  return plan;
}

/// A rank's contribution, which is sometimes NaN on one rank.
RawBytes MixedGradient(const MixedJob& script, uint64_t seed, uint64_t step, size_t bucket,
                       int rank) {
  const MixedJob::BucketOf& of = script.buckets[bucket];
  Random shared(MixSeed(MixSeed(seed, step), bucket));
  const bool poisoned = of.elements > 0 && shared.Below(30) == 0 &&
                        static_cast<int>(shared.Below(static_cast<uint64_t>(script.world))) == rank;
  const bool zeros = shared.Below(8) == 0;
  Random own(MixSeed(shared.Next(), static_cast<uint64_t>(rank)));
  RawBytes bytes(of.elements * DtypeBytes(of.dtype));
  for (size_t i = 0; i < of.elements; ++i) {
    float value = zeros ? 0 : static_cast<float>(own.Normal());
    if (poisoned && i == of.elements / 2) value = std::numeric_limits<float>::quiet_NaN();
    const auto bits = std::bit_cast<std::array<std::byte, 4>>(value);
    // The upper half of a float32 is a bfloat16.
    if (of.dtype == Dtype::kFloat32) std::memcpy(&bytes[4 * i], bits.data(), 4);
    if (of.dtype == Dtype::kBrain16) std::memcpy(&bytes[2 * i], &bits[2], 2);
  }
  return bytes;
}

enum class Pace { kOneAtATime, kDrawn };

/// The results delivered to one rank, in the order of the operations, and its state at the end.
struct RankRecord {
  std::vector<RawBytes> delivered;
  std::vector<bool> skipped;
  RawBytes state;
  uint64_t plan_version = 0;
};

void Await(const std::atomic<bool>& done) {
  const TimePoint deadline = testing::Within(testing::kPatience);
  while (!done && RealClock().Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

class MixedRun {
 public:
  MixedRun(const MixedJob& script, uint64_t seed, Pace pace)
      : script_(script),
        seed_(seed),
        pace_(pace),
        factory_(testing::MakeInprocFactory({.nodes = script.nodes})),
        job_({.world = script.world,
              .transport = script.transport,
              .factory = script.transport == "inproc" ? factory_.get() : nullptr,
              .encode_workers_of = script.workers,
              .compare_every_steps = script.compare_every_steps,
              .job = "mixed"}) {}

  std::vector<RankRecord> Run() {
    job_.Up();
    std::vector<uint64_t> keys;
    for (size_t b = 0; b < script_.buckets.size(); ++b) {
      const MixedJob::BucketOf& of = script_.buckets[b];
      keys.push_back(job_.Define({{StrCat("p", b), of.elements, of.columns}}, of.dtype));
    }
    for (uint64_t version = 1; version <= kPlans; ++version) {
      plans_.push_back(DrawPlan(script_, keys, version, seed_));
    }
    std::vector<RankRecord> records(static_cast<size_t>(script_.world));
    testing::RunRanks(script_.world, [&](int rank) {
      RankRecord& record = records[static_cast<size_t>(rank)];
      for (uint64_t step = 0; step < kSteps && Step(rank, step, keys, record); ++step) {
      }
      if (!::testing::Test::HasFailure()) record.state = job_.Export(rank);
      record.plan_version = job_.sessions[static_cast<size_t>(rank)]->ActivePlan()->version;
    });
    return records;
  }

 private:
  // Plans are offered one after the other, at the same step on every rank, so that all have a plan
  // when rank 0 announces it.
  void Offer(int rank, uint64_t step) {
    Session& session = *job_.sessions[static_cast<size_t>(rank)];
    if (step % 2 != 0 || step / 2 >= kPlans) return;
    const Plan& plan = plans_[step / 2];
    session.OnCommand(PlanOffer{plan.version, "n", plan});
    EXPECT_EQ(job_.ports[static_cast<size_t>(rank)]->All<PlanAck>().size(), step / 2 + 1);
  }

  bool Step(int rank, uint64_t step, std::span<const uint64_t> keys, RankRecord& record) {
    Session& session = *job_.sessions[static_cast<size_t>(rank)];
    Random pauses(MixSeed(MixSeed(seed_, 77 + step), static_cast<uint64_t>(rank)));
    Offer(rank, step);
    // A plan is announced in the step after the offer, which no rank begins before all have it.
    if (rank == 0 && step % 2 == 1) session.OnCommand(PlanArm{step / 2 + 1});
    const Status begun = session.BeginStep();
    EXPECT_TRUE(begun.ok()) << "rank " << rank << ": " << ToString(begun);
    if (!begun.ok()) return false;
    std::vector<RawBytes> data(keys.size());
    std::vector<std::atomic<bool>> done(keys.size());
    const size_t first = MixSeed(seed_, step) % keys.size();  // the order differs in every step
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t b = (first + i) % keys.size();
      data[b] = MixedGradient(script_, seed_, step, b, rank);
      const Status status = session.AllReduce(keys[b], data[b].data(), 0.5,
                                              [&done, b](const Status&) { done[b] = true; });
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << ToString(status);
      if (!status.ok()) break;
      if (pace_ == Pace::kOneAtATime || pauses.Below(8) == 0) Await(done[b]);
      if (pace_ == Pace::kDrawn && pauses.Below(4) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(pauses.Below(600)));
      }
    }
    const StatusOr<bool> skipped = session.EndStep();
    EXPECT_TRUE(skipped.ok()) << "rank " << rank << ": " << ToString(skipped.status());
    if (!skipped.ok()) return false;
    record.skipped.push_back(*skipped);
    for (RawBytes& bytes : data) record.delivered.push_back(std::move(bytes));
    return true;
  }

  const MixedJob& script_;
  const uint64_t seed_;
  const Pace pace_;
  const std::unique_ptr<TransportFactory> factory_;
  SessionWorld job_;
  std::vector<Plan> plans_;
};

std::string Describe(const MixedJob& script, uint64_t seed) {
  std::string text = StrCat("seed ", seed, " ", script.transport, ", world ", script.world);
  for (const int node : script.nodes) text += StrCat(" ", node);
  return text;
}

/// Returns how many steps were skipped.
ptrdiff_t CheckSeed(uint64_t seed, const std::string& transport) {
  const MixedJob script = DrawJob(seed, transport);
  SCOPED_TRACE(Describe(script, seed));
  const std::vector<RankRecord> expected = MixedRun(script, seed, Pace::kOneAtATime).Run();
  const std::vector<RankRecord> found = MixedRun(script, seed, Pace::kDrawn).Run();
  if (::testing::Test::HasFailure()) return 0;
  // A job of one rank needs no operation that carries the announcement of a plan.
  const bool carries =
      script.world == 1 ||
      std::ranges::any_of(script.buckets, [](const auto& bucket) { return bucket.elements > 0; });
  const size_t buckets = script.buckets.size();
  for (size_t rank = 0; rank < found.size(); ++rank) {
    SCOPED_TRACE(StrCat("rank ", rank));
    EXPECT_EQ(found[rank].skipped, expected[rank].skipped);
    EXPECT_EQ(found[rank].plan_version, carries ? kPlans : 0);
    EXPECT_TRUE(found[rank].state == expected[rank].state);
    for (size_t i = 0; i < kSteps * buckets; ++i) {
      const RawBytes& delivered = found[rank].delivered[i];
      EXPECT_TRUE(delivered == found[0].delivered[i] && delivered == expected[rank].delivered[i])
          << "step " << i / buckets << " bucket " << i % buckets;
    }
  }
  return std::ranges::count(found[0].skipped, true);
}

void CheckSeeds(uint64_t first, uint64_t count, const std::string& transport) {
  ptrdiff_t skipped = 0;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    skipped += CheckSeed(seed, transport);
  }
  EXPECT_GT(skipped, 0);
}

TEST(MixedStepsTest, DeliverWhatOperationsOneAtATimeDo) {
  CheckSeeds(0, 16 / test::kFewer, "inproc");
}

TEST(MixedStepsTest, DeliverTheSameOverSocketsAndSharedMemory) {
  CheckSeeds(100, 4, "tcp");
  CheckSeeds(200, 4, "shm");
}

}  // namespace
}  // namespace weir
