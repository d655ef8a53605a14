// SPDX-License-Identifier: Apache-2.0
// The whole controller in this process, over real sockets: agents by gRPC, operators by gRPC and
// REST.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "controller/messages/limits.h"
#include "controller/server/controller.h"
#include "controller/server/grpc/agent_service.h"
#include "controller/server/grpc/grpc_server.h"
#include "controller/server/grpc/grpc_status.h"
#include "tests/controller/server/token_line.h"
#include "tests/controller/server/wire_agent.h"
#include "tests/support/program.h"
#include "weir/v1/admin.grpc.pb.h"

namespace weir {
namespace {

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
  options_.local_role = "admin";
  ASSERT_NO_FATAL_FAILURE(Start());
  std::vector<std::unique_ptr<WireAgent>> agents;
  for (int rank = 0; rank < 2; ++rank)
    agents.push_back(std::make_unique<WireAgent>(Target(), rank, 2));
  ASSERT_TRUE(Eventually([&] { return Job().state() == "running"; }));
  EXPECT_TRUE(Eventually([&] { return agents[0]->welcomed(); }));
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
                        "/controller/server/rest_check.py ", controller_->http_port(), " wire"),
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

TEST_F(ServerTest, MessagesBeyondTheBoundAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto validate = [&](size_t bytes) {
    grpc::ClientContext context;
    v1::ValidatePolicyRequest request;
    request.set_source(std::string(bytes, '#'));
    v1::ValidatePolicyResponse response;
    return FromGrpc(admin_->ValidatePolicy(&context, request, &response)).code();
  };
  EXPECT_EQ(validate(kGrpcMessageBytesMax - 1024), StatusCode::kOk);
  EXPECT_EQ(validate(kGrpcMessageBytesMax + 1024), StatusCode::kResourceExhausted);
}

TEST_F(ServerTest, TokensGuardRestAndGrpc) {
  std::ofstream(directory_ / "tokens")
      << TokenLine("eve", "viewer", "look") << TokenLine("ann", "admin", "root");
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
    return RunCommand(
        StrCat("curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' ",
               arguments, " http://127.0.0.1:", controller_->http_port(), "/v1/policies/p"),
        &code);
  };
  EXPECT_EQ(http("-X PUT -d '{\"source\":\"name: p\\n\"}'"), "401");
  EXPECT_EQ(http("-H 'Authorization: Bearer look' -X PUT -d '{\"source\":\"name: p\\n\"}'"), "403");
  EXPECT_EQ(http("-H 'Authorization: Bearer root' -X PUT -d '{\"source\":\"name: p\\n\"}'"), "200");
}

TEST_F(ServerTest, AChangedTokenFileIsInTheAuditTrailWithoutItsTokens) {
  options_.token_file = directory_ / "tokens";
  std::ofstream(options_.token_file) << TokenLine("ann", "admin", "root");
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::ListAuditResponse audit;
  const auto list = [&] {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer root");
    return admin_->ListAudit(&context, {}, &audit).ok();
  };
  ASSERT_TRUE(list());
  EXPECT_EQ(audit.records_size(), 0);
  std::ofstream(options_.token_file)
      << TokenLine("ann", "admin", "root") << TokenLine("eve", "viewer", "look");
  EXPECT_TRUE(Eventually([&] { return list() && audit.records_size() > 0; }));
  ASSERT_EQ(audit.records_size(), 1);
  EXPECT_EQ(audit.records(0).method(), "ReadTokens");
  EXPECT_EQ(audit.records(0).proof(), "file");
  EXPECT_EQ(audit.records(0).before(), "ann admin token jobs=*\n");
  EXPECT_EQ(audit.records(0).after(), "ann admin token jobs=*\neve viewer token jobs=*\n");
}

TEST_F(ServerTest, RefusesToStartInsecurely) {
  options_.listen_http = "0.0.0.0:0";
  auto controller = Controller::Start(options_);
  EXPECT_EQ(controller.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(controller.status()), testing::HasSubstr("--token-file"));
  // Tokens alone would cross the network in plain text.
  std::ofstream(directory_ / "tokens") << TokenLine("ann", "admin", "root");
  options_.token_file = directory_ / "tokens";
  controller = Controller::Start(options_);
  EXPECT_EQ(controller.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(controller.status()), testing::HasSubstr("--tls-cert"));
  options_.token_file = "";
  options_.listen_http = "127.0.0.1:0";
  options_.listen_grpc = "0.0.0.0:0";
  controller = Controller::Start(options_);
  EXPECT_THAT(Message(controller.status()), testing::HasSubstr("--tls-cert"));
  options_.listen_grpc = "127.0.0.1:0";
  options_.listen_health = "0.0.0.0:0";
  controller = Controller::Start(options_);
  EXPECT_THAT(Message(controller.status()), testing::HasSubstr("--listen-health"));
  options_.listen_grpc = "0.0.0.0:0";
  options_.insecure = true;
  EXPECT_TRUE(Controller::Start(options_).ok());
  // It permits much, but no token in plain text.
  const auto refusal = [&] { return Message(Controller::Start(options_).status()); };
  options_.token_file = directory_ / "tokens";
  EXPECT_THAT(refusal(), testing::HasSubstr("--token-file: its tokens would cross the network"));
  options_.listen_grpc = "127.0.0.1:0";
  EXPECT_EQ(refusal(), "") << "health needs no token";
  options_.token_file = "";
  std::ofstream(directory_ / "secret") << "weir:0123456789abcdef";
  options_.aggregators = {"a=http://10.0.0.9:1"};
  EXPECT_EQ(refusal(), "");
  options_.aggregator_token_file = directory_ / "secret";
  EXPECT_THAT(refusal(), testing::HasSubstr("the token would cross the network in plain text"));
  options_.aggregators = {};
  options_.store = "etcd://10.0.0.9:1";
  options_.store_login_file = directory_ / "secret";
  EXPECT_THAT(refusal(), testing::HasSubstr("the state would cross the network to 10.0.0.9:1"));
  options_.store = options_.store_login_file = "";
  options_.listen_health = "";
  options_.listen_grpc = "nowhere";
  EXPECT_THAT(Message(Controller::Start(options_).status()),
              testing::HasSubstr("expected host:port"));
}

TEST_F(ServerTest, UnixSocketNeedsNoTls) {
  options_.listen_grpc = StrCat("unix:", (directory_ / "grpc.sock").string());
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto admin = v1::AdminService::NewStub(
      grpc::CreateChannel(options_.listen_grpc, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::ListJobsResponse response;
  EXPECT_TRUE(admin->ListJobs(&context, {}, &response).ok());
}

TEST_F(ServerTest, ReflectionNamesTheServicesWhereEverybodyIsAdmin) {
  options_.trust_loopback = true;
  ASSERT_NO_FATAL_FAILURE(Start());
  int code = 0;
  // ServerReflectionRequest{list_services: ""} in a frame of gRPC.
  const std::string answer = RunCommand(
      StrCat("printf '\\000\\000\\000\\000\\002\\072\\000' | curl -s -m 10 --http2-prior-knowledge "
             "-H 'content-type: application/grpc' -H 'te: trailers' --data-binary @- http://",
             Target(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
      &code);
  EXPECT_EQ(code, 0);
  for (const char* service : {"weir.v1.AdminService", "weir.v1.AgentService", "grpc.health.v1"}) {
    EXPECT_THAT(answer, testing::HasSubstr(service));
  }
}

TEST_F(ServerTest, NothingIsReflectedWhereNotEverybodyIsAdmin) {
  std::ofstream(directory_ / "tokens") << TokenLine("ann", "admin", "root");
  options_.token_file = directory_ / "tokens";
  ASSERT_NO_FATAL_FAILURE(Start());
  int code = 0;
  const std::string answer = RunCommand(
      StrCat("printf '\\000\\000\\000\\000\\002\\072\\000' | curl -s -m 10 --http2-prior-knowledge "
             "-H 'content-type: application/grpc' -H 'te: trailers' --data-binary @- http://",
             Target(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
      &code);
  EXPECT_THAT(answer, testing::Not(testing::HasSubstr("weir.v1")));
}

// One client could hold any number of calls open.
TEST_F(ServerTest, AConnectionHasSoManyOpenCalls) {
  ASSERT_NO_FATAL_FAILURE(Start());
  grpc::ChannelArguments own;  // a connection that no other channel uses
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(Target(), grpc::InsecureChannelCredentials(), own);
  const auto agents = v1::AgentService::NewStub(channel);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ControllerMessage>>>
      streams;
  for (int i = 0; i < kGrpcStreamsMax; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(agents->Connect(contexts.back().get()));
  }
  const auto ask = [](v1::AdminService::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    v1::ListJobsResponse response;
    return stub.ListJobs(&context, {}, &response).error_code();
  };
  EXPECT_EQ(ask(*v1::AdminService::NewStub(channel)), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ask(*admin_), grpc::StatusCode::OK) << "others are not concerned";
  contexts.front()->TryCancel();
  streams.front()->Finish();
  EXPECT_EQ(ask(*v1::AdminService::NewStub(channel)), grpc::StatusCode::OK);
  for (const auto& context : contexts) context->TryCancel();
  for (size_t i = 1; i < streams.size(); ++i) streams[i]->Finish();
}

// One agent could keep the controller's thread busy with as many messages as it can send.
TEST_F(ServerTest, AStreamHasSoManyMessagesASecond) {
  ASSERT_NO_FATAL_FAILURE(Start());
  constexpr int kCount = 2 * AgentServiceImpl::kMessagesPerSecondMax + 100;
  const TimePoint begin = RealClock().Now();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto stub = v1::AgentService::NewStub(channel_);
  const auto stream = stub->Connect(&context);
  v1::AgentMessage message;
  message.mutable_hello()->set_node("n");
  stream->Write(message);
  message.mutable_heartbeat();
  for (int i = 0; i < kCount; ++i) ASSERT_TRUE(stream->Write(message));
  message.mutable_hello()->set_node("other");  // ends the stream: all before it have been read
  stream->Write(message);
  v1::ControllerMessage answer;
  while (stream->Read(&answer)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_GE(ToSeconds(RealClock().Now() - begin), 1.99);
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
  // A file may also have been read while it was being written, and be in the trail as that, too.
  const auto recorded = [&](const std::string& outcome, const std::string& text) {
    grpc::ClientContext context;
    v1::ListAuditResponse audit;
    admin_->ListAudit(&context, {}, &audit);
    return std::any_of(audit.records().begin(), audit.records().end(), [&](const auto& record) {
      return record.method() == "ReadPolicies" && record.target() == policies &&
             record.outcome() == outcome &&
             StrCat(record.before(), record.after(), record.reason()).find(text) !=
                 std::string::npos;
    });
  };
  EXPECT_TRUE(Eventually([&] { return recorded("INVALID_ARGUMENT", "bogus"); }));
  EXPECT_TRUE(recorded("OK", "name: one"));
  EXPECT_TRUE(recorded("OK", "name: two"));
  int code = 0;
  const std::string metrics =
      RunCommand(StrCat("curl -s http://127.0.0.1:", controller_->http_port(), "/metrics"), &code);
  EXPECT_THAT(metrics, testing::HasSubstr("weir_config_last_reload_successful 0"));
}

#ifdef WEIR_AGGREGATOR_PROGRAM
/// Two ranks that could sum on an aggregator, and train until this ends.
class WireTraining {
 public:
  WireTraining(const std::string& target, const WireRank& rank, int first_port) {
    for (int r = 0; r < 2; ++r) {
      WireRank with = rank;
      with.aggregation_address = StrCat("127.0.0.1:", first_port + r);
      agents_.push_back(std::make_unique<WireAgent>(
          target, r, 2, grpc::InsecureChannelCredentials(), std::move(with)));
    }
    thread_ = std::thread([this, first = rank.step + 1] {
      for (step_ = first; !stop_; ++step_) {
        const uint64_t before = agents_[0]->active();
        for (auto& agent : agents_) agent->Step(step_);
        if (agents_[0]->active() != before) agents_[1]->Activate(agents_[0]->active());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  ~WireTraining() {
    stop_ = true;
    thread_.join();
  }
  uint64_t step() const { return step_; }
  v1::Plan offered() const { return agents_[0]->offered(); }  // last

 private:
  std::vector<std::unique_ptr<WireAgent>> agents_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> step_{0};
  std::thread thread_;
};

// Only its owner can renew or end a lease on an aggregator.
TEST_F(ServerTest, ARestartedControllerOwnsTheLeasesOfTheFormerOne) {
  Program aggregator({WEIR_AGGREGATOR_PROGRAM, "--port", "0", "--http", "127.0.0.1:0"});
  aggregator.ReadUntil([&] { return aggregator.output.find('\n') != std::string::npos; });
  char host[64] = {};
  int port = 0;
  ASSERT_EQ(std::sscanf(aggregator.output.c_str(), "http %63[0-9.]:%d", host, &port), 2);
  options_.aggregators = {StrCat("sum-1=http://", host, ":", port)};
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto pin = [&](const std::string& collective) {
    grpc::ClientContext context;
    v1::PinRequest request;
    request.set_job("wire");
    request.mutable_choice()->set_codec("identity");
    request.mutable_choice()->set_collective(collective);
    request.mutable_choice()->set_ratio(1);
    v1::PinResponse response;
    return admin_->Pin(&context, request, &response).ok();
  };
  const auto epoch = [&] {
    const v1::Plan plan = Job().active_plan();
    return plan.leases_size() == 1 ? plan.leases(0).epoch() : 0;
  };
  // Slots of the job's lease as the aggregator reports them; 0: it has none, -1: it does not
  // answer.
  const auto granted = [&] {
    grpc::ClientContext context;
    v1::ListAggregatorsResponse response;
    admin_->ListAggregators(&context, {}, &response);
    if (response.aggregators_size() != 1 || !response.aggregators(0).reachable()) return -1;
    const auto& leases = response.aggregators(0).leases();
    return leases.empty() ? 0 : static_cast<int>(leases[0].epoch());
  };
  auto training = std::make_unique<WireTraining>(Target(), WireRank(), 40000);
  ASSERT_TRUE(Eventually([&] { return pin("switchml") && epoch() == 1; }));
  WireRank rank = {.step = training->step(), .plan = training->offered()};
  ASSERT_EQ(rank.plan.leases_size(), 1);
  const auto restart = [&] {
    training.reset();
    controller_.reset();
    ASSERT_NO_FATAL_FAILURE(Start());
  };
  // The same ranks reconnect with their plan: the lease is kept, and ended when it is no longer
  // needed.
  restart();
  training = std::make_unique<WireTraining>(Target(), rank, 40000);
  ASSERT_TRUE(Eventually([&] { return Job().state() == "running" && epoch() == 1; }));
  ASSERT_TRUE(Eventually([&] { return granted() == 1; }));
  ASSERT_TRUE(pin("ring"));
  ASSERT_TRUE(Eventually([&] { return Job().active_plan().leases_size() == 0; }));
  EXPECT_TRUE(Eventually([&] { return granted() == 0; })) << "the lease was not ended";
  // Other ranks attach: the aggregator still has the earlier lease, which is renewed.
  ASSERT_TRUE(pin("switchml"));
  ASSERT_TRUE(Eventually([&] { return epoch() > 1 && granted() > 1; }));
  const int former = granted();
  restart();
  training = std::make_unique<WireTraining>(Target(), WireRank{.pid = 2}, 41000);
  EXPECT_TRUE(Eventually([&] { return static_cast<int>(epoch()) > former; }))
      << "the lease was not renewed";
  EXPECT_TRUE(Eventually([&] { return granted() == static_cast<int>(epoch()); }));
}
#endif

}  // namespace
}  // namespace weir
