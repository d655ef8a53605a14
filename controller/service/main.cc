// weir-controller: reads flags, starts the controller, waits for SIGTERM or SIGINT.

#include <pthread.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "controller/service/controller.h"
#include "datapath/base/log.h"

int main(int argc, char** argv) {
  weir::ControllerOptions options;
  options.fleet.version = WEIR_VERSION;
  std::string log_level = "info";
  CLI::App app(
      "Weir's controller: measures training jobs through their agents and steers what they send");
  app.add_option("--listen-grpc", options.listen_grpc, "host:port for agents and weirctl")
      ->capture_default_str();
  app.add_option("--listen-http", options.listen_http, "host:port for REST, web page and /metrics")
      ->capture_default_str();
  app.add_option("--state", options.state_file, "SQLite file, or :memory:")->capture_default_str();
  app.add_option("--policy", options.policy_directory,
                 "directory of policy files, reloaded when it changes");
  app.add_option("--token-file", options.token_file,
                 "lines 'role token' or 'role sha256:<hex>'; roles: viewer, operator, admin");
  app.add_option("--tls-cert", options.tls_cert, "certificate file (PEM) of both listeners");
  app.add_option("--tls-key", options.tls_key, "its key file (PEM)");
  app.add_option("--tls-ca", options.tls_ca,
                 "CA file (PEM) that signs agents' and weirctl's certificates");
  app.add_flag("--insecure", options.insecure,
               "allow addresses off loopback without TLS and tokens");
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();
  app.set_version_flag("--version", std::string("weir-controller ") + WEIR_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const auto level = weir::ParseLogLevel(log_level);
  if (!level.ok()) {
    std::fprintf(stderr, "weir-controller: --log-level: %s\n",
                 weir::Message(level.status()).c_str());
    return 2;
  }
  weir::SetMinimumLogLevel(*level);

  // Every thread inherits the mask, so only sigwait sees these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto controller = weir::Controller::Start(options);
  if (!controller.ok()) {
    std::fprintf(stderr, "weir-controller: %s\n", weir::Message(controller.status()).c_str());
    return 1;
  }
  int received = 0;
  sigwait(&signals, &received);
  weir::Log(weir::LogLevel::kInfo, "controller", "stopping");
  controller->reset();
  return 0;
}
