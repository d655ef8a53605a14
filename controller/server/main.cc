// SPDX-License-Identifier: Apache-2.0
// weir-controller: reads flags, starts the controller, waits for SIGTERM or SIGINT.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "controller/server/controller.h"
#include "controller/store/store.h"
#include "datapath/base/log.h"
#include "deploy/program/config_file.h"
#include "deploy/program/file_limit.h"
#include "deploy/program/hidden_command.h"
#include "deploy/program/log_flags.h"
#include "deploy/program/notify.h"
#include "deploy/program/stop_signal.h"

namespace {

void DefineFlags(CLI::App& app, weir::ControllerOptions& options, weir::LogFlags& log,
                 std::string& restore) {
  app.add_option("--listen-grpc", options.listen_grpc,
                 "host:port, or unix:FILE, for agents and weirctl")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--listen-http", options.listen_http, "host:port for REST, web page and /metrics")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--state", options.state_file, "SQLite file, or :memory:")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--store", options.store,
                 "etcd://HOST:PORT[,HOST:PORT...][/PREFIX], shared with controllers that stand by, "
                 "instead of --state; etcds:// for TLS")
      ->type_name("ADDRESS");
  app.add_option("--store-ca", options.store_ca,
                 "CA file (PEM) that signs etcd's certificates; the system's without")
      ->type_name("FILE");
  app.add_option("--store-cert", options.store_cert, "certificate file (PEM) shown to etcd")
      ->type_name("FILE");
  app.add_option("--store-key", options.store_key, "its key file (PEM)")->type_name("FILE");
  app.add_option("--store-login-file", options.store_login_file,
                 "file with a line USER:PASSWORD for etcd")
      ->type_name("FILE");
  app.add_option("--advertise-grpc", options.advertise_grpc,
                 "host:port at which agents and weirctl reach this controller, for those that ask "
                 "one that stands by; --listen-grpc without")
      ->type_name("ADDRESS");
  app.add_option("--advertise-http", options.advertise_http,
                 "http(s)://host:port of its REST API, likewise")
      ->type_name("URL");
  app.add_option("--policy", options.policy_directory,
                 "directory of policy files, reloaded when it changes")
      ->type_name("DIRECTORY");
  app.add_option("--token-file", options.token_file,
                 "principals: lines NAME ROLES CREDENTIAL [jobs=PATTERNS] [nodes=PATTERNS]; roles "
                 "viewer, operator, admin, agent; credential sha256:HEX of a token or cert:NAME; "
                 "read again when it changes")
      ->type_name("FILE");
  app.add_option("--tls-cert", options.tls_cert, "certificate file (PEM) of both listeners")
      ->type_name("FILE");
  app.add_option("--tls-key", options.tls_key, "its key file (PEM)")->type_name("FILE");
  app.add_option("--tls-ca", options.tls_ca,
                 "CA file (PEM) that signs agents' and weirctl's certificates")
      ->type_name("FILE");
  app.add_option("--aggregator", options.aggregators,
                 "NAME=http(s)://HOST:PORT of an aggregator whose slots jobs may use; repeatable")
      ->type_name("AGGREGATOR");
  app.add_option("--aggregator-token-file", options.aggregator_token_file,
                 "bearer token of the aggregators")
      ->type_name("FILE");
  app.add_option("--aggregator-ca", options.aggregator_ca,
                 "CA file (PEM) that signs the aggregators' certificates; the system's without")
      ->type_name("FILE");
  app.add_option("--local-role", options.local_role,
                 "what HTTP on loopback permits without token or session, where there is no "
                 "--token-file")
      ->type_name("ROLE:{none,viewer,operator,admin}")
      ->capture_default_str();
  app.add_option("--http-host", options.http_names,
                 "name by which browsers may reach HTTP on loopback, through a proxy; repeatable")
      ->type_name("NAME");
  app.add_flag("--trust-loopback", options.trust_loopback,
               "over gRPC on loopback, every user of this machine is admin without a token, not "
               "only root and the controller's own user");
  app.add_option("--listen-health", options.listen_health,
                 "host:port of /healthz and /readyz alone, answered by threads of their own; none "
                 "by default")
      ->type_name("ADDRESS");
  app.add_flag("--access-log", options.access_log, "log every answered request");
  app.add_flag("--insecure", options.insecure,
               "allow addresses off loopback without TLS and tokens");
  weir::AddLogFlags(app, &log);
  app.add_option(
         "--restore", restore,
         "make this file, which 'weirctl backup' wrote, the state in --state, and end; what "
         "was there is kept as FILE.before-restore")
      ->type_name("FILE");
  app.set_version_flag("--version", std::string("weir-controller ") + WEIR_VERSION);
  weir::AddConfigFile(app);
}

}  // namespace

int main(int argc, char** argv) {
  weir::ControllerOptions options;
  options.fleet.version = WEIR_VERSION;
  weir::LogFlags log;
  std::string restore;
  CLI::App app(
      "weir-controller: measures training jobs through their agents and chooses how they compress "
      "and send gradients");
  DefineFlags(app, options, log, restore);
  const weir::ProgramPage page{"weir-controller", {"weir-agent 1", "weirctl 1"}, nullptr};
  if (const auto answered = weir::AnswerHiddenCommand(app, page, argc, argv)) return *answered;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const weir::Status logs = weir::UseLogFlags(log);
  if (!logs.ok()) {
    std::fprintf(stderr, "weir-controller: %s\n", weir::Message(logs).c_str());
    return 2;
  }

  if (!restore.empty()) {
    const weir::Status restored = weir::RestoreSqliteStore(restore, options.state_file);
    if (!restored.ok()) {
      std::fprintf(stderr, "weir-controller: --restore: %s\n", weir::Message(restored).c_str());
      return 1;
    }
    std::printf("%s is restored from %s; start the controller without --restore\n",
                options.state_file.c_str(), restore.c_str());
    return 0;
  }

  constexpr uint64_t kFilesWanted = 16384;  // as many agents as the fleet may have
  if (const uint64_t files = weir::RaiseFileLimit(); files < kFilesWanted) {
    weir::Log(weir::LogLevel::kWarning, "controller",
              weir::StrCat("at most ", files,
                           " files may be open, one for each agent: for more, "
                           "raise the limit (ulimit -Hn, LimitNOFILE= of systemd)"));
  }
  weir::HoldStopSignals();
  auto controller = weir::Controller::Start(options);
  if (!controller.ok()) {
    std::fprintf(stderr, "weir-controller: %s\n", weir::Message(controller.status()).c_str());
    return 1;
  }
  const weir::Status told = weir::NotifyReady(std::getenv("NOTIFY_SOCKET"));
  if (!told.ok()) weir::Log(weir::LogLevel::kWarning, "controller", weir::Message(told));
  weir::WaitForStopSignal();
  weir::Log(weir::LogLevel::kInfo, "controller", "stopping");
  controller->reset();
  return 0;
}
