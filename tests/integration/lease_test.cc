// SPDX-License-Identifier: Apache-2.0
// The real controller and agent, and sessions that train in this process: a plan's lease from the
// policy file to the swap while the controller is killed and restarted, and two runs with one name.

#include <filesystem>
#include <fstream>
#include <thread>

#include "datapath/base/log.h"
#include "tests/datapath/session/session_world.h"
#include "tests/support/program.h"

namespace weir {
namespace {

using testing::SessionWorld;

constexpr size_t kElements = 20000;

class LeaseIntegrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-lease-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    std::filesystem::create_directory(directory_ / "policies");
    std::ofstream(directory_ / "policies" / "p.yaml")
        << "objective: {name: fixed, codec: top_k, collective: sparse_all_gather, ratio: 0.1}\n"
           "switching: {lease_s: 1}\n";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void StartController(const std::string& listen) {
    controller_ = std::make_unique<Program>(std::vector<std::string>{
        WEIR_CONTROLLER_PROGRAM, "--listen-grpc", listen, "--listen-http", "127.0.0.1:0", "--state",
        directory_ / "state.db", "--policy", directory_ / "policies"});
    const std::string before = "gRPC on ";
    ASSERT_TRUE(controller_->ReadUntil([&] {
      return controller_->error.find(", HTTP on") != std::string::npos;
    })) << controller_->error;
    const size_t at = controller_->error.find(before) + before.size();
    address_ = controller_->error.substr(at, controller_->error.find(',', at) - at);
  }

  // Trains until `done` is true for the version that all ranks run; returns that version, or 0 at
  // the deadline.
  template <typename Done>
  uint64_t TrainUntil(SessionWorld& job, Done done) {
    const TimePoint deadline = testing::Within(30);
    while (RealClock().Now() < deadline && !::testing::Test::HasFailure()) {
      std::vector<std::vector<float>> data(2, std::vector<float>(kElements, 1.0f));
      job.Begin();
      const auto plan = job.sessions[0]->ActivePlan();
      EXPECT_EQ(job.sessions[1]->ActivePlan()->version, plan->version);
      job.AllReduce(key_, data);
      job.End();
      EXPECT_EQ(data[0], data[1]);
      if (done(*plan)) return plan->version;
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    return 0;
  }
  std::string CodecOf(const Plan& plan) const { return ChoiceFor(plan, key_).codec; }

  std::filesystem::path directory_;
  std::unique_ptr<Program> controller_;
  std::string address_;
  uint64_t key_ = 0;
};

TEST_F(LeaseIntegrationTest, RanksTurnDenseTogetherWhenTheControllerDiesAndObeyTheNextOne) {
  ASSERT_NO_FATAL_FAILURE(StartController("127.0.0.1:0"));
  const std::string socket = directory_ / "agent.sock";
  Program agent({WEIR_AGENT_PROGRAM, "--node", "n", "--controller", address_, "--socket", socket,
                 "--probe-port", "0"});
  ASSERT_TRUE(agent.ReadUntil([&] { return agent.error.find("reached") != std::string::npos; }))
      << agent.error;
  SessionWorld job({.world = 2, .agent = "unix:" + socket, .lease_min_s = 1.5});
  job.Up();
  key_ = job.Define({{"p", kElements}});
  const uint64_t lossy =
      TrainUntil(job, [&](const Plan& plan) { return CodecOf(plan) == "top_k"; });
  ASSERT_NE(lossy, 0u) << "no plan within 30 s";
  // As long as the controller renews it, a plan outlives its lease.
  const TimePoint later = testing::Within(3);
  TrainUntil(job, [&](const Plan& plan) {
    EXPECT_EQ(plan.version, lossy);
    return RealClock().Now() > later;
  });
  controller_->Signal(SIGKILL);
  controller_->Wait();
  const TimePoint killed = RealClock().Now();
  const uint64_t dense =
      TrainUntil(job, [&](const Plan& plan) { return CodecOf(plan) == "identity"; });
  EXPECT_EQ(dense, lossy + 1);
  EXPECT_LT(ToSeconds(RealClock().Now() - killed), 10);
  ASSERT_NO_FATAL_FAILURE(StartController(address_));
  const uint64_t next = TrainUntil(job, [&](const Plan& plan) { return CodecOf(plan) == "top_k"; });
  EXPECT_GT(next, dense);
}

TEST_F(LeaseIntegrationTest, ASecondRunOfTheNameTrainsDenseAndTheFirstNoticesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartController("127.0.0.1:0"));
  const std::string socket = directory_ / "agent.sock";
  Program agent({WEIR_AGENT_PROGRAM, "--node", "n", "--controller", address_, "--socket", socket,
                 "--probe-port", "0"});
  ASSERT_TRUE(agent.ReadUntil([&] { return agent.error.find("reached") != std::string::npos; }))
      << agent.error;
  SessionWorld first(
      {.world = 2, .agent = "unix:" + socket, .job = "lm", .job_key = JobKey{std::byte{1}}});
  first.Up();
  // The name still belongs to the run that attached first.
  const auto attached = [&] {
    return agent.error.find("attached", agent.error.find("attached") + 1) != std::string::npos;
  };
  ASSERT_TRUE(agent.ReadUntil(attached)) << agent.error;
  BoundedQueue<std::string> said(1000);
  SetLogSink([&](LogLevel, std::string_view, std::string_view line) {
    if (line.find("refused") != line.npos) said.TryPush(std::string(line));
  });
  SessionWorld second(
      {.world = 2, .agent = "unix:" + socket, .job = "lm", .job_key = JobKey{std::byte{2}}});
  second.Up();
  for (int rank = 0; rank < 2; ++rank) {
    const std::string line = said.Pop(testing::Within(10)).value_or("nothing within 10 s");
    for (const std::string& part :
         {StrCat("of job 'lm' on node 'n': process ", getpid()),
          std::string("proves another job key"), std::string("job name of its own"),
          std::string("running dense")}) {
      EXPECT_NE(line.find(part), std::string::npos) << line;
    }
  }
  key_ = second.Define({{"p", kElements}});
  int steps = 0;
  TrainUntil(second, [&](const Plan& plan) {
    EXPECT_EQ(plan.version, 0u);
    return ++steps == 20;
  });
  EXPECT_EQ(steps, 20);
  key_ = first.Define({{"p", kElements}});
  EXPECT_NE(TrainUntil(first, [&](const Plan& plan) { return CodecOf(plan) == "top_k"; }), 0u)
      << "no plan within 30 s";
  SetLogSink(nullptr);
  ASSERT_TRUE(agent.ReadUntil([&] {
    return agent.error.find("proves another job key") != std::string::npos;
  })) << agent.error;
}

}  // namespace
}  // namespace weir
