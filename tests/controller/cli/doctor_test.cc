// SPDX-License-Identifier: Apache-2.0
// Doctor's findings, and lists of many pages, which it follows to their end.

#include "controller/cli/doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "controller/cli/machine.h"

namespace weir::cli {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr double kNow = 1.8e9;

/// The finding whose text contains `part`; fails the test if there is none.
Finding With(const std::vector<Finding>& all, const std::string& part) {
  for (const Finding& finding : all) {
    if (finding.text.find(part) != std::string::npos) return finding;
  }
  ADD_FAILURE() << "no finding has '" << part << "'";
  return {};
}

int Count(const std::vector<Finding>& all, Verdict verdict) {
  int count = 0;
  for (const Finding& finding : all) {
    count += finding.verdict == verdict ? 1 : 0;
    EXPECT_EQ(finding.fix.empty(), finding.verdict == Verdict::kOk) << finding.text;
  }
  return count;
}

v1::Link* AddLink(const std::string& source, const std::string& target, double age_s,
                  FleetFacts* facts) {
  v1::Link* link = facts->links.add_links();
  link->set_source(source);
  link->set_target(target);
  link->mutable_rtt_s()->set_samples(3);
  link->mutable_rtt_s()->set_age_s(age_s);
  return link;
}

FleetFacts HealthyFleet() {
  FleetFacts facts;
  facts.nodes.set_controller_version("1.2");
  facts.nodes.set_controller_unix_s(kNow);
  for (const char* name : {"a", "b"}) {
    v1::Node* node = facts.nodes.add_nodes();
    node->set_name(name);
    node->set_connected(true);
    node->set_agent_version("1.2");
  }
  AddLink("a", "b", 1, &facts);
  AddLink("b", "a", 1, &facts);
  v1::Job* job = facts.jobs.add_jobs();
  job->set_name("lm");
  job->set_world(1);
  job->add_ranks()->set_connected(true);
  facts.policies.add_policies()->set_name("default");
  return facts;
}

TEST(DoctorTest, JobsAreJudgedByWhatWeirDoesForThem) {
  FleetFacts facts = HealthyFleet();
  v1::Job* job = facts.jobs.mutable_jobs(0);
  job->set_state("running");
  job->set_step(500);
  job->set_policy("tight");
  job->set_compared_s(600);
  job->set_saved_s(60);
  v1::Explanation* explanation = &facts.explanations["lm"];
  v1::Decision* decision = explanation->mutable_decision();
  decision->set_id("7");
  decision->set_predicted_step_s(0.5);
  decision->set_actual_step_s(0.6);
  v1::Candidate* candidate = decision->add_candidates();
  candidate->set_feasible(true);
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kWarn), 0);

  job->set_saved_s(-60);
  const Finding costs = With(JudgeFleet(facts, "1.2", kNow), "costs 60 s in 10 min of steps");
  EXPECT_EQ(costs.verdict, Verdict::kWarn);
  EXPECT_THAT(costs.fix, HasSubstr("weirctl pin lm --codec dense"));
  // The controller's own figure, where it has one, is what counts.
  job->mutable_benefit()->set_verdict(v1::BENEFIT_VERDICT_SAVES);
  job->mutable_benefit()->set_text("saves 34 % +- 5 % of the time");
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "saves 34 %").verdict, Verdict::kOk);
  job->mutable_benefit()->set_verdict(v1::BENEFIT_VERDICT_COSTS);
  job->mutable_benefit()->set_text("costs 3 % +- 1 % of the time");
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "costs 3 %").verdict, Verdict::kWarn);
  job->clear_benefit();
  job->set_saved_s(0);

  decision->set_actual_step_s(0.8);
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "decision 7 predicted 0.5 s").verdict,
            Verdict::kWarn);
  decision->set_actual_step_s(0);

  job->set_nothing_to_choose("gain_min 0.9 excludes 40");
  const Finding stuck = With(JudgeFleet(facts, "1.2", kNow), "policy tight leaves nothing");
  EXPECT_EQ(stuck.verdict, Verdict::kFail);
  EXPECT_THAT(stuck.text, HasSubstr("gain_min 0.9"));
  job->clear_nothing_to_choose();

  explanation->set_not_deciding("rank 1 reports no steps");
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "nothing is decided: rank 1").verdict,
            Verdict::kWarn);
  job->set_pinned("ann: dense over ring");
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kWarn), 0)
      << "that is what a pin is for";
  job->clear_pinned();
  job->set_step(3);
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kWarn), 0) << "the first steps";
}

TEST(DoctorTest, HealthyFleetHasNothingToMend) {
  const auto found = JudgeFleet(HealthyFleet(), "1.2", kNow + 1);
  EXPECT_EQ(Count(found, Verdict::kOk), static_cast<int>(found.size()));
  EXPECT_EQ(With(found, "2 directed links").verdict, Verdict::kOk);
}

TEST(DoctorTest, OfSeveralControllersTheLeaderIsJudgedAndAMissingOneFails) {
  FleetFacts facts = HealthyFleet();
  facts.standing = {.shared = true, .leads = true, .leader = "a:7700"};
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "it leads").verdict, Verdict::kOk);
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kFail), 0);
  // A standby's copy has no connected agent; that is no news.
  facts.nodes.mutable_nodes(0)->set_connected(false);
  facts.standing = {.shared = true, .leader = "a:7700"};
  auto found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(With(found, "the leader at a:7700 does not answer").verdict, Verdict::kFail);
  EXPECT_EQ(Count(found, Verdict::kFail), 1);
  facts.standing = {.shared = true, .store = "no etcd member answers"};
  found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(With(found, "store cannot be used: no etcd member answers").verdict, Verdict::kFail);
  EXPECT_EQ(With(found, "no controller leads").verdict, Verdict::kFail);
}

TEST(DoctorTest, VersionSkewNamesWhoIsOlder) {
  FleetFacts facts = HealthyFleet();
  facts.nodes.mutable_nodes(1)->set_agent_version("1.1");
  const Finding agent = With(JudgeFleet(facts, "1.2", kNow), "versions differ");
  EXPECT_EQ(agent.verdict, Verdict::kWarn);
  EXPECT_THAT(agent.text, HasSubstr("the agent on b is 1.1"));
  EXPECT_THAT(With(JudgeFleet(HealthyFleet(), "1.3", kNow), "versions differ").text,
              HasSubstr("weirctl is 1.3"));
}

TEST(DoctorTest, ClocksApartAreNamedWithDirection) {
  FleetFacts facts = HealthyFleet();
  facts.nodes.mutable_nodes(0)->set_clock_ahead_s(-90);
  const auto found = JudgeFleet(facts, "1.2", kNow + 3600);
  EXPECT_THAT(With(found, "clock of a").text, HasSubstr("behind the controller's"));
  EXPECT_THAT(With(found, "this machine's clock").text, HasSubstr("ahead of the controller's"));
  EXPECT_THAT(With(found, "clock of a").fix, HasSubstr("set-ntp"));
}

TEST(DoctorTest, OneWayLinksAndOldOnesAreNamed) {
  FleetFacts facts = HealthyFleet();
  facts.links.mutable_links()->DeleteSubrange(1, 1);
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "nothing has measured b -> a").verdict,
            Verdict::kWarn);
  AddLink("b", "a", 300, &facts);
  const auto found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_THAT(With(found, "link b -> a").fix, HasSubstr("7446"));
  facts.nodes.mutable_nodes(1)->set_connected(false);  // then its links do not matter
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kWarn), 0);
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "agent on b").verdict, Verdict::kFail);
}

TEST(DoctorTest, RanksThatLackAndPoliciesThatAreRefusedFail) {
  FleetFacts facts = HealthyFleet();
  facts.jobs.mutable_jobs(0)->set_world(2);
  facts.policies.mutable_policies(0)->set_error("p.yaml:3: bounds");
  const auto found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(Count(found, Verdict::kFail), 2);
  EXPECT_THAT(With(found, "p.yaml:3").fix, HasSubstr("weirctl validate"));
  facts.jobs.mutable_jobs(0)->set_state("ended");
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kFail), 1);
}

TEST(DoctorTest, FleetThatIsNotThereYetIsSaid) {
  FleetFacts facts;
  facts.nodes.set_controller_version("1.2");
  facts.nodes.set_controller_unix_s(kNow);
  const auto found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(Count(found, Verdict::kWarn), 2);
  EXPECT_THAT(With(found, "no agent has connected").fix, HasSubstr("weir-agent"));
  EXPECT_THAT(With(found, "no training job").fix, HasSubstr("WEIR_AGENT"));
}

TEST(DoctorTest, AJobWhosePeersProveNothingIsNamedWhileItRuns) {
  FleetFacts facts = HealthyFleet();
  facts.jobs.mutable_jobs(0)->set_unauthenticated_peers(3);
  const auto found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(With(found, "job lm: a rank reaches 3 peers").verdict, Verdict::kWarn);
  EXPECT_THAT(With(found, "job lm: a rank reaches").fix, HasSubstr("WEIR_JOB_KEY_FILE"));
  facts.jobs.mutable_jobs(0)->set_state("ended");
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kWarn), 0);
}

TEST(DoctorTest, RankAndParameterOfARecentSkippedStepAreNamed) {
  FleetFacts facts = HealthyFleet();
  v1::Job* job = facts.jobs.mutable_jobs(0);
  job->set_step(100);
  job->mutable_non_finite()->set_step(90);
  job->mutable_non_finite()->set_guilty_rank(3);
  job->mutable_non_finite()->set_parameter("layer.weight");
  const Finding found = With(JudgeFleet(facts, "1.2", kNow), "step 90 was skipped");
  EXPECT_EQ(found.verdict, Verdict::kWarn);
  EXPECT_THAT(found.text, HasSubstr("rank 3, 'layer.weight'"));
  job->set_step(5000);
  EXPECT_EQ(Count(JudgeFleet(facts, "1.2", kNow), Verdict::kWarn), 0);
}

TEST(DoctorTest, AJobThatWeirCostsTimeIsAWarningAndASavingIsNot) {
  FleetFacts facts = HealthyFleet();
  v1::Benefit* benefit = facts.jobs.mutable_jobs(0)->mutable_benefit();
  benefit->set_verdict(v1::BENEFIT_VERDICT_SAVES);
  benefit->set_text("saves 34 % +- 5 % of the time");
  EXPECT_EQ(With(JudgeFleet(facts, "1.2", kNow), "job lm saves 34 %").verdict, Verdict::kOk);
  benefit->set_verdict(v1::BENEFIT_VERDICT_COSTS);
  benefit->set_text("costs 3 % +- 1 % of the time");
  const Finding found = With(JudgeFleet(facts, "1.2", kNow), "job lm costs 3 %");
  EXPECT_EQ(found.verdict, Verdict::kWarn);
  EXPECT_THAT(found.fix, HasSubstr("weirctl pin lm --codec identity"));
}

TEST(DoctorTest, ARankThatComputesLateIsNamed) {
  FleetFacts facts = HealthyFleet();
  v1::Rank* rank = facts.jobs.mutable_jobs(0)->mutable_ranks(0);
  rank->set_slower(1);
  for (const Finding& finding : JudgeFleet(facts, "1.2", kNow)) {
    EXPECT_THAT(finding.text, testing::Not(HasSubstr("slower")));
  }
  rank->set_slower(1.42);
  const Finding found = With(JudgeFleet(facts, "1.2", kNow), "job lm: rank 0 on ");
  EXPECT_EQ(found.verdict, Verdict::kWarn);
  EXPECT_THAT(found.text, HasSubstr("computes 1.4 times slower than the middle rank"));
}

TEST(DoctorTest, AHostWhoseCoresAreTakenIsNamedOnce) {
  FleetFacts facts = HealthyFleet();
  v1::Job* job = facts.jobs.mutable_jobs(0);
  *job->add_ranks() = job->ranks(0);
  job->mutable_ranks(1)->set_rank(1);
  for (v1::Rank& rank : *job->mutable_ranks()) {
    rank.set_node("b");
    rank.mutable_cores()->set_wait_ratio(0.2);
    rank.mutable_cores()->set_steal_ratio(0.02);
  }
  for (const Finding& finding : JudgeFleet(facts, "1.2", kNow)) {
    EXPECT_THAT(finding.text, testing::Not(HasSubstr("taken")));
  }
  for (v1::Rank& rank : *job->mutable_ranks()) rank.mutable_cores()->set_steal_ratio(0.3);
  int named = 0;
  for (const Finding& finding : JudgeFleet(facts, "1.2", kNow)) {
    named += finding.text.find("cores of b are taken") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(named, 1);
  const Finding stolen = With(JudgeFleet(facts, "1.2", kNow), "job lm: the cores of b are taken");
  EXPECT_EQ(stolen.verdict, Verdict::kWarn);
  EXPECT_THAT(stolen.text, HasSubstr("(steal 30 %, rank 0 waits for one for 20 % of the time"));
  EXPECT_THAT(stolen.text, testing::Not(HasSubstr("count against")));
  EXPECT_THAT(stolen.fix, HasSubstr("fewer guests"));
  job->mutable_ranks(0)->mutable_cores()->set_steal_ratio(0);
  job->mutable_ranks(0)->set_starved(true);
  const Finding starved = With(JudgeFleet(facts, "1.2", kNow), "(rank 0 waits for one for 20 %");
  EXPECT_THAT(starved.text, HasSubstr("slow steps count against no link and no codec"));
}

TEST(DoctorTest, ANodeWhoseGpusAreLateIsNamedOnce) {
  FleetFacts facts = HealthyFleet();
  v1::Job* job = facts.jobs.mutable_jobs(0);
  *job->add_ranks() = job->ranks(0);
  job->mutable_ranks(1)->set_rank(1);
  for (v1::Rank& rank : *job->mutable_ranks()) {
    rank.set_node("b");
    v1::NcclConclusion* nccl = rank.mutable_nccl();
    nccl->set_cause(v1::NCCL_CAUSE_GPUS_LATE);
    nccl->set_own_gpu_ratio(0.72);
    nccl->set_wire_ratio(0.1);
    nccl->set_others(3);
    nccl->set_waiting(3);
  }
  const auto found = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(Count(found, Verdict::kWarn), 1);
  const Finding late = With(found, "job lm: the GPUs of b are late");
  EXPECT_EQ(late.verdict, Verdict::kWarn);
  EXPECT_THAT(late.text, HasSubstr(": 72 % of NCCL's waiting there is for its own GPUs, and the "
                                   "other 3 nodes wait for it"));
  EXPECT_THAT(late.fix, HasSubstr("check clocks, temperature and throttling"));
  for (v1::Rank& rank : *job->mutable_ranks()) rank.mutable_nccl()->set_waiting(2);
  EXPECT_THAT(With(JudgeFleet(facts, "1.2", kNow), "GPUs of b").text,
              HasSubstr("and 2 of the other 3 nodes wait for it"));

  // A rank that is slow by its own times and has late GPUs is one finding, not two.
  job->mutable_ranks(1)->set_slower(1.42);
  const auto slower = JudgeFleet(facts, "1.2", kNow);
  EXPECT_EQ(Count(slower, Verdict::kWarn), 1);
  EXPECT_THAT(With(slower, "job lm: rank 1 on b computes 1.4 times slower").text,
              HasSubstr("wait for it; 72 % of NCCL's waiting there is for its own GPUs"));
}

TEST(DoctorTest, AWireThatBindsOneNodeIsAWarningAndOneThatBindsAllIsNot) {
  FleetFacts facts = HealthyFleet();
  v1::Rank* rank = facts.jobs.mutable_jobs(0)->mutable_ranks(0);
  rank->set_node("b");
  rank->mutable_nccl()->set_cause(v1::NCCL_CAUSE_WIRE_BINDS);
  rank->mutable_nccl()->set_wire_ratio(0.64);
  rank->mutable_nccl()->set_others(1);
  const Finding all = With(JudgeFleet(facts, "1.2", kNow), "job lm: the wire of b binds: 64 % of");
  EXPECT_EQ(all.verdict, Verdict::kOk);
  EXPECT_THAT(all.text, testing::Not(HasSubstr("wait for it")));
  rank->mutable_nccl()->set_waiting(1);
  const Finding alone = With(JudgeFleet(facts, "1.2", kNow), "job lm: the wire of b binds");
  EXPECT_EQ(alone.verdict, Verdict::kWarn);
  EXPECT_THAT(alone.text, HasSubstr("and the other node waits for it"));
  EXPECT_THAT(alone.fix, HasSubstr("interfaces of b"));
}

TEST(DoctorTest, RankThatRunsAnotherPlanIsNamed) {
  FleetFacts facts = HealthyFleet();
  v1::Job* job = facts.jobs.mutable_jobs(0);
  job->mutable_active_plan()->set_version(5);
  job->mutable_ranks(0)->set_plan_version(4);
  const Finding rank = With(JudgeFleet(facts, "1.2", kNow), "rank 0 reports plan 4");
  EXPECT_EQ(rank.verdict, Verdict::kWarn);
  EXPECT_THAT(rank.text, HasSubstr("the job's is 5"));
}

MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.kernel = "6.1";
  facts.udp_segments = true;
  facts.receive_buffer_bytes = 16u << 20;
  facts.open_files = 65536;
  facts.memlock_bytes = 64 << 10;
  facts.agent_socket = "/run/weir/agent.sock";
  facts.probe_port = 7446;
  facts.probe_port_taken = facts.probe_udp_port_taken = true;
  facts.libraries = {{"/usr/lib/libweir.so.0", "1.2"}};
  return facts;
}

TEST(DoctorTest, GoodMachineHasNothingToMend) {
  const auto found = JudgeMachine(GoodMachine(), "1.2");
  EXPECT_EQ(Count(found, Verdict::kOk), static_cast<int>(found.size()));
  MachineFacts facts = GoodMachine();
  facts.rdma_devices = true;
  facts.memlock_bytes = UINT64_MAX;
  EXPECT_EQ(Count(JudgeMachine(facts, "1.2"), Verdict::kOk), static_cast<int>(found.size()));
}

TEST(DoctorTest, WhatAMachineLacksIsNamedWithItsFix) {
  MachineFacts facts = GoodMachine();
  facts.udp_segments = false;
  facts.peer_memory_error = "Operation not permitted";
  EXPECT_THAT(With(JudgeMachine(facts, "1.0"), "copy long payloads twice").fix,
              HasSubstr("ptrace_scope"));
  facts.shared_memory_error = "Operation not permitted";
  facts.receive_buffer_bytes = 212992;
  facts.slow_start_after_idle = true;
  facts.open_files = 256;
  facts.rdma_devices = true;
  facts.agent_error = "Permission denied";
  facts.libraries["/usr/local/lib/libweir.so.0"] = "1.1";
  const auto found = JudgeMachine(facts, "1.2");
  EXPECT_EQ(Count(found, Verdict::kOk), 0);
  EXPECT_EQ(Count(found, Verdict::kFail), 2);
  EXPECT_THAT(With(found, "cannot share memory").fix, HasSubstr("seccomp"));
  EXPECT_THAT(With(found, "208 KiB").fix, HasSubstr("net.core.rmem_max"));
  EXPECT_THAT(With(found, "begin again").fix, HasSubstr("tcp_slow_start_after_idle=0"));
  EXPECT_THAT(With(found, "256 files").fix, HasSubstr("ulimit -n"));
  EXPECT_THAT(With(found, "RDMA").fix, HasSubstr("ulimit -l"));
  EXPECT_THAT(With(found, "no agent").fix, HasSubstr("group weir"));
  EXPECT_THAT(With(found, "taken").fix, HasSubstr("--probe-port"));
  EXPECT_THAT(With(found, "clash").text, HasSubstr("/usr/local/lib/libweir.so.0 (1.1)"));
}

TEST(DoctorTest, LibraryThatIsMissingOrOldIsNamed) {
  MachineFacts facts = GoodMachine();
  facts.libraries = {{"/usr/lib/libweir.so.0", "1.1"}};
  const Finding old = With(JudgeMachine(facts, "1.2"), "not of weirctl's version 1.2");
  EXPECT_EQ(old.verdict, Verdict::kWarn);
  EXPECT_THAT(old.text, HasSubstr("/usr/lib/libweir.so.0 (1.1)"));
  facts.libraries.clear();
  EXPECT_THAT(With(JudgeMachine(facts, "1.2"), "no libweir.so").fix, HasSubstr("WEIR_LIBRARY"));
}

/// A listening socket; -1 if that is not possible.
int Listen(int family, const sockaddr* address, socklen_t size) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, address, size) == 0 && listen(fd, 1) == 0) return fd;
  close(fd);
  return -1;
}

TEST(DoctorTest, SeesTheAgentAndALibraryOfThePath) {
  char directory[] = "/tmp/weir-doctor-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s/agent.sock", directory);
  const int fd = Listen(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const std::string library = StrCat(directory, "/libweir.so.0");
  std::ofstream(library) << "no library";
  setenv("WEIR_AGENT", StrCat("unix:", address.sun_path).c_str(), 1);
  setenv("LD_LIBRARY_PATH", directory, 1);
  const MachineFacts facts = LookAtMachine();
  unsetenv("WEIR_AGENT");
  unsetenv("LD_LIBRARY_PATH");
  EXPECT_GE(fd, 0);
  EXPECT_EQ(facts.agent_error, "");
  EXPECT_TRUE(facts.libraries.contains(library));
  close(fd);
  std::filesystem::remove_all(directory);
}

TEST(DoctorTest, SeesWhoeverHasTheProbesPort) {
  bool permitted = false, before = false, after = false;
  std::thread([&] {  // only this thread is in the new namespace
    permitted = unshare(CLONE_NEWNET) == 0;
    if (!permitted) return;
    before = LookAtMachine().probe_port_taken;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(7446);
    const int fd = Listen(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    after = LookAtMachine().probe_port_taken;
    close(fd);
  })
      .join();
  if (!permitted) GTEST_SKIP() << "network namespaces are not permitted";
  EXPECT_FALSE(before);
  EXPECT_TRUE(after);
}

TEST(DoctorTest, SaysWhoMayHaveTheProbesPortForUdp) {
  bool permitted = false;
  std::vector<Finding> before, after;
  setenv("WEIR_AGENT", "unix:/nowhere/agent.sock", 1);
  std::thread([&] {  // only this thread is in the new namespace
    permitted = unshare(CLONE_NEWNET) == 0;
    if (!permitted) return;
    before = JudgeMachine(LookAtMachine(), "1.2");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(7446);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    after = JudgeMachine(LookAtMachine(), "1.2");
    close(fd);
  })
      .join();
  unsetenv("WEIR_AGENT");
  if (!permitted) GTEST_SKIP() << "network namespaces are not permitted";
  EXPECT_EQ(With(before, "port 7446").verdict, Verdict::kOk);
  const Finding taken = With(after, "port 7446 of agents' probes (UDP) is taken");
  EXPECT_EQ(taken.verdict, Verdict::kWarn);
  EXPECT_THAT(taken.fix, HasSubstr("ss -lp 'sport = :7446'"));
}

// A kernel without UDP segmentation answers ENOPROTOOPT; a filter makes this kernel do the same.
bool ForgetUdpSegments() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_setsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, UDP_SEGMENT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {.len = std::size(steps), .filter = steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(DoctorTest, SaysThatAKernelIsTooOldForUdpRows) {
  bool permitted = false;
  std::vector<Finding> found;
  std::thread([&] {  // the filter applies to this thread only
    permitted = ForgetUdpSegments();
    if (permitted) found = JudgeMachine(LookAtMachine(), "1.2");
  })
      .join();
  if (!permitted) GTEST_SKIP() << "seccomp is not permitted";
  const Finding old = With(found, "has no UDP GSO and GRO");
  EXPECT_EQ(old.verdict, Verdict::kWarn);
  EXPECT_EQ(old.fix, "Linux 5.0 or later");
}

TEST(DoctorTest, LooksAtThisMachine) {
  setenv("WEIR_AGENT", "unix:/nowhere/agent.sock", 1);
  setenv("WEIR_LIBRARY", "/etc/hostname", 1);  // is no library
  const MachineFacts facts = LookAtMachine();
  unsetenv("WEIR_AGENT");
  unsetenv("WEIR_LIBRARY");
  EXPECT_FALSE(facts.kernel.empty());
  EXPECT_EQ(facts.agent_socket, "/nowhere/agent.sock");
  EXPECT_EQ(facts.agent_error, "No such file or directory");
  rlimit files{}, locked{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files) + getrlimit(RLIMIT_MEMLOCK, &locked), 0);
  EXPECT_EQ(facts.open_files, files.rlim_cur);  // RLIM_INFINITY is UINT64_MAX here
  EXPECT_EQ(facts.memlock_bytes, locked.rlim_cur);
  EXPECT_GT(facts.receive_buffer_bytes, 0u);
  EXPECT_EQ(facts.shared_memory_error, "");
  EXPECT_THAT(facts.peer_memory_error, AnyOf("", "Operation not permitted"));
  ASSERT_TRUE(facts.libraries.contains("/etc/hostname"));
  EXPECT_THAT(facts.libraries.at("/etc/hostname"), HasSubstr("cannot be loaded"));
}

/// Nodes n0 .. n4, two on a page; from n9 on the list never ends.
class PagedAdmin : public v1::AdminService::Service {
 public:
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* request,
                         v1::ListNodesResponse* response) override {
    if (endless) {
      response->set_next_page_token("again");
      return grpc::Status::OK;
    }
    const int from = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    for (int i = from; i < std::min(from + 2, 5); ++i) {
      response->add_nodes()->set_name(StrCat("n", i));
    }
    if (from + 2 < 5) response->set_next_page_token(std::to_string(from + 2));
    response->set_controller_version("1.2");
    return grpc::Status::OK;
  }
  bool endless = false;
};

TEST(PagesTest, ListIsFollowedToItsEndAndNotFurther) {
  PagedAdmin admin;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&admin);
  const auto server = builder.BuildAndStart();
  ClientOptions options;
  options.controller = StrCat("127.0.0.1:", port);
  const auto client = Client::Create(options);
  ASSERT_TRUE(client.ok());
  v1::ListNodesResponse all;
  const auto method = &v1::AdminService::Stub::ListNodes;
  ASSERT_TRUE((*client)->CallAllPages(method, {}, &all).ok());
  ASSERT_EQ(all.nodes_size(), 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(all.nodes(i).name(), StrCat("n", i));
  EXPECT_EQ(all.next_page_token(), "");
  EXPECT_EQ(all.controller_version(), "1.2");
  admin.endless = true;
  EXPECT_EQ((*client)->CallAllPages(method, {}, &all).code(), StatusCode::kInternal);
  server->Shutdown();
}

}  // namespace
}  // namespace weir::cli
