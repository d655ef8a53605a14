// SPDX-License-Identifier: Apache-2.0
// weirctl: the operator's command. Reads flags and environment; everything else is in the library.

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "controller/cli/backup.h"
#include "controller/cli/client.h"
#include "controller/cli/contexts.h"
#include "controller/cli/cost_table.h"
#include "controller/cli/doctor.h"
#include "controller/cli/explain.h"
#include "controller/cli/policies.h"
#include "controller/cli/render.h"
#include "controller/cli/resources.h"
#include "controller/cli/simulate.h"
#include "controller/cli/top.h"
#include "controller/model/sync_model.h"
#include "deploy/program/hidden_command.h"

namespace weir::cli {
namespace {

struct Flags {
  ClientOptions client;
  std::string token_file;
  std::string context;  // of --context, and the name of the command of that name
  std::string context_name;
  bool context_save = false, context_delete = false;
  std::string output = "table";
  ResourceRequest resource;
  std::string file, actor, reason, codec = "dense", collective = "ring", policy_name;
  std::string parameters = "25M", latency = "1ms", bandwidth = "1Gb/s", compute = "0",
              aggregator = "0", gpu_copy = "0";
  std::vector<std::string> links;
  double ratio = 1;
  uint32_t bits = 0;
  TopOptions top;
  uint32_t world = 4, ranks_per_node = 1, buckets = 4, sync_every_max = 0;
  std::string decision;
  bool replay = false, dry_run = false, table = false, gpu_links = false, framework = false;
  std::set<std::string> given;  // of the flags that a context may hold, those that were given
};

using Action = std::function<Status(Flags&)>;

std::string FromEnvironment(const char* variable) {
  const char* const set = std::getenv(variable);
  return set == nullptr ? "" : set;
}

// $WEIR_CONTEXTS, else weir/contexts.yaml below $XDG_CONFIG_HOME or ~/.config.
std::string ContextsPath() {
  if (const std::string file = FromEnvironment("WEIR_CONTEXTS"); !file.empty()) return file;
  if (const std::string config = FromEnvironment("XDG_CONFIG_HOME"); !config.empty()) {
    return config + "/weir/contexts.yaml";
  }
  const std::string home = FromEnvironment("HOME");
  return home.empty() ? "" : home + "/.config/weir/contexts.yaml";
}

// The flags that a context holds, by their names in it.
std::map<std::string, std::string*> ContextFlags(Flags& flags) {
  return {{"controller", &flags.client.controller},
          {"ca", &flags.client.ca_file},
          {"cert", &flags.client.cert_file},
          {"key", &flags.client.key_file},
          {"token-file", &flags.token_file}};
}

// Takes from the context the flags that neither the command line nor the environment sets.
Status TakeContext(Flags& flags) {
  WEIR_ASSIGN_OR_RETURN(const Contexts contexts, ReadContexts(ContextsPath()));
  WEIR_ASSIGN_OR_RETURN(const Context context, FindContext(contexts, flags.context));
  for (const auto& [name, flag] : ContextFlags(flags)) {
    const auto kept = context.find(name);
    if (kept != context.end() && !flags.given.contains(name)) *flag = kept->second;
  }
  return OkStatus();
}

Status ContextCommand(Flags& flags) {
  const std::string path = ContextsPath();
  WEIR_ASSIGN_OR_RETURN(Contexts contexts, ReadContexts(path));
  const std::string& name = flags.context_name;
  if (name.empty()) {
    if (contexts.by_name.empty()) {
      std::fputs("no context is kept: weirctl context NAME --save --controller HOST:PORT\n",
                 stderr);
      return OkStatus();
    }
    Table table{{"", "NAME", "CONTROLLER", "CA", "TOKEN-FILE"}, {}};
    for (auto& [each, context] : contexts.by_name) {
      table.rows.push_back({each == contexts.current ? "*" : " ", each, context["controller"],
                            context["ca"], context["token-file"]});
    }
    std::fputs(Render(table).c_str(), stdout);
    return OkStatus();
  }
  if (flags.context_save) {
    Context& context = contexts.by_name[name];
    context.clear();
    for (const auto& [flag, value] : ContextFlags(flags)) {
      if (flags.given.contains(flag)) context[flag] = *value;
    }
    if (context.empty()) {
      return InvalidArgument("--save keeps what else is on the line: give --controller at least");
    }
  }
  WEIR_RETURN_IF_ERROR(FindContext(contexts, name).status());
  if (flags.context_delete) contexts.by_name.erase(name);
  contexts.current = !flags.context_delete      ? name
                     : contexts.current == name ? ""
                                                : contexts.current;
  WEIR_RETURN_IF_ERROR(WriteContexts(path, contexts));
  std::printf("context '%s' %s\n", name.c_str(),
              flags.context_delete ? "deleted" : "is used from now on");
  return OkStatus();
}

StatusOr<std::unique_ptr<Client>> Connect(Flags& flags) {
  WEIR_RETURN_IF_ERROR(TakeContext(flags));
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
  request.mutable_choice()->set_codec(CodecNamed(flags.codec));
  request.mutable_choice()->set_collective(flags.collective);
  request.mutable_choice()->set_ratio(flags.ratio);
  request.mutable_choice()->set_bits(flags.bits);
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
  if (flags.table) {
    return PrintCostTable({.world = static_cast<int>(flags.world),
                           .latency_s = latency,
                           .bytes_per_s = bandwidth,
                           .bytes = 4 * parameters},
                          output);
  }
  request.set_model_parameters(static_cast<uint64_t>(parameters));
  request.set_world(flags.world);
  request.set_ranks_per_node(flags.ranks_per_node);
  request.set_sync_every_max(flags.sync_every_max);
  request.set_latency_s(latency);
  request.set_bandwidth_bytes_per_s(bandwidth);
  request.set_compute_s(compute);
  request.set_buckets(flags.buckets);
  WEIR_ASSIGN_OR_RETURN(const double aggregator, ParseRate(flags.aggregator));
  request.set_aggregator_bytes_per_s(aggregator);
  WEIR_ASSIGN_OR_RETURN(const double gpu_copy, ParseRate(flags.gpu_copy));
  request.set_device_copy_bytes_per_s(gpu_copy);
  request.set_devices_linked(flags.gpu_links);
  request.set_framework_sums(flags.framework);
  for (const std::string& text : flags.links) {
    WEIR_ASSIGN_OR_RETURN(const v1::LinkRate link, ParseLink(text));
    *request.add_links() = link;
    v1::LinkRate* const back = request.add_links();
    *back = link;
    back->set_source_rank(link.target_rank());
    back->set_target_rank(link.source_rank());
  }
  return SimulateOffline(request, flags.file, output);
}

Status PageCommand(Client& client, Flags&, Output output) {
  v1::OpenPageResponse response;
  WEIR_RETURN_IF_ERROR(
      client.Call(&v1::AdminService::Stub::OpenPage, v1::OpenPageRequest(), &response));
  std::fputs(
      output == Output::kTable ? (response.url() + "\n").c_str() : Render(response, output).c_str(),
      stdout);
  return OkStatus();
}

Status TopCommand(Client& client, Flags& flags, Output output) {
  if (output != Output::kTable) {
    return InvalidArgument("top draws tables only; get and watch print JSON and YAML");
  }
  winsize size{};
  if (isatty(STDOUT_FILENO) == 1) {
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    flags.top.terminal_columns = known ? size.ws_col : 80;
  }
  return Top(client, flags.top);
}

void AddResourceCommands(CLI::App& app, Flags& flags, Action* action) {
  const char* const kinds = "nodes, links, jobs, decisions, aggregators, policies or audit";
  const CLI::IsMember known({"nodes", "links", "jobs", "decisions", "aggregators", "policies",
                             "audit", "node", "link", "job", "decision", "aggregator", "policy"});
  const char* const watched_kinds = "nodes, links, jobs, decisions or policies";
  const CLI::IsMember watched({"nodes", "links", "jobs", "decisions", "policies", "node", "link",
                               "job", "decision", "policy"});
  auto* get = app.add_subcommand("get", "list resources, or show one");
  get->add_option("kind", flags.resource.kind, kinds)->required()->check(known);
  get->add_option("name", flags.resource.name, "one item; links: a node");
  get->add_option("--job", flags.resource.job, "decisions of this job");
  get->add_flag("--plans", flags.resource.plans_only,
                "only decisions that offered a plan: the history of plans");
  get->add_option("--limit", flags.resource.limit,
                  "newest decisions or audit records to list; 0: all")
      ->type_name("COUNT")
      ->capture_default_str();
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
  watch->add_option("kind", flags.resource.kind, watched_kinds)->required()->check(watched);
  watch->add_option("name", flags.resource.name, "only this job");
  watch->add_flag("--switches", flags.resource.switches, "only decisions that changed the plan");
  watch->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output) { return Watch(client, f.resource); });
  });
  auto* top =
      app.add_subcommand("top", "a table of the running jobs, drawn again as steps come in");
  top->add_option("job", flags.top.job, "only this job");
  top->add_option("--interval", flags.top.interval_s, "seconds between two tables, at least")
      ->type_name("SECONDS")
      ->capture_default_str();
  top->add_option("--iterations", flags.top.iterations, "tables; 0: until interrupted")
      ->type_name("COUNT")
      ->capture_default_str();
  top->callback([action] { *action = Remote(TopCommand); });
}

void AddPolicyCommands(CLI::App& app, Flags& flags, Action* action) {
  const auto file = [&flags](CLI::App* command) {
    command->add_option("-f,--file", flags.file, "policy (YAML or JSON), - for standard input")
        ->type_name("FILE")
        ->required();
  };
  auto* apply = app.add_subcommand("apply", "apply a policy file to the running controller");
  file(apply);
  apply->add_flag("--dry-run", flags.dry_run,
                  "change nothing; say which running jobs would change to what");
  apply->add_option("--actor", flags.actor, "who applies it, for the audit trail");
  apply->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output output) {
      return Apply(client, {f.file, f.actor, f.dry_run, false}, output);
    });
  });
  auto* diff = app.add_subcommand(
      "diff", "how a policy file differs from the policy of its name, and what it would change");
  file(diff);
  diff->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output output) {
      return Apply(client, {f.file, "", true, true}, output);
    });
  });
  auto* remove = app.add_subcommand(
      "delete", "end a policy that was applied, or forget a node or job that is gone");
  remove->add_option("kind", flags.resource.kind, "policy, node or job")
      ->required()
      ->check(CLI::IsMember({"policy", "node", "job"}));
  remove->add_option("name", flags.resource.name, "one item")->required();
  remove->add_flag("--dry-run", flags.dry_run,
                   "policies: change nothing; say which running jobs would change to what");
  remove->add_option("--actor", flags.actor, "who deletes it, for the audit trail");
  remove->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output output) {
      return Delete(client, {f.resource.kind, f.resource.name, f.actor, f.dry_run}, output);
    });
  });
  auto* validate = app.add_subcommand(
      "validate", "check a policy file; needs no controller, and knows no plug-in's names");
  file(validate);
  validate->callback([action] { *action = [](Flags& f) { return Validate(f.file); }; });
  auto* schema = app.add_subcommand(
      "schema", "print the JSON Schema of policy files, for editors; needs no controller");
  schema->callback([action] {
    *action = [](Flags&) {
      std::fputs(PolicySchemaText().c_str(), stdout);
      return OkStatus();
    };
  });
}

void AddJobCommands(CLI::App& app, Flags& flags, Action* action) {
  auto* explain = app.add_subcommand("explain", "why a job runs what it runs");
  explain->add_option("job", flags.resource.name)->required();
  explain->add_option("--decision", flags.decision, "this one; empty: the newest")->type_name("ID");
  explain->add_flag("--replay", flags.replay, "decide again on the stored snapshot and compare");
  explain->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output output) {
      return Explain(client, {f.resource.name, f.decision, f.replay}, output);
    });
  });
  auto* pin = app.add_subcommand("pin", "fix a job's choice until unpinned");
  pin->add_option("job", flags.resource.name)->required();
  pin->add_option("--codec", flags.codec, "codec, of a variant as sidco:fit=gp")
      ->capture_default_str();
  pin->add_option("--collective", flags.collective, "collective")->capture_default_str();
  pin->add_option("--ratio", flags.ratio, "kept fraction")->capture_default_str();
  pin->add_option("--bits", flags.bits, "width of values; 0: the codec's default")
      ->capture_default_str();
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
  simulate
      ->add_option("--sync-every-max", flags.sync_every_max,
                   "steps between synchronisations, at most; 0: as the policy says")
      ->check(CLI::Range(0u, kSyncEveryMax));
  simulate->add_option("--ranks-per-node", flags.ranks_per_node, "that share memory, in order")
      ->capture_default_str();
  simulate->add_option("--latency", flags.latency, "one way: 1ms")->capture_default_str();
  simulate->add_option("--bandwidth", flags.bandwidth, "per node: 1Gb/s")->capture_default_str();
  simulate->add_option("--compute", flags.compute, "step time without communication: 50ms")
      ->capture_default_str();
  simulate->add_option("--buckets", flags.buckets, "equal buckets")->capture_default_str();
  simulate
      ->add_option("--aggregator", flags.aggregator,
                   "payload that an aggregator takes in from all ranks: 10Gb/s; 0: there is none")
      ->type_name("RATE")
      ->capture_default_str();
  simulate
      ->add_option("--link", flags.links,
                   "rate between two ranks where it differs, both ways: 1-2=10Mb/s")
      ->type_name("RANK-RANK=RATE");
  simulate
      ->add_option(
          "--gpu-copy", flags.gpu_copy,
          "gradients are on GPUs, which copy to and from the host so fast: 20GB/s; 0: they "
          "are in the host's memory")
      ->type_name("RATE")
      ->capture_default_str();
  simulate->add_flag("--gpu-links", flags.gpu_links,
                     "the GPUs of a node exchange memory without the host (nccl=on)");
  simulate->add_flag("--framework", flags.framework,
                     "the job has a process group of its own, such as NCCL's, for dense sums");
  simulate->add_option("--policy", flags.file, "policy file; default policy when absent")
      ->type_name("FILE");
  simulate->add_flag("--table", flags.table,
                     "cost formulas of the literature, crossovers and published tables instead");
  simulate->callback([action] { *action = SimulateCommand; });
  auto* context = app.add_subcommand(
      "context", "list the controllers that are kept by name, use one from now on, keep another");
  context->add_option("name", flags.context_name, "use this one; empty: list them");
  context->add_flag("--save", flags.context_save,
                    "keep --controller, --ca, --cert, --key and --token-file of this line as NAME");
  context->add_flag("--delete", flags.context_delete, "forget NAME");
  context->callback([action] { *action = ContextCommand; });
  auto* page = app.add_subcommand(
      "page", "an address that opens the controller's page with your own rights, once");
  page->callback([action] { *action = Remote(PageCommand); });
  auto* level = app.add_subcommand("log-level", "change what the controller logs, until it ends");
  level->add_option("level", flags.resource.name, "debug, info, warning or error")
      ->required()
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  level->add_option("--actor", flags.actor, "who changes it, for the audit trail");
  level->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output) {
      v1::SetLogLevelRequest request;
      request.set_level(f.resource.name);
      request.set_actor(f.actor);
      v1::SetLogLevelResponse response;
      return client.Call(&v1::AdminService::Stub::SetLogLevel, request, &response);
    });
  });
  auto* backup = app.add_subcommand(
      "backup", "bring a copy of the controller's state here, while it runs; it contains secrets");
  backup->add_option("file", flags.file, "new file for the copy")->required()->type_name("FILE");
  backup->add_option("--actor", flags.actor, "who makes it, for the audit trail");
  backup->add_option("--reason", flags.reason, "why");
  backup->callback([action] {
    *action = Remote([](Client& client, Flags& f, Output) {
      return Backup(client, {.file = f.file, .actor = f.actor, .reason = f.reason});
    });
  });
  auto* doctor =
      app.add_subcommand("doctor", "check that controller, agents, links and jobs are well");
  doctor->callback([action] {
    *action = Remote([](Client& client, Flags&, Output) { return Doctor(client, WEIR_VERSION); });
  });
}

// Names for the shell's completion: what the controller on the line knows, within a second.
std::vector<std::string> ValuesFor(const std::string& command, const std::string& name,
                                   const GivenValues& given) {
  const auto value = [&](const char* option) {
    const auto found = given.find(option);
    return found == given.end() ? std::string() : found->second;
  };
  if (name == "--codec" || name == "--collective") return BuiltinNames(name.substr(2));
  const bool job = name == "job" || name == "--job" || (command == "watch" && name == "name");
  if (!job && name != "name") return {};
  Flags flags;
  flags.client.timeout_s = 1;
  std::string controller = value("--controller");
  if (controller.empty()) controller = FromEnvironment("WEIR_CONTROLLER");
  if (!controller.empty()) {
    flags.client.controller = controller;
    flags.given.insert("controller");
  }
  flags.client.ca_file = value("--ca");
  flags.client.cert_file = value("--cert");
  flags.client.key_file = value("--key");
  flags.token_file = value("--token-file");
  if (flags.token_file.empty()) flags.token_file = FromEnvironment("WEIR_TOKEN_FILE");
  const auto client = Connect(flags);
  return client.ok() ? ResourceNames(**client, job ? "jobs" : value("kind"))
                     : std::vector<std::string>();
}

int Main(int argc, char** argv) {
  CLI::App app{"weirctl: operate Weir, the control plane for gradient communication"};
  app.set_version_flag("--version", WEIR_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "exit status:\n"
      "  0  ok\n"
      "  1  failure, or a check of doctor or replay found something wrong\n"
      "  2  wrong flags or arguments\n"
      "  3  not found: the named job, node, decision, aggregator, policy, codec or file\n"
      "  4  no controller answers\n"
      "  5  refused: an invalid policy, or not possible in the present state");
  Flags flags;
  Action action;
  app.add_option("--controller", flags.client.controller,
                 "host:port of the gRPC API, or unix:FILE; several with commas, of which one leads")
      ->type_name("ADDRESS")
      ->envname("WEIR_CONTROLLER")
      ->capture_default_str();
  app.add_option("-o,--output", flags.output, "form of what is printed")
      ->check(CLI::IsMember({"table", "json", "yaml"}))
      ->capture_default_str();
  app.add_option("--timeout", flags.client.timeout_s, "seconds per call")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--token-file", flags.token_file, "bearer token")
      ->type_name("FILE")
      ->envname("WEIR_TOKEN_FILE");
  app.add_option("--ca", flags.client.ca_file, "CA certificate: use TLS")->type_name("FILE");
  app.add_option("--cert", flags.client.cert_file, "client certificate")->type_name("FILE");
  app.add_option("--key", flags.client.key_file, "client key")->type_name("FILE");
  app.add_option("--context", flags.context, "controller kept by that name; see context")
      ->type_name("NAME")
      ->envname("WEIR_CONTEXT");
  AddResourceCommands(app, flags, &action);
  AddPolicyCommands(app, flags, &action);
  AddJobCommands(app, flags, &action);
  AddOtherCommands(app, flags, &action);
  const ProgramPage page{"weirctl", {"weir-agent 1", "weir-controller 1"}, ValuesFor};
  if (const auto answered = AnswerHiddenCommand(app, page, argc, argv)) return *answered;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  for (const auto& [name, value] : ContextFlags(flags)) {
    if (app.get_option("--" + name)->count() > 0) flags.given.insert(name);
  }
  const Status status = action(flags);
  if (status.ok()) return kOk;
  std::fprintf(stderr, "weirctl: %s\n", Message(status).c_str());
  return ExitCodeFor(status);
}

}  // namespace
}  // namespace weir::cli

int main(int argc, char** argv) { return weir::cli::Main(argc, argv); }
