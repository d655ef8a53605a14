// SPDX-License-Identifier: Apache-2.0
// One allocation of a rank fails, each allocation of a step in turn. The process survives, no rank
// waits beyond the deadline or delivers a wrong sum, and every rank that fails names the rank that
// lacked memory. For this purpose the program replaces operator new.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "datapath/api/weir.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_file.h"

namespace {

// Counts down with the allocations of the victim's threads. The one at zero fails; below zero none
// does.
std::atomic<long> allocations_left{-1};
std::atomic<bool> failed{false};

// The threads that do not belong to the victim.
std::array<std::atomic<pid_t>, 64> spared{};
std::atomic<size_t> spared_count{0};

void Spare(pid_t thread) { spared[spared_count.fetch_add(1) % spared.size()] = thread; }

bool IsSpared(pid_t thread) {
  for (size_t i = 0; i < std::min(spared_count.load(), spared.size()); ++i) {
    if (spared[i] == thread) return true;
  }
  return false;
}

bool Fails() {
  if (allocations_left.load(std::memory_order_relaxed) < 0) return false;
  if (IsSpared(static_cast<pid_t>(syscall(SYS_gettid)))) return false;
  if (allocations_left.fetch_sub(1) != 0) return false;
  failed = true;
  return true;
}

void* Allocate(size_t size, size_t alignment) {
  if (Fails()) throw std::bad_alloc();
  const size_t whole = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  void* const memory =
      alignment <= alignof(std::max_align_t) ? std::malloc(whole) : aligned_alloc(alignment, whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new[](size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return Fails() ? nullptr : std::malloc(std::max<size_t>(size, 1));
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return Fails() ? nullptr : std::malloc(std::max<size_t>(size, 1));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr int kWorld = 2;
constexpr size_t kElements = 4000;
constexpr int kBuckets = 3;
constexpr int kAllocationsMax = 5000;

struct Case {
  const char* name;
  const char* plan;  // null: none
  const char* transport;
  bool exact;  // sums of ones are exact
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<pid_t> Threads() {
  std::vector<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.push_back(static_cast<pid_t>(std::stol(entry.path().filename().string())));
  }
  return threads;
}

class OutOfMemoryTest : public ::testing::TestWithParam<Case> {
 protected:
  struct Outcome {
    weir_status status = WEIR_OK;  // the first that is not OK
    weir_request* request = nullptr;
    char words[512] = "";  // its text
    std::vector<std::vector<float>> data;
  };

  void Open() {
    std::string plan;
    if (GetParam().plan != nullptr) plan = weir::testing::TempFile("plan.json", GetParam().plan);
    spared_count = 0;
    const char* addresses[kWorld] = {};
    for (int rank = kWorld - 1; rank >= 0;
         --rank) {  // the victim comes last, so that the others are spared
      weir_options options = {};
      options.struct_size = sizeof options;
      options.job = "out-of-memory";
      options.rank = rank;
      options.world = kWorld;
      options.transport = GetParam().transport;
      options.operation_timeout_s = 20;
      if (GetParam().plan != nullptr) options.plan_file = plan.c_str();
      const std::vector<pid_t> before = Threads();
      char error[512] = "";
      ASSERT_EQ(weir_session_create(&options, &ranks[rank], error, sizeof error), WEIR_OK) << error;
      addresses[rank] = weir_session_address(ranks[rank]);
      if (rank == 0) continue;
      for (const pid_t thread : Threads()) {
        if (std::find(before.begin(), before.end(), thread) == before.end()) Spare(thread);
      }
    }
    std::thread other([&] { EXPECT_EQ(weir_session_connect(ranks[1], addresses, 2), WEIR_OK); });
    ASSERT_EQ(weir_session_connect(ranks[0], addresses, kWorld), WEIR_OK)
        << weir_last_error(ranks[0]);
    other.join();
    for (int b = 0; b < kBuckets; ++b) {
      const std::string name = "p" + std::to_string(b);
      const weir_parameter parameter = {name.c_str(), kElements, 50};
      for (weir_session* rank : ranks) {
        ASSERT_EQ(weir_define_bucket(rank, &parameter, 1, WEIR_FLOAT32, &keys[b]), WEIR_OK);
      }
    }
  }

  void Step(int rank, Outcome* outcome) {
    weir_session* const session = ranks[rank];
    outcome->status = WEIR_OK;
    const auto note = [&](weir_status status) {
      if (status == WEIR_OK || outcome->status != WEIR_OK) return;
      outcome->status = status;
      std::strncpy(outcome->words, weir_last_error(session), sizeof outcome->words - 1);
    };
    note(weir_step_begin(session));
    for (int b = 0; b < kBuckets; ++b) {
      note(weir_all_reduce(session, keys[b], outcome->data[b].data(), 1, nullptr, nullptr,
                           b == 0 ? nullptr : &outcome->request));
    }
    note(weir_step_end(session, nullptr));
  }

  static std::vector<std::vector<float>> Ones() {
    return std::vector<std::vector<float>>(kBuckets, std::vector<float>(kElements, 1.0f));
  }

  void CheckSums(const Outcome& outcome) const {
    for (const std::vector<float>& bucket : outcome.data) {
      for (const float sum : bucket) {
        if (GetParam().exact) ASSERT_EQ(sum, kWorld);
        ASSERT_GE(sum, 0);
        ASSERT_LE(sum, kWorld * 1.5f);
      }
    }
  }

  std::array<weir_session*, kWorld> ranks{};
  std::array<uint64_t, kBuckets> keys{};
};

TEST_P(OutOfMemoryTest, EveryRankFailsWithTheNameOfTheOneThatLackedMemory) {
  int n = 0;
  for (; n < kAllocationsMax; n += weir::test::kFewer) {
    SCOPED_TRACE(std::string("allocation ") + std::to_string(n));
    ASSERT_NO_FATAL_FAILURE(Open());
    std::array<Outcome, kWorld> outcomes;
    for (Outcome& outcome : outcomes) outcome.data = Ones();
    failed = false;
    std::atomic<bool> go{false};
    std::thread other([&] {
      Spare(static_cast<pid_t>(syscall(SYS_gettid)));
      go = true;
      Step(1, &outcomes[1]);
    });
    while (!go) std::this_thread::yield();
    allocations_left = n;
    Step(0, &outcomes[0]);
    allocations_left = -1;
    const bool fired = failed;
    other.join();
    const bool survived = outcomes[0].status == WEIR_OK;
    if (survived) {
      EXPECT_EQ(outcomes[1].status, WEIR_OK) << outcomes[1].words;
      for (const Outcome& outcome : outcomes) CheckSums(outcome);
    } else {
      EXPECT_TRUE(fired);
      EXPECT_EQ(outcomes[0].status, WEIR_RESOURCE_EXHAUSTED) << outcomes[0].words;
      EXPECT_NE(std::strstr(outcomes[0].words, "rank 0 ran out of memory"), nullptr)
          << outcomes[0].words;
      if (outcomes[1].status == WEIR_OK) {
        // It had all of rank 0's parts before, and gets rank 0's failure in the next step.
        CheckSums(outcomes[1]);
        outcomes[1].data = Ones();
        Step(1, &outcomes[1]);
      }
      EXPECT_NE(outcomes[1].status, WEIR_OK);
      EXPECT_NE(std::strstr(outcomes[1].words, "rank 0"), nullptr) << outcomes[1].words;
    }
    std::thread closing([&] { weir_session_close(ranks[1]); });
    weir_session_close(ranks[0]);
    closing.join();
    if (!fired) break;
  }
  EXPECT_GT(n, 5) << "what was counted?";
  EXPECT_LT(n, kAllocationsMax);
}

// Whichever allocation fails while closing, no thread is left behind, and the other rank still
// learns that this one has left.
TEST_P(OutOfMemoryTest, ASessionClosesAllTheSame) {
  int n = 0;
  for (bool fired = true; fired && n < kAllocationsMax; ++n) {
    SCOPED_TRACE(std::string("allocation ") + std::to_string(n));
    const size_t threads = Threads().size();
    ASSERT_NO_FATAL_FAILURE(Open());
    std::array<Outcome, kWorld> outcomes;
    for (Outcome& outcome : outcomes) outcome.data = Ones();
    std::thread other([&] { Step(1, &outcomes[1]); });
    Step(0, &outcomes[0]);
    other.join();
    ASSERT_EQ(outcomes[0].status, WEIR_OK) << outcomes[0].words;
    failed = false;
    allocations_left = n;
    weir_session_close(ranks[0]);
    allocations_left = -1;
    fired = failed;
    outcomes[1].data = Ones();
    Step(1, &outcomes[1]);
    EXPECT_NE(outcomes[1].status, WEIR_OK);
    EXPECT_NE(std::strstr(outcomes[1].words, "rank 0"), nullptr) << outcomes[1].words;
    weir_session_close(ranks[1]);
    EXPECT_EQ(Threads().size(), threads);
  }
  EXPECT_LT(n, kAllocationsMax);
}

// Whichever allocation of any thread fails between creating a session and the end of its first
// step, nothing waits for a thread that has ended.
TEST(OutOfMemoryAloneTest, ASessionIsNotMadeOrFailsOrWorksAndCloses) {
  weir_options options = {};
  options.struct_size = sizeof options;
  options.job = "out-of-memory-alone";
  options.world = 1;
  options.transport = "tcp";
  options.operation_timeout_s = 5;
  spared_count = 0;
  char error[512] = "";
  std::vector<float> data(kElements, 1.0f);
  const auto live = [&] {
    weir_session* session = nullptr;
    weir_status status = weir_session_create(&options, &session, error, sizeof error);
    if (status != WEIR_OK) return status;
    const char* const address = weir_session_address(session);
    const weir_parameter parameter = {"p", kElements, 0};
    uint64_t key = 0;
    status = weir_session_connect(session, &address, 1);
    if (status == WEIR_OK) status = weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &key);
    if (status == WEIR_OK) status = weir_step_begin(session);
    if (status == WEIR_OK) {
      (void)weir_all_reduce(session, key, data.data(), 1, nullptr, nullptr, nullptr);
      status = weir_step_end(session, nullptr);
    }
    allocations_left = -1;
    std::strncpy(error, weir_last_error(session), sizeof error - 1);
    weir_session_close(session);
    return status;
  };
  ASSERT_EQ(live(), WEIR_OK) << error;  // a process allocates some objects only once
  int n = 0;
  for (bool fired = true; fired && n < kAllocationsMax; ++n) {
    SCOPED_TRACE(std::string("allocation ") + std::to_string(n));
    const size_t threads = Threads().size();
    failed = false;
    allocations_left = n;
    const weir_status status = live();
    allocations_left = -1;
    fired = failed;
    EXPECT_TRUE(status == WEIR_OK || status == WEIR_RESOURCE_EXHAUSTED) << status << error;
    EXPECT_EQ(Threads().size(), threads);
  }
  EXPECT_GT(n, 5) << "what was counted?";
  EXPECT_LT(n, kAllocationsMax);
}

constexpr Case kCases[] = {
    {"dense_tcp", nullptr, "tcp", true},
    {"dense_shm", nullptr, "shm", true},
    {"gather",
     R"({"fallback": {"codec": "top_k", "collective": "bruck_all_gather", "ratio": 0.5}})", "tcp",
     false},
    {"shared_maximum", R"({"fallback": {"codec": "qsgd", "collective": "ring"}})", "tcp", false},
    {"two_rounds", R"({"fallback": {"codec": "power_sgd", "collective": "ring", "ratio": 0.5}})",
     "tcp", false},
    {"shared_index",
     R"({"fallback": {"codec": "shared_top_k", "collective": "ar_topk_star", "ratio": 0.5}})",
     "tcp", false},
    {"regions", R"({"fallback": {"codec": "eden", "collective": "reencode", "bits": 8}})", "tcp",
     false},
    {"node_sums", R"({"fallback": {"codec": "minmax", "collective": "node_sums", "bits": 8}})",
     "auto", false},
};
INSTANTIATE_TEST_SUITE_P(Forms, OutOfMemoryTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
