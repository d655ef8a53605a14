// SPDX-License-Identifier: Apache-2.0
// weir-agent: reads flags and the clock, starts the agent, waits for a signal.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "agent/exposure.h"
#include "agent/measure/iperf_helper.h"
#include "datapath/base/clock.h"
#include "datapath/base/log.h"
#include "deploy/program/config_file.h"
#include "deploy/program/hidden_command.h"
#include "deploy/program/log_flags.h"
#include "deploy/program/loopback.h"
#include "deploy/program/notify.h"
#include "deploy/program/stop_signal.h"
#include "deploy/program/token_file.h"

namespace weir::agent {
namespace {

struct Flags {
  AgentOptions agent;
  CredentialOptions credentials;
  std::string listen_ranks;
  std::string token_file;
  std::string metrics_token_file;
  std::unique_ptr<TokenFile> metrics_tokens, rank_tokens;
  std::vector<std::string> unprotected;
  std::unique_ptr<TlsFiles> http_tls;  // where no controller needs them
  std::string socket_mode = "0660";
  LogFlags log;
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
                 "HOST:PORT or unix:FILE of the controller, or several with commas, of which the "
                 "one that leads is used; without it the agent only serves local ranks")
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
  app.add_option("--token-file", flags->token_file,
                 "file with the tokens of which TCP ranks must prove to know one")
      ->type_name("FILE");
  app.add_option("--probe-port", agent.probe_port,
                 "port of UDP echo and TCP connect probes; 0: any free one")
      ->type_name("PORT")
      ->capture_default_str();
  app.add_option("--iperf-port", agent.iperf_port, "port of the iperf3 server; 0: no iperf3")
      ->type_name("PORT")
      ->capture_default_str();
  app.add_option("--metrics", agent.http.address,
                 "IP:PORT of /metrics and /healthz, by TLS where --cert is given; none by default")
      ->type_name("ADDRESS");
  app.add_option("--metrics-token-file", flags->metrics_token_file,
                 "file with the bearer tokens of which /metrics needs one")
      ->type_name("FILE");
  app.add_flag("--access-log", agent.http.access_log, "log every answered HTTP request");
  app.add_option("--unprotected", flags->unprotected,
                 "listeners that other machines may reach in plain text and without a credential: "
                 "probes, metrics, health, ranks; separated by commas")
      ->delimiter(',')
      ->type_name("LISTENERS");
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
  app.add_option("--controller-token-file", agent.controller.token_file,
                 "file with the bearer token that the agent shows the controller; read for every "
                 "connection, never sent in plain text to another machine")
      ->type_name("FILE");
  app.add_flag("--insecure", flags->credentials.insecure,
               "allow plain text to a controller that is not on loopback");
  app.add_option("--ca", flags->credentials.ca_file, "PEM file: CA of the controller's certificate")
      ->type_name("FILE");
  app.add_option("--cert", flags->credentials.cert_file, "PEM file: this agent's certificate")
      ->type_name("FILE");
  app.add_option("--key", flags->credentials.key_file, "PEM file: this agent's private key")
      ->type_name("FILE");
  AddLogFlags(app, &flags->log);
}

// Decides how /metrics is served, and that nothing is open to other machines unless that was said.
Status Protect(Flags* flags) {
  AgentOptions& agent = flags->agent;
  const CredentialOptions& files = flags->credentials;
  const bool open = std::ranges::find(flags->unprotected, "metrics") != flags->unprotected.end();
  if (!files.cert_file.empty() && !files.key_file.empty() && !open) {
    agent.http.tls = agent.controller.credentials.files();
    if (agent.http.tls == nullptr) {
      flags->http_tls =
          std::make_unique<TlsFiles>(TlsPaths{.cert = files.cert_file, .key = files.key_file});
      agent.http.tls = flags->http_tls.get();
    }
  }
  if (!flags->metrics_token_file.empty()) {
    if (agent.http.tls == nullptr && !IsLoopbackTarget(agent.http.address)) {
      return InvalidArgument(
          "--metrics-token-file: the token would cross the network in plain text: give --cert and "
          "--key");
    }
    WEIR_ASSIGN_OR_RETURN(flags->metrics_tokens,
                          TokenFile::Open(flags->metrics_token_file, "agent"));
    agent.http.tokens = flags->metrics_tokens.get();
  }
  return CheckExposure(
      {.address = agent.address,
       .metrics = agent.http.address,
       .metrics_protected = agent.http.tls != nullptr && agent.http.tokens != nullptr,
       .health = agent.health_address,
       .ranks = flags->listen_ranks,
       .unprotected = flags->unprotected});
}

// Checks and completes flags that depend on each other.
Status Complete(Flags* flags) {
  WEIR_RETURN_IF_ERROR(UseLogFlags(flags->log));
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
    if (flags->token_file.empty()) return InvalidArgument("--listen-ranks needs --token-file");
    WEIR_ASSIGN_OR_RETURN(flags->rank_tokens, TokenFile::Open(flags->token_file, "agent"));
    agent.local.tokens = flags->rank_tokens.get();
    WEIR_ASSIGN_OR_RETURN(agent.local.tcp, SocketAddress::Parse(flags->listen_ranks));
  }
  agent.budget.capacity_bytes = flags->probe_budget_mib * (1 << 20);
  if (!flags->credentials.controller.empty()) {
    agent.controller.controller = flags->credentials.controller;
    flags->credentials.sends_token = !agent.controller.token_file.empty();
    if (flags->credentials.sends_token) {
      WEIR_RETURN_IF_ERROR(ReadTokenFile(agent.controller.token_file).status());
    }
    WEIR_ASSIGN_OR_RETURN(agent.controller.credentials, MakeCredentialFactory(flags->credentials));
  }
  WEIR_RETURN_IF_ERROR(Protect(flags));
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
