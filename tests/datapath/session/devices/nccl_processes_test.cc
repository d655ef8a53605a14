// SPDX-License-Identifier: Apache-2.0
// Sums of nodes by NCCL itself: two processes on one GPU, which NCCL takes for two hosts and so
// permits there (NCCL_HOSTID). Only with WEIR_TEST_NCCL=1, on a machine with a GPU and NCCL.

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/datapath/session/devices/device_bucket.h"
#include "tests/datapath/session/session_world.h"

extern char** environ;

namespace weir::nccl_processes {
namespace {

constexpr int kRanks = 2;
constexpr size_t kElements = 3'000'000;
constexpr Duration kPatience = std::chrono::seconds(45);

const char* Variable(const char* name) { return std::getenv(name); }

/// Waits for the other rank to write its address.
std::string ReadAddress(const std::string& path) {
  const TimePoint deadline = RealClock().Now() + kPatience;
  for (std::string address; RealClock().Now() < deadline;) {
    std::ifstream file(path);
    if (file >> address) return address;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "";
}

/// The same gradients in a job without devices.
std::vector<float> Expected(const Plan& plan, const std::vector<std::vector<float>>& gradients) {
  testing::SessionWorld host({.world = kRanks, .transport = "shm", .job = "nccl"});
  const uint64_t key = host.Up().Define({{"w", kElements}});
  host.Switch(plan, key, kElements);
  auto data = gradients;
  host.Begin();
  host.AllReduce(key, data, 0.5);
  EXPECT_FALSE(host.End());
  return data[0];
}

/// One rank, in a process of its own.
void RunRank(int rank, const std::string& folder) {
  SessionOptions options;
  options.job = "nccl";
  options.rank = rank;
  options.world = kRanks;
  options.transport = "auto:nccl=on";
  options.device = *cuda::FindDevice(0);
  options.connect_timeout = options.operation_timeout = kPatience;
  Choice choice{.codec = "top_k", .collective = "node_shards", .ratio = 0.05};
  const Plan plan = testing::UniformPlan(1, choice);
  options.plan_file = testing::TempFile("plan.json", PlanToJson(plan));
  auto session = Session::Create(options);
  ASSERT_TRUE(session.ok()) << ToString(session.status());
  std::vector<TransportAddress> addresses(kRanks);
  const std::string own = folder + "/" + std::to_string(rank);
  std::ofstream(own + ".new") << (*session)->address() << std::endl;
  ASSERT_EQ(std::rename((own + ".new").c_str(), own.c_str()), 0);
  for (int r = 0; r < kRanks; ++r) addresses[r] = ReadAddress(folder + "/" + std::to_string(r));
  const Status connected = (*session)->Connect(addresses);
  ASSERT_TRUE(connected.ok()) << ToString(connected);
  const uint64_t key = *(*session)->DefineBucket({{"w", kElements}}, Dtype::kFloat32);
  const auto gradients = testing::RandomGradients(kRanks, kElements, 3);
  testing::DeviceGradient bucket(testing::BytesOf(gradients[rank], Dtype::kFloat32), true);
  ASSERT_TRUE((*session)->BeginStep().ok());
  const Status queued = (*session)->AllReduce(key, bucket.data(), 0.5, nullptr, bucket.place());
  ASSERT_TRUE(queued.ok()) << ToString(queued);
  const auto ended = (*session)->EndStep();
  ASSERT_TRUE(ended.ok()) << ToString(ended.status());
  const std::vector<float> expected = Expected(plan, gradients);
  EXPECT_TRUE(bucket.Take() == testing::BytesOf(expected, Dtype::kFloat32));
  (*session)->Close();
  unlink(options.plan_file.c_str());
}

pid_t Start(int rank, const std::string& folder) {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  variables.push_back("WEIR_TEST_NCCL_RANK=" + std::to_string(rank));
  variables.push_back("WEIR_TEST_NCCL_FOLDER=" + folder);
  variables.push_back("NCCL_HOSTID=host" + std::to_string(rank));
  variables.push_back("NCCL_SOCKET_IFNAME=lo");
  variables.push_back("NCCL_IB_DISABLE=1");
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string name = "test", filter = "--gtest_filter=NcclProcessesTest.*";
  char* arguments[] = {name.data(), filter.data(), nullptr};
  pid_t process = -1;
  const int error =
      posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments, environment.data());
  return error == 0 ? process : -1;
}

TEST(NcclProcessesTest, TwoOnOneDeviceSumANode) {
  if (Variable("WEIR_TEST_NCCL") == nullptr) GTEST_SKIP() << "WEIR_TEST_NCCL is not set";
  if (testing::OnHost()) GTEST_SKIP() << "built for the host";
  if (const char* const rank = Variable("WEIR_TEST_NCCL_RANK"); rank != nullptr) {
    return RunRank(std::atoi(rank), Variable("WEIR_TEST_NCCL_FOLDER"));
  }
  char folder[] = "/tmp/weir-nccl-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < kRanks; ++rank) processes.push_back(Start(rank, folder));
  const TimePoint deadline = RealClock().Now() + kPatience;
  for (const pid_t process : processes) {
    ASSERT_GT(process, 0);
    int status = -1;
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (RealClock().Now() > deadline) kill(process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_EQ(status, 0);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    unlink((std::string(folder) + "/" + std::to_string(rank)).c_str());
  }
  rmdir(folder);
}

}  // namespace
}  // namespace weir::nccl_processes
