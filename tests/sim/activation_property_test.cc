// SPDX-License-Identifier: Apache-2.0
// The most important property: whatever the control plane does, no step runs on mixed plans,
// nothing hangs and every sum is right. Real sessions run over the in-memory transport with random
// delays; a hub plays controller and agents, and its messages come late, twice and out of order.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "datapath/session/session.h"
#include "datapath/transport/fault.h"
#include "tests/support/inproc_transport.h"
#include "tests/support/world.h"

namespace weir {
namespace {

constexpr int kSwitchesPerWorld = 180;  // times six worlds: 1080
constexpr double kEpisodeTimeoutS = 60;
constexpr size_t kBucketSizes[] = {257, 1, 96};

struct Said {
  int rank;
  RankMessage message;
};

class HubPort : public AgentPort {
 public:
  HubPort(int rank, BoundedQueue<Said>& inbox) : rank_(rank), inbox_(inbox) {}
  void Send(RankMessage message) override {
    if (std::holds_alternative<StepReport>(message)) return;
    EXPECT_TRUE(inbox_.TryPush({rank_, std::move(message)}));
  }
  bool connected() const override { return true; }

 private:
  const int rank_;
  BoundedQueue<Said>& inbox_;
};

// All ranks run the same number of steps: the first rank that begins a step advances the mark, and
// after the end was requested, the mark stays.
class StepGate {
 public:
  bool Enter(uint64_t step) {
    MutexLock lock(mutex_);
    if (step < begun_) return true;
    if (ending_) return false;
    begun_ = step + 1;
    return true;
  }
  void End() {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  uint64_t begun() const {
    MutexLock lock(mutex_);
    return begun_;
  }

 private:
  mutable Mutex mutex_;
  uint64_t begun_ WEIR_GUARDED_BY(mutex_) = 0;
  bool ending_ WEIR_GUARDED_BY(mutex_) = false;
};

struct RankHistory {
  std::vector<uint64_t> plan_of_step;
  std::vector<uint64_t> sum_of_step;  // hash of all results
  std::vector<std::vector<double>> delivered;
  uint64_t skipped = 0;
  std::string error;
};

float Gradient(uint64_t seed, int rank, uint64_t step, size_t bucket, size_t i) {
  const uint64_t bits =
      MixSeed(MixSeed(seed, step * 64 + static_cast<uint64_t>(rank)), bucket * 1000 + i);
  return static_cast<float>(static_cast<int>(bits % 41) - 20);
}

// Whether one rank holds NaN in this step, as in one of fifty; all ranks compute the same answer.
bool Poisoned(uint64_t seed, uint64_t step) { return MixSeed(seed, ~step) % 50 == 0; }

class Episode {
 public:
  Episode(int world, uint64_t seed) : world_(world), seed_(seed), random_(MixSeed(seed, 99)) {
    FaultOptions faults;
    faults.seed = seed;
    faults.every_peer.delay_probability = 0.01;
    faults.every_peer.delay_max = std::chrono::microseconds(300);
    inner_ = testing::MakeInprocFactory();
    factory_ = MakeFaultFactory(*inner_, faults);
    history_.resize(static_cast<size_t>(world));
    CollectChoices();
  }

  void Run() {
    Start();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_; ++rank) {
      threads.emplace_back([this, rank] { Train(rank); });
    }
    Control();
    gate_.End();
    for (std::thread& thread : threads) thread.join();
    Check();
    testing::RunRanks(world_, [this](int rank) { sessions_[rank]->Close(); });
  }

  int switches() const { return switches_; }
  int nacks() const { return nacks_; }
  int withdrawn_after_arm() const { return withdrawn_after_arm_; }
  int lapses() const { return lapses_; }

 private:
  // Whether delivered results and residuals add up to the gradients, as far as this world checks
  // that. They do not with momentum inside, with estimates, or with votes.
  bool Accountable(const CodecTraits& traits) const {
    if (traits.needs_momentum || traits.ef21 || traits.lanes_are_votes) return false;
    if (!traits.lossy || traits.needs_error_feedback) return true;
    return !exact() && traits.error_model == ErrorModel::kRelative &&
           traits.settings.front().relative_error_squared < 1e-4;
  }

  void CollectChoices() {
    for (const Codec* codec : Codecs().All()) {
      for (const Collective* collective : Collectives().All()) {
        if (!Accountable(codec->Traits())) continue;
        Choice choice;
        choice.codec = codec->Traits().name;
        choice.collective = collective->Traits().name;
        choice.ratio = codec->Traits().uses_ratio ? 0.1 : 1;
        Plan plan;
        plan.version = 1;
        plan.fallback = choice;
        PlanLimits limits;
        limits.world = world_;
        if (ValidatePlan(plan, limits).ok()) choices_.push_back(choice);
      }
    }
    ASSERT_GE(choices_.size(), 8u);
  }

  void Start() {
    std::vector<TransportAddress> addresses;
    for (int rank = 0; rank < world_; ++rank) {
      TransportOptions transport;
      transport.job = seed_;
      transport.rank = rank;
      transport.world = world_;
      SessionOptions options;
      options.job = "sim";
      options.rank = rank;
      options.world = world_;
      options.operation_timeout = std::chrono::seconds(30);
      options.connect_timeout = std::chrono::seconds(20);
      options.lease_min = std::chrono::microseconds(1);
      ports_.push_back(std::make_unique<HubPort>(rank, inbox_));
      SessionParts parts;
      parts.agent = ports_.back().get();
      auto made = factory_->Create(transport);
      ASSERT_TRUE(made.ok()) << ToString(made.status());
      parts.transport = std::move(made).value();
      auto session = Session::Create(options, std::move(parts));
      ASSERT_TRUE(session.ok()) << ToString(session.status());
      addresses.push_back((*session)->address());
      sessions_.push_back(std::move(session).value());
    }
    std::vector<Status> statuses(world_);
    testing::RunRanks(world_,
                      [&](int rank) { statuses[rank] = sessions_[rank]->Connect(addresses); });
    for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << ToString(status);
    for (size_t b = 0; b < std::size(kBucketSizes); ++b) {
      for (auto& session : sessions_) {
        auto key = session->DefineBucket({{StrCat("p", b), kBucketSizes[b]}}, Dtype::kFloat32);
        ASSERT_TRUE(key.ok());
        if (&session == &sessions_[0]) keys_.push_back(*key);
      }
    }
  }

  // --- A rank
  // --------------------------------------------------------------------------------------

  void Train(int rank) {
    RankHistory& history = history_[rank];
    Random pause(MixSeed(seed_, 1000 + static_cast<uint64_t>(rank)));
    history.delivered.resize(keys_.size());
    for (size_t b = 0; b < keys_.size(); ++b) history.delivered[b].assign(kBucketSizes[b], 0);
    for (uint64_t step = 0; gate_.Enter(step); ++step) {
      const Status status = TrainStep(rank, step, history);
      if (!status.ok()) {
        history.error = StrCat("rank ", rank, " step ", step, ": ", ToString(status));
        gate_.End();
        failed_.store(true);
        return;
      }
      for (uint64_t spin = pause.Below(4); spin > 0; --spin) std::this_thread::yield();
    }
  }

  Status TrainStep(int rank, uint64_t step, RankHistory& history) {
    Session& session = *sessions_[rank];
    WEIR_RETURN_IF_ERROR(session.BeginStep());
    history.plan_of_step.push_back(session.ActivePlan()->version);
    const bool poisoned = Poisoned(seed_, step);
    std::vector<std::vector<float>> data(keys_.size());
    for (size_t b = 0; b < keys_.size(); ++b) {
      data[b].resize(kBucketSizes[b]);
      for (size_t i = 0; i < data[b].size(); ++i) data[b][i] = Gradient(seed_, rank, step, b, i);
      if (poisoned && rank == static_cast<int>(step % world_) && b == step % keys_.size()) {
        data[b][0] = std::numeric_limits<float>::quiet_NaN();
      }
      WEIR_RETURN_IF_ERROR(session.AllReduce(keys_[b], data[b].data(), 1, nullptr));
    }
    WEIR_ASSIGN_OR_RETURN(const bool skipped, session.EndStep());
    if (skipped != poisoned) return Internal("the step was skipped on the wrong ranks");
    uint64_t hash = skipped;
    for (size_t b = 0; b < keys_.size() && !skipped; ++b) {
      for (size_t i = 0; i < data[b].size(); ++i) {
        history.delivered[b][i] += data[b][i];
        hash = MixSeed(hash, std::bit_cast<uint32_t>(data[b][i]));
      }
    }
    history.skipped += skipped;
    history.sum_of_step.push_back(hash);
    return OkStatus();
  }

  // --- The hub
  // -------------------------------------------------------------------------------------

  struct Delivery {
    int rank;
    RankCommand command;
  };

  // Sends a command, sometimes twice.
  void Post(int rank, const RankCommand& command) {
    on_the_way_.push_back({rank, command});
    if (random_.Below(5) == 0) on_the_way_.push_back({rank, command});
    sent_.push_back({rank, command});
  }

  // Delivers some of the sent commands, in any order.
  void DeliverSome() {
    for (uint64_t n = random_.Below(on_the_way_.size() + 1); n > 0; --n) {
      const size_t pick = random_.Below(on_the_way_.size());
      const Delivery delivery = on_the_way_[pick];
      on_the_way_.erase(on_the_way_.begin() + static_cast<ptrdiff_t>(pick));
      sessions_[delivery.rank]->OnCommand(delivery.command);
    }
    // A command that was delivered before comes again.
    if (!sent_.empty() && random_.Below(4) == 0) {
      const Delivery& stale = sent_[random_.Below(sent_.size())];
      sessions_[stale.rank]->OnCommand(stale.command);
    }
  }

  Plan RandomPlan(uint64_t version) {
    Plan plan;
    plan.version = version;
    plan.fallback = choices_[random_.Below(choices_.size())];
    for (uint64_t key : keys_) {
      if (random_.Below(2) == 0) continue;
      Choice choice = choices_[random_.Below(choices_.size())];
      choice.segment_bytes = random_.Below(3) == 0 ? 1024 : 0;
      plan.buckets[key] = choice;
    }
    return plan;
  }

  void Control() {
    const TimePoint deadline = testing::Within(kEpisodeTimeoutS);
    // Odd versions are plans, the even ones above them their lease plans.
    for (uint64_t version = 1; switches_ < kSwitchesPerWorld && !failed_.load(); version += 2) {
      ASSERT_LT(RealClock().Now(), deadline) << "after " << switches_ << " switches";
      Rollout(version);
    }
  }

  // Arms rank 0 and, about when it announces the plan, withdraws the plan on all ranks.
  void TakeBackAtTheWorstMoment(uint64_t version) {
    sessions_[0]->OnCommand(PlanArm{version});
    const uint64_t begun = gate_.begun();
    for (uint64_t spin = random_.Below(2000); spin > 0 && gate_.begun() == begun; --spin) {
      std::this_thread::yield();
    }
    for (int i = world_ - 1; i >= 0; --i) sessions_[i]->OnCommand(PlanWithdraw{version});
  }

  // One plan from offer to activation, or to its withdrawal.
  void Rollout(uint64_t version) {
    const Plan plan = RandomPlan(version);
    const std::string nonce = StrCat("n", version);
    Plan lease_plan;
    lease_plan.version = version + 1;
    const bool leased = random_.Below(3) != 0;
    const int refusing = random_.Below(6) == 0 ? static_cast<int>(random_.Below(world_)) : -1;
    for (int rank = 0; rank < world_; ++rank) {
      PlanOffer offer{version, nonce, plan};
      if (leased) offer.lease_plan = lease_plan;
      if (rank == refusing) offer.plan = InvalidArgument("made to be refused");
      Post(rank, offer);
    }
    std::vector<bool> acked(world_, false), active(world_, false);
    const bool hasty = random_.Below(6) == 0;  // withdraws what it has armed
    bool armed = false, refused = false;
    int patience = 2000;
    while (!failed_.load() && patience-- > 0) {
      DeliverSome();
      // Some leases are so short that they expire at any moment; long ones end them.
      if (random_.Below(8) == 0) Post(0, PlanLease{random_.Below(3) == 0 ? 1e-4 : 10});
      if (armed && random_.Below(50) == 0) Post(0, PlanArm{version});
      const auto said = inbox_.Pop(RealClock().Now() + std::chrono::microseconds(200));
      if (!said.has_value()) continue;
      if (const auto* ack = std::get_if<PlanAck>(&said->message)) {
        if (ack->version == version && ack->nonce == nonce) acked[said->rank] = true;
      } else if (const auto* nack = std::get_if<PlanNack>(&said->message)) {
        refused = refused || (nack->version == version && said->rank == refusing);
      } else if (const auto* activated = std::get_if<PlanActive>(&said->message)) {
        if (activated->version == version) active[said->rank] = true;
        if (said->rank == 0 && activated->version % 2 == 0) ++lapses_;
      }
      if (refused) break;
      if (!armed && std::count(acked.begin(), acked.end(), true) == world_) {
        armed = true;
        Post(0, PlanArm{version});
        Post(static_cast<int>(random_.Below(world_)), PlanArm{version});  // harmless elsewhere
        if (hasty) {
          TakeBackAtTheWorstMoment(version);
          break;
        }
      }
      if (std::count(active.begin(), active.end(), true) == world_) {
        ++switches_;
        return;
      }
    }
    nacks_ += refused;
    withdrawn_after_arm_ += armed;
    for (int rank = 0; rank < world_; ++rank) Post(rank, PlanWithdraw{version});
  }

  // --- The judgement
  // -------------------------------------------------------------------------------

  void Check() {
    for (const RankHistory& history : history_) ASSERT_EQ(history.error, "");
    const RankHistory& first = history_[0];
    ASSERT_EQ(first.plan_of_step.size(), gate_.begun());
    for (int rank = 1; rank < world_; ++rank) {
      EXPECT_EQ(history_[rank].plan_of_step, first.plan_of_step) << "rank " << rank;
      EXPECT_EQ(history_[rank].sum_of_step, first.sum_of_step) << "rank " << rank;
    }
    for (size_t b = 0; b < keys_.size(); ++b) CheckSums(b);
  }

  // Checks that the delivered results and the ranks' residuals add up to the sum of all gradients.
  void CheckSums(size_t bucket) {
    const size_t n = kBucketSizes[bucket];
    std::vector<double> found = history_[0].delivered[bucket];
    for (auto& session : sessions_) {
      std::vector<std::byte> state(session->ExportBytes().value());
      ASSERT_TRUE(session->ExportState(state).ok());
      ResidualStore store;
      ASSERT_TRUE(store.Define(1, {{StrCat("p", bucket), n}}).ok());
      ASSERT_TRUE(store.Import(state).ok());
      std::vector<float> residual(n);
      ASSERT_TRUE(store.Flush(1, residual).ok());
      for (size_t i = 0; i < n; ++i) found[i] += residual[i];
    }
    std::vector<double> expected(n);
    for (uint64_t step = 0; step < gate_.begun(); ++step) {
      if (Poisoned(seed_, step)) continue;
      for (int rank = 0; rank < world_; ++rank) {
        for (size_t i = 0; i < n; ++i) expected[i] += Gradient(seed_, rank, step, bucket, i);
      }
    }
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(found[i], expected[i], tolerance()) << "bucket " << bucket << " element " << i;
    }
  }
  // Worlds of even size run codecs that account for every bit they lose. The others also run
  // half-precision lanes, whose sums round by some tenths per element; a gradient that is lost or
  // added twice changes hundreds of elements by more than ten.
  bool exact() const { return world_ % 2 == 0; }
  double tolerance() const { return exact() ? 0.02 : 4; }

  const int world_;
  const uint64_t seed_;
  Random random_;
  std::unique_ptr<TransportFactory> inner_, factory_;
  BoundedQueue<Said> inbox_{1 << 20};
  std::vector<std::unique_ptr<HubPort>> ports_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<uint64_t> keys_;
  std::vector<Choice> choices_;
  std::vector<RankHistory> history_;
  std::vector<Delivery> on_the_way_, sent_;
  StepGate gate_;
  std::atomic<bool> failed_{false};
  int switches_ = 0, nacks_ = 0, withdrawn_after_arm_ = 0, lapses_ = 0;
};

uint64_t BaseSeed() {
  const char* given = std::getenv("WEIR_SIM_SEED");
  return given == nullptr ? 20260131 : std::strtoull(given, nullptr, 10);
}

class ActivationPropertyTest : public ::testing::TestWithParam<int> {};

TEST_P(ActivationPropertyTest, NoStepRunsOnMixedPlans) {
  SetMinimumLogLevel(LogLevel::kError);  // refusals are wanted here
  const uint64_t seed = MixSeed(BaseSeed(), static_cast<uint64_t>(GetParam()));
  SCOPED_TRACE(StrCat("WEIR_SIM_SEED=", BaseSeed(), " world ", GetParam()));
  Episode episode(GetParam(), seed);
  episode.Run();
  std::printf(
      "world %d: WEIR_SIM_SEED=%llu, %d switches, %d refused, %d withdrawn after arming, %d leases "
      "ran out\n",
      GetParam(), static_cast<unsigned long long>(BaseSeed()), episode.switches(), episode.nacks(),
      episode.withdrawn_after_arm(), episode.lapses());
  EXPECT_GE(episode.switches(), kSwitchesPerWorld);
  EXPECT_GT(episode.nacks(), 0);
  EXPECT_GT(episode.withdrawn_after_arm(), 0);
  EXPECT_GT(episode.lapses(), 0);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ActivationPropertyTest, ::testing::Range(2, 8));

}  // namespace
}  // namespace weir
