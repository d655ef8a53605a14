// SPDX-License-Identifier: Apache-2.0
// The library as NCCL sees it.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <limits>
#include <memory>
#include <thread>

#include "datapath/base/clock.h"
#include "datapath/base/random.h"
#include "tests/datapath/nccl/plugin/fake_agent.h"
#include "tests/datapath/nccl/plugin/host.h"
#include "tests/support/temp_file.h"

#if defined(__SANITIZE_ADDRESS__)
// When the library is unloaded, what its base never destroys is lost, some 90 bytes, and one test
// leaves its communicators alive on purpose. Leaks are not looked for where the library was loaded.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return weir::nccl::plugin::LoadedLibrary::was_loaded ? 1 : 0;
}
#endif

namespace weir::nccl::plugin {
namespace {

using ::weir::testing::TempFile;

constexpr int kRingSimple = 1 * kProtocols + 2;
constexpr int kTreeLl = 0;  // the default of CostTable

constexpr const char* kRingRule =
    R"({"rules": [{"function": "all_reduce", "bytes_min": 1024, "algorithm": "ring",
        "protocol": "simple", "channels": 2, "chunk_bytes": 65536}]})";

std::string Socket(const char* name) {
  return StrCat(::testing::TempDir(), "/", getpid(), "-", name, ".sock");
}

// Ids of communicators that no other test uses at the same time.
uint64_t NewId() {
  static uint64_t count = 0;
  return (static_cast<uint64_t>(getpid()) << 32) + ++count;
}

TEST(LibraryTest, WithoutAgentAndTableItDoesNothing) {
  const LoadedLibrary library;
  const auto& tuner = library.Get<TunerV6>("ncclTunerPlugin_v6");
  TunedCommunicator communicator(tuner, NewId(), 2);
  EXPECT_EQ(communicator.context(), nullptr);
  EXPECT_EQ(communicator.Call(kNcclAllReduce, 4096), kTreeLl);
  const auto& profiler = library.Get<ProfilerV5>("ncclProfiler_v5");
  void* context = &context;
  int mask = -1;
  ASSERT_EQ(profiler.init(&context, NewId(), &mask, nullptr, 1, 2, 0, nullptr), kSuccess);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(mask, 0);
  EventDescriptorV5 descriptor{};
  descriptor.type = kEventCollective;
  void* event = &event;
  EXPECT_EQ(profiler.start_event(nullptr, &event, &descriptor), kSuccess);
  EXPECT_EQ(event, nullptr);
  EXPECT_EQ(profiler.finalize(nullptr), kSuccess);
}

TEST(LibraryTest, ATableFromAFileHoldsFromTheFirstCallInEveryVersion) {
  const Variables variables({{"WEIR_NCCL_TABLE", TempFile("table.json", kRingRule)}});
  const LoadedLibrary library;
  const auto& six = library.Get<TunerV6>("ncclTunerPlugin_v6");
  TunedCommunicator communicator(six, NewId(), 2);
  int channels = 0;
  EXPECT_EQ(communicator.Call(kNcclAllReduce, 1024, &channels), kRingSimple);
  EXPECT_EQ(channels, 2);
  EXPECT_EQ(communicator.Call(kNcclAllReduce, 1023, &channels), kTreeLl);
  EXPECT_EQ(channels, 0);
  EXPECT_EQ(communicator.Call(kNcclBroadcast, 4096), kTreeLl);
  EXPECT_EQ(communicator.Call(99, 4096), kTreeLl);
  size_t chunk = 1;
  six.get_chunk_size(communicator.context(), kNcclAllReduce, 4096, 1, 2, 2, &chunk);
  EXPECT_EQ(chunk, 65536u);
  chunk = 1;
  six.get_chunk_size(communicator.context(), kNcclAllReduce, 4096, 0, 2, 2, &chunk);
  EXPECT_EQ(chunk, 1u);  // NCCL took another algorithm

  const auto& five = library.Get<TunerV5>("ncclTunerPlugin_v5");
  void* context = nullptr;
  five.init(&context, NewId(), 2, 2, nullptr, nullptr, nullptr);
  CostTable table;
  int count = 0;
  five.get_coll_info(context, kNcclAllReduce, 4096, 1, table.pointer(), 7, 3, 1, &count);
  EXPECT_EQ(table.Best(), kRingSimple);
  five.finalize(context);

  const auto& four = library.Get<TunerV4>("ncclTunerPlugin_v4");
  four.init(2, 1, nullptr, &context);
  CostTable fresh;
  four.get_coll_info(context, kNcclAllReduce, 4096, 1, fresh.pointer(), 7, 3, 1, &count);
  EXPECT_EQ(fresh.Best(), kRingSimple);
  four.destroy(context);
}

TEST(LibraryTest, UnavailableCellsAndSmallerTablesAreLeftAlone) {
  const Variables variables({{"WEIR_NCCL_TABLE", TempFile("table.json", kRingRule)}});
  const LoadedLibrary library;
  const auto& tuner = library.Get<TunerV6>("ncclTunerPlugin_v6");
  TunedCommunicator communicator(tuner, NewId(), 2);
  for (const float cost : {-1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    CostTable table;
    table.at(1, 2) = cost;
    const CostTable before = table;
    int channels = 0;
    tuner.get_coll_info(communicator.context(), kNcclAllReduce, 4096, 1, table.pointer(),
                        kAlgorithms, kProtocols, 0, &channels);
    EXPECT_EQ(std::memcmp(table.cells, before.cells, sizeof table.cells), 0);
    EXPECT_EQ(channels, 0);
  }
  CostTable table;
  const CostTable before = table;
  int channels = 0;
  tuner.get_coll_info(communicator.context(), kNcclAllReduce, 4096, 1, table.pointer(), 1, 3, 0,
                      &channels);
  EXPECT_EQ(std::memcmp(table.cells, before.cells, sizeof table.cells), 0);
  tuner.get_coll_info(communicator.context(), kNcclAllReduce, 4096, 1, table.pointer(), 7, 2, 0,
                      &channels);
  EXPECT_EQ(std::memcmp(table.cells, before.cells, sizeof table.cells), 0);
}

TEST(LibraryTest, ABadFileIsIgnored) {
  const Variables variables({{"WEIR_NCCL_TABLE", TempFile("table.json", "{\"rules\": 5}")},
                             {"WEIR_AGENT", "nonsense"},
                             {"WEIR_NCCL_SAMPLE", "-3"}});
  const LoadedLibrary library;
  TunedCommunicator communicator(library.Get<TunerV6>("ncclTunerPlugin_v6"), NewId(), 2);
  EXPECT_EQ(communicator.context(), nullptr);
}

TEST(LibraryTest, TheEnvironmentIsTheFilesUnlessTheJobSaysOtherwise) {
  const Variables variables(
      {{"WEIR_NCCL_ENV", TempFile("nccl.conf", "NCCL_ALGO=Ring\nNCCL_BUFFSIZE=65536\n")},
       {"NCCL_BUFFSIZE", "131072"}});
  const LoadedLibrary library;
  const auto& environment = library.Get<EnvironmentV2>("ncclEnvPlugin_v2");
  ASSERT_EQ(environment.init(2, 30, 7, "", nullptr), kSuccess);
  EXPECT_STREQ(environment.get("NCCL_ALGO"), "Ring");
  EXPECT_STREQ(environment.get("NCCL_BUFFSIZE"), "131072");
  EXPECT_EQ(environment.get("NCCL_ABSENT"), nullptr);
  EXPECT_EQ(environment.get(nullptr), nullptr);
  EXPECT_STREQ(environment.get("NCCL_TUNER_PLUGIN"), WEIR_NCCL_PLUGIN);
  EXPECT_STREQ(environment.get("NCCL_PROFILER_PLUGIN"), WEIR_NCCL_PLUGIN);
  EXPECT_EQ(environment.finalize(), kSuccess);
  const auto& first = library.Get<EnvironmentV1>("ncclEnvPlugin_v1");
  ASSERT_EQ(first.init(2, 28, 9, ""), kSuccess);
  EXPECT_STREQ(first.get("NCCL_ALGO"), "Ring");
}

// All ranks of two communicators in one process, as with one process for several GPUs.
TEST(LibraryTest, TheAgentsTableComesIntoUseAtOneCallOfEachCommunicator) {
  FakeAgent agent(Socket("switch"));
  const Variables variables({{"WEIR_AGENT", agent.address()}});
  const LoadedLibrary library;
  const auto& tuner = library.Get<TunerV6>("ncclTunerPlugin_v6");
  constexpr size_t kRanks = 3;
  const uint64_t ids[2] = {NewId(), NewId()};
  std::vector<std::unique_ptr<TunedCommunicator>> contexts;
  for (size_t i = 0; i < 2 * kRanks; ++i) {
    contexts.push_back(std::make_unique<TunedCommunicator>(tuner, ids[i / kRanks], kRanks));
  }
  agent.Say(StrCat(R"({"nccl_table": )", kRingRule, "}"));
  std::vector<std::vector<int>> chosen(2 * kRanks);
  const TimePoint end = RealClock().Now() + std::chrono::seconds(20);
  while (RealClock().Now() < end && (chosen[0].empty() || chosen[0].back() != kRingSimple ||
                                     chosen[kRanks].back() != kRingSimple)) {
    for (size_t i = 0; i < contexts.size(); ++i) {
      chosen[i].push_back(contexts[i]->Call(kNcclAllReduce, 4096));
    }
    usleep(200);
  }
  for (size_t i = 0; i < contexts.size(); ++i) {
    EXPECT_EQ(chosen[i], chosen[i / kRanks * kRanks]) << i;
    EXPECT_EQ(chosen[i].front(), kTreeLl);
    EXPECT_EQ(chosen[i].back(), kRingSimple);
  }
  const auto report = agent.Await([&](const nlohmann::json& message) {
    const auto& tuners = message.at("nccl").value("tuners", nlohmann::json::array());
    return tuners.size() == 2 * kRanks && tuners[0].at("steered") > 0;
  });
  ASSERT_FALSE(report.is_null());
  EXPECT_EQ(report.at("nccl").at("tuners")[0].at("obstacle"), "");
  EXPECT_EQ(report.at("nccl").at("table_error"), "");
}

// Ranks in processes of their own, each of which gets the table at another time and calls at its
// own pace.
TEST(LibraryTest, ProcessesWithDelaysNeverDiffer) {
  constexpr size_t kRanks = 4;
  constexpr size_t kCalls = 3000;
  const uint64_t id = NewId();
  auto* const chosen = static_cast<std::atomic<int>*>(
      mmap(nullptr, (kCalls + 1) * kRanks * sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(chosen, MAP_FAILED);
  std::atomic<int>* const progress = chosen + kCalls * kRanks;
  std::vector<pid_t> children;
  const std::string path = Socket("processes");
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      setenv("WEIR_AGENT", ("unix:" + path).c_str(), 1);
      const LoadedLibrary library;
      TunedCommunicator communicator(library.Get<TunerV6>("ncclTunerPlugin_v6"), id, kRanks, 4);
      Random random(rank);
      for (size_t call = 0; call < kCalls;) {
        int slowest = kCalls;
        for (size_t r = 0; r < kRanks; ++r) slowest = std::min(slowest, progress[r].load());
        if (static_cast<int>(call) > slowest + 200) {
          usleep(100);
          continue;
        }
        chosen[rank * kCalls + call] = communicator.Call(kNcclAllReduce, 2048 + 64 * (call % 8));
        progress[rank].store(static_cast<int>(++call));
        if (random.Next() % 50 == 0) usleep(random.Next() % 20000);
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  {
    FakeAgent agent(path, true, std::chrono::milliseconds(300));
    agent.Say(StrCat(R"({"nccl_table": )", kRingRule, "}"));
    for (const pid_t child : children) {
      int status = -1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
  }
  size_t switched = 0;
  for (size_t call = 0; call < kCalls; ++call) {
    for (size_t rank = 1; rank < kRanks; ++rank) {
      ASSERT_EQ(chosen[rank * kCalls + call], chosen[call]) << "call " << call << " rank " << rank;
    }
    switched += chosen[call] == kRingSimple ? 1 : 0;
  }
  EXPECT_GT(switched, 0u);
  munmap(chosen, (kCalls + 1) * kRanks * sizeof(std::atomic<int>));
}

TEST(LibraryTest, HostileTablesAreRefusedAndReported) {
  FakeAgent agent(Socket("hostile"));
  const Variables variables({{"WEIR_AGENT", agent.address()}});
  const LoadedLibrary library;
  TunedCommunicator communicator(library.Get<TunerV6>("ncclTunerPlugin_v6"), NewId(), 1);
  agent.Say(R"({"nccl_table": {"rules": [{"function": "all_reduce", "algorithm": "ring",
                "protocol": "simple", "channels": 100000}]}})");
  const auto report = agent.Await([](const nlohmann::json& message) {
    return !message.at("nccl").value("table_error", "").empty();
  });
  ASSERT_FALSE(report.is_null());
  EXPECT_EQ(report.at("nccl").at("table_error"),
            "table.rules[0].channels: expected at most 64, found 100000");
  for (int call = 0; call < 300; ++call) {
    EXPECT_EQ(communicator.Call(kNcclAllReduce, 4096), kTreeLl);
  }
}

TEST(LibraryTest, TheTableStaysWhenTheAgentDiesAndReportsGoOnWithTheNextOne) {
  auto agent = std::make_unique<FakeAgent>(Socket("dies"));
  const Variables variables({{"WEIR_AGENT", agent->address()}});
  const LoadedLibrary library;
  TunedCommunicator communicator(library.Get<TunerV6>("ncclTunerPlugin_v6"), NewId(), 1);
  agent->Say(StrCat(R"({"nccl_table": )", kRingRule, "}"));
  const TimePoint end = RealClock().Now() + std::chrono::seconds(20);
  while (communicator.Call(kNcclAllReduce, 4096) != kRingSimple && RealClock().Now() < end) {
    usleep(1000);
  }
  agent.reset();
  for (int call = 0; call < 500; ++call) {
    ASSERT_EQ(communicator.Call(kNcclAllReduce, 4096), kRingSimple);
    usleep(200);
  }
  agent = std::make_unique<FakeAgent>(Socket("dies"));
  EXPECT_FALSE(agent->Await([](const nlohmann::json&) { return true; }).is_null());
}

TEST(LibraryTest, AnAgentThatDoesNotReadHoldsNothingUp) {
  FakeAgent agent(Socket("deaf"), false);
  const Variables variables({{"WEIR_AGENT", agent.address()}});
  const LoadedLibrary library;
  const TimePoint start = RealClock().Now();
  {
    TunedCommunicator communicator(library.Get<TunerV6>("ncclTunerPlugin_v6"), NewId(), 1);
    for (int call = 0; call < 1000; ++call) communicator.Call(kNcclAllReduce, 4096);
  }
  EXPECT_LT(ToSeconds(RealClock().Now() - start), 2);
}

// PyTorch ends without destroying its communicators, whose threads run until the process is gone.
TEST(LibraryTest, AProcessMayExitWithCommunicatorsInUse) {
  // Nobody listens there: this process must not have threads when it forks.
  const Variables variables({{"WEIR_AGENT", "unix:" + Socket("exit")}, {"WEIR_NCCL_SAMPLE", "1"}});
  for (int attempt = 0; attempt < 20; ++attempt) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      auto* const library = new LoadedLibrary;
      const auto& profiler = library->Get<ProfilerV6>("ncclProfiler_v6");
      auto* const communicator =
          new TunedCommunicator(library->Get<TunerV6>("ncclTunerPlugin_v6"), NewId(), 1);
      void* context = nullptr;
      int mask = 0;
      profiler.init(&context, 7, &mask, "data", 1, 1, 0, nullptr);
      std::thread([&profiler, context, communicator] {
        EventDescriptorV6 descriptor{};
        descriptor.type = kEventPointToPoint;
        for (;;) {
          void* event = nullptr;
          profiler.start_event(context, &event, &descriptor);
          CostTable costs;
          int channels = 0;
          communicator->tuner().get_coll_info(communicator->context(), kNcclAllReduce, 4096, 1,
                                              costs.pointer(), kAlgorithms, kProtocols, 0,
                                              &channels);
        }
      }).detach();
      usleep(2000);
      exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << attempt;
  }
}

// The profiler.

class Profiled : public ::testing::Test {
 protected:
  void Begin(const std::string& sample) {
    agent_ = std::make_unique<FakeAgent>(Socket("profile"));
    variables_ = std::make_unique<Variables>(std::vector<std::pair<std::string, std::string>>{
        {"WEIR_AGENT", agent_->address()}, {"WEIR_NCCL_SAMPLE", sample}});
    library_ = std::make_unique<LoadedLibrary>();
    profiler_ = &library_->Get<ProfilerV6>("ncclProfiler_v6");
    int mask = 0;
    ASSERT_EQ(profiler_->init(&context_, 7, &mask, "data", 2, 4, 1, nullptr), kSuccess);
    ASSERT_NE(context_, nullptr);
    EXPECT_EQ(mask, 2 + 4 + 8 + 16);
  }
  void TearDown() override {
    if (context_ != nullptr) {
      EXPECT_EQ(profiler_->finalize(context_), kSuccess);
    }
  }

  void* Start(EventDescriptorV6& descriptor) {
    void* event = nullptr;
    EXPECT_EQ(profiler_->start_event(context_, &event, &descriptor), kSuccess);
    return event;
  }
  void* Collective(const char* function, size_t count, const char* type) {
    EventDescriptorV6 descriptor{};
    descriptor.type = kEventCollective;
    descriptor.collective.function = function;
    descriptor.collective.count = count;
    descriptor.collective.type = type;
    return Start(descriptor);
  }
  void* Proxy(void* parent, bool sends, int process = getpid()) {
    EventDescriptorV6 descriptor{};
    descriptor.type = kEventProxyOperation;
    descriptor.parent = parent;
    descriptor.proxy_operation.process = process;
    descriptor.proxy_operation.is_send = sends ? 1 : 0;
    return Start(descriptor);
  }
  void* Step(void* parent) {
    EventDescriptorV6 descriptor{};
    descriptor.type = kEventProxyStep;
    descriptor.parent = parent;
    return Start(descriptor);
  }
  void Record(void* event, EventState state, size_t bytes = 0) {
    EventStateArguments arguments{};
    arguments.proxy_step.bytes = bytes;
    EXPECT_EQ(profiler_->record_event_state(event, state, &arguments), kSuccess);
  }
  void Stop(void* event) { EXPECT_EQ(profiler_->stop_event(event), kSuccess); }

  // The newest report in which some operation has at least `transfers` of them.
  nlohmann::json Sums(uint64_t transfers) {
    const auto report = agent_->Await([&](const nlohmann::json& message) {
      if (!message.at("nccl").contains("profile")) return false;
      uint64_t found = 0;
      for (const auto& entry : message["nccl"]["profile"]["sums"]) {
        found += entry["sent"]["transfers"].get<uint64_t>() +
                 entry["received"]["transfers"].get<uint64_t>();
      }
      return found >= transfers;
    });
    return report.is_null() ? report : report.at("nccl").at("profile");
  }

  std::unique_ptr<FakeAgent> agent_;
  std::unique_ptr<Variables> variables_;
  std::unique_ptr<LoadedLibrary> library_;
  const ProfilerV6* profiler_ = nullptr;
  void* context_ = nullptr;
};

TEST_F(Profiled, TellsOwnGpuPeerAndWireApart) {
  Begin("1");
  void* const collective = Collective("AllReduce", 1 << 20, "ncclFloat32");
  ASSERT_NE(collective, nullptr);
  Stop(collective);  // enqueued; its proxy operations begin later, on another thread
  std::thread([&] {
    void* const sends = Proxy(collective, true);
    void* const step = Step(sends);
    ASSERT_NE(step, nullptr);
    Record(step, kStepSendGpuWait);
    usleep(60000);
    for (int attempt = 0; attempt < 4; ++attempt) {
      Record(step, kStepSendPeerWait);
      usleep(10000);
    }
    Record(step, kStepSendWait, 131072);
    usleep(20000);
    Stop(step);
    Stop(sends);
    void* const receives = Proxy(collective, false);
    void* const arrival = Step(receives);
    Record(arrival, kStepReceiveWait);
    usleep(30000);
    Record(arrival, kStepReceiveFlush, 4096);
    Record(arrival, kStepReceiveGpuWait);
    usleep(10000);
    Stop(arrival);
    Stop(receives);
  }).join();
  const nlohmann::json profile = Sums(2);
  ASSERT_FALSE(profile.is_null());
  EXPECT_EQ(profile.at("communicator"), "0000000000000007");
  EXPECT_EQ(profile.at("name"), "data");
  EXPECT_EQ(profile.at("rank"), 1);
  const nlohmann::json& sums = profile.at("sums").at(0);
  EXPECT_EQ(sums.at("function"), "all_reduce");
  EXPECT_EQ(sums.at("size_class"), 22);
  EXPECT_EQ(sums.at("operations"), 1);
  const auto near = [](const nlohmann::json& seconds, double expected) {
    EXPECT_GE(seconds.get<double>(), expected);
    EXPECT_LT(seconds.get<double>(), expected + 0.2);  // the machine may be busy
  };
  EXPECT_EQ(sums.at("sent").at("bytes"), 131072);
  near(sums.at("sent").at("own_gpu_s"), 0.060);
  near(sums.at("sent").at("peer_s"), 0.040);
  near(sums.at("sent").at("wire_s"), 0.020);
  EXPECT_EQ(sums.at("sent").at("arrival_s"), 0);
  EXPECT_EQ(sums.at("received").at("bytes"), 4096);
  near(sums.at("received").at("arrival_s"), 0.030);
  near(sums.at("received").at("own_gpu_s"), 0.010);
  EXPECT_EQ(sums.at("received").at("wire_s"), 0);
}

TEST_F(Profiled, SizesAreThoseThatTheTunerIsAskedAbout) {
  Begin("1");
  for (const char* function : {"AllGather", "ReduceScatter", "Broadcast"}) {
    void* const step = Step(Proxy(Collective(function, 1024, "ncclBfloat16"), true));
    Record(step, kStepSendWait, 1);
    Stop(step);
  }
  const nlohmann::json profile = Sums(3);
  ASSERT_FALSE(profile.is_null());
  for (const auto& entry : profile.at("sums")) {
    EXPECT_EQ(entry.at("size_class"), entry.at("function") == "broadcast" ? 11 : 13);  // 4 ranks
  }
}

TEST_F(Profiled, HandlesOfAnotherProcessAreNotFollowed) {
  Begin("1");
  void* const collective = Collective("AllReduce", 1024, "ncclInt8");
  EXPECT_EQ(Proxy(reinterpret_cast<void*>(0x41414141), true, getpid() + 1), nullptr);
  EXPECT_NE(Proxy(collective, true), nullptr);
  EventDescriptorV6 unknown{};
  unknown.type = 1 << 13;
  unknown.parent = collective;
  EXPECT_EQ(Start(unknown), nullptr);
  Stop(nullptr);
  Record(nullptr, kStepSendWait);
}

TEST_F(Profiled, ASampleIsMeasuredWhateverThePeriodOfTheJob) {
  Begin("16");
  constexpr int kOperations = 16000;
  int seen[16] = {};
  for (int i = 0; i < kOperations; ++i) {
    if (Collective("AllReduce", 1024, "ncclFloat32") != nullptr) ++seen[i % 16];
  }
  for (const int count : seen) {
    EXPECT_GT(count, 25);  // 62 expected
    EXPECT_LT(count, 125);
  }
}

TEST_F(Profiled, ManyThreadsLoseNothing) {
  Begin("1");
  constexpr uint64_t kThreads = 4, kSteps = 20000;
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        void* const proxy = Proxy(Collective("AllReduce", 1024, "ncclInt32"), t % 2 == 0);
        for (uint64_t i = 0; i < kSteps; ++i) {
          void* const step = Step(proxy);
          Record(step, kStepSendGpuWait);
          Record(step, t % 2 == 0 ? kStepSendWait : kStepReceiveFlush, 3);
          Stop(step);
        }
      });
    }
  }
  const nlohmann::json profile = Sums(kThreads * kSteps);
  ASSERT_FALSE(profile.is_null());
  EXPECT_EQ(profile.at("dropped"), 0);
  const nlohmann::json& sums = profile.at("sums").at(0);
  EXPECT_EQ(sums.at("sent").at("bytes"), 3 * kSteps * kThreads / 2);
  EXPECT_EQ(sums.at("received").at("bytes"), 3 * kSteps * kThreads / 2);
}

TEST_F(Profiled, TransfersWithoutASlotAreCounted) {
  Begin("1");
  void* const proxy = Proxy(Collective("AllReduce", 1024, "ncclInt32"), true);
  std::vector<void*> steps;
  for (int i = 0; i < 100000; ++i) {
    if (void* step = Step(proxy)) steps.push_back(step);
  }
  EXPECT_LE(steps.size(), 2048u);
  EXPECT_GT(steps.size(), 1024u);
  for (void* step : steps) Stop(step);
  const nlohmann::json profile = Sums(steps.size());
  ASSERT_FALSE(profile.is_null());
  EXPECT_EQ(profile.at("dropped"), 100000 - steps.size());
}

TEST(ProfilerV4Test, DescriptorsOfVersionFourAreUnderstood) {
  FakeAgent agent(Socket("four"));
  const Variables variables({{"WEIR_AGENT", agent.address()}, {"WEIR_NCCL_SAMPLE", "1"}});
  const LoadedLibrary library;
  const auto& profiler = library.Get<ProfilerV4>("ncclProfiler_v4");
  void* context = nullptr;
  int mask = 0;
  ASSERT_EQ(profiler.init(&context, &mask, nullptr, 9, 1, 2, 0, nullptr), kSuccess);
  EventDescriptorV4 descriptor;
  std::memset(&descriptor, 0xff, sizeof descriptor);  // padding after the type is not zero
  descriptor.type = kEventPointToPoint;
  descriptor.point_to_point.count = 256;
  descriptor.point_to_point.type = "ncclFloat16";
  void* event = nullptr;
  ASSERT_EQ(profiler.start_event(context, &event, &descriptor), kSuccess);
  EXPECT_NE(event, nullptr);
  const auto report = agent.Await([](const nlohmann::json& message) {
    return message.at("nccl").contains("profile") && !message["nccl"]["profile"]["sums"].empty();
  });
  ASSERT_FALSE(report.is_null());
  EXPECT_EQ(report["nccl"]["profile"]["sums"][0]["function"], "point_to_point");
  EXPECT_EQ(report["nccl"]["profile"]["sums"][0]["size_class"], 9);
  EXPECT_EQ(profiler.finalize(context), kSuccess);
}

}  // namespace
}  // namespace weir::nccl::plugin
