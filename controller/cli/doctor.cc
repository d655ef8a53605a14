// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/doctor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "controller/cli/machine.h"
#include "controller/cli/render.h"
#include "controller/messages/late_ranks.h"

namespace weir::cli {
namespace {

using Findings = std::vector<Finding>;

constexpr double kClockSkewS = 5;
constexpr double kStaleS = 60;
constexpr uint64_t kSkippedStepsAgo = 1000;
constexpr double kComparedMinS = 60, kLossShare = 0.02;  // a loss that is worth a warning
constexpr double kMispredicted = 1.5;                    // times what was predicted, or the inverse
constexpr uint64_t kFirstSteps = 50;  // within which nothing needs to have been decided
constexpr size_t kExplainedMax = 100;

void JudgeNodes(const FleetFacts& facts, Findings* found) {
  if (facts.nodes.nodes().empty()) {
    found->push_back({Verdict::kWarn, "no agent has connected",
                      "start weir-agent on every training node, with --controller"});
  }
  for (const v1::Node& node : facts.nodes.nodes()) {
    const std::string agent = StrCat("agent on ", node.name(), " (", node.address(), ")");
    if (!node.connected()) {
      found->push_back({Verdict::kFail,
                        StrCat(agent, " is not connected; its ranks keep their active plan"),
                        StrCat("look at its log on ", node.name(),
                               " (journalctl -u weir-agent): it names the address that it dials "
                               "and why that fails")});
      continue;
    }
    found->push_back({Verdict::kOk, StrCat(agent, " is connected")});
    if (std::abs(node.clock_ahead_s()) > kClockSkewS) {
      found->push_back(
          {Verdict::kWarn,
           StrCat("the clock of ", node.name(), " is ", AgeText(std::abs(node.clock_ahead_s())),
                  node.clock_ahead_s() > 0 ? " ahead of" : " behind",
                  " the controller's: times of logs and charts do not fit together"),
           "timedatectl set-ntp true on both"});
    }
  }
}

void JudgeVersions(const FleetFacts& facts, const std::string& version, Findings* found) {
  const std::string& controller = facts.nodes.controller_version();
  std::string others;
  if (controller != version) others = StrCat("weirctl is ", version);
  for (const v1::Node& node : facts.nodes.nodes()) {
    if (!node.connected() || node.agent_version() == controller) continue;
    others += StrCat(others.empty() ? "" : ", ", "the agent on ", node.name(), " is ",
                     node.agent_version().empty() ? "unknown" : node.agent_version());
  }
  if (others.empty()) {
    found->push_back({Verdict::kOk, StrCat("controller, agents and weirctl are ", version)});
  } else {
    found->push_back(
        {Verdict::kWarn,
         StrCat("versions differ: the controller is ",
                controller.empty() ? "unknown (older than this check)" : controller, ", ", others),
         "upgrade the controller first, then agents (deploy/packages/README.md)"});
  }
}

// A pair that is measured one way only: packets, or the answers to them, do not come through.
void JudgeReachability(const FleetFacts& facts, Findings* found) {
  std::set<std::string> connected;
  for (const v1::Node& node : facts.nodes.nodes()) {
    if (node.connected()) connected.insert(node.name());
  }
  std::set<std::pair<std::string, std::string>> fresh;
  int stale = 0;
  for (const v1::Link& link : facts.links.links()) {
    if (!connected.contains(link.source()) || !connected.contains(link.target())) continue;
    if (link.rtt_s().samples() == 0) continue;
    if (link.rtt_s().age_s() <= kStaleS) {
      fresh.insert({link.source(), link.target()});
      continue;
    }
    ++stale;
    found->push_back({Verdict::kWarn,
                      StrCat("link ", link.source(), " -> ", link.target(),
                             ": latency was last measured ", AgeText(link.rtt_s().age_s()), " ago"),
                      StrCat("ping ", link.target(), " from ", link.source(),
                             "; a firewall must let UDP and TCP port 7446 of agents through")});
  }
  for (const auto& [source, target] : fresh) {
    if (fresh.contains({target, source})) continue;
    found->push_back({Verdict::kWarn,
                      StrCat(source, " reaches ", target, ", and nothing has measured ", target,
                             " -> ", source, " for a minute"),
                      StrCat("look for a firewall or a missing route from ", target, " to ", source,
                             ": UDP and TCP port 7446, and what the ranks listen at")});
  }
  found->push_back({Verdict::kOk, StrCat(fresh.size(), " directed links have fresh measurements",
                                         stale == 0 ? "" : StrCat(", ", stale, " have old ones"))});
}

void JudgeJob(const v1::Job& job, Findings* found) {
  int connected = 0;
  for (const v1::Rank& rank : job.ranks()) {
    connected += rank.connected() ? 1 : 0;
    if (rank.connected() && rank.plan_version() != job.active_plan().version()) {
      found->push_back({Verdict::kWarn,
                        StrCat("job ", job.name(), ": rank ", rank.rank(), " reports plan ",
                               rank.plan_version(), ", the job's is ", job.active_plan().version()),
                        "if it stays so, read that rank's log: it says which plan it refuses"});
    }
  }
  const std::string ranks =
      StrCat("job ", job.name(), ": ", connected, " of ", job.world(), " ranks attached");
  if (connected == static_cast<int>(job.world())) {
    found->push_back({Verdict::kOk, ranks});
  } else {
    found->push_back({Verdict::kFail, ranks,
                      "set WEIR_AGENT on the nodes that lack (weirctl describe job " + job.name() +
                          " names them), and see that their agents run"});
  }
}

void JudgeIdentity(const v1::Job& job, Findings* found) {
  if (job.unauthenticated_peers() == 0) return;
  found->push_back(
      {Verdict::kWarn,
       StrCat(
           "job ", job.name(), ": a rank reaches ", job.unauthenticated_peers(),
           " peers over a network without any proof of who they are; whoever reaches that network "
           "can change what the job computes"),
       "unset WEIR_UNAUTHENTICATED and let the framework's store hand out a key, or set "
       "WEIR_JOB_KEY_FILE on all ranks"});
}

void JudgeBenefit(const v1::Job& job, Findings* found) {
  const v1::Benefit& benefit = job.benefit();
  const std::string text = StrCat("job ", job.name(), " ", benefit.text());
  if (benefit.verdict() == v1::BENEFIT_VERDICT_COSTS) {
    found->push_back({Verdict::kWarn, text,
                      StrCat("weirctl explain ", job.name(), " says why it runs what it runs; ",
                             "weirctl pin ", job.name(), " --codec identity --collective ring ",
                             "--reason TEXT ends compression at once")});
  } else if (benefit.verdict() != v1::BENEFIT_VERDICT_UNSPECIFIED) {
    found->push_back({Verdict::kOk, text});
  }
}

// A rank that computes late looks like a slow link and is none.
void JudgePaces(const v1::Job& job, Findings* found) {
  for (const LateRanks& late : LateRanksOf(job)) {
    const char* const fix =
        late.gpus    ? "check clocks, temperature and throttling (nvidia-smi -q -d PERFORMANCE) of "
        : late.steal ? "move to a host with fewer guests, or reserve cores for "
                     : "look at what else uses the cores or the device of ";
    found->push_back({Verdict::kWarn, StrCat("job ", job.name(), ": ", late.text),
                      StrCat(fix, late.node, "; no plan helps")});
  }
}

// That the network limits all nodes alike is no fault; that it limits one is.
void JudgeWires(const v1::Job& job, Findings* found) {
  for (const BindingWire& wire : BindingWiresOf(job)) {
    const std::string text = StrCat("job ", job.name(), ": ", wire.text);
    if (wire.alone) {
      found->push_back({Verdict::kWarn, text,
                        StrCat("look at the speed and the error counters of the interfaces of ",
                               wire.node, " (ethtool, ibstat) and at what else sends there")});
    } else {
      found->push_back({Verdict::kOk, text});
    }
  }
}

void JudgeSkipped(const v1::Job& job, Findings* found) {
  if (!job.has_non_finite() || job.non_finite().step() + kSkippedStepsAgo < job.step()) return;
  const v1::RankEvent& event = job.non_finite();
  const std::string where =
      event.guilty_rank() < 0
          ? std::string("the rank is not known")
          : StrCat("rank ", event.guilty_rank(),
                   event.parameter().empty() ? "" : StrCat(", '", event.parameter(), "'"));
  found->push_back({Verdict::kWarn,
                    StrCat("job ", job.name(), ": step ", event.step(),
                           " was skipped, because a gradient held NaN or infinity: ", where),
                    "look at that rank's input and at the learning rate; after a change of the "
                    "loss scale a few such steps are normal"});
}

// Whether the job is better off for what was decided, and whether anything is.
void JudgeHelp(const v1::Job& job, Findings* found) {
  const std::string name = StrCat("job ", job.name());
  const std::string fix =
      StrCat("weirctl explain ", job.name(), " shows what was measured; weirctl pin ", job.name(),
             " --codec dense --reason WHY runs dense");
  const bool figure = job.benefit().verdict() != v1::BENEFIT_VERDICT_UNSPECIFIED;
  const bool costs =
      figure ? job.benefit().verdict() == v1::BENEFIT_VERDICT_COSTS
             : job.compared_s() > kComparedMinS && -job.saved_s() > kLossShare * job.compared_s();
  if (costs) {
    const std::string text = figure ? job.benefit().text()
                                    : StrCat("costs ", SecondsText(-job.saved_s()), " in ",
                                             SecondsText(job.compared_s()), " of steps");
    found->push_back({Verdict::kWarn, StrCat(name, ": Weir ", text), fix});
  } else if (figure && !job.benefit().text().empty()) {
    found->push_back({Verdict::kOk, StrCat(name, ": Weir ", job.benefit().text())});
  }
}

void JudgeDeciding(const v1::Job& job, const v1::Explanation& explanation, Findings* found) {
  const std::string name = StrCat("job ", job.name());
  const v1::Decision& decision = explanation.decision();
  if (job.pinned().empty() && !explanation.not_deciding().empty() &&
      job.nothing_to_choose().empty() && job.step() > kFirstSteps) {
    found->push_back({Verdict::kWarn,
                      StrCat(name, ": nothing is decided: ", explanation.not_deciding()),
                      "what runs goes on; see that all ranks are attached and report their steps"});
  }
  const double predicted = decision.predicted_step_s(), actual = decision.actual_step_s();
  if (predicted > 0 && actual > 0 &&
      (actual > kMispredicted * predicted || predicted > kMispredicted * actual)) {
    found->push_back(
        {Verdict::kWarn,
         StrCat(name, ": decision ", decision.id(), " predicted ", SecondsText(predicted),
                " per step, measured are ", SecondsText(actual)),
         "weirctl get links shows what the network is believed to be; a higher "
         "probing.budget_ratio measures it more often"});
  }
}

void JudgePolicy(const v1::Job& job, Findings* found) {
  if (job.nothing_to_choose().empty()) return;
  found->push_back(
      {Verdict::kFail,
       StrCat("job ", job.name(), ": policy ", job.policy(),
              " leaves nothing to choose, what runs goes on: ", job.nothing_to_choose()),
       StrCat("widen the bounds of policy ", job.policy(),
              ": allow the codec dense, or a lower gain_min")});
}

// Judges which of several controllers answers. False: none leads, so nothing is known of the
// present.
bool JudgeStanding(const Standing& standing, Findings* found) {
  if (!standing.shared) return true;
  if (!standing.store.empty()) {
    found->push_back({Verdict::kFail,
                      StrCat("the shared store cannot be used: ", standing.store,
                             "; jobs go on with their plans, and nothing is decided or stored"),
                      "start etcd's members again: more than half of them must answer (etcdctl "
                      "endpoint status --cluster)"});
  } else if (standing.leads) {
    found->push_back({Verdict::kOk, "it leads, and the shared store answers"});
  }
  if (standing.leads) return true;
  if (standing.leader.empty()) {
    found->push_back({Verdict::kFail, "no controller leads; what follows was stored earlier",
                      "see that weir-controller runs and reaches --store"});
  } else {
    found->push_back({Verdict::kFail,
                      StrCat("the leader at ", standing.leader,
                             " does not answer; a standby answers with what is stored"),
                      "see that it runs, and that --advertise-grpc is an address that this "
                      "machine reaches"});
  }
  return false;
}

void Print(const Finding& finding) {
  const char* words[] = {"ok  ", "warn", "FAIL"};
  std::printf("%s  %s\n", words[static_cast<int>(finding.verdict)], finding.text.c_str());
  if (!finding.fix.empty()) std::printf("      fix: %s\n", finding.fix.c_str());
}

StatusOr<FleetFacts> AskFleet(Client& client) {
  FleetFacts facts;
  facts.controller = client.options().controller;
  using Stub = v1::AdminService::Stub;
  WEIR_RETURN_IF_ERROR(client.CallAllPages(&Stub::ListNodes, {}, &facts.nodes));
  WEIR_RETURN_IF_ERROR(client.CallAllPages(&Stub::ListLinks, {}, &facts.links));
  WEIR_RETURN_IF_ERROR(client.CallAllPages(&Stub::ListJobs, {}, &facts.jobs));
  WEIR_RETURN_IF_ERROR(client.CallAllPages(&Stub::ListPolicies, {}, &facts.policies));
  for (const v1::Job& job : facts.jobs.jobs()) {
    if (job.state() != "running" || facts.explanations.size() >= kExplainedMax) continue;
    v1::ExplainRequest request;
    request.set_job(job.name());
    v1::Explanation explanation;
    const Status explained = client.Call(&Stub::Explain, request, &explanation);
    if (!explained.ok()) explanation.set_not_deciding(Message(explained));
    facts.explanations[job.name()] = std::move(explanation);
  }
  facts.standing = client.standing();
  return facts;
}

}  // namespace

Findings JudgeFleet(const FleetFacts& facts, const std::string& version, double unix_s) {
  Findings found;
  found.push_back({Verdict::kOk, StrCat("controller at ", facts.controller, " answers")});
  if (const double theirs = facts.nodes.controller_unix_s();
      theirs > 0 && std::abs(unix_s - theirs) > kClockSkewS) {
    found.push_back({Verdict::kWarn,
                     StrCat("this machine's clock is ", AgeText(std::abs(unix_s - theirs)),
                            unix_s > theirs ? " ahead of" : " behind", " the controller's"),
                     "timedatectl set-ntp true on both"});
  }
  const bool live = JudgeStanding(facts.standing, &found);
  JudgeVersions(facts, version, &found);
  if (!live) return found;
  JudgeNodes(facts, &found);
  JudgeReachability(facts, &found);
  if (facts.jobs.jobs().empty()) {
    found.push_back({Verdict::kWarn, "no training job has attached",
                     "set WEIR_AGENT in the job's environment"});
  }
  for (const v1::Job& job : facts.jobs.jobs()) {
    if (job.state() == "ended") continue;
    JudgeJob(job, &found);
    JudgeIdentity(job, &found);
    JudgeBenefit(job, &found);
    JudgePaces(job, &found);
    JudgeWires(job, &found);
    JudgeSkipped(job, &found);
    JudgeHelp(job, &found);
    JudgePolicy(job, &found);
    const auto explained = facts.explanations.find(job.name());
    if (explained != facts.explanations.end()) JudgeDeciding(job, explained->second, &found);
  }
  size_t refused = 0;
  for (const v1::Policy& policy : facts.policies.policies()) {
    if (policy.error().empty()) continue;
    ++refused;
    found.push_back({Verdict::kFail,
                     StrCat("policy ", policy.name(), ": newest text rejected: ", policy.error()),
                     "mend the file; weirctl validate -f FILE says whether it is right"});
  }
  if (refused == 0) {
    found.push_back(
        {Verdict::kOk, StrCat(facts.policies.policies_size(), " policies are in force")});
  }
  return found;
}

Status Doctor(Client& client, const std::string& version) {
  int failed = 0;
  const auto print = [&failed](const Findings& all) {
    for (const Finding& finding : all) {
      Print(finding);
      failed += finding.verdict == Verdict::kFail ? 1 : 0;
    }
    std::fflush(stdout);
  };
  print(JudgeMachine(LookAtMachine(), version));
  WEIR_ASSIGN_OR_RETURN(const FleetFacts facts, AskFleet(client));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  print(JudgeFleet(facts, version, std::chrono::duration<double>(now).count()));
  if (failed > 0) return Internal(StrCat(failed, " checks failed"));
  return OkStatus();
}

}  // namespace weir::cli
