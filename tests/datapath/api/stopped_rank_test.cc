// SPDX-License-Identifier: Apache-2.0
// If a rank's process is stopped, as by a debugger or a frozen container, every other rank names it
// at the latest a second after the operation's deadline.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "datapath/api/weir.h"

namespace {

constexpr int kRanks = 3;
constexpr int kStopped = 1;
constexpr double kTimeoutS = 2;
constexpr size_t kStoppedElements = 200'000;  // several segments, and more than a socket's buffer
constexpr size_t kAddressBytes = 128;
using Addresses = std::array<std::array<char, kAddressBytes>, kRanks>;

weir_session* Create(int rank, const char* transport) {
  weir_options options = {};
  options.struct_size = sizeof options;
  options.job = "stopped";
  options.rank = rank;
  options.world = kRanks;
  options.transport = transport;
  options.operation_timeout_s = kTimeoutS;
  options.connect_timeout_s = 20;
  weir_session* session = nullptr;
  return weir_session_create(&options, &session, nullptr, 0) == WEIR_OK ? session : nullptr;
}

bool Connect(weir_session* session, const Addresses& addresses) {
  const char* list[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) list[rank] = addresses[rank].data();
  return weir_session_connect(session, list, kRanks) == WEIR_OK;
}

// Runs one step and returns the status and text of the wait for its request.
weir_status Step(weir_session* session, std::string* words) {
  static thread_local std::vector<float> data(kStoppedElements, 1.0f);
  const weir_parameter parameter = {"p", kStoppedElements, 0};
  uint64_t key = 0;
  weir_request* request = nullptr;
  if (weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &key) != WEIR_OK ||
      weir_step_begin(session) != WEIR_OK ||
      weir_all_reduce(session, key, data.data(), 1, nullptr, nullptr, &request) != WEIR_OK) {
    *words = weir_last_error(session);
    return WEIR_INTERNAL;
  }
  const weir_status waited = weir_request_wait(request, 0, nullptr);
  *words = weir_last_error(session);
  (void)weir_request_release(request);
  (void)weir_step_end(session, nullptr);
  return waited;
}

// The process that will be stopped takes part in steps until the job fails or it is killed.
[[noreturn]] void RunStopped(const char* transport, int from_parent, int to_parent) {
  alarm(60);
  weir_session* const session = Create(kStopped, transport);
  std::array<char, kAddressBytes> own = {};
  if (session == nullptr) _exit(1);
  std::strncpy(own.data(), weir_session_address(session), kAddressBytes - 1);
  Addresses addresses;
  if (write(to_parent, own.data(), own.size()) != static_cast<ssize_t>(own.size()) ||
      read(from_parent, addresses.data(), sizeof addresses) != sizeof addresses ||
      !Connect(session, addresses)) {
    _exit(1);
  }
  std::string words;
  while (Step(session, &words) == WEIR_OK) {
    char go;
    if (read(from_parent, &go, 1) != 1) break;
  }
  _exit(0);
}

class StoppedRankTest : public ::testing::TestWithParam<const char*> {};

TEST_P(StoppedRankTest, EveryOtherRankNamesItInTime) {
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) RunStopped(GetParam(), to_child[0], to_parent[1]);
  std::array<weir_session*, kRanks> ranks = {};
  Addresses addresses = {};
  ASSERT_EQ(read(to_parent[0], addresses[kStopped].data(), kAddressBytes),
            static_cast<ssize_t>(kAddressBytes));
  for (const int rank : {0, 2}) {
    ranks[rank] = Create(rank, GetParam());
    ASSERT_NE(ranks[rank], nullptr);
    std::strncpy(addresses[rank].data(), weir_session_address(ranks[rank]), kAddressBytes - 1);
  }
  ASSERT_EQ(write(to_child[1], addresses.data(), sizeof addresses),
            static_cast<ssize_t>(sizeof addresses));

  std::array<weir_status, kRanks> statuses = {};
  std::array<std::string, kRanks> words;
  std::array<double, kRanks> seconds = {};
  const auto both = [&](const auto& body) {
    std::thread two([&] { body(2); });
    body(0);
    two.join();
  };
  both([&](int rank) {
    EXPECT_TRUE(Connect(ranks[rank], addresses)) << weir_last_error(ranks[rank]);
    EXPECT_EQ(Step(ranks[rank], &words[rank]), WEIR_OK) << words[rank];
  });
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  both([&](int rank) {
    const auto begin = std::chrono::steady_clock::now();
    statuses[rank] = Step(ranks[rank], &words[rank]);
    seconds[rank] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  for (const int rank : {0, 2}) {
    EXPECT_NE(statuses[rank], WEIR_OK);
    EXPECT_NE(words[rank].find("rank 1"), std::string::npos) << words[rank];
    EXPECT_LE(seconds[rank], kTimeoutS + 1) << words[rank];
  }
  both([&](int rank) { weir_session_close(ranks[rank]); });
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
}

INSTANTIATE_TEST_SUITE_P(Transports, StoppedRankTest, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
