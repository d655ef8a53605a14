// SPDX-License-Identifier: Apache-2.0
// No synchronisation is mixed: whenever ranks synchronise, all of them run one plan and have made
// as many steps of the optimiser since the last time as it says. The controller's rollout and the
// ranks' activations run without threads or network. Messages come late, twice, out of order or
// never; ranks die, also within a synchronisation; and so does the controller.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "controller/rollout/rollout.h"
#include "datapath/base/clock.h"
#include "datapath/base/random.h"
#include "datapath/plan/plan_activation.h"

namespace weir {
namespace {

constexpr int kActivations = 100000;

struct Rank {
  std::unique_ptr<PlanActivation> activation;
  uint64_t steps_made = 0;  // of the optimiser, since the last synchronisation
  uint64_t connection = 0;  // messages of an earlier one are lost
};

struct ToRank {
  RolloutMessage message;
  uint64_t connection = 0;
};
struct ToController {
  int rank = 0;
  ActivationReply reply;
  uint64_t connection = 0;
};

class LocalRun {
 public:
  LocalRun(int world, uint64_t seed) : random_(seed), world_(world), ranks_(world) {
    const auto dense = std::make_shared<const Plan>();
    plans_[0] = dense;
    for (int rank = 0; rank < world; ++rank) Attach(rank, dense);
    StartController();
  }

  void Run(int activations) {
    while (activations_ < activations && !::testing::Test::HasFailure()) {
      Control();
      const double event = random_.Uniform();
      if (event < 0.002) {
        RestartController();
      } else if (event < 0.01) {
        KillRank(static_cast<int>(random_.Below(static_cast<uint64_t>(world_))), 0);
      }
      Period();
    }
  }

  int activations() const { return activations_; }
  int deaths() const { return deaths_; }
  size_t periods_seen() const { return periods_.size(); }

 private:
  void Attach(int rank, std::shared_ptr<const Plan> plan) {
    Rank& one = ranks_[static_cast<size_t>(rank)];
    one.activation = std::make_unique<PlanActivation>(rank, world_, std::move(plan));
    one.steps_made = 0;
    one.connection = ++connections_;
  }

  void StartController() {
    controller_ = std::make_unique<Rollout>(world_, clock_);
    controller_->ObserveVersion(highest_version_);
    for (int rank = 0; rank < world_; ++rank) {
      controller_->OnRankConnected(rank,
                                   ranks_[static_cast<size_t>(rank)].activation->active()->version);
    }
  }

  void RestartController() {
    to_controller_.clear();
    StartController();
  }

  std::shared_ptr<const Plan> NextPlan() {
    constexpr uint32_t kPeriods[] = {1, 1, 2, 3, 8, 32, 128};
    Plan plan;
    plan.version = controller_->highest_version() + 1;
    plan.sync.every = kPeriods[random_.Below(std::size(kPeriods))];
    if (plan.sync.every >= 8 && random_.Uniform() < 0.5) plan.sync.overlap = 2;
    plan.digest = StrCat(plan.version);
    highest_version_ = plan.version;
    return plans_[plan.version] = std::make_shared<const Plan>(plan);
  }

  // The controller offers what it can, and messages of both ways arrive or not.
  void Control() {
    clock_.Advance(FromSeconds(1 + 4 * random_.Uniform()));
    controller_->ClearBackoff();
    controller_->OnTick();
    if (controller_->CanOffer().ok()) {
      const auto plan = NextPlan();
      const Status offered =
          controller_->Offer(plan->version, StrCat("n", plan->version), plan->digest);
      ASSERT_TRUE(offered.ok()) << ToString(offered);
    }
    for (int round = 0; round < 3; ++round) {
      for (RolloutMessage& message : controller_->TakeMessages()) {
        const uint64_t connection = ranks_[static_cast<size_t>(message.rank)].connection;
        to_ranks_.push_back({std::move(message), connection});
      }
      (void)controller_->TakeLog();
      Deliver(&to_ranks_, [&](const ToRank& one) { OnCommand(one); });
      Deliver(&to_controller_, [&](const ToController& one) { OnReply(one); });
    }
  }

  // Some messages wait for the next round, some come twice, and few change places. Arms and offers
  // are repeated by the rollout, so losing a message is like a long delay.
  template <typename Message, typename Take>
  void Deliver(std::deque<Message>* queue, const Take& take) {
    for (size_t left = queue->size(); left > 0; --left) {
      Message message = std::move(queue->front());
      queue->pop_front();
      const double fate = random_.Uniform();
      if (fate < 0.1) {
        queue->push_back(std::move(message));
        continue;
      }
      take(message);
      if (fate > 0.9) take(message);
    }
  }

  void OnCommand(const ToRank& one) {
    const int number = one.message.rank;
    Rank& rank = ranks_[static_cast<size_t>(number)];
    if (one.connection != rank.connection) return;
    std::optional<ActivationReply> reply;
    switch (one.message.kind) {
      case RolloutMessage::Kind::kOffer: {
        const bool refuses = random_.Uniform() < 0.03;
        reply = rank.activation->OnOffer(plans_.at(one.message.version), one.message.nonce,
                                         refuses ? InvalidArgument("no") : OkStatus());
        break;
      }
      case RolloutMessage::Kind::kArm:
        reply = rank.activation->OnArm(one.message.version);
        break;
      case RolloutMessage::Kind::kWithdraw:
        rank.activation->OnWithdraw(one.message.version);
        break;
    }
    if (reply.has_value()) Reply(number, *reply);
  }

  void Reply(int rank, ActivationReply reply) {
    to_controller_.push_back(
        {rank, std::move(reply), ranks_[static_cast<size_t>(rank)].connection});
  }

  void OnReply(const ToController& one) {
    if (one.connection != ranks_[static_cast<size_t>(one.rank)].connection) return;
    if (const auto* ack = std::get_if<PlanAck>(&one.reply)) {
      controller_->OnAck(one.rank, ack->version, ack->nonce);
    } else if (const auto* nack = std::get_if<PlanNack>(&one.reply)) {
      controller_->OnNack(one.rank, nack->version, nack->nonce, nack->reason);
    } else {
      const auto& active = std::get<PlanActive>(one.reply);
      controller_->OnActive(one.rank, active.version, active.step);
    }
  }

  // The steps up to the next synchronisation, each rank at its own pace, and that.
  void Period() {
    for (Rank& rank : ranks_) {
      const uint64_t wanted = rank.activation->active()->sync.every;
      while (rank.steps_made < wanted) ++rank.steps_made;
    }
    // A rank that dies within the synchronisation leaves some that have ended it and some that have
    // not.
    const bool dies = random_.Uniform() < 0.004;
    Synchronise(dies ? random_.Below(static_cast<uint64_t>(world_) + 1) : world_);
    if (dies) KillRank(static_cast<int>(random_.Below(static_cast<uint64_t>(world_))), 1);
  }

  // The first `through` of the ranks, in random order, end it and begin the next period.
  void Synchronise(uint64_t through) {
    const Rank& first = ranks_[0];
    for (const Rank& rank : ranks_) {
      ASSERT_EQ(rank.activation->active()->version, first.activation->active()->version);
      ASSERT_EQ(rank.activation->active()->sync, first.activation->active()->sync);
      ASSERT_EQ(rank.steps_made, rank.activation->active()->sync.every);
      ASSERT_EQ(rank.activation->step(), first.activation->step());
    }
    periods_.insert(first.activation->active()->sync.every);
    const ControlWord word = first.activation->announced();
    std::vector<int> order(static_cast<size_t>(world_));
    for (int i = 0; i < world_; ++i) order[static_cast<size_t>(i)] = i;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.Below(i)]);
    const uint64_t version = first.activation->active()->version;
    for (size_t i = 0; i < through && i < order.size(); ++i) {
      Rank& rank = ranks_[static_cast<size_t>(order[i])];
      const Status done = rank.activation->OnOperationDone(word);
      ASSERT_TRUE(done.ok()) << ToString(done);
    }
    for (size_t i = 0; i < through && i < order.size(); ++i) {
      const int number = order[i];
      Rank& rank = ranks_[static_cast<size_t>(number)];
      const auto active = rank.activation->BeginStep(rank.activation->step() + 1);
      rank.steps_made = 0;
      if (active.has_value()) Reply(number, *active);
    }
    if (through == static_cast<uint64_t>(world_) && word.version != 0 && word.version != version) {
      ++activations_;
    }
  }

  // As in a reform: all go back to the last synchronisation that every survivor ended, and a
  // replacement takes its plan from a survivor that ended no more than that.
  void KillRank(int dead, int within) {
    ++deaths_;
    int source = -1;
    for (int rank = 0; rank < world_; ++rank) {
      if (rank == dead) continue;
      const auto step = [&](int of) { return ranks_[static_cast<size_t>(of)].activation->step(); };
      if (source < 0 || step(rank) < step(source)) source = rank;
    }
    const Rank& survivor = ranks_[static_cast<size_t>(source)];
    const std::shared_ptr<const Plan> plan = survivor.activation->active();
    const uint64_t step = survivor.activation->step();
    for (int rank = 0; rank < world_; ++rank) {
      Attach(rank, plan);
      (void)ranks_[static_cast<size_t>(rank)].activation->BeginStep(step);
    }
    to_ranks_.clear();
    if (within == 0 && random_.Uniform() < 0.5) {
      StartController();  // another incarnation of the job
      return;
    }
    for (int rank = 0; rank < world_; ++rank) controller_->OnRankLost(rank, "died");
    for (int rank = 0; rank < world_; ++rank) controller_->OnRankConnected(rank, plan->version);
  }

  Random random_;
  FakeClock clock_;
  const int world_;
  std::vector<Rank> ranks_;
  std::unique_ptr<Rollout> controller_;
  std::map<uint64_t, std::shared_ptr<const Plan>> plans_;
  uint64_t highest_version_ = 0, connections_ = 0;
  std::deque<ToRank> to_ranks_;
  std::deque<ToController> to_controller_;
  std::set<uint32_t> periods_;
  int activations_ = 0, deaths_ = 0;
};

TEST(LocalActivationTest, NoSynchronisationIsMixed) {
  int activations = 0, deaths = 0;
  constexpr int kRuns = 8;
  for (uint64_t seed = 1; seed <= kRuns; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    LocalRun run(2 + static_cast<int>(seed % 4), seed);
    run.Run(kActivations / kRuns);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(run.periods_seen(), 6u);
    activations += run.activations();
    deaths += run.deaths();
  }
  EXPECT_GE(activations, kActivations);
  EXPECT_GT(deaths, kActivations / 100);
}

}  // namespace
}  // namespace weir
