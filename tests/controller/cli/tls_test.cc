// SPDX-License-Identifier: Apache-2.0
// Mutual TLS between the real programs: certificates that the controller accepts, and programs that
// accept the controller's.

#include "tests/controller/cli/weirctl_world.h"
#include "tests/support/certificates.h"

namespace weir::cli {
namespace {

class TlsTest : public WeirctlTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(WeirctlTest::SetUp());
    if (!MakeCertificates(directory_, "ca", {"server", "client", "person"}) ||
        !MakeCertificates(directory_, "other", {"stranger"})) {
      GTEST_SKIP() << "openssl cannot make certificates here";
    }
    EndController();
    std::ofstream(File("tokens")) << "pat admin cert:person\n";
    StartController({"--token-file", File("tokens"), "--tls-cert", File("server.pem"), "--tls-key",
                     File("server.key"), "--tls-ca", File("ca.pem")});
  }
  std::string File(const std::string& name) const { return directory_ / name; }

  std::vector<std::string> Flags(const std::string& ca, const std::string& client) const {
    std::vector<std::string> flags = {"--ca", File(ca + ".pem")};
    if (!client.empty()) {
      flags.insert(flags.end(), {"--cert", File(client + ".pem"), "--key", File(client + ".key")});
    }
    return flags;
  }
  int Ask(const std::string& ca, const std::string& client) const {
    std::vector<std::string> arguments = {"get", "nodes", "--timeout", "3"};
    const auto flags = Flags(ca, client);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Run(arguments).code;
  }
};

TEST_F(TlsTest, OperatorsNeedACertificateOfTheAuthorityAndTrustOnlyIt) {
  EXPECT_EQ(Ask("ca", "person"), kOk);
  EXPECT_EQ(Ask("ca", ""), kUnreachable) << "no certificate";
  EXPECT_EQ(Ask("ca", "stranger"), kUnreachable) << "signed by another authority";
  EXPECT_EQ(Ask("other", "client"), kUnreachable) << "the controller is another authority's";
  EXPECT_EQ(Run({"get", "nodes", "--timeout", "3"}).code, kUnreachable) << "plain text";
}

TEST_F(TlsTest, AgentsNeedACertificateOfTheAuthorityAndTrustOnlyIt) {
  std::vector<std::unique_ptr<Program>> agents;
  const auto start = [&](const std::string& node, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {
        WEIR_AGENT_PROGRAM, "--node", node,       "--controller",       target_,
        "--probe-port",     "0",      "--socket", File(node + ".sock"), "--nvml",
        WEIR_FAKE_NVML};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    agents.push_back(std::make_unique<Program>(arguments));
  };
  start("no-certificate", Flags("ca", ""));
  start("stranger", Flags("ca", "stranger"));
  start("deceived", Flags("other", "client"));
  // Each of those three has tried when it has logged that it found no controller.
  for (auto& agent : agents) {
    EXPECT_TRUE(agent->ReadUntil([&] { return agent->error.find("no connection") != npos; }))
        << agent->error;
  }
  start("client", Flags("ca", "client"));
  std::vector<std::string> ask = {"get", "nodes", "-o", "json"};
  const auto flags = Flags("ca", "person");
  ask.insert(ask.end(), flags.begin(), flags.end());
  std::string nodes;
  EXPECT_TRUE(Eventually([&] {
    nodes = Run(ask).output;
    return nodes.find("client") != npos;
  })) << nodes;
  const auto json = nlohmann::json::parse(nodes, nullptr, false);
  ASSERT_TRUE(json.is_object()) << nodes;
  EXPECT_EQ(json["nodes"].size(), 1u) << nodes;
  // The agent's facts about itself arrive with it.
  EXPECT_EQ(json["nodes"][0]["gpus"][0]["uuid"], "GPU-0123") << nodes;
  ask.erase(ask.begin() + 2, ask.begin() + 4);
  const std::string table = Run(ask).output;
  EXPECT_NE(table.find("1x Fake H100, 1x Fake vGPU"), npos) << table;
}

// Any certificate of the authority could apply policies and pin jobs.
TEST_F(TlsTest, ACertificateAloneMakesNobodyAnOperator) {
  const std::string policy = WeirctlTest::File("policy.yaml", "name: mine\n");
  const auto ask = [&](const std::string& who, std::vector<std::string> arguments) {
    const auto flags = Flags("ca", who);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Run(arguments);
  };
  const Ran refused = ask("client", {"apply", "-f", policy});
  EXPECT_EQ(refused.code, kFailure);
  EXPECT_NE(refused.error.find("needs role admin, client (certificate) has none"), npos)
      << refused.error;
  EXPECT_EQ(ask("client", {"get", "nodes"}).code, kFailure);
  EXPECT_EQ(ask("person", {"apply", "-f", policy}).code, kOk);
  // The file is read again when it changes.
  std::ofstream(File("tokens")) << "pat viewer cert:person\n";
  const Ran viewer = ask("person", {"apply", "-f", policy});
  EXPECT_NE(viewer.error.find("pat (certificate) has viewer"), npos) << viewer.error;
  EXPECT_EQ(ask("person", {"get", "policies"}).code, kOk);
}

// Any certificate could be the agent of any node, and took the node from its agent.
TEST_F(TlsTest, AnAgentSpeaksOnlyForTheNodeOfItsCertificateAndASecondOneIsRefused) {
  grpc::SslCredentialsOptions shown{Contents(File("ca.pem")), Contents(File("client.key")),
                                    Contents(File("client.pem"))};
  const auto channel = grpc::CreateChannel(target_, grpc::SslCredentials(shown));
  const auto stub = v1::AgentService::NewStub(channel);
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ControllerMessage>> stream;
  };
  const auto greet = [&](const std::string& node, const std::string& instance) {
    auto made = std::make_unique<Stream>();
    made->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    made->stream = stub->Connect(&made->context);
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node(node);
    hello.mutable_hello()->set_address("127.0.0.1");
    hello.mutable_hello()->set_instance(instance);
    made->stream->Write(hello);
    return made;
  };
  v1::ControllerMessage answer;
  const auto other = greet("victim", "");
  EXPECT_FALSE(other->stream->Read(&answer));
  const grpc::Status denied = other->stream->Finish();
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(denied.error_message(),
            "client (certificate) speaks for the nodes client, not for 'victim'");
  const auto first = greet("client", "one");
  ASSERT_TRUE(first->stream->Read(&answer)) << "welcome";
  const auto second = greet("client", "two");
  EXPECT_FALSE(second->stream->Read(&answer));
  EXPECT_EQ(second->stream->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  const auto again = greet("client", "one");
  EXPECT_TRUE(again->stream->Read(&answer)) << "the same agent comes again";
  first->context.TryCancel();
  again->context.TryCancel();
}

}  // namespace
}  // namespace weir::cli
