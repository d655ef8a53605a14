// SPDX-License-Identifier: Apache-2.0
// A controller with more to do than it can, and agents that must not suffer from it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "controller/server/backups.h"
#include "controller/server/grpc/agent_service.h"
#include "controller/server/grpc/grpc_server.h"
#include "tests/controller/server/wire_agent.h"

namespace weir {
namespace {

class OverloadTest : public testing::Test {
 protected:
  void Start(AdmissionLimits limits) {
    executor_.Start([this] { served_->fleet.OnTick(); });
    auto server = GrpcServer::Start({.address = "127.0.0.1:0",
                                     .tls = nullptr,
                                     .local = {.role = Role::kAdmin, .agent = true},
                                     .admission = limits},
                                    executor_, served_, calls_, events_, anyone_);
    ASSERT_TRUE(server.ok()) << ToString(server.status());
    server_ = std::move(*server);
  }
  void TearDown() override {
    events_.Close();
    if (server_ != nullptr) server_->Stop(Duration(0));
    executor_.Stop();
  }
  std::string Target() const { return StrCat("127.0.0.1:", server_->port()); }

  static FleetOptions Impatient() {
    FleetOptions options;
    options.node_silence_max_s = 0.5;
    return options;
  }

  EventHub events_;
  std::unique_ptr<Store> store_ = std::move(*OpenSqliteStore(":memory:"));
  ServedPlane served_{std::make_unique<ControlPlane>(Impatient(), RealClock(), *store_, events_)};
  Executor executor_;
  Authenticator anyone_;
  AuditTrail audit_{*store_};
  Backups backups_{*store_, "/nonexistent/backup"};
  AdminCalls calls_{executor_, served_, audit_, anyone_, backups_};
  std::unique_ptr<GrpcServer> server_;
};

// One stream by hand, so that nothing is sent but what the test wants.
struct RawAgent {
  explicit RawAgent(const std::string& target, const std::string& node) {
    channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    stub = v1::AgentService::NewStub(channel);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    stream = stub->Connect(&context);
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(node);
    hello.mutable_hello()->set_address("127.0.0.1");
    stream->Write(hello);
  }
  bool Welcomed() {
    v1::ControllerMessage message;
    return stream->Read(&message) && message.has_welcome();
  }

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::AgentService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ControllerMessage>> stream;
};

TEST_F(OverloadTest, WhoComesTooSoonIsToldWhenToComeBack) {
  ASSERT_NO_FATAL_FAILURE(Start({.greetings_per_s = 0.2, .burst = 0.5}));
  RawAgent first(Target(), "n1");
  EXPECT_TRUE(first.Welcomed());
  RawAgent second(Target(), "n2");
  EXPECT_FALSE(second.Welcomed());
  const grpc::Status status = second.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(),
              testing::HasSubstr("busy, many agents are connecting: come back in"));
  const auto& trailers = second.context.GetServerTrailingMetadata();
  const auto found = trailers.find(AgentServiceImpl::kRetryAfter);
  ASSERT_NE(found, trailers.end());
  EXPECT_GE(std::stoi(std::string(found->second.data(), found->second.size())), 500);
  first.context.TryCancel();
}

// The message of the agent arrives, but the executor is busy for longer than an agent may be
// silent.
TEST_F(OverloadTest, AnAgentWhoseMessageWaitsIsNotTakenForDead) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  RawAgent agent(Target(), "n1"), silent(Target(), "n2");
  ASSERT_TRUE(agent.Welcomed());
  ASSERT_TRUE(silent.Welcomed());
  std::atomic<bool> busy{true};
  executor_.Post([&] {
    while (busy) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  v1::AgentMessage link;
  link.mutable_link()->set_target_node("n1");
  ASSERT_TRUE(agent.stream->Write(link));
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  // In front of the telemetry that waits: what looks for silent agents, again and again.
  for (int i = 0; i < 20; ++i) executor_.Post([this] { served_->fleet.OnTick(); });
  bool connected = false, silent_connected = true;
  executor_.Post([&] {
    connected = served_->fleet.nodes().Connected("n1");
    silent_connected = served_->fleet.nodes().Connected("n2");
  });
  busy = false;
  ASSERT_TRUE(executor_.Call([] { return OkStatus(); }).ok());
  EXPECT_TRUE(connected);
  EXPECT_FALSE(silent_connected);
  agent.context.TryCancel();
  silent.context.TryCancel();
}

TEST(BackupsTest, PartsMakeTheCopyAndTheLastOneRemovesIt) {
  char name[] = "/tmp/weir-backups-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  const std::filesystem::path directory = name;
  FakeClock clock;
  {
    auto store = std::move(*OpenSqliteStore(directory / "state.db"));
    ASSERT_TRUE(store->PutFact("big", std::string(2'500'000, 'x')).ok());
    const std::string copy = directory / "state.db.backup";
    std::ofstream(copy) << "left by a controller that died";
    Backups backups(*store, copy, clock);
    EXPECT_FALSE(std::filesystem::exists(copy));
    EXPECT_EQ(backups.Read("", 0).status().code(), StatusCode::kNotFound);
    const auto id = backups.Start();
    ASSERT_TRUE(id.ok());
    EXPECT_EQ(backups.Read("another", 0).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(backups.Start().status().code(), StatusCode::kFailedPrecondition);
    BackupContents part;
    for (int i = 0; i < 2000 && !part.ready; ++i) {
      part = *backups.Read(*id, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_TRUE(part.ready);
    EXPECT_EQ(part.data.size(), Backups::kPartBytesMax);
    std::string whole;
    while (whole.size() < part.bytes) {
      const auto next = backups.Read(*id, whole.size());
      ASSERT_TRUE(next.ok() && !next->data.empty());
      whole += next->data;
    }
    EXPECT_TRUE(backups.Read(*id, whole.size())->data.empty());
    EXPECT_FALSE(std::filesystem::exists(copy));
    EXPECT_EQ(backups.Read(*id, 0).status().code(), StatusCode::kNotFound);
    std::ofstream(directory / "here.db", std::ios::binary) << whole;
    EXPECT_EQ((*OpenSqliteStore(directory / "here.db"))->GetFact("big")->size(), 2'500'000u);
    // Abandoned ones make way.
    ASSERT_TRUE(backups.Start().ok());
    for (int i = 0; i < 2000 && !std::filesystem::exists(copy); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    clock.Advance(Backups::kAbandonedAfter + std::chrono::seconds(1));
    StatusOr<std::string> next = backups.Start();
    for (int i = 0; i < 2000 && !next.ok(); ++i) {  // until the copy is made
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      next = backups.Start();
    }
    EXPECT_TRUE(next.ok()) << ToString(next.status());
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace weir
