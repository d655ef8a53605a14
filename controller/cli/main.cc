// weirctl: the operator's command. Reads flags and environment; everything else is in the library.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <functional>
#include <string>

#include "controller/cli/client.h"
#include "controller/cli/doctor.h"
#include "controller/cli/explain.h"
#include "controller/cli/render.h"
#include "controller/cli/resources.h"
#include "controller/cli/simulate.h"
#include "controller/service/policy_set.h"

namespace weir::cli {
namespace {

struct Flags {
  ClientOptions client;
  std::string token_file;
  std::string output = "table";
  ResourceRequest resource;
  std::string file, actor, reason, codec = "identity", collective = "ring", policy_name;
  std::string parameters = "25M", latency = "1ms", bandwidth = "1Gb/s", compute = "0";
  double ratio = 1;
  uint32_t world = 4, buckets = 4;
  bool replay = false, dry_run = false;
};

using Action = std::function<Status(Flags&)>;

StatusOr<std::unique_ptr<Client>> Connect(Flags& flags) {
  if (!flags.token_file.empty()) {
    WEIR_ASSIGN_OR_RETURN(flags.client.token, ReadFile(flags.token_file));
    while (!flags.client.token.empty() && flags.client.token.back() == '\n')
      flags.client.token.pop_back();
  }
  return Client::Create(flags.client);
}

// An action that talks to the controller with the chosen output.
Action Remote(std::function<Status(Client&, Flags&, Output)> body) {
  return [body](Flags& flags) -> Status {
    WEIR_ASSIGN_OR_RETURN(const Output output, ParseOutput(flags.output));
    flags.resource.output = output;
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(flags));
    return body(*client, flags, output);
  };
}

Status Validate(Flags& flags) {
  WEIR_ASSIGN_OR_RETURN(const std::string source, ReadFile(flags.file));
  WEIR_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(source, flags.file));
  std::printf("%s: valid policy '%s', objective %s\n", flags.file.c_str(), policy.name.c_str(),
              policy.objective.c_str());
  return OkStatus();
}

Status Apply(Client& client, Flags& flags, Output output) {
  WEIR_ASSIGN_OR_RETURN(const std::string source, ReadFile(flags.file));
  WEIR_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(source, flags.file));
  v1::ApplyPolicyRequest request;
  request.set_name(policy.name);
  request.set_source(source);
  request.set_actor(flags.actor);
  request.set_dry_run(flags.dry_run);
  v1::ApplyPolicyResponse response;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::ApplyPolicy, request, &response));
  if (output != Output::kTable) {
    std::fputs(Render(response.policy(), output).c_str(), stdout);
  } else {
    std::printf("policy '%s' %s\n", policy.name.c_str(),
                flags.dry_run ? "is valid (dry run)" : "applied");
  }
  return OkStatus();
}

void PrintJob(const v1::Job& job, const std::string& done, Output output) {
  if (output != Output::kTable) {
    std::fputs(Render(job, output).c_str(), stdout);
  } else {
    std::printf("job '%s' %s\n", job.name().c_str(), done.c_str());
  }
}

Status PinJob(Client& client, Flags& flags, Output output) {
  v1::PinRequest request;
  request.set_job(flags.resource.name);
  request.set_actor(flags.actor);
  request.set_reason(flags.reason);
  request.mutable_choice()->set_codec(flags.codec);
  request.mutable_choice()->set_collective(flags.collective);
  request.mutable_choice()->set_ratio(flags.ratio);
  v1::PinResponse response;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::Pin, request, &response));
  PrintJob(response.job(), "pinned", output);
  return OkStatus();
}

Status UnpinJob(Client& client, Flags& flags, Output output) {
  v1::UnpinRequest request;
  request.set_job(flags.resource.name);
  request.set_actor(flags.actor);
  request.set_reason(flags.reason);
  v1::UnpinResponse response;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::Unpin, request, &response));
  PrintJob(response.job(), "unpinned", output);
  return OkStatus();
}

Status SimulateCommand(Flags& flags) {
  WEIR_ASSIGN_OR_RETURN(const Output output, ParseOutput(flags.output));
  v1::SimulateRequest request;
  WEIR_ASSIGN_OR_RETURN(const double parameters, ParseCount(flags.parameters));
  WEIR_ASSIGN_OR_RETURN(const double latency, ParseSeconds(flags.latency));
  WEIR_ASSIGN_OR_RETURN(const double bandwidth, ParseRate(flags.bandwidth));
  WEIR_ASSIGN_OR_RETURN(const double compute, ParseSeconds(flags.compute));
  request.set_model_parameters(static_cast<uint64_t>(parameters));
  request.set_world(flags.world);
  request.set_latency_s(latency);
  request.set_bandwidth_bytes_per_s(bandwidth);
  request.set_compute_s(compute);
  request.set_buckets(flags.buckets);
  return SimulateOffline(request, flags.file, output);
}

void AddResourceCommands(CLI::App& app, Flags& flags, Action* action) {
  const char* const kinds = "nodes, links, jobs, decisions or policies";
  const CLI::IsMember known({"nodes", "links", "jobs", "decisions", "policies", "node", "link",
                             "job", "decision", "policy"});
  auto* get = app.add_subcommand("get", "list resources, or show one");
  get->add_option("kind", flags.resource.kind, kinds)->required()->check(known);
  get->add_option("name", flags.resource.name, "one item; links: a node");
  get->add_option("--job", flags.resource.job, "decisions of this job");
  get->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output) { return Get(client, f.resource); });
  });
  auto* describe = app.add_subcommand("describe", "everything known of a resource");
  describe->add_option("kind", flags.resource.kind, kinds)->required()->check(known);
  describe->add_option("name", flags.resource.name, "one item");
  describe->add_option("--job", flags.resource.job, "decisions of this job");
  describe->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output) { return Describe(client, f.resource); });
  });
  auto* watch = app.add_subcommand("watch", "print events as they happen");
  watch->add_option("kind", flags.resource.kind, kinds)->required()->check(known);
  watch->add_option("name", flags.resource.name, "only this job");
  watch->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output) { return Watch(client, f.resource); });
  });
}

void AddPolicyCommands(CLI::App& app, Flags& flags, Action* action) {
  auto* apply = app.add_subcommand("apply", "apply a policy file to the running controller");
  apply->add_option("-f,--file", flags.file, "policy (YAML or JSON), - for standard input")
      ->required();
  apply->add_flag("--dry-run", flags.dry_run, "validate on the controller, change nothing");
  apply->add_option("--actor", flags.actor, "who applies it, for the audit trail");
  apply->callback([action] { *action = Remote(Apply); });
  auto* validate = app.add_subcommand("validate", "check a policy file; needs no controller");
  validate->add_option("-f,--file", flags.file, "policy (YAML or JSON), - for standard input")
      ->required();
  validate->callback([action] { *action = Validate; });
}

void AddJobCommands(CLI::App& app, Flags& flags, Action* action) {
  auto* explain = app.add_subcommand("explain", "why a job runs what it runs");
  explain->add_option("job", flags.resource.name)->required();
  explain->add_flag("--replay", flags.replay, "decide again on the stored snapshot and compare");
  explain->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output output) {
      return Explain(client, f.resource.name, f.replay, output);
    });
  });
  auto* pin = app.add_subcommand("pin", "fix a job's choice until unpinned");
  pin->add_option("job", flags.resource.name)->required();
  pin->add_option("--codec", flags.codec, "codec")->capture_default_str();
  pin->add_option("--collective", flags.collective, "collective")->capture_default_str();
  pin->add_option("--ratio", flags.ratio, "kept fraction")->capture_default_str();
  pin->add_option("--actor", flags.actor, "who pins");
  pin->add_option("--reason", flags.reason, "why")->required();
  pin->callback([action] { *action = Remote(PinJob); });
  auto* unpin = app.add_subcommand("unpin", "let the controller decide again");
  unpin->add_option("job", flags.resource.name)->required();
  unpin->add_option("--actor", flags.actor, "who unpins");
  unpin->add_option("--reason", flags.reason, "why");
  unpin->callback([action] { *action = Remote(UnpinJob); });
}

void AddOtherCommands(CLI::App& app, Flags& flags, Action* action) {
  auto* simulate = app.add_subcommand("simulate", "what would be chosen; offline, same solver");
  simulate->add_option("--parameters", flags.parameters, "model size: 25M, 7B")
      ->capture_default_str();
  simulate->add_option("--world", flags.world, "ranks")->capture_default_str();
  simulate->add_option("--latency", flags.latency, "one way: 1ms")->capture_default_str();
  simulate->add_option("--bandwidth", flags.bandwidth, "per node: 1Gb/s")->capture_default_str();
  simulate->add_option("--compute", flags.compute, "step time without communication: 50ms")
      ->capture_default_str();
  simulate->add_option("--buckets", flags.buckets, "equal buckets")->capture_default_str();
  simulate->add_option("--policy", flags.file, "policy file; default policy when absent");
  simulate->callback([action] { *action = SimulateCommand; });
  auto* doctor =
      app.add_subcommand("doctor", "check that controller, agents, links and jobs are well");
  doctor->callback([action] {
    *action = Remote([](Client& client, Flags&, Output) { return Doctor(client); });
  });
}

int Main(int argc, char** argv) {
  CLI::App app{"weirctl: operate Weir, the control plane for gradient communication"};
  app.set_version_flag("--version", WEIR_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "exit codes:\n"
      "  0  ok\n"
      "  1  failure, or a check of doctor or replay found something wrong\n"
      "  2  wrong flags or arguments\n"
      "  3  not found: the named job, node, decision, policy, codec or file\n"
      "  4  no controller answers\n"
      "  5  refused: an invalid policy, or not possible in the present state");
  Flags flags;
  Action action;
  app.add_option("--controller", flags.client.controller, "host:port of the gRPC API")
      ->envname("WEIR_CONTROLLER")
      ->capture_default_str();
  app.add_option("-o,--output", flags.output, "table, json or yaml")
      ->check(CLI::IsMember({"table", "json", "yaml"}))
      ->capture_default_str();
  app.add_option("--timeout", flags.client.timeout_s, "seconds per call")->capture_default_str();
  app.add_option("--token-file", flags.token_file, "bearer token")->envname("WEIR_TOKEN_FILE");
  app.add_option("--ca", flags.client.ca_file, "CA certificate: use TLS");
  app.add_option("--cert", flags.client.cert_file, "client certificate");
  app.add_option("--key", flags.client.key_file, "client key");
  AddResourceCommands(app, flags, &action);
  AddPolicyCommands(app, flags, &action);
  AddJobCommands(app, flags, &action);
  AddOtherCommands(app, flags, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  const Status status = action(flags);
  if (status.ok()) return kOk;
  std::fprintf(stderr, "weirctl: %s\n", Message(status).c_str());
  return ExitCodeFor(status);
}

}  // namespace
}  // namespace weir::cli

int main(int argc, char** argv) { return weir::cli::Main(argc, argv); }
