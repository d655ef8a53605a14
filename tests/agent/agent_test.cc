// SPDX-License-Identifier: Apache-2.0
// The whole agent between a controller in this process and ranks that are plain sockets.
#include "agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/agent/fake_controller.h"
#include "tests/agent/socket_client.h"
#include "tests/support/certificates.h"

namespace weir::agent {
namespace {

bool IsHello(const v1::AgentMessage& m) { return m.has_hello(); }
bool IsHeartbeat(const v1::AgentMessage& m) { return m.has_heartbeat(); }
bool IsProbe(const v1::AgentMessage& m) { return m.has_probe(); }
bool IsRankHello(const v1::AgentMessage& m) {
  return m.has_rank() && m.rank().message().has_hello();
}

class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    directory_ = testing::TempDir() + StrCat("weir-agent-", getpid(), "-", counter_++);
    options_.node = "node-a";
    options_.address = "127.0.0.1";
    options_.version = "test";
    options_.probe_port = 0;
    options_.helper_program = WEIR_AGENT_PROGRAM;
    options_.local.socket_path = directory_ + "/agent.sock";
    options_.controller.back_off_min = std::chrono::milliseconds(20);
    options_.controller.back_off_max = std::chrono::milliseconds(100);
  }
  ~AgentTest() override {
    agent_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartAgent(int controller_port) {
    options_.controller.controller = StrCat("127.0.0.1:", controller_port);
    options_.controller.credentials =
        *MakeCredentialFactory({.controller = options_.controller.controller});
    auto agent = Agent::Start(options_, RealClock());
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = std::move(*agent);
  }

  static v1::ControllerMessage Offer(uint64_t version, const std::string& nonce) {
    v1::ControllerMessage message;
    v1::ToRank& to = *message.mutable_rank();
    to.set_job("job");
    to.set_rank(0);
    v1::PlanOffer& offer = *to.mutable_command()->mutable_offer();
    offer.set_nonce(nonce);
    offer.mutable_plan()->set_job("job");
    offer.mutable_plan()->set_version(version);
    offer.mutable_plan()->set_digest("00000000000000aa");
    return message;
  }

  v1::ControllerMessage Peers(const std::string& node, uint32_t probe_port, uint32_t iperf_port) {
    v1::ControllerMessage message;
    v1::Peer& peer = *message.mutable_peers()->add_peers();
    peer.set_node(node);
    peer.set_address("127.0.0.1");
    peer.set_probe_port(probe_port);
    peer.set_iperf_port(iperf_port);
    message.mutable_peers()->set_latency_interval_s(0.1);
    return message;
  }

  static v1::ControllerMessage Probe(const std::string& node, const std::string& method,
                                     uint64_t bytes_max) {
    v1::ControllerMessage message;
    v1::ProbeRequest& probe = *message.mutable_probe();
    probe.set_probe_id("p-1");
    probe.set_target_node(node);
    probe.set_method(method);
    probe.set_bytes_max(bytes_max);
    probe.set_deadline_s(8);
    return message;
  }

  static inline int counter_ = 0;
  std::string directory_;
  AgentOptions options_;
  std::unique_ptr<Agent> agent_;
};

constexpr char kHello[] =
    R"({"hello":{"job":"job","rank":0,"world":2,"datapath_address":"127.0.0.1:4000"}})";

TEST_F(AgentTest, ComesBackWhenABusyControllerSaysSo) {
  FakeController controller;
  constexpr auto kWait = std::chrono::milliseconds(700);
  controller.SendAway(2, kWait);
  options_.controller.back_off_max = std::chrono::milliseconds(30);
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  const std::vector<TimePoint> began = controller.began();
  ASSERT_EQ(began.size(), 3u);
  EXPECT_GE(began[1] - began[0], kWait);
  EXPECT_GE(began[2] - began[1], kWait);
}

// A process with libnccl-weir.so gets the table of the file, and a new one when the file changes.
TEST_F(AgentTest, NcclProcessesGetTheTableAndAreNoRanks) {
  FakeController controller;
  options_.nccl_table_file = directory_ + ".table";
  const auto write = [&](const char* algorithm) {
    std::ofstream(options_.nccl_table_file)
        << R"({"rules": [{"function": "reduce", "protocol": "ll", "algorithm": ")" << algorithm
        << R"("}]})";
  };
  write("ring");
  StartAgent(controller.port());
  SocketClient process(options_.local.socket_path);
  ASSERT_TRUE(process.SendJson(R"({"nccl": {"tuners": [{"communicator": "a", "calls": 3}],
                                           "table_error": ""}})"));
  const auto table = process.Receive();
  ASSERT_TRUE(table);
  ASSERT_EQ(table->nccl_table().rules_size(), 1);
  EXPECT_EQ(table->nccl_table().rules(0).algorithm(), "ring");
  const auto told = controller.Next([](const auto& m) { return m.has_nccl(); });
  ASSERT_TRUE(told);
  EXPECT_EQ(told->nccl().calls(), 3u);
  write("tree");
  const auto changed = process.Receive();
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->nccl_table().rules(0).algorithm(), "tree");
  // A rank that sends such a report is a rank all the same, also when it leaves.
  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  ASSERT_TRUE(controller.Next(IsRankHello));
  ASSERT_TRUE(rank.SendJson(R"({"nccl": {}})"));
  rank.Close();
  ASSERT_TRUE(controller.Next([](const auto& m) { return m.has_rank_gone(); }));
  std::filesystem::remove(options_.nccl_table_file);
}

TEST_F(AgentTest, NcclProcessesGetTheControllersTable) {
  FakeController controller;
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  SocketClient process(options_.local.socket_path);
  ASSERT_TRUE(process.SendJson(R"({"nccl": {"tuners": [{"communicator": "a", "calls": 3}],
                                           "table_error": ""}})"));
  ASSERT_TRUE(controller.Next([](const auto& m) { return m.has_nccl(); }));
  v1::ControllerMessage order;
  order.mutable_nccl_table()->add_rules()->set_algorithm("pat");
  controller.Send(order);
  const auto table = process.Receive();
  ASSERT_TRUE(table);
  ASSERT_EQ(table->nccl_table().rules_size(), 1);
  EXPECT_EQ(table->nccl_table().rules(0).algorithm(), "pat");
  const auto told =
      controller.Next([](const auto& m) { return m.nccl().table_source() == "controller"; });
  EXPECT_TRUE(told);
  ASSERT_TRUE(process.SendJson(R"({"nccl": {"tuners": [], "agent_steers": true}})"));
  ASSERT_TRUE(process.Receive());  // the same again: it may have been a former agent's
  // A controller that welcomes the agent again without rules has none any more.
  v1::ControllerMessage welcome;
  welcome.mutable_welcome()->set_heartbeat_interval_s(1);
  controller.Send(welcome);
  const auto without = process.Receive();
  ASSERT_TRUE(without);
  EXPECT_TRUE(without->has_nccl_table());
  EXPECT_EQ(without->nccl_table().rules_size(), 0);
}

TEST_F(AgentTest, TellsTheControllerOfItsGpus) {
  FakeController controller;
  options_.nvml_library = WEIR_FAKE_NVML;
  StartAgent(controller.port());
  const auto node = controller.Next(IsHello);
  ASSERT_TRUE(node);
  ASSERT_EQ(node->hello().gpus_size(), 2);
  EXPECT_EQ(node->hello().gpus(0).name(), "Fake H100");
  EXPECT_EQ(node->hello().gpus(0).pcie_lanes(), 16u);
  EXPECT_NEAR(node->hello().gpus(0).pcie_bytes_per_s(), 63e9, 1e9);
  EXPECT_EQ(node->hello().gpus(1).name(), "Fake vGPU");
}

TEST_F(AgentTest, PassesTelemetryUpOffersDownAndAnswersUp) {
  FakeController controller;
  StartAgent(controller.port());
  const auto node = controller.Next(IsHello);
  ASSERT_TRUE(node);
  EXPECT_EQ(node->hello().node(), "node-a");
  EXPECT_EQ(node->hello().probe_port(), agent_->probe_port());
  ASSERT_TRUE(controller.Next(IsHeartbeat));

  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  ASSERT_TRUE(controller.Next(IsRankHello));
  ASSERT_TRUE(rank.SendJson(R"({"step":{"step":5,"step_s":0.25}})"));
  const auto step =
      controller.Next([](const auto& m) { return m.has_rank() && m.rank().message().has_step(); });
  ASSERT_TRUE(step);
  EXPECT_DOUBLE_EQ(step->rank().message().step().step_s(), 0.25);

  ASSERT_TRUE(controller.Send(Offer(3, "n3")));
  const auto offer = rank.Receive();
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->offer().plan().digest(), "00000000000000aa");
  ASSERT_TRUE(rank.SendJson(R"({"ack":{"version":3,"nonce":"stale"}})"));
  ASSERT_TRUE(rank.SendJson(R"({"ack":{"version":3,"nonce":"n3"}})"));
  const auto ack =
      controller.Next([](const auto& m) { return m.has_rank() && m.rank().message().has_ack(); });
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->rank().message().ack().nonce(), "n3");

  rank.Close();
  ASSERT_TRUE(controller.Next([](const auto& m) { return m.has_rank_gone(); }));
}

// The rank of this test is the test's own process.
TEST_F(AgentTest, SaysHowLongTheRankWaitsForCoresWhateverTheRankSays) {
  if (!std::filesystem::exists("/proc/self/schedstat")) {
    GTEST_SKIP() << "this kernel does not account for waiting threads";
  }
  FakeController controller;
  StartAgent(controller.port());
  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  ASSERT_TRUE(controller.Next(IsRankHello));
  const auto is_step = [](const auto& m) { return m.has_rank() && m.rank().message().has_step(); };
  bool known = false;
  for (int step = 1; step < 200 && !known; ++step) {
    ASSERT_TRUE(rank.SendJson(
        StrCat(R"({"step":{"step":)", step, R"(,"cores":{"wait_ratio":7,"steal_ratio":7}}})")));
    const auto seen = controller.Next(is_step);
    ASSERT_TRUE(seen);
    const v1::StepReport& report = seen->rank().message().step();
    EXPECT_TRUE(step > 1 || !report.has_cores()) << "one look says nothing";
    known = report.has_cores();
    EXPECT_LE(report.cores().wait_ratio(), 1);
    EXPECT_LE(report.cores().steal_ratio(), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(known);
}

TEST_F(AgentTest, RestartedControllerLearnsTheStateAndRanksNoticeNothing) {
  auto controller = std::make_unique<FakeController>();
  const int port = controller->port();
  StartAgent(port);
  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  ASSERT_TRUE(rank.SendJson(R"({"buckets":{"buckets":[{"key":"00000000000000bb"}]}})"));
  ASSERT_TRUE(controller->Next(IsRankHello));
  ASSERT_TRUE(controller->Send(Offer(3, "n3")));
  ASSERT_TRUE(rank.Receive());
  ASSERT_TRUE(rank.SendJson(R"({"ack":{"version":3,"nonce":"n3"}})"));
  ASSERT_TRUE(rank.SendJson(R"({"active":{"version":3,"step":17}})"));
  ASSERT_TRUE(controller->Next(
      [](const auto& m) { return m.has_rank() && m.rank().message().has_active(); }));
  controller->Stop();
  ASSERT_TRUE(rank.SendJson(R"({"step":{"step":30,"plan_version":3}})"));

  FakeController second(port);
  ASSERT_EQ(second.port(), port);
  ASSERT_TRUE(second.Next(IsHello));
  const auto hello = second.Next(IsRankHello);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->rank().message().hello().active_plan_version(), 3u);
  EXPECT_EQ(hello->rank().message().hello().active_plan().digest(), "00000000000000aa");
  EXPECT_GE(hello->rank().message().hello().step(), 17u);
  const auto buckets =
      second.Next([](const auto& m) { return m.has_rank() && m.rank().message().has_buckets(); });
  ASSERT_TRUE(buckets);
  EXPECT_EQ(buckets->rank().message().buckets().buckets(0).key(), "00000000000000bb");
  ASSERT_TRUE(second.Send(Offer(4, "n4")));  // over the rank's first and only connection
  const auto offer = rank.Receive();
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->offer().plan().version(), 4u);
}

TEST_F(AgentTest, MeasuresLatencyOfItsPeers) {
  FakeController controller;
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  const auto peer = EchoServer::Start(*SocketAddress::FromIp("127.0.0.1", 0), RealClock());
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(controller.Send(Peers("node-b", (*peer)->port(), 0)));
  for (const std::string method : {"udp_echo", "tcp_connect"}) {
    const auto sample =
        controller.Next([&](const auto& m) { return m.has_link() && m.link().method() == method; });
    ASSERT_TRUE(sample) << method;
    EXPECT_EQ(sample->link().target_node(), "node-b");
    EXPECT_EQ(sample->link().error(), "");
    EXPECT_GT(sample->link().rtt_s(), 0);
    EXPECT_LT(sample->link().rtt_s(), 0.1);
  }
}

TEST_F(AgentTest, ConnectionsToRanksOfOtherNodesAreSamplesOfTheLink) {
  FakeController controller;
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  v1::ControllerMessage peers = Peers("node-b", 9, 0);
  peers.mutable_peers()->mutable_peers(0)->set_address("127.0.0.2");
  ASSERT_TRUE(controller.Send(peers));
  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  // Rank 1 is not attached here; rank 2 runs on this node; nobody knows the node of rank 3.
  const std::string path = R"("rtt_s":0.002,"delivery_rate_bytes_per_s":5e7,"peer_address":)";
  const std::string report =
      StrCat(R"({"paths":{"paths":[{"peer_rank":2,)", path, R"("127.0.0.1:4002"},{"peer_rank":3,)",
             path, R"("10.9.9.9:1"},{"peer_rank":1,)", path, R"("127.0.0.2:4001"}]}})");
  std::optional<v1::AgentMessage> sample;
  for (int attempt = 0; attempt < 50 && !sample; ++attempt) {  // until the agent has its peers
    ASSERT_TRUE(rank.SendJson(report));
    const auto said = controller.Next([](const auto& m) {
      return (m.has_link() && m.link().method() == "tcp_info") || m.has_heartbeat();
    });
    ASSERT_TRUE(said);
    if (said->has_link()) sample = said;
  }
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->link().target_node(), "node-b");
  EXPECT_DOUBLE_EQ(sample->link().rtt_s(), 0.002);
  EXPECT_DOUBLE_EQ(sample->link().bandwidth_bytes_per_s(), 5e7);
  EXPECT_FALSE(sample->link().application_limited());
}

TEST_F(AgentTest, SilentPeerIsReportedWithTheReason) {
  FakeController controller;
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  const auto silent = BindSocket(*SocketAddress::FromIp("127.0.0.1", 0), SOCK_DGRAM);
  ASSERT_TRUE(controller.Send(Peers("node-b", LocalAddress(silent->get())->port(), 0)));
  const auto sample = controller.Next(
      [](const auto& m) { return m.has_link() && m.link().method() == "udp_echo"; });
  ASSERT_TRUE(sample);
  EXPECT_THAT(sample->link().error(), testing::HasSubstr("no udp echo reply"));
  EXPECT_DOUBLE_EQ(sample->link().loss_ratio(), 1);
}

TEST_F(AgentTest, RunsScheduledProbesWithinTheBudget) {
  FakeController controller;
  const auto port = [] {
    const auto bound = BindSocket(*SocketAddress::FromIp("127.0.0.1", 0), SOCK_STREAM);
    return LocalAddress(bound->get())->port();
  };
  options_.iperf_port = port();
  options_.budget.capacity_bytes = 64 << 20;
  options_.budget.floor_bytes_per_s = 0;
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  // The peer is this agent itself under another name.
  ASSERT_TRUE(controller.Send(Peers("node-b", agent_->probe_port(), options_.iperf_port)));

  ASSERT_TRUE(controller.Send(Probe("node-b", "traceroute", 0)));
  auto result = controller.Next(IsProbe);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->probe().sample().error(), "");
  EXPECT_EQ(result->probe().sample().hops(), 1u);

  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(10);
  do {  // its iperf3 server may still be starting
    ASSERT_TRUE(controller.Send(Probe("node-b", "iperf3", 32 << 20)));
    result = controller.Next(IsProbe);
    ASSERT_TRUE(result);
  } while (!result->probe().sample().error().empty() && RealClock().Now() < deadline);
  EXPECT_EQ(result->probe().sample().error(), "");
  EXPECT_EQ(result->probe().probe_id(), "p-1");
  EXPECT_GT(result->probe().sample().bandwidth_bytes_per_s(), 1e6);
  EXPECT_GT(result->probe().bytes_used(), 1u << 20);

  ASSERT_TRUE(controller.Send(Probe("node-b", "iperf3", 64 << 20)));
  result = controller.Next(IsProbe);
  ASSERT_TRUE(result);
  EXPECT_THAT(result->probe().sample().error(), testing::HasSubstr("budget"));
}

TEST_F(AgentTest, ImpossibleProbesAreAnsweredAtOnce) {
  FakeController controller;
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  ASSERT_TRUE(controller.Send(Peers("node-b", 9, 9)));
  const struct {
    const char* node;
    const char* method;
    const char* reason;
  } kCases[] = {{"node-c", "iperf3", "no peer"},
                {"node-b", "magic", "valid: iperf3, traceroute"},
                {"node-b", "iperf3", "disabled"}};
  for (const auto& c : kCases) {
    ASSERT_TRUE(controller.Send(Probe(c.node, c.method, 1000)));
    const auto result = controller.Next(IsProbe);
    ASSERT_TRUE(result);
    EXPECT_THAT(result->probe().sample().error(), testing::HasSubstr(c.reason));
  }
}

TEST_F(AgentTest, RefusesAHostileRankAndServesTheNext) {
  FakeController controller;
  StartAgent(controller.port());
  SocketClient hostile(options_.local.socket_path);
  ASSERT_TRUE(hostile.SendJson(R"({"hello":{"job":"job","rank":9,"world":2}})"));
  EXPECT_THAT(hostile.ReceiveRefusal(), testing::HasSubstr("below the world of 2"));
  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  EXPECT_TRUE(controller.Next(IsRankHello));
}

TEST_F(AgentTest, ProvesItselfByCertificateAndTellsOfARenewalThatFailed) {
  std::filesystem::create_directories(directory_);
  if (!MakeCertificates(directory_, "ca", {"server", "agent"}))
    GTEST_SKIP() << "openssl cannot make certificates here";
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = Contents(directory_ + "/ca.pem");
  tls.pem_key_cert_pairs.push_back(
      {Contents(directory_ + "/server.key"), Contents(directory_ + "/server.pem")});
  FakeController controller(0, grpc::SslServerCredentials(tls));
  options_.controller.controller = StrCat("127.0.0.1:", controller.port());
  options_.controller.credentials =
      *MakeCredentialFactory({.controller = options_.controller.controller,
                              .ca_file = directory_ + "/ca.pem",
                              .cert_file = directory_ + "/agent.pem",
                              .key_file = directory_ + "/agent.key"});
  options_.http.address = "127.0.0.1:0";
  auto agent = Agent::Start(options_, RealClock());
  ASSERT_TRUE(agent.ok()) << agent.status();
  EXPECT_TRUE(controller.Next(IsHello));
  // The stream lasts, so nobody but the agent looks at the files.
  std::ofstream(directory_ + "/agent.key", std::ios::trunc).close();
  const std::string ask =
      StrCat("curl -s -m 5 http://127.0.0.1:", (*agent)->http_port(), "/metrics > ", directory_,
             "/page; cd ", directory_, "; grep -qx 'weir_tls_last_reload_successful 0' page && ",
             "grep -qx 'weir_agent_controller_connections_total 1' page");
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(20);
  while (std::system(ask.c_str()) != 0) {
    ASSERT_LT(RealClock().Now(), deadline) << Contents(directory_ + "/page");
  }
}

// A standby names the leader, whose address the agent need not have been given.
TEST_F(AgentTest, FindsTheLeaderOfSeveralControllersAndTheNextOne) {
  FakeController dead, standby, first, second;
  dead.Stop();
  standby.StandBy(StrCat("127.0.0.1:", first.port()));
  first.Lead(7);
  options_.controller.controller = StrCat("127.0.0.1:", dead.port(), ",127.0.0.1:", standby.port());
  options_.controller.credentials =
      *MakeCredentialFactory({.controller = options_.controller.controller});
  auto agent = Agent::Start(options_, RealClock());
  ASSERT_TRUE(agent.ok()) << agent.status();
  ASSERT_TRUE(first.Next(IsHello));
  standby.StandBy(StrCat("127.0.0.1:", second.port()));
  second.Lead(8);
  first.Stop();
  EXPECT_TRUE(second.Next(IsHello));
}

// It may not know yet that another one leads.
TEST_F(AgentTest, LeavesAControllerThatLedBefore) {
  FakeController former, present;
  present.Lead(8);
  former.StandBy("");
  options_.controller.controller =
      StrCat("127.0.0.1:", former.port(), ",127.0.0.1:", present.port());
  options_.controller.credentials =
      *MakeCredentialFactory({.controller = options_.controller.controller});
  auto agent = Agent::Start(options_, RealClock());
  ASSERT_TRUE(agent.ok()) << agent.status();
  ASSERT_TRUE(present.Next(IsHeartbeat));
  former.Lead(7);
  present.StandBy("");
  present.CloseStreams();
  // It is asked, and left at its first message.
  ASSERT_TRUE(former.Next(IsHello));
  ASSERT_TRUE(former.Next(IsHello)) << "it was not left";
  former.Lead(9);
  EXPECT_TRUE(former.Next(IsHeartbeat));
}

TEST_F(AgentTest, AStandbyCannotSendItOffThisMachineInPlainText) {
  FakeController standby, second;
  standby.StandBy("192.0.2.1:7700");
  options_.controller.controller =
      StrCat("127.0.0.1:", standby.port(), ",127.0.0.1:", second.port());
  options_.controller.credentials =
      *MakeCredentialFactory({.controller = options_.controller.controller});
  EXPECT_EQ(options_.controller.credentials.Permit("192.0.2.1:7700").code(),
            StatusCode::kInvalidArgument);
  auto agent = Agent::Start(options_, RealClock());
  ASSERT_TRUE(agent.ok()) << agent.status();
  EXPECT_TRUE(second.Next(IsHello));
}

TEST_F(AgentTest, ServesRanksWithoutAnyController) {
  auto agent = Agent::Start(options_, RealClock());
  ASSERT_TRUE(agent.ok()) << agent.status();
  SocketClient rank(options_.local.socket_path);
  ASSERT_TRUE(rank.SendJson(kHello));
  ASSERT_TRUE(rank.SendJson("{"));
  EXPECT_FALSE(rank.ReceiveRefusal().empty());
}

TEST_F(AgentTest, EndsQuicklyWhileEverythingIsBusy) {
  FakeController controller;
  const auto silent = BindSocket(*SocketAddress::FromIp("127.0.0.1", 0), SOCK_STREAM);
  const uint16_t port = LocalAddress(silent->get())->port();
  const auto own = BindSocket(*SocketAddress::FromIp("127.0.0.1", 0), SOCK_STREAM);
  options_.iperf_port = LocalAddress(own->get())->port();  // taken: its server keeps retrying
  StartAgent(controller.port());
  ASSERT_TRUE(controller.Next(IsHello));
  ASSERT_TRUE(controller.Send(Peers("node-b", port, port)));
  ASSERT_TRUE(controller.Send(Probe("node-b", "iperf3", 1000)));  // hangs until its deadline
  ASSERT_TRUE(controller.Next(IsHeartbeat));
  const TimePoint start = RealClock().Now();
  agent_.reset();
  EXPECT_LT(RealClock().Now() - start, std::chrono::seconds(2));
}

TEST_F(AgentTest, TakenProbePortIsAnErrorAtStart) {
  const auto taken = EchoServer::Start(*SocketAddress::FromIp("127.0.0.1", 0), RealClock());
  ASSERT_TRUE(taken.ok());
  options_.probe_port = (*taken)->port();
  const auto agent = Agent::Start(options_, RealClock());
  EXPECT_EQ(agent.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weir::agent
