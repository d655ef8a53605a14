// SPDX-License-Identifier: Apache-2.0
// weir-aggregator: reads flags, starts the shards and the control interface, waits for a signal.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "datapath/aggregation/io/address.h"
#include "datapath/base/log.h"
#include "deploy/aggregator/http_server.h"
#include "deploy/program/config_file.h"
#include "deploy/program/hidden_command.h"
#include "deploy/program/log_flags.h"
#include "deploy/program/notify.h"
#include "deploy/program/stop_signal.h"
#include "deploy/program/token_file.h"

namespace weir::aggregation {
namespace {

struct AggregatorFlags {
  ServerOptions server;
  HttpOptions http;
  std::string http_address = "127.0.0.1:9466";
  std::string health_address;
  std::string token_file;
  std::unique_ptr<TokenFile> tokens;
  LogFlags log;
  double buffer_mib = 8;
  double goodput_gbit_per_s = 0;
  double stall_s = 5;
  double idle_s = 3600;
  bool insecure = false;
};

void DefineFlags(CLI::App& app, AggregatorFlags* flags) {
  ServerOptions& server = flags->server;
  server.first_port = 48864;
  app.set_version_flag("--version", "weir-aggregator " WEIR_VERSION);
  app.add_option("--listen", server.listen, "IPv4 address that workers send to")
      ->capture_default_str();
  app.add_option("--port", server.first_port,
                 "UDP port of the first shard; the others use the next ones; 0: any free ones")
      ->capture_default_str();
  app.add_option("--shards", server.shards,
                 "number of threads, each with its port and leases; use at most one per core")
      ->check(CLI::Range(1, kShardsMax))
      ->capture_default_str();
  app.add_option("--slots", server.limits.slots, "slots of a shard, about 5 KiB of memory each")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--slots-per-job", server.limits.slots_per_job,
                 "largest number of slots of one lease")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("--leases", server.limits.leases, "largest number of leases of a shard")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("!--approximate-floats", server.limits.exact_floats,
               "leases of mode float add like a switch that cannot shift a register");
  app.add_option("--buffer-mib", flags->buffer_mib, "kernel buffer of a shard in each direction")
      ->check(CLI::Range(0.0625, 1024.0))
      ->capture_default_str();
  app.add_option(
         "--goodput-gbit-s", flags->goodput_gbit_per_s,
         "payload that all shards together can receive from workers, from which controllers "
         "predict the time of sums; 0: not stated")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--http", flags->http_address,
                 "IPV4:PORT of leases, /metrics and /healthz; port 0: any")
      ->capture_default_str();
  app.add_option("--listen-health", flags->health_address,
                 "IPV4:PORT of /healthz and /readyz alone, answered by threads of their own; none "
                 "by default")
      ->type_name("ADDRESS");
  app.add_flag("--access-log", flags->http.access_log, "log every answered HTTP request");
  app.add_option("--token-file", flags->token_file,
                 "file with the bearer tokens of which clients need one for leases and metrics");
  app.add_option("--tls-cert", flags->http.tls_cert,
                 "PEM file: certificate of the control interface");
  app.add_option("--tls-key", flags->http.tls_key, "PEM file: its key");
  app.add_flag("--insecure", flags->insecure, "allow --http off loopback without a token and TLS");
  app.add_option("--stall-s", flags->stall_s,
                 "log the workers for which an incomplete round has waited this long; 0: never")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app.add_option("--idle-s", flags->idle_s, "end leases without packets for this long; 0: never")
      ->check(CLI::Range(0.0, 2592000.0))
      ->capture_default_str();
  app.add_option("--drop", server.drop,
                 "for tests: probability that a packet is lost, in each direction")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  app.add_option("--seed", server.seed, "seed of the losses that --drop injects")
      ->capture_default_str();
  AddLogFlags(app, &flags->log);
}

Status CompleteHealth(AggregatorFlags* flags) {
  if (flags->health_address.empty()) return OkStatus();
  const auto health = ParseSourceAddress(flags->health_address);
  if (!health.ok()) return Annotate(health.status(), "--listen-health");
  const std::string address = AddressText(*health);
  flags->http.health_host = address.substr(0, address.rfind(':'));
  flags->http.health_port = static_cast<uint16_t>(*health & 0xFFFF);
  if (*health >> 40 != 127 && !flags->insecure && flags->http.tls_cert.empty()) {
    return InvalidArgument(StrCat("--listen-health ", flags->health_address,
                                  " is off loopback: expected --tls-cert and --tls-key, or "
                                  "--insecure"));
  }
  return OkStatus();
}

// Checks flags against each other, and derives the values that follow from several of them.
Status Complete(AggregatorFlags* flags) {
  WEIR_RETURN_IF_ERROR(UseLogFlags(flags->log));
  const auto http = ParseSourceAddress(flags->http_address);
  if (!http.ok()) return Annotate(http.status(), "--http");
  const std::string address = AddressText(*http);
  flags->http.host = address.substr(0, address.rfind(':'));
  flags->http.port = static_cast<uint16_t>(*http & 0xFFFF);
  flags->http.version = WEIR_VERSION;
  if (!flags->token_file.empty()) {
    WEIR_ASSIGN_OR_RETURN(flags->tokens, TokenFile::Open(flags->token_file, "aggregator"));
    flags->http.tokens = flags->tokens.get();
  }
  if (flags->http.tls_cert.empty() != flags->http.tls_key.empty()) {
    return InvalidArgument("--tls-cert and --tls-key: expected both or neither");
  }
  const bool loopback = *http >> 40 == 127;
  if (!loopback && !flags->insecure &&
      (flags->http.tokens == nullptr || flags->http.tls_cert.empty())) {
    return InvalidArgument(StrCat("--http ", flags->http_address,
                                  " is off loopback: expected --token-file, --tls-cert and "
                                  "--tls-key, or --insecure"));
  }
  if (!loopback && flags->http.tokens != nullptr && flags->http.tls_cert.empty()) {
    return InvalidArgument(StrCat("--http ", flags->http_address,
                                  " is off loopback: the tokens of --token-file would cross the "
                                  "network in plain text: expected --tls-cert and --tls-key"));
  }
  WEIR_RETURN_IF_ERROR(CompleteHealth(flags));
  flags->http.goodput_bits_per_s = 1e9 * flags->goodput_gbit_per_s;
  flags->server.buffer_bytes = static_cast<int>(flags->buffer_mib * (1 << 20));
  return OkStatus();
}

/// Logs once per round which workers a job waits for, and ends leases whose job has become silent.
class LeaseWatch {
 public:
  LeaseWatch(double stall_s, double idle_s)
      : stall_(FromSeconds(stall_s)), idle_(FromSeconds(idle_s)) {}

  void Look(AggregatorServer* server) {
    const auto leases = server->Leases();
    if (!leases.ok()) return Log(LogLevel::kWarning, "aggregator", Message(leases.status()));
    std::map<std::string, TimePoint> told;  // jobs that no longer wait are left out
    for (const LeaseStatus& status : *leases) {
      if (idle_ > Duration::zero() && status.idle > idle_) End(status, server);
      if (stall_ <= Duration::zero() || !status.oldest.has_value()) continue;
      if (status.oldest->age < stall_) continue;
      const TimePoint opened_at = status.oldest->round.opened_at;
      const auto before = told_.find(status.grant.job);
      if (before == told_.end() || before->second != opened_at) {
        Log(LogLevel::kWarning, "aggregator", Describe(status.grant, *status.oldest));
      }
      told[status.grant.job] = opened_at;
    }
    told_ = std::move(told);
  }

 private:
  static void End(const LeaseStatus& status, AggregatorServer* server) {
    const LeaseGrant& grant = status.grant;
    const Status ended = server->Expire(grant.job, grant.lease.epoch);
    Log(LogLevel::kWarning, "aggregator",
        StrCat("job ", grant.job, ": no packet for ", ToSeconds(status.idle), " s; its lease ",
               ended.ok() ? "ends" : "cannot be ended: " + Message(ended)));
  }

  const Duration stall_, idle_;
  std::map<std::string, TimePoint> told_;  // job -> when the round of the last message began
};

int Fail(const Status& status) {
  Log(LogLevel::kError, "aggregator", Message(status));
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound
             ? 2
             : 1;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "weir-aggregator: sums gradients that workers send as UDP packets, as a programmable switch "
      "would; jobs get leases over HTTP"};
  AggregatorFlags flags;
  DefineFlags(app, &flags);
  AddConfigFile(app);
  const ProgramPage page{"weir-aggregator", {"weir-agent 1", "weir-controller 1"}, nullptr};
  if (const auto answered = AnswerHiddenCommand(app, page, argc, argv)) return *answered;
  CLI11_PARSE(app, argc, argv);

  HoldStopSignals();
  const Status complete = Complete(&flags);
  if (!complete.ok()) return Fail(complete);
  const auto server = AggregatorServer::Start(flags.server);
  if (!server.ok()) return Fail(server.status());
  const auto http = HttpServer::Start(flags.http, server->get());
  if (!http.ok()) return Fail(http.status());
  const auto shards = (*server)->Shards();
  if (!shards.ok()) return Fail(shards.status());
  // Programs that start this one with port 0 read this line.
  std::printf("http %s:%d udp %s shards %zu\n", flags.http.host.c_str(), (*http)->port(),
              AddressText(shards->front().address).c_str(), shards->size());
  std::fflush(stdout);
  const Status told = NotifyReady(std::getenv("NOTIFY_SOCKET"));
  if (!told.ok()) Log(LogLevel::kWarning, "aggregator", Message(told));
  LeaseWatch watch(flags.stall_s, flags.idle_s);
  int received = 0;
  while ((received = WaitForStopSignal(std::chrono::seconds(1))) == 0) watch.Look(server->get());
  Log(LogLevel::kInfo, "aggregator", StrCat("ending on signal ", received));
  // There is nothing to save, and an open connection of a client must not delay the exit.
  std::_Exit(0);
}

}  // namespace
}  // namespace weir::aggregation

int main(int argc, char** argv) { return weir::aggregation::Main(argc, argv); }
