// The whole controller in this process, over real sockets: agents by gRPC, operators by gRPC and
// REST.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "controller/service/controller.h"
#include "controller/service/grpc_status.h"
#include "tests/controller/service/fake_cluster.h"
#include "weir/v1/admin.grpc.pb.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir {
namespace {

using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::ControllerMessage>;

// One agent with one rank: enough of both to be decided about.
class WireAgent {
 public:
  WireAgent(const std::string& target, int rank, int world) : rank_(rank), world_(world) {
    channel_ = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    stub_ = v1::AgentService::NewStub(channel_);
    stream_ = stub_->Connect(&context_);
    reader_ = std::thread([this] { Read(); });
    Greet();
  }
  ~WireAgent() {
    context_.TryCancel();
    reader_.join();
  }

  void Step(uint64_t step) {
    v1::RankMessage message;
    auto* report = message.mutable_step();
    report->set_step(step);
    report->set_step_s(0.05);
    report->set_compute_s(0.02);
    report->set_backward_s(0.02);
    report->set_exposed_s(0.01);
    report->set_plan_version(active_);
    for (int b = 0; b < 2; ++b) {
      auto* sample = report->add_buckets();
      sample->set_bucket(StrCat("000000000000000", b));
      sample->set_codec("identity");
      sample->set_collective("ring");
      sample->set_ratio(1);
      sample->set_ready_s(0.02 * b);
      sample->set_network_s(0.004);
      sample->set_payload_bytes(400000);
      sample->set_bytes_sent(400000);
      sample->set_gain(1);
    }
    Say(message);
    v1::RankMessage paths;
    for (int peer = 0; peer < world_; ++peer) {
      if (peer == rank_) continue;
      auto* path = paths.mutable_paths()->add_paths();
      path->set_peer_rank(static_cast<uint32_t>(peer));
      path->set_rtt_s(0.0004);
      path->set_delivery_rate_bytes_per_s(1e8);
    }
    Say(paths);
    if (const uint64_t armed = armed_.exchange(0); armed != 0) Activate(armed);
  }
  void Activate(uint64_t version) {
    active_ = version;
    v1::RankMessage message;
    message.mutable_active()->set_version(version);
    message.mutable_active()->set_step(5);
    Say(message);
  }
  uint64_t armed() const { return armed_; }
  uint64_t active() const { return active_; }
  bool welcomed() const { return welcomed_; }
  bool ended() const { return ended_; }

 private:
  void Greet() {
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(StrCat("w", rank_));
    hello.mutable_hello()->set_address("127.0.0.1");
    hello.mutable_hello()->set_agent_version("test");
    Write(hello);
    v1::RankMessage greeting;
    auto* rank_hello = greeting.mutable_hello();
    rank_hello->set_job("wire");
    rank_hello->set_rank(static_cast<uint32_t>(rank_));
    rank_hello->set_world(static_cast<uint32_t>(world_));
    rank_hello->set_pid(1);
    *rank_hello->mutable_capabilities() = FakeCapabilities();
    Say(greeting);
    v1::RankMessage table;
    for (int b = 0; b < 2; ++b) {
      auto* bucket = table.mutable_buckets()->add_buckets();
      bucket->set_key(StrCat("000000000000000", b));
      bucket->set_elements(100000);
      bucket->set_order(static_cast<uint32_t>(b));
    }
    Say(table);
  }
  void Say(const v1::RankMessage& message) {
    v1::AgentMessage out;
    out.mutable_rank()->set_job("wire");
    out.mutable_rank()->set_rank(static_cast<uint32_t>(rank_));
    *out.mutable_rank()->mutable_message() = message;
    Write(out);
  }
  void Write(const v1::AgentMessage& message) {
    MutexLock lock(mutex_);
    stream_->Write(message);
  }
  void Read() {
    v1::ControllerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_welcome()) welcomed_ = true;
      if (!message.has_rank()) continue;
      const auto& command = message.rank().command();
      if (command.has_offer()) {
        v1::RankMessage ack;
        ack.mutable_ack()->set_version(command.offer().plan().version());
        ack.mutable_ack()->set_nonce(command.offer().nonce());
        Say(ack);
      } else if (command.has_arm()) {
        armed_ = command.arm().version();
      }
    }
    ended_ = true;
  }

  const int rank_, world_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  Mutex mutex_;
  std::atomic<uint64_t> armed_{0}, active_{0};
  std::atomic<bool> welcomed_{false}, ended_{false};
  std::thread reader_;
};

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-server-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    options_.listen_grpc = "127.0.0.1:0";
    options_.listen_http = "127.0.0.1:0";
    options_.state_file = directory_ / "state.db";
  }
  void TearDown() override {
    controller_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    auto controller = Controller::Start(options_);
    ASSERT_TRUE(controller.ok()) << ToString(controller.status());
    controller_ = std::move(*controller);
    channel_ = grpc::CreateChannel(Target(), grpc::InsecureChannelCredentials());
    admin_ = v1::AdminService::NewStub(channel_);
  }
  std::string Target() const { return StrCat("127.0.0.1:", controller_->grpc_port()); }

  template <typename Condition>
  bool Eventually(Condition condition) {
    const TimePoint deadline = RealClock().Now() + std::chrono::seconds(20);
    while (!condition()) {
      if (RealClock().Now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  v1::Job Job() {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name("wire");
    v1::Job job;
    admin_->GetJob(&context, request, &job);
    return job;
  }
  static std::string RunCommand(const std::string& command, int* code) {
    std::string output;
    FILE* pipe = popen((command + " 2>&1").c_str(), "r");
    char buffer[4096];
    for (size_t size = 0; (size = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
      output.append(buffer, size);
    *code = WEXITSTATUS(pclose(pipe));
    return output;
  }

  std::filesystem::path directory_;
  ControllerOptions options_;
  std::unique_ptr<Controller> controller_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

TEST_F(ServerTest, AgentsTrainWhileEveryRestAnswerMatchesTheDocument) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::vector<std::unique_ptr<WireAgent>> agents;
  for (int rank = 0; rank < 2; ++rank)
    agents.push_back(std::make_unique<WireAgent>(Target(), rank, 2));
  ASSERT_TRUE(Eventually([&] { return Job().state() == "running"; }));
  EXPECT_TRUE(agents[0]->welcomed());
  std::atomic<bool> stop{false};
  std::thread training([&] {
    for (uint64_t step = 1; !stop; ++step) {
      const uint64_t before = agents[0]->active();
      for (auto& agent : agents) agent->Step(step);
      if (agents[0]->active() != before) agents[1]->Activate(agents[0]->active());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_TRUE(Eventually([&] { return Job().active_plan().version() > 0; }));
  int code = 0;
  const std::string output =
      RunCommand(StrCat("/usr/bin/python3 ", WEIR_TEST_SOURCE_DIR,
                        "/controller/service/rest_check.py ", controller_->http_port(), " wire"),
                 &code);
  stop = true;
  training.join();
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, testing::HasSubstr("GetSeries matches its schema"));
}

TEST_F(ServerTest, WatchDeliversOverGrpcAndStopEndsEverythingSoon) {
  ASSERT_NO_FATAL_FAILURE(Start());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::WatchRequest request;
  request.add_kinds("node");
  auto stream = admin_->Watch(&context, request);
  stream->WaitForInitialMetadata();
  v1::Event event;
  auto agent = std::make_unique<WireAgent>(Target(), 0, 2);
  auto other = std::make_unique<WireAgent>(Target(), 1, 2);
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.kind(), "node");
  const TimePoint begin = RealClock().Now();
  controller_.reset();
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 3);
  while (stream->Read(&event)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return agent->ended() && other->ended(); }));
}

TEST_F(ServerTest, ErrorsKeepTheirCodesOverGrpc) {
  ASSERT_NO_FATAL_FAILURE(Start());
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_name("absent");
  v1::Job job;
  const Status status = FromGrpc(admin_->GetJob(&context, request, &job));
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(Message(status), testing::HasSubstr("known: none"));
  // A stream that does not begin with NodeHello is refused with the reason.
  grpc::ClientContext stream_context;
  auto stub = v1::AgentService::NewStub(channel_);
  auto stream = stub->Connect(&stream_context);
  v1::AgentMessage message;
  message.mutable_heartbeat();
  stream->Write(message);
  v1::ControllerMessage answer;
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(FromGrpc(stream->Finish()).code(), StatusCode::kFailedPrecondition);
}

TEST_F(ServerTest, TokensGuardRestAndGrpc) {
  std::ofstream(directory_ / "tokens") << "viewer look\nadmin root\n";
  options_.token_file = directory_ / "tokens";
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto list = [&](const std::string& token) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ListJobsResponse response;
    return FromGrpc(admin_->ListJobs(&context, {}, &response)).code();
  };
  EXPECT_EQ(list(""), StatusCode::kUnauthenticated);
  EXPECT_EQ(list("look"), StatusCode::kOk);
  int code = 0;
  const auto http = [&](const std::string& arguments) {
    return RunCommand(StrCat("curl -s -o /dev/null -w '%{http_code}' ", arguments,
                             " http://127.0.0.1:", controller_->http_port(), "/v1/policies/p"),
                      &code);
  };
  EXPECT_EQ(http("-X PUT -d '{\"source\":\"name: p\\n\"}'"), "401");
  EXPECT_EQ(http("-H 'Authorization: Bearer look' -X PUT -d '{\"source\":\"name: p\\n\"}'"), "403");
  EXPECT_EQ(http("-H 'Authorization: Bearer root' -X PUT -d '{\"source\":\"name: p\\n\"}'"), "200");
}

TEST_F(ServerTest, RefusesToStartInsecurely) {
  options_.listen_http = "0.0.0.0:0";
  auto controller = Controller::Start(options_);
  EXPECT_EQ(controller.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(controller.status()), testing::HasSubstr("--token-file"));
  options_.listen_http = "127.0.0.1:0";
  options_.listen_grpc = "0.0.0.0:0";
  controller = Controller::Start(options_);
  EXPECT_THAT(Message(controller.status()), testing::HasSubstr("--tls-cert"));
  options_.insecure = true;
  EXPECT_TRUE(Controller::Start(options_).ok());
  options_.listen_grpc = "nowhere";
  EXPECT_THAT(Message(Controller::Start(options_).status()),
              testing::HasSubstr("expected host:port"));
}

TEST_F(ServerTest, PortInUseIsAClearError) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ControllerOptions second = options_;
  second.state_file = ":memory:";
  second.listen_grpc = Target();
  EXPECT_EQ(Controller::Start(second).status().code(), StatusCode::kUnavailable);
  second.listen_grpc = "127.0.0.1:0";
  second.listen_http = StrCat("127.0.0.1:", controller_->http_port());
  EXPECT_EQ(Controller::Start(second).status().code(), StatusCode::kUnavailable);
}

TEST_F(ServerTest, PolicyDirectoryReloadsGoodAndKeepsOldOnBad) {
  const auto policies = directory_ / "policies";
  std::filesystem::create_directory(policies);
  std::ofstream(policies / "a.yaml") << "name: one\n";
  options_.policy_directory = policies;
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto list = [&] {
    grpc::ClientContext context;
    v1::ListPoliciesResponse response;
    admin_->ListPolicies(&context, {}, &response);
    return response;
  };
  ASSERT_EQ(list().policies_size(), 2);
  EXPECT_EQ(list().policies(0).name(), "one");
  std::ofstream(policies / "a.yaml") << "name: two\n";
  EXPECT_TRUE(Eventually([&] { return list().policies(0).name() == "two"; }));
  std::ofstream(policies / "a.yaml") << "name: three\nbogus: 1\n";
  EXPECT_TRUE(Eventually([&] { return !list().policies(0).error().empty(); }));
  EXPECT_EQ(list().policies(0).name(), "two") << "the old policy stays";
  int code = 0;
  const std::string metrics =
      RunCommand(StrCat("curl -s http://127.0.0.1:", controller_->http_port(), "/metrics"), &code);
  EXPECT_THAT(metrics, testing::HasSubstr("weir_config_last_reload_successful 0"));
}

}  // namespace
}  // namespace weir
