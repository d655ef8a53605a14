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
    if (!MakeCertificates(directory_, "ca", {"server", "client"}) ||
        !MakeCertificates(directory_, "other", {"stranger"})) {
      GTEST_SKIP() << "openssl cannot make certificates here";
    }
    EndController();
    StartController({"--tls-cert", File("server.pem"), "--tls-key", File("server.key"), "--tls-ca",
                     File("ca.pem")});
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
  EXPECT_EQ(Ask("ca", "client"), kOk);
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
  start("friend", Flags("ca", "client"));
  std::vector<std::string> ask = {"get", "nodes", "-o", "json"};
  const auto flags = Flags("ca", "client");
  ask.insert(ask.end(), flags.begin(), flags.end());
  std::string nodes;
  EXPECT_TRUE(Eventually([&] {
    nodes = Run(ask).output;
    return nodes.find("friend") != npos;
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

}  // namespace
}  // namespace weir::cli
