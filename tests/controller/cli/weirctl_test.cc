// SPDX-License-Identifier: Apache-2.0
// weirctl as operators run it: every command, its output and its exit status.

#include <yaml-cpp/yaml.h>

#include "tests/controller/cli/weirctl_world.h"

namespace weir::cli {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::Not;
using testing::StartsWith;

TEST_F(WeirctlTest, GetAndDescribeShowEveryResourceInEveryOutput) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const struct {
    std::string kind, name, header, in_table;
  } kKinds[] = {{"nodes", "w1", "ADDRESS", "connected"},
                {"links", "w0", "BANDWIDTH", "tcp_"},
                {"jobs", "wire", "STEP-TIME", "running"},
                {"decisions", "1", "TRIGGER", "wire"},
                {"policies", "default", "OBJECTIVE", "built in"}};
  for (const auto& kind : kKinds) {
    const Ran table = Run({"get", kind.kind});
    EXPECT_EQ(table.code, kOk) << table.error;
    EXPECT_THAT(table.output, AllOf(HasSubstr(kind.header), HasSubstr(kind.in_table)));
    const size_t before = Json({"get", kind.kind})[kind.kind].size();
    EXPECT_GT(before, 0u) << kind.kind;
    const Ran yaml = Run({"get", kind.kind, "-o", "yaml"});
    ASSERT_EQ(yaml.code, kOk);
    const size_t after = Json({"get", kind.kind})[kind.kind].size();  // a decision may have come
    EXPECT_THAT(YAML::Load(yaml.output)[kind.kind].size(), AllOf(Ge(before), Le(after)))
        << yaml.output;
    const Ran described = Run({"describe", kind.kind, kind.name});
    ASSERT_EQ(described.code, kOk) << described.error;
    EXPECT_THAT(described.output, testing::ContainsRegex("(^|\n)[A-Z][a-z ]+:")) << kind.kind;
    EXPECT_THAT(described.output, Not(testing::ContainsRegex("[0-9]\\.[0-9]{8}"))) << kind.kind;
    const Ran whole = Run({"describe", kind.kind, kind.name, "-o", "yaml"});
    EXPECT_TRUE(YAML::Load(whole.output).IsMap()) << whole.output;
    EXPECT_FALSE(Json({"describe", kind.kind, kind.name}).empty());
  }
  EXPECT_EQ(Json({"get", "jobs", "wire"})["world"], 2);
  EXPECT_EQ(Json({"get", "decisions", "--job", "nobody"})["decisions"].size(), 0u);
  EXPECT_THAT(Json({"describe", "decisions", "1"})["snapshot_json"].get<std::string>(),
              StartsWith("{"));
}

TEST_F(WeirctlTest, AggregatorsAreListedWithWhatKeepsThemAway) {
  EXPECT_EQ(Json({"get", "aggregators"})["aggregators"].size(), 0u);
  EndController();
  StartController({"--aggregator", "sum-1=http://127.0.0.1:1"});
  ASSERT_TRUE(Eventually([&] {
    const std::string table = Run({"get", "aggregators"}).output;
    return table.find("cannot connect") != npos && table.find("http://127.0.0.1:1") != npos;
  }));
  EXPECT_EQ(Json({"get", "aggregators", "sum-1"})["reachable"], false);
  EXPECT_THAT(Run({"describe", "aggregator", "sum-1"}).output,
              testing::ContainsRegex("Name: +sum-1"));
  EXPECT_EQ(Run({"get", "aggregators", "sum-2"}).code, 3);
  Program refused({WEIR_CONTROLLER_PROGRAM, "--listen-grpc", "127.0.0.1:0", "--listen-http",
                   "127.0.0.1:0", "--state", ":memory:", "--aggregator", "a=http://10.0.0.9:1"});
  refused.ReadUntil([] { return false; });
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_THAT(refused.error, HasSubstr("give an https address, or --insecure"));
}

TEST_F(WeirctlTest, WatchPrintsEventsOfEveryKindAsTheyHappen) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const std::string policy = File("p.yaml", "name: watched\njobs: [nothing]\n");
  const struct {
    std::string kind;
    std::vector<std::vector<std::string>> causes;
  } kKinds[] = {{"node", {}},
                {"link", {}},
                {"job", {{"pin", "wire", "--reason", "watch"}}},
                {"decision", {{"pin", "wire", "--reason", "watch"}, {"unpin", "wire"}}},
                {"policy", {{"apply", "-f", policy}}}};
  for (const auto& kind : kKinds) {
    Program watch(CommandLine({"watch", kind.kind, "-o", "json"}));
    std::unique_ptr<WireAgent> another;
    // The command subscribes some time after its start, so the event is repeated until it is seen.
    const bool seen = Eventually([&] {
      for (const auto& cause : kind.causes) EXPECT_EQ(Run(cause).code, kOk);
      if (kind.kind == "node") another = std::make_unique<WireAgent>(target_, 2, 2);
      const TimePoint pause = RealClock().Now() + std::chrono::milliseconds(300);
      return watch.ReadUntil([&] {
        return watch.output.find('\n') != npos || RealClock().Now() > pause;
      }) && watch.output.find('\n') != npos;
    });
    ASSERT_TRUE(seen) << kind.kind << ": " << watch.error;
    const auto event =
        nlohmann::json::parse(watch.output.substr(0, watch.output.find('\n')), nullptr, false);
    ASSERT_TRUE(event.is_object()) << watch.output;
    EXPECT_EQ(event["kind"], kind.kind);
  }
}

TEST_F(WeirctlTest, DescribeHasUnitsTablesAndTheChoiceInWords) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const std::string job = Run({"describe", "jobs", "wire"}).output;
  EXPECT_THAT(job, testing::ContainsRegex("Step time: +[0-9.]+ m?s\n"));
  EXPECT_THAT(job, testing::ContainsRegex("Started: +20[0-9-]+ [0-9:]+Z \\([0-9]+ s ago\\)"));
  EXPECT_THAT(job, testing::ContainsRegex("Ranks:\n +RANK +NODE +CONNECTED"));
  EXPECT_THAT(job, testing::ContainsRegex("BUCKET +CHOICE\n"));
  const std::string decision = Run({"describe", "decisions", "1"}).output;
  EXPECT_THAT(decision, HasSubstr("Snapshot json:          ("));
  EXPECT_THAT(decision, HasSubstr("-o json shows it"));
  EXPECT_THAT(decision, testing::ContainsRegex("Candidates:\n +LABEL"));
  const std::string policy = Run({"get", "policies"}).output;
  EXPECT_THAT(policy, Not(testing::ContainsRegex("[0-9]{5,} h"))) << "the built-in one has no age";
}

TEST_F(WeirctlTest, EmptyListsSayWhatToDo) {
  for (const auto& [kind, advice] :
       std::map<std::string, std::string>{{"nodes", "start weir-agent"},
                                          {"links", "agents do that"},
                                          {"jobs", "set WEIR_AGENT"},
                                          {"decisions", "weirctl doctor"},
                                          {"aggregators", "--aggregator"}}) {
    const Ran ran = Run({"get", kind});
    EXPECT_EQ(ran.code, kOk);
    EXPECT_EQ(ran.output, "") << kind;
    EXPECT_THAT(ran.error, HasSubstr(advice)) << kind;
    EXPECT_FALSE(Json({"get", kind}).empty());
  }
}

TEST_F(WeirctlTest, WatchTellsTheTimeAndOnlySwitchesIfAsked) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  Program watch(CommandLine({"watch", "decisions", "--switches"}));
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Run({"pin", "wire", "--codec", "top_k", "--collective", "sparse_all_gather",
                   "--ratio", "0.05", "--reason", "w"})
                  .code,
              kOk);
    EXPECT_EQ(Run({"unpin", "wire"}).code, kOk);
    const TimePoint pause = RealClock().Now() + std::chrono::milliseconds(300);
    watch.ReadUntil([&] { return watch.output.find('\n') != npos || RealClock().Now() > pause; });
    return watch.output.find('\n') != npos;
  })) << watch.error;
  EXPECT_THAT(watch.output, testing::ContainsRegex("^20[0-9-]+ [0-9:]+Z  decision  wire  .*"));
  EXPECT_THAT(watch.output, Not(HasSubstr("stays"))) << "those that kept the plan are left out";
  const Ran wrong = Run({"watch", "nodes", "--switches"});
  EXPECT_EQ(wrong.code, kConflict);
  EXPECT_THAT(wrong.error, HasSubstr("--switches is for decisions"));
}

TEST_F(WeirctlTest, ContextsKeepHowControllersAreReached) {
  const std::string file = directory_ / "contexts.yaml";
  ASSERT_EQ(setenv("WEIR_CONTEXTS", file.c_str(), 1), 0);
  EXPECT_THAT(RunAlone({"context"}).error, HasSubstr("--save"));
  EXPECT_EQ(RunAlone({"context", "here", "--save", "--controller", target_}).code, kOk);
  EXPECT_EQ(RunAlone({"get", "nodes"}).code, kOk) << "the context says where";
  EXPECT_EQ(RunAlone({"context", "gone", "--save", "--controller", "127.0.0.1:1"}).code, kOk);
  EXPECT_EQ(RunAlone({"get", "nodes"}).code, kUnreachable);
  EXPECT_EQ(RunAlone({"get", "nodes", "--context", "here"}).code, kOk);
  EXPECT_EQ(RunAlone({"get", "nodes", "--controller", target_}).code, kOk)
      << "the line is stronger";
  EXPECT_THAT(RunAlone({"context"}).output,
              AllOf(HasSubstr("*  gone  127.0.0.1:1"), HasSubstr("here  " + target_)));
  EXPECT_EQ(RunAlone({"context", "here"}).code, kOk);
  EXPECT_EQ(RunAlone({"get", "nodes"}).code, kOk);
  const Ran unknown = RunAlone({"context", "elsewhere"});
  EXPECT_EQ(unknown.code, kNotFoundExit);
  EXPECT_THAT(unknown.error, HasSubstr("valid: gone, here"));
  EXPECT_EQ(RunAlone({"context", "here", "--delete"}).code, kOk);
  EXPECT_THAT(RunAlone({"context"}).output, Not(HasSubstr("here")));
  std::ofstream(file) << "contexts:\n  a:\n    password: x\n";
  const Ran wrong = RunAlone({"get", "nodes"});
  EXPECT_EQ(wrong.code, kConflict);
  EXPECT_THAT(wrong.error, HasSubstr(file + ":3: unknown flag 'password'"));
  EXPECT_EQ(std::filesystem::status(file).permissions() & std::filesystem::perms::others_read,
            std::filesystem::perms::none);
  unsetenv("WEIR_CONTEXTS");
}

TEST_F(WeirctlTest, TokensLeaveTheMachineEncryptedOnly) {
  const std::string token = File("token", "secret-of-the-test\n");
  EXPECT_EQ(Run({"get", "nodes", "--token-file", token}).code, kOk) << "loopback";
  for (const char* far : {"10.255.255.1:7700", "127.evil.example:7700"}) {
    const Ran ran = RunAlone({"get", "nodes", "--token-file", token, "--controller", far});
    EXPECT_EQ(ran.code, kConflict) << far;
    EXPECT_THAT(ran.error, AllOf(HasSubstr("in plain text"), HasSubstr("--ca"))) << far;
  }
}

TEST_F(WeirctlTest, LinksNoLibraryOfAServer) {
  Program ldd({"/usr/bin/ldd", WEIRCTL_PROGRAM});
  ldd.ReadUntil([] { return false; });
  ASSERT_EQ(ldd.Wait(), 0) << ldd.error;
  EXPECT_THAT(ldd.output, HasSubstr("libgrpc"));
  for (const char* library : {"sqlite", "prometheus", "httplib", "reflection", "brotli"}) {
    EXPECT_THAT(ldd.output, Not(HasSubstr(library)));
  }
}

TEST_F(WeirctlTest, ErrorsNameTheFlagThatMendsThem) {
  const Ran gone = RunAlone({"get", "nodes", "--controller", "127.0.0.1:1"});
  EXPECT_EQ(gone.code, kUnreachable);
  EXPECT_THAT(gone.error, AllOf(HasSubstr("no controller answers at 127.0.0.1:1"),
                                HasSubstr("Connection refused"), HasSubstr("--controller")));
  EXPECT_LT(gone.error.size(), 250u);
  Program second({WEIR_CONTROLLER_PROGRAM, "--listen-grpc", target_, "--listen-http", "127.0.0.1:0",
                  "--state", ":memory:"});
  second.ReadUntil([] { return false; });
  EXPECT_NE(second.Wait(), 0);
  EXPECT_THAT(second.error, AllOf(HasSubstr("--listen-grpc"), Not(HasSubstr("chttp2"))));
}

TEST_F(WeirctlTest, WatchOfJobsPrintsWhatTheirRanksTell) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  Program watch(CommandLine({"watch", "jobs", "wire"}));
  v1::RankEvent event;
  event.set_kind("non_finite");
  event.set_detail("its gradient of 'layer.weight' held NaN or infinity");
  event.set_guilty_rank(1);
  EXPECT_TRUE(Eventually([&] {
    event.set_step(event.step() + 1);
    agents_[1]->Tell(event);
    const TimePoint pause = RealClock().Now() + std::chrono::milliseconds(300);
    return watch.ReadUntil([&] {
      return watch.output.find("layer.weight") != npos || RealClock().Now() > pause;
    }) && watch.output.find("layer.weight") != npos;
  })) << watch.error;
  EXPECT_THAT(watch.output,
              HasSubstr("rank  wire  rank 1: non_finite: its gradient of 'layer.weight'"));
  EXPECT_EQ(Json({"get", "jobs", "wire"})["non_finite"]["guilty_rank"], 1);
}

TEST_F(WeirctlTest, ExplainSaysWhyAndReplaysIdentically) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const Ran text = Run({"explain", "wire", "--replay"});
  EXPECT_EQ(text.code, kOk) << text.error;
  EXPECT_THAT(text.output,
              AllOf(HasSubstr("Why:"), HasSubstr("Measured"), HasSubstr("Candidates, best first"),
                    HasSubstr("dense over ring"), HasSubstr("Dense would take")));
  EXPECT_THAT(text.error, HasSubstr("replay: identical"));
  const nlohmann::json json = Json({"explain", "wire", "--replay"});
  EXPECT_GT(json["decision"]["candidates"].size(), 1u);
  EXPECT_GT(json["bandwidth_bytes_per_s"]["value"].get<double>(), 0);
}

TEST_F(WeirctlTest, PinHoldsUntilUnpin) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const Ran pinned = Run({"pin", "wire", "--codec", "top_k", "--collective", "sparse_all_gather",
                          "--ratio", "0.05", "--actor", "amy", "--reason", "trial"});
  EXPECT_EQ(pinned.code, kOk) << pinned.error;
  EXPECT_TRUE(Eventually([&] {
    return Run({"get", "jobs"}).output.find("top_k 0.05 over sparse_all_gather") != npos;
  }));
  EXPECT_THAT(Run({"get", "jobs"}).output, HasSubstr("running,pinned"));
  EXPECT_THAT(Json({"get", "jobs", "wire"})["pinned"].get<std::string>(),
              AllOf(HasSubstr("amy"), HasSubstr("trial")));
  const Ran dense = Run({"pin", "wire", "--codec", "dense", "--reason", "compare"});
  EXPECT_EQ(dense.code, kOk) << dense.error;
  EXPECT_THAT(Json({"get", "jobs", "wire"})["pinned"].get<std::string>(),
              HasSubstr("dense over ring"));
  EXPECT_EQ(Run({"unpin", "wire", "--actor", "amy"}).code, kOk);
  EXPECT_EQ(Json({"get", "jobs", "wire"})["pinned"], "");
}

TEST_F(WeirctlTest, PoliciesAreValidatedAppliedAndRefusedWithFileAndKey) {
  const std::string good = File("good.yaml", "name: mild\nbounds: {ratio_min: 0.1}\n");
  const std::string objective = File("objective.yaml", "name: x\nobjective: fastest\n");
  const std::string key = File("key.json", R"({"name": "x", "bounds": {"ratio": 1}})");
  const std::string codec = File("codec.yaml", "name: x\nbounds: {codecs: [topk]}\n");
  EXPECT_EQ(Run({"validate", "-f", good}).code, kOk);
  EXPECT_EQ(Run({"apply", "-f", good, "--dry-run"}).code, kOk);
  EXPECT_EQ(Json({"get", "policies"})["policies"].size(), 1u) << "a dry run changes nothing";
  EXPECT_EQ(Run({"apply", "-f", good, "--actor", "amy"}).code, kOk);
  EXPECT_EQ(Json({"get", "policies", "mild"})["origin"], "api");
  for (const std::string verb : {"validate", "apply"}) {
    const Ran unknown = Run({verb, "-f", objective});
    EXPECT_EQ(unknown.code, kConflict);
    EXPECT_THAT(unknown.error,
                AllOf(HasSubstr(objective + ":2: objective.name"), HasSubstr("time_to_accuracy")));
    const Ran bad = Run({verb, "-f", key});
    EXPECT_EQ(bad.code, kConflict);
    EXPECT_THAT(bad.error, AllOf(HasSubstr(key), HasSubstr("ratio_min")));
    const Ran absent = Run({verb, "-f", codec});
    EXPECT_EQ(absent.code, kConflict);
    EXPECT_THAT(absent.error, AllOf(HasSubstr(":2: bounds.codecs: expected one of adaq, "),
                                    HasSubstr("found 'topk'; the nearest is 'top_k'")));
    EXPECT_EQ(Run({verb, "-f", directory_ / "absent"}).code, kNotFoundExit);
  }
  EXPECT_EQ(Json({"get", "policies"})["policies"].size(), 2u);

  const std::string tighter = File("tighter.yaml", "name: mild\nbounds: {ratio_min: 0.2}\n");
  EXPECT_THAT(Run({"diff", "-f", tighter}).output, HasSubstr("bounds.ratio_min: 0.1 -> 0.2"));
  EXPECT_THAT(Run({"delete", "policy", "mild", "--dry-run"}).output, HasSubstr("would be deleted"));
  EXPECT_EQ(Json({"get", "policies"})["policies"].size(), 2u);
  EXPECT_EQ(Run({"delete", "policy", "mild"}).code, kOk);
  EXPECT_EQ(Run({"delete", "policy", "mild"}).code, kNotFoundExit);
  EXPECT_EQ(Json({"get", "policies"})["policies"].size(), 1u);
}

TEST_F(WeirctlTest, WhatIsThereIsNotForgottenAndLevelsAreChecked) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const Ran node = Run({"delete", "node", "w0"});
  EXPECT_EQ(node.code, kConflict);
  EXPECT_THAT(node.error, HasSubstr("stop its agent first"));
  EXPECT_EQ(Run({"delete", "job", "wire"}).code, kConflict);
  EXPECT_EQ(Run({"delete", "job", "absent"}).code, kNotFoundExit);
  EXPECT_EQ(Run({"log-level", "loud"}).code, kUsage);
  EXPECT_EQ(Run({"log-level", "info"}).code, kOk);
}

TEST_F(WeirctlTest, ABackupIsBroughtHereAndRestored) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  EndTraining();
  const std::string copy = directory_ / "copy.db";
  const Ran made = Run({"backup", copy, "--reason", "upgrade"});
  ASSERT_EQ(made.code, kOk) << made.error;
  EXPECT_THAT(made.output, testing::HasSubstr("--restore " + copy));
  EXPECT_EQ(std::filesystem::status(copy).permissions() & std::filesystem::perms::others_all,
            std::filesystem::perms::none);
  const Ran again = Run({"backup", copy});
  EXPECT_THAT(again.error, testing::HasSubstr("there is a file"));
  EXPECT_THAT(Run({"get", "audit"}).output, testing::HasSubstr("StartBackup"));
  EXPECT_EQ(Run({"delete", "job", "wire"}).code, kOk);
  EndController();

  Program restore({WEIR_CONTROLLER_PROGRAM, "--state", directory_ / "state.db", "--restore", copy});
  restore.ReadUntil([] { return false; });
  EXPECT_EQ(restore.Wait(), 0) << restore.error;
  StartController({});
  EXPECT_EQ(Run({"get", "jobs", "wire"}).code, kOk);
}

TEST_F(WeirctlTest, TheSchemaOfPoliciesNeedsNoController) {
  const auto schema = nlohmann::json::parse(Run({"schema"}).output);
  const auto& bounds = schema["properties"]["bounds"]["properties"];
  EXPECT_THAT(bounds["codecs"]["items"]["enum"].get<std::vector<std::string>>(),
              testing::IsSupersetOf({"dense", "top_k", "sidco:fit=gp"}));
  EXPECT_THAT(schema["properties"]["objective"]["oneOf"][0]["enum"].get<std::vector<std::string>>(),
              testing::IsSupersetOf({"fixed", "time_to_accuracy"}));
}

TEST_F(WeirctlTest, SimulateNeedsNoController) {
  Program offline({WEIRCTL_PROGRAM, "--controller", "127.0.0.1:1", "simulate", "--bandwidth",
                   "50Mb/s", "--latency", "5ms", "--compute", "50ms"});
  offline.ReadUntil([] { return false; });
  EXPECT_EQ(offline.Wait(), kOk) << offline.error;
  EXPECT_THAT(offline.output, AllOf(HasSubstr("CANDIDATE"), HasSubstr("dense")));
  const nlohmann::json slow = Json({"simulate", "--bandwidth", "50Mb/s", "--compute", "50ms"});
  EXPECT_NE(slow["plan"]["buckets"][0]["choice"]["codec"], "identity");
  const std::string dense = File("dense.yaml", "bounds: {codecs: [identity]}\n");
  EXPECT_THAT(Run({"simulate", "--bandwidth", "1Gb/s", "--compute", "50ms"}).output,
              AllOf(HasSubstr("at 1 Gb/s"), HasSubstr("dense over "), Not(HasSubstr("MB/s"))));
  const nlohmann::json held = Json({"simulate", "--bandwidth", "50Mb/s", "--policy", dense});
  EXPECT_EQ(held["plan"]["buckets"][0]["choice"]["codec"], "identity");
}

TEST_F(WeirctlTest, SimulateGoesAroundASlowLink) {
  const std::string dense =
      File("ring.yaml", "bounds: {codecs: [identity], collectives: [ring]}\n");
  const auto simulate = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {"simulate", "--world",  "4",  "--bandwidth",
                                     "1Gb/s",    "--policy", dense};
    line.insert(line.end(), more.begin(), more.end());
    return Json(line);
  };
  EXPECT_TRUE(simulate({})["plan"]["ring_order"].empty());
  const nlohmann::json around = simulate({"--link", "1-2=10Mb/s"});
  EXPECT_EQ(around["plan"]["ring_order"], nlohmann::json({0, 1, 3, 2}));
  EXPECT_THAT(around["reason"].get<std::string>(), HasSubstr("from rank 1 to rank 2"));
  for (const char* wrong : {"1-2", "1=10Mb/s", "1-1=10Mb/s", "1-4=10Mb/s", "1-2=x", "1-2=0"}) {
    EXPECT_NE(Run({"simulate", "--world", "4", "--link", wrong}).code, kOk) << wrong;
  }
}

TEST_F(WeirctlTest, SimulateGivesASlowHostSmallShards) {
  const std::string mesh = File("mesh.yaml", "bounds: {codecs: [identity], collectives: [mesh]}\n");
  std::vector<std::string> line = {"simulate",    "--parameters", "25M",      "--world", "4",
                                   "--bandwidth", "1Gb/s",        "--policy", mesh};
  EXPECT_TRUE(Json(line)["plan"]["shard_shares"].empty());
  for (const char* link : {"3-0", "3-1", "3-2"}) {
    line.insert(line.end(), {"--link", std::string(link) + "=100Mb/s"});
  }
  const nlohmann::json slow = Json(line);
  ASSERT_EQ(slow["plan"]["shard_shares"].size(), 4u);
  EXPECT_LT(slow["plan"]["shard_shares"][3], 65536 / 50);
  EXPECT_THAT(slow["reason"].get<std::string>(), HasSubstr("rank 3 owns least"));
}

TEST_F(WeirctlTest, SimulateKnowsWhichRanksShareANode) {
  const std::string dense = File("dense.yaml", "bounds: {codecs: [identity]}\n");
  const auto collective = [&](const char* together) {
    return Json({"simulate", "--world", "8", "--bandwidth", "1Gb/s", "--policy", dense,
                 "--ranks-per-node", together})["plan"]["buckets"][0]["choice"]["collective"];
  };
  EXPECT_NE(collective("1"), "hierarchical");
  EXPECT_EQ(collective("4"), "hierarchical");
  EXPECT_EQ(collective("3"), "hierarchical");
  EXPECT_NE(collective("8"), "hierarchical") << "there is one node";
  EXPECT_NE(Run({"simulate", "--world", "4", "--ranks-per-node", "5"}).code, kOk);
  EXPECT_NE(Run({"simulate", "--world", "4", "--ranks-per-node", "2", "--link", "1-2=1Mb/s"}).code,
            kOk);
}

TEST_F(WeirctlTest, SimulateSumsNodesBeforeItEncodesWhereThatIsBest) {
  const std::string lossy = File("opaque.yaml", "bounds: {codecs: [identity, top_k]}\n");
  const auto simulate = [&](const char* together) {
    return Json({"simulate", "--world", "8", "--bandwidth", "50Mb/s", "--policy", lossy,
                 "--ranks-per-node", together});
  };
  const auto sums_nodes = [](const nlohmann::json& collective) {
    return collective == "node_shards" || collective == "node_sums";
  };
  const nlohmann::json four = simulate("4");
  EXPECT_TRUE(sums_nodes(four["plan"]["buckets"][0]["choice"]["collective"])) << four.dump(1);
  EXPECT_FALSE(sums_nodes(simulate("1")["plan"]["buckets"][0]["choice"]["collective"]));
}

TEST_F(WeirctlTest, SimulateAnswersForGradientsOnGpus) {
  const std::string own = File(
      "own.yaml", "bounds: {codecs: [identity, top_k], collectives: [ring, sparse_all_gather]}\n");
  const std::string both = File("both.yaml",
                                "bounds: {codecs: [identity, top_k], collectives: [ring, "
                                "sparse_all_gather, framework]}\n");
  const auto simulate = [&](const std::string& policy, const char* bandwidth,
                            std::vector<std::string> more) {
    std::vector<std::string> line = {"simulate", "--world",   "8",    "--bandwidth",
                                     bandwidth,  "--compute", "50ms", "--latency",
                                     "50us",     "--policy",  policy};
    line.insert(line.end(), more.begin(), more.end());
    return Json(line);
  };
  const auto chosen = [](const nlohmann::json& answer, const char* field) {
    return answer["plan"]["buckets"][0]["choice"][field];
  };
  const auto reason = [](const nlohmann::json& answer) {
    return answer["reason"].get<std::string>();
  };
  EXPECT_THAT(reason(simulate(own, "1Gb/s", {})), Not(HasSubstr("GPU")));
  const nlohmann::json gpu = simulate(own, "1Gb/s", {"--gpu-copy", "20GB/s"});
  EXPECT_EQ(chosen(gpu, "codec"), "top_k") << gpu.dump(1);
  EXPECT_THAT(reason(gpu), HasSubstr("encoded on the GPU"));
  // A fast network needs no compression: the job's own process group sums, and nothing is copied.
  const nlohmann::json fast = simulate(both, "400Gb/s", {"--gpu-copy", "20GB/s", "--framework"});
  EXPECT_EQ(chosen(fast, "collective"), "framework") << fast.dump(1);
  EXPECT_THAT(reason(fast), HasSubstr("not encoded, predicts"));
  EXPECT_THAT(reason(simulate(own, "400Gb/s", {"--gpu-copy", "20GB/s"})),
              HasSubstr("not encoded (copies 10 ms), predicts"));
  EXPECT_NE(Run({"simulate", "--policy", both}).code, kOk) << "no process group";
  EXPECT_NE(Run({"simulate", "--gpu-links"}).code, kOk);
}

// The formulas give the published times; for Table VI, to the printed digit.
TEST_F(WeirctlTest, SimulateTableReproducesThePublishedTables) {
  const Ran shown = Run({"simulate", "--table", "--world", "8"});
  EXPECT_EQ(shown.code, kOk) << shown.error;
  EXPECT_THAT(shown.output, AllOf(HasSubstr("8 ranks"), HasSubstr("AR-Topk, ring"),
                                  HasSubstr("Table VI"), HasSubstr("Table II")));
  const nlohmann::json document = Json({"simulate", "--table", "--world", "8"});
  std::vector<double> errors;
  for (const auto& entry : document["published"]) {
    const double formula = entry["formula_ms"], published = entry["published_ms"];
    if (entry["table"] == "VI") errors.push_back(std::abs(formula / published - 1));
  }
  ASSERT_EQ(errors.size(), 108u);
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[54], 0.03);
  EXPECT_LE(errors.back(), 0.12);
  const Ran refused = Run({"simulate", "--table", "--world", "1"});
  EXPECT_EQ(refused.code, kConflict);
  EXPECT_THAT(refused.error, HasSubstr("at least 2 ranks"));
}

TEST_F(WeirctlTest, DoctorIsContentOrNamesWhatIsWrong) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const Ran well = Run({"doctor"});
  EXPECT_EQ(well.code, kOk) << well.output;
  EXPECT_THAT(well.output, HasSubstr("ok    job wire: 2 of 2 ranks attached"));
  EXPECT_THAT(well.output, HasSubstr("share memory"));
  EndTraining();
  EXPECT_TRUE(Eventually([&] { return Run({"doctor"}).code == kFailure; }));
  EXPECT_THAT(Run({"doctor"}).output, HasSubstr("FAIL  agent on w0"));
}

TEST_F(WeirctlTest, DoctorLooksAtTheMachineWhereNoControllerAnswers) {
  Program alone({WEIRCTL_PROGRAM, "--controller", "127.0.0.1:1", "doctor"});
  alone.ReadUntil([] { return false; });
  EXPECT_EQ(alone.Wait(), kUnreachable);
  EXPECT_THAT(alone.output, AllOf(HasSubstr("kernel"), HasSubstr("share memory")));
}

TEST_F(WeirctlTest, ExitCodesAreStableAndDocumented) {
  const Ran help = Run({"--help"});
  EXPECT_EQ(help.code, kOk);
  for (const char* line : {"exit status", "0  ok", "1  failure", "2  wrong flags", "3  not found",
                           "4  no controller", "5  refused"}) {
    EXPECT_THAT(help.output, HasSubstr(line));
  }
  const std::vector<std::vector<std::string>> usage = {{},
                                                       {"frobnicate"},
                                                       {"get"},
                                                       {"get", "gadgets"},
                                                       {"get", "jobs", "-o", "xml"},
                                                       {"apply"},
                                                       {"pin", "wire", "--nope"},
                                                       {"explain"}};
  for (const auto& arguments : usage) {
    EXPECT_EQ(Run(arguments).code, kUsage) << nlohmann::json(arguments).dump();
  }
  const std::vector<std::vector<std::string>> absent = {
      {"get", "jobs", "nope"},         {"get", "nodes", "nope"}, {"describe", "decisions", "999"},
      {"get", "policies", "nope"},     {"explain", "nope"},      {"unpin", "nope"},
      {"pin", "nope", "--reason", "r"}};
  for (const auto& arguments : absent) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, kNotFoundExit) << nlohmann::json(arguments).dump() << ran.error;
    EXPECT_THAT(ran.error, StartsWith("weirctl: "));
  }
  Program unreachable({WEIRCTL_PROGRAM, "--controller", "127.0.0.1:1", "get", "jobs"});
  unreachable.ReadUntil([] { return false; });
  EXPECT_EQ(unreachable.Wait(), kUnreachable);
  EXPECT_THAT(unreachable.error, HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace weir::cli
