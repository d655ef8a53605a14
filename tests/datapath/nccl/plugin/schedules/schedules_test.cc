// SPDX-License-Identifier: Apache-2.0
// Runs all ranks of an agreement in one thread and switches between them at every access to the
// memory that they share, in random orders with long stops. So a rank is stopped at every place at
// which another one might do harm.

#include <gtest/gtest.h>
#include <ucontext.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "datapath/base/random.h"

namespace weir::nccl::plugin {

/// Where the fiber that runs lets others run; empty outside of fibers.
std::function<void()>& BeforeAccess() {
  static std::function<void()> before;
  return before;
}

/// std::atomic with that call before every access.
template <typename T>
class SteppedAtomic {
 public:
  static constexpr bool is_always_lock_free = std::atomic<T>::is_always_lock_free;
  T load() const {
    Step();
    return value_;
  }
  void store(T value) {
    Step();
    value_ = value;
  }
  T fetch_add(T value) {
    Step();
    return std::exchange(value_, value_ + value);
  }
  T fetch_sub(T value) { return fetch_add(-value); }
  bool compare_exchange_strong(T& expected, T desired) {
    Step();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = desired;
    return true;
  }

 private:
  static void Step() {
    if (BeforeAccess()) BeforeAccess()();
  }
  T value_;
};

}  // namespace weir::nccl::plugin

#define WEIR_NCCL_ATOMIC SteppedAtomic
#include "datapath/nccl/plugin/agreement.cc"  // NOLINT(bugprone-suspicious-include)

namespace weir::nccl::plugin {
namespace {

constexpr uint64_t kFirst = 1000;
constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kCallsAheadMax = 400;  // of the slowest rank, as a device's queue allows

class World {
 public:
  World(uint64_t seed, uint32_t count)
      : random_(seed), change_every_(seed % 4 == 0 ? 6000 : 200 << seed % 4), ranks_(count) {
    const size_t bytes = Register::Bytes(count);
    memory_.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memset(memory_.get(), 0, bytes);
    auto& shared = *static_cast<Register*>(memory_.get());
    for (Rank& rank : ranks_) {
      rank.participant = std::move(*Participant::Join(shared, count, kFirst));
      rank.stack = std::make_unique<char[]>(kStackBytes);
      getcontext(&rank.context);
      rank.context.uc_stack.ss_sp = rank.stack.get();
      rank.context.uc_stack.ss_size = kStackBytes;
      rank.context.uc_link = nullptr;
      makecontext(&rank.context, reinterpret_cast<void (*)()>(&World::Enter), 0);
    }
    BeforeAccess() = [this] {
      if (current_ != nullptr) swapcontext(&current_->context, &scheduler_);
    };
    running = this;
  }
  ~World() {
    BeforeAccess() = nullptr;
    running = nullptr;
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Lets ranks take `steps` accesses. With `stops`, ranks stop for thousands of them now and then.
  void Run(uint64_t steps, bool stops) {
    for (const uint64_t end = step_ + steps; step_ < end; ++step_) {
      if (random_.Next() % change_every_ == 0) wanted_ = 5 + random_.Next() % 3;
      Rank& rank = ranks_[random_.Next() % ranks_.size()];
      if (stops && step_ < rank.stopped_until) continue;
      if (stops && random_.Next() % 300 == 0) rank.stopped_until = step_ + random_.Next() % 4000;
      current_ = &rank;
      swapcontext(&scheduler_, &rank.context);
      current_ = nullptr;
    }
  }

  /// The table of every call, if the ranks that made it agree.
  void Check(size_t* switches) const {
    size_t longest = 0;
    for (const Rank& rank : ranks_) longest = std::max(longest, rank.used.size());
    uint64_t former = kFirst;
    for (size_t call = 0; call < longest; ++call) {
      uint64_t table = 0;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (call >= ranks_[r].used.size()) continue;
        if (table == 0) table = ranks_[r].used[call];
        ASSERT_EQ(ranks_[r].used[call], table) << "call " << call << ", rank " << r;
      }
      *switches += table != former ? 1 : 0;
      former = table;
    }
  }

 private:
  struct Rank {
    std::unique_ptr<Participant> participant;
    std::unique_ptr<char[]> stack;
    ucontext_t context{};
    std::vector<uint64_t> used;
    uint64_t stopped_until = 0;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  static void Enter() { running->Live(*running->current_); }

  // The whole life of a rank. Calls and ticks of one rank never overlap, as a lock in its
  // process sees to.
  [[noreturn]] void Live(Rank& rank) {
    for (;;) {
      size_t slowest = rank.used.size();
      for (const Rank& other : ranks_) slowest = std::min(slowest, other.used.size());
      const uint64_t draw = random_.Next() % 16;
      if (draw < 8 && rank.used.size() < slowest + kCallsAheadMax) {
        rank.used.push_back(rank.participant->OnCall(rank.used.size() % 11));
      } else if (draw < 12) {
        (void)rank.participant->Accept(wanted_);
      } else {
        rank.participant->Tick();
      }
    }
  }

  static inline World* running = nullptr;
  Random random_;
  const uint64_t change_every_;  // steps from one wish to the next
  std::unique_ptr<void, Free> memory_;
  std::vector<Rank> ranks_;
  ucontext_t scheduler_{};
  Rank* current_ = nullptr;
  uint64_t step_ = 0;
  uint64_t wanted_ = 5;
};

TEST(AgreementSchedulesTest, RanksNeverDiffer) {
  size_t switches = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed, static_cast<uint32_t>(2 + seed % 5));
    world.Run(30000, true);
    world.Run(10000, false);
    world.Check(&switches);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(switches, 200u);  // the schedules were not so bad that nothing ever switched
}

}  // namespace
}  // namespace weir::nccl::plugin
