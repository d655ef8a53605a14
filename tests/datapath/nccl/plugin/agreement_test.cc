// SPDX-License-Identifier: Apache-2.0
// Many ranks, stopped at the worst places, must never use different tables for the same call.
#include "datapath/nccl/plugin/agreement.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/random.h"

namespace weir::nccl::plugin {
namespace {

constexpr uint64_t kFirst = 1000;

// Zeroed memory as the file gives it.
struct Memory {
  explicit Memory(uint32_t ranks) {
    const size_t bytes = Register::Bytes(ranks);
    memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memset(memory, 0, bytes);
  }
  ~Memory() { std::free(memory); }
  Register& get() { return *static_cast<Register*>(memory); }
  void* memory;
};

std::vector<std::unique_ptr<Participant>> JoinAll(Memory& memory, uint32_t ranks) {
  std::vector<std::unique_ptr<Participant>> all;
  for (uint32_t i = 0; i < ranks; ++i) {
    all.push_back(std::move(*Participant::Join(memory.get(), ranks, kFirst)));
  }
  return all;
}

TEST(AgreementTest, AllRanksSwitchAtTheSameCall) {
  Memory memory(3);
  auto ranks = JoinAll(memory, 3);
  std::vector<std::vector<uint64_t>> used(3);
  for (int call = 0; call < 300; ++call) {
    for (size_t r = 0; r < 3; ++r) used[r].push_back(ranks[r]->OnCall(7));
    if (call == 40) {
      for (auto& rank : ranks) EXPECT_TRUE(rank->Accept(5));
    }
    ranks[call % 3]->Tick();
  }
  EXPECT_EQ(used[0], used[1]);
  EXPECT_EQ(used[0], used[2]);
  EXPECT_EQ(used[0].front(), kFirst);
  EXPECT_EQ(used[0].back(), 5u);
}

TEST(AgreementTest, NothingSwitchesUntilEveryRankAccepts) {
  Memory memory(2);
  auto ranks = JoinAll(memory, 2);
  ASSERT_TRUE(ranks[0]->Accept(5));
  for (int call = 0; call < 500; ++call) {
    for (auto& rank : ranks) {
      EXPECT_EQ(rank->OnCall(7), kFirst);
      rank->Tick();
    }
  }
  ASSERT_TRUE(ranks[1]->Accept(6));
  for (int call = 0; call < 500; ++call) {
    for (auto& rank : ranks) {
      EXPECT_EQ(rank->OnCall(7), kFirst);
      rank->Tick();
    }
  }
}

TEST(AgreementTest, AnUnfinishedProposalIsAbortedByTheRankThatReachesItsCall) {
  Memory memory(2);
  auto ranks = JoinAll(memory, 2);
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank->Accept(5));
    for (int call = 0; call < 20; ++call) rank->OnCall(7);
  }
  const auto proposed = ranks[0]->Propose();
  ASSERT_TRUE(proposed.has_value());
  for (int call = 0; call < 100; ++call) EXPECT_EQ(ranks[1]->OnCall(7), kFirst);
  ranks[0]->Settle(*proposed);  // too late, and it must notice
  for (int call = 0; call < 100; ++call) EXPECT_EQ(ranks[0]->OnCall(7), kFirst);
  EXPECT_EQ(ranks[0]->active(), kFirst);
  // The next proposal succeeds.
  for (int call = 0; call < 400; ++call) {
    for (auto& rank : ranks) rank->OnCall(7);
    ranks[1]->Tick();
  }
  EXPECT_EQ(ranks[0]->active(), 5u);
  EXPECT_EQ(ranks[1]->active(), 5u);
}

// The rank was stopped between its announcement of the proposed call and its look at the word.
TEST(AgreementTest, ARankThatBeganTheCallBeforeTheProposalPreventsIt) {
  Memory memory(2);
  auto ranks = JoinAll(memory, 2);
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank->Accept(5));
    for (int call = 0; call < 20; ++call) rank->OnCall(7);
  }
  const auto proposed = ranks[0]->Propose();  // for call 84
  ASSERT_TRUE(proposed.has_value());
  for (int call = 20; call < 84; ++call) ranks[1]->OnCall(7);
  ranks[1]->Announce(7);
  ranks[0]->Settle(*proposed);
  EXPECT_EQ(ranks[1]->Decide(), kFirst);
  for (int call = 20; call < 100; ++call) EXPECT_EQ(ranks[0]->OnCall(7), kFirst) << call;
}

TEST(AgreementTest, AWithdrawnTableIsNotCommitted) {
  Memory memory(2);
  auto ranks = JoinAll(memory, 2);
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank->Accept(5));
    for (int call = 0; call < 20; ++call) rank->OnCall(7);
  }
  const auto proposed = ranks[0]->Propose();
  ASSERT_TRUE(proposed.has_value());
  ASSERT_TRUE(ranks[1]->Accept(6));
  ranks[0]->Settle(*proposed);
  for (int call = 0; call < 200; ++call) {
    EXPECT_EQ(ranks[0]->OnCall(7), kFirst);
    EXPECT_EQ(ranks[1]->OnCall(7), kFirst);
  }
}

TEST(AgreementTest, ACommittedTableStaysAcceptedUntilItsCall) {
  Memory memory(2);
  auto ranks = JoinAll(memory, 2);
  for (auto& rank : ranks) {
    ASSERT_TRUE(rank->Accept(5));
    for (int call = 0; call < 20; ++call) rank->OnCall(7);
  }
  ranks[0]->Tick();
  EXPECT_FALSE(ranks[1]->Accept(6));
  for (int call = 0; call < 100; ++call) ranks[0]->OnCall(7);
  EXPECT_EQ(ranks[0]->active(), 5u);
  EXPECT_FALSE(ranks[1]->Accept(6));  // rank 0 uses table 5 already
  for (int call = 0; call < 100; ++call) ranks[1]->OnCall(7);
  EXPECT_EQ(ranks[1]->active(), 5u);
  EXPECT_TRUE(ranks[1]->Accept(6));
}

TEST(AgreementTest, RanksWithDifferentCallsNeverSwitch) {
  Memory memory(2);
  auto ranks = JoinAll(memory, 2);
  for (auto& rank : ranks) ASSERT_TRUE(rank->Accept(5));
  ranks[0]->OnCall(1);
  for (int call = 0; call < 500; ++call) {
    for (auto& rank : ranks) {
      EXPECT_EQ(rank->OnCall(static_cast<uint64_t>(call)), kFirst);
      rank->Tick();
    }
  }
  EXPECT_TRUE(ranks[1]->calls_differ());
}

TEST(AgreementTest, AMissingOrDepartedRankPreventsSwitching) {
  Memory memory(2), other(3);
  std::vector<std::unique_ptr<Participant>> ranks = JoinAll(memory, 2);
  ASSERT_FALSE(Participant::Join(memory.get(), 2, kFirst).ok());  // both have joined
  ASSERT_FALSE(Participant::Join(memory.get(), 3, kFirst).ok());  // of another size
  const auto run = [&] {
    for (int call = 0; call < 300; ++call) {
      for (auto& rank : ranks) {
        rank->OnCall(7);
        rank->Tick();
      }
    }
  };
  ranks.clear();
  for (int i = 0; i < 2; ++i) {
    ranks.push_back(std::move(*Participant::Join(other.get(), 3, kFirst)));
    ASSERT_TRUE(ranks.back()->Accept(5));
  }
  run();
  EXPECT_EQ(ranks[0]->active(), kFirst);
  EXPECT_FALSE(ranks[0]->complete());
  auto last = std::move(*Participant::Join(other.get(), 3, kFirst));
  ASSERT_TRUE(last->Accept(5));
  last.reset();
  run();
  EXPECT_EQ(ranks[0]->active(), kFirst);
}

// One thread per rank; schedules/ has the schedules that no machine produces.
TEST(AgreementTest, ThreadsNeverDiffer) {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kCalls = 60000;
  Memory memory(kRanks);
  auto ranks = JoinAll(memory, kRanks);
  std::vector<std::vector<uint64_t>> used(kRanks);
  std::atomic<size_t> slowest[kRanks] = {};
  const TimePoint end = RealClock().Now() + std::chrono::seconds(60);
  {
    std::vector<std::jthread> threads;
    for (uint32_t r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        Random random(r);
        uint64_t wanted = 5;
        while (used[r].size() < kCalls && RealClock().Now() < end) {
          size_t least = SIZE_MAX;
          for (auto& other : slowest) least = std::min(least, other.load());
          if (used[r].size() > least + 300) {
            std::this_thread::yield();
          } else {
            used[r].push_back(ranks[r]->OnCall(used[r].size() % 13));
            slowest[r].store(used[r].size());
          }
          const uint64_t draw = random.Next() % 64;
          if (draw == 0) wanted = 5 + used[r].size() / 5000 % 3;
          if (draw < 4) (void)ranks[r]->Accept(wanted);
          if (draw < 8) ranks[r]->Tick();
        }
      });
    }
  }
  for (uint32_t r = 0; r < kRanks; ++r) ASSERT_EQ(used[r].size(), kCalls) << "rank " << r;
  size_t switches = 0;
  for (size_t call = 0; call < kCalls; ++call) {
    for (uint32_t r = 1; r < kRanks; ++r) {
      ASSERT_EQ(used[r][call], used[0][call]) << "call " << call << ", rank " << r;
    }
    switches += call > 0 && used[0][call] != used[0][call - 1] ? 1 : 0;
  }
  EXPECT_GT(switches, 2u);
}

TEST(SharedRegisterTest, RanksOfOneMachineShareIt) {
  const std::string directory = testing::TempDir();
  const uint64_t id = 0x5eed0000u + static_cast<uint64_t>(getpid());
  auto a = std::move(*SharedRegister::Open(directory, id, 2));
  auto b = std::move(*SharedRegister::Open(directory, id, 2));
  auto first = std::move(*Participant::Join(a->get(), 2, kFirst));
  EXPECT_FALSE(first->complete());
  auto second = std::move(*Participant::Join(b->get(), 2, kFirst));
  EXPECT_TRUE(first->complete());
  a->Unlink();
  auto late = std::move(*SharedRegister::Open(directory, id, 2));
  EXPECT_EQ(late->get().joined.load(), 0u);
}

TEST(SharedRegisterTest, RefusesWhatIsNotItsOwn) {
  const std::string directory = testing::TempDir();
  const uint64_t id = 0x5eee0000u + static_cast<uint64_t>(getpid());
  auto two = std::move(*SharedRegister::Open(directory, id, 2));
  EXPECT_EQ(SharedRegister::Open(directory, id, 3).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(SharedRegister::Open(directory, id, 0).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(SharedRegister::Open(directory + "/absent", id, 2).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weir::nccl::plugin
