// SPDX-License-Identifier: Apache-2.0
// Requests used by many threads, and handles that are wrong, old or from another process.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "datapath/api/weir.h"
#include "tests/support/sanitized.h"

namespace {

constexpr int kThreads = 8;
constexpr int kRuns = 2000 / weir::test::kFewer;
constexpr size_t kElements = 64;

// A session of one rank with one bucket. Its operations end within microseconds, so that threads
// race.
class RequestTest : public ::testing::Test {
 protected:
  RequestTest() {
    weir_options options = {};
    options.struct_size = sizeof options;
    options.job = "request";
    options.world = 1;
    char error[256] = "";
    EXPECT_EQ(weir_session_create(&options, &session, error, sizeof error), WEIR_OK) << error;
    const char* address = weir_session_address(session);
    EXPECT_EQ(weir_session_connect(session, &address, 1), WEIR_OK);
    const weir_parameter parameter = {"p", kElements, 0};
    EXPECT_EQ(weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &bucket), WEIR_OK);
  }
  ~RequestTest() override { weir_session_close(session); }

  weir_request* Start() {
    weir_request* request = nullptr;
    EXPECT_EQ(weir_step_begin(session), WEIR_OK) << weir_last_error(session);
    EXPECT_EQ(weir_all_reduce(session, bucket, data.data(), 1, nullptr, nullptr, &request),
              WEIR_OK);
    return request;
  }

  weir_session* session = nullptr;
  uint64_t bucket = 0;
  std::vector<float> data = std::vector<float>(kElements, 1.0f);
};

TEST_F(RequestTest, AnyNumberOfThreadsWaitForOne) {
  for (int run = 0; run < kRuns; ++run) {
    weir_request* const request = Start();
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0}, released{0};
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        int32_t done = 0;
        if (t % 4 == 3) (void)weir_request_test(request, &done);
        const weir_status waited = weir_request_wait(request, 20, nullptr);
        // Calls after the release get an error; all others get the outcome.
        if (waited != WEIR_OK && waited != WEIR_INVALID_ARGUMENT) ++wrong;
        if (t % 2 == 0 && weir_request_release(request) == WEIR_OK) ++released;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(wrong, 0) << "run " << run;
    ASSERT_EQ(released, 1) << "run " << run;
    ASSERT_EQ(weir_step_end(session, nullptr), WEIR_OK);
  }
}

TEST_F(RequestTest, HandlesAreNeverUsedTwice) {
  weir_request* const first = Start();
  ASSERT_EQ(weir_request_wait(first, 20, nullptr), WEIR_OK);
  ASSERT_EQ(weir_request_release(first), WEIR_OK);
  ASSERT_EQ(weir_step_end(session, nullptr), WEIR_OK);
  weir_request* const second = Start();
  EXPECT_NE(first, second);
  EXPECT_EQ(weir_request_wait(first, 20, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_request_wait(second, 20, nullptr), WEIR_OK);
  EXPECT_EQ(weir_step_end(session, nullptr), WEIR_OK);
  EXPECT_EQ(weir_request_wait(second, 20, nullptr), WEIR_OK) << "it was not released";
}

TEST_F(RequestTest, CloseWakesWhoWaitsAndForgetsTheRequest) {
  weir_options options = {};
  options.struct_size = sizeof options;
  options.job = "request-two";
  options.world = 2;
  weir_session* ranks[2] = {};
  const char* addresses[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    options.rank = rank;
    ASSERT_EQ(weir_session_create(&options, &ranks[rank], nullptr, 0), WEIR_OK);
    addresses[rank] = weir_session_address(ranks[rank]);
  }
  std::thread other([&] { EXPECT_EQ(weir_session_connect(ranks[1], addresses, 2), WEIR_OK); });
  ASSERT_EQ(weir_session_connect(ranks[0], addresses, 2), WEIR_OK);
  other.join();
  const weir_parameter parameter = {"p", kElements, 0};
  uint64_t key = 0;
  ASSERT_EQ(weir_define_bucket(ranks[0], &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
  ASSERT_EQ(weir_step_begin(ranks[0]), WEIR_OK);
  weir_request* request = nullptr;
  ASSERT_EQ(weir_all_reduce(ranks[0], key, data.data(), 1, nullptr, nullptr, &request), WEIR_OK);
  std::atomic<int> waited{-1};
  std::thread waiter([&] { waited = weir_request_wait(request, 0, nullptr); });
  weir_session_close(ranks[0]);
  waiter.join();
  EXPECT_TRUE(waited == WEIR_ABORTED || waited == WEIR_INVALID_ARGUMENT) << waited;
  EXPECT_EQ(weir_request_wait(request, 0, nullptr), WEIR_INVALID_ARGUMENT);
  weir_session_close(ranks[1]);
}

TEST_F(RequestTest, AForkedChildIsRefusedAndItsParentGoesOn) {
  weir_request* const request = Start();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a signal kills a child that hangs
    int wrong = 0;
    wrong += weir_step_end(session, nullptr) != WEIR_FAILED_PRECONDITION;
    wrong += weir_request_wait(request, 0, nullptr) != WEIR_INVALID_ARGUMENT;
    wrong += std::string(weir_last_error(session)).empty();
    weir_session_close(session);
#if !defined(__SANITIZE_THREAD__)  // which lets no child of a process with threads start one
    // A session that the child creates works.
    weir_options options = {};
    options.struct_size = sizeof options;
    options.job = "child";
    options.world = 1;
    weir_session* own = nullptr;
    wrong += weir_session_create(&options, &own, nullptr, 0) != WEIR_OK;
    const char* address = weir_session_address(own);
    wrong += weir_session_connect(own, &address, 1) != WEIR_OK;
    weir_session_close(own);
#endif
    _exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(weir_request_wait(request, 20, nullptr), WEIR_OK);
  EXPECT_EQ(weir_step_end(session, nullptr), WEIR_OK);
}

TEST_F(RequestTest, ASubmittedBucketIsNotDissolved) {
  constexpr size_t kBuckets = 20, kLarge = 100'000;
  std::vector<std::vector<float>> buffers(kBuckets, std::vector<float>(kLarge, 1.0f));
  std::vector<uint64_t> keys(kBuckets);
  for (size_t b = 0; b < kBuckets; ++b) {
    const std::string name = "p" + std::to_string(b);
    const weir_parameter parameter = {name.c_str(), kLarge, 0};
    ASSERT_EQ(weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &keys[b]), WEIR_OK);
  }
  const weir_parameter both[] = {{"p19", kLarge, 0}, {"new", 10, 0}};
  const weir_parameter unused[] = {{"p", kElements, 0}, {"new", 10, 0}};
  uint64_t other = 0;
  ASSERT_EQ(weir_step_begin(session), WEIR_OK);
  for (size_t b = 0; b < kBuckets; ++b) {
    ASSERT_EQ(weir_all_reduce(session, keys[b], buffers[b].data(), 1, nullptr, nullptr, nullptr),
              WEIR_OK);
  }
  // The last bucket waits behind nineteen others.
  EXPECT_EQ(weir_define_bucket(session, both, 2, WEIR_FLOAT32, &other), WEIR_FAILED_PRECONDITION);
  EXPECT_NE(std::string(weir_last_error(session)).find("p19"), std::string::npos)
      << weir_last_error(session);
  EXPECT_EQ(weir_define_bucket(session, unused, 2, WEIR_FLOAT32, &other), WEIR_OK)
      << weir_last_error(session);
  EXPECT_EQ(weir_step_end(session, nullptr), WEIR_OK) << weir_last_error(session);
  EXPECT_EQ(weir_define_bucket(session, both, 2, WEIR_FLOAT32, &other), WEIR_OK);
}

}  // namespace
