// SPDX-License-Identifier: Apache-2.0
// weir-agent: reads flags and the clock, starts the agent, waits for a signal.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "agent/agent.h"
#include "agent/measure/iperf_helper.h"
#include "datapath/base/clock.h"
#include "datapath/base/log.h"
#include "deploy/program/config_file.h"
#include "deploy/program/hidden_command.h"
#include "deploy/program/notify.h"
#include "deploy/program/stop_signal.h"

namespace weir::agent {
namespace {

struct Flags {
  AgentOptions agent;
  CredentialOptions credentials;
  std::string listen_ranks;
  std::string token_file;
  std::string socket_mode = "0660";
  std::string log_level = "info";
  double probe_budget_mib = 64;
};

void DefineFlags(CLI::App& app, Flags* flags) {
  AgentOptions& agent = flags->agent;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  agent.node = host.data();
  agent.address = "127.0.0.1";
  agent.local.socket_path = "/run/weir/agent.sock";
  app.set_version_flag("--version", "weir-agent " WEIR_VERSION);
  app.add_option("--node", agent.node, "name of this node, unique in the cluster")
      ->default_str("this host's name");
  app.add_option("--address", agent.address, "IP address at which other nodes reach this one")
      ->type_name("IP")
      ->capture_default_str();
  app.add_option("--controller", flags->credentials.controller,
                 "HOST:PORT or unix:FILE of the controller; without it the agent only serves local "
                 "ranks")
      ->type_name("ADDRESS");
  app.add_option("--socket", agent.local.socket_path, "Unix socket for ranks; empty for none")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--socket-mode", flags->socket_mode, "octal permissions of the socket file")
      ->type_name("MODE")
      ->capture_default_str();
  app.add_option("--listen-ranks", flags->listen_ranks,
                 "IP:PORT for ranks over TCP; needs --token-file")
      ->type_name("ADDRESS");
  app.add_option("--token-file", flags->token_file, "file with the token that TCP ranks present")
      ->type_name("FILE");
  app.add_option("--probe-port", agent.probe_port,
                 "port of UDP echo and TCP connect probes; 0: any free one")
      ->type_name("PORT")
      ->capture_default_str();
  app.add_option("--iperf-port", agent.iperf_port, "port of the iperf3 server; 0: no iperf3")
      ->type_name("PORT")
      ->capture_default_str();
  app.add_option("--metrics", agent.metrics_address,
                 "IP:PORT at which /metrics is served; none by default")
      ->type_name("ADDRESS");
  app.add_option("--health", agent.health_address,
                 "IP:PORT of gRPC health checks in plain text; none by default")
      ->type_name("ADDRESS");
  app.add_option("--nvml", agent.nvml_library,
                 "NVIDIA's management library, which describes GPUs; empty for none")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--nccl-table", agent.nccl_table_file,
                 "file with the table for processes that run NCCL with libnccl-weir.so")
      ->type_name("FILE");
  app.add_option("--probe-share", agent.budget.share,
                 "probe bytes as a share of the training bytes sent by local ranks")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--probe-budget-mib", flags->probe_budget_mib,
                 "largest budget of active probes in MiB, and the budget at the start")
      ->check(CLI::Range(0.0, 65536.0))
      ->capture_default_str();
  app.add_flag("--insecure", flags->credentials.insecure,
               "allow plain text to a controller that is not on loopback");
  app.add_option("--ca", flags->credentials.ca_file, "PEM file: CA of the controller's certificate")
      ->type_name("FILE");
  app.add_option("--cert", flags->credentials.cert_file, "PEM file: this agent's certificate")
      ->type_name("FILE");
  app.add_option("--key", flags->credentials.key_file, "PEM file: this agent's private key")
      ->type_name("FILE");
  app.add_option("--log-level", flags->log_level,
                 "least severe level that is written to standard error")
      ->type_name("LEVEL:{debug,info,warning,error}")
      ->capture_default_str();
}

StatusOr<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return InvalidArgument("--listen-ranks needs --token-file");
  std::ifstream file(path);
  std::string token;
  if (!file || !(file >> token)) return InvalidArgument(StrCat("no token in ", path));
  if (token.size() < 16) {
    return InvalidArgument(
        StrCat("expected a token of at least 16 characters in ", path, ", found ", token.size()));
  }
  return token;
}

// Checks and completes flags that depend on each other.
Status Complete(Flags* flags) {
  WEIR_ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(flags->log_level));
  SetMinimumLogLevel(level);
  size_t parsed = 0;
  unsigned long mode = 0;
  try {
    mode = std::stoul(flags->socket_mode, &parsed, 8);
  } catch (const std::exception&) {
    parsed = 0;
  }
  if (parsed == 0 || parsed != flags->socket_mode.size() || mode > 0777) {
    return InvalidArgument(
        StrCat("--socket-mode: expected octal 0 to 0777, found '", flags->socket_mode, "'"));
  }
  AgentOptions& agent = flags->agent;
  agent.local.socket_mode = static_cast<uint32_t>(mode);
  if (!flags->listen_ranks.empty()) {
    WEIR_ASSIGN_OR_RETURN(agent.local.token, ReadToken(flags->token_file));
    WEIR_ASSIGN_OR_RETURN(agent.local.tcp, SocketAddress::Parse(flags->listen_ranks));
  }
  agent.budget.capacity_bytes = flags->probe_budget_mib * (1 << 20);
  if (!flags->credentials.controller.empty()) {
    agent.controller.controller = flags->credentials.controller;
    WEIR_ASSIGN_OR_RETURN(agent.controller.credentials, MakeCredentialFactory(flags->credentials));
  }
  std::random_device device;
  agent.seed = (static_cast<uint64_t>(device()) << 32) | device();
  agent.controller.seed = (static_cast<uint64_t>(device()) << 32) | device();
  std::array<char, 17> instance{};
  std::snprintf(instance.data(), instance.size(), "%08x%08x", device(), device());
  agent.instance = instance.data();
  agent.version = WEIR_VERSION;
  agent.helper_program = std::filesystem::read_symlink("/proc/self/exe").string();
  return OkStatus();
}

int Fail(const Status& status) {
  Log(LogLevel::kError, "agent", Message(status));
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound
             ? 2
             : 1;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == kProbeHelperFlag) return RunIperfHelper();
  CLI::App app{
      "weir-agent: measures this node's network and connects its training ranks to the "
      "controller"};
  Flags flags;
  DefineFlags(app, &flags);
  AddConfigFile(app);
  const ProgramPage page{"weir-agent", {"weir-controller 1", "weirctl 1"}, nullptr};
  if (const auto answered = AnswerHiddenCommand(app, page, argc, argv)) return *answered;
  CLI11_PARSE(app, argc, argv);

  HoldStopSignals();
  const Status complete = Complete(&flags);
  if (!complete.ok()) return Fail(complete);
  const auto agent = Agent::Start(flags.agent, RealClock());
  if (!agent.ok()) return Fail(agent.status());
  Log(LogLevel::kInfo, "agent",
      StrCat("node ", flags.agent.node, " serves ranks at ", flags.agent.local.socket_path,
             ", probes at port ", (*agent)->probe_port()));
  const Status told = NotifyReady(std::getenv("NOTIFY_SOCKET"));
  if (!told.ok()) Log(LogLevel::kWarning, "agent", Message(told));
  const int received = WaitForStopSignal();
  Log(LogLevel::kInfo, "agent", StrCat("ending on signal ", received));
  return 0;
}

}  // namespace
}  // namespace weir::agent

int main(int argc, char** argv) { return weir::agent::Main(argc, argv); }
