// SPDX-License-Identifier: Apache-2.0
// Small pure parts of the service.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "controller/fleet/event_hub.h"
#include "controller/fleet/policy_watcher.h"
#include "controller/fleet/probe_scheduler.h"
#include "controller/messages/policy_set.h"
#include "controller/server/auth/auth.h"
#include "controller/server/executor.h"
#include "controller/server/rest/routes.h"
#include "controller/server/status_mapping.h"
#include "deploy/program/loopback.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

TEST(ProbeSchedulerTest, NoTwoProbesShareANode) {
  ProbeScheduler probes;
  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  double now = 0;
  int bandwidth_probes = 0;
  for (int round = 0; round < 200; ++round, now += 1) {
    for (const auto& source : nodes) {
      for (const auto& target : nodes) {
        if (source != target) probes.OfferLink(source, target, {true, 30, 1 << 20});
      }
    }
    probes.ForgetOtherLinks();
    probes.OnTrainingBytes(100 << 20, 0.005);
    std::set<std::string> busy;
    const auto started = probes.Next(now);
    for (const auto& probe : started) {
      EXPECT_TRUE(busy.insert(probe.source).second);
      EXPECT_TRUE(busy.insert(probe.target).second);
      bandwidth_probes += probe.method == "iperf3";
    }
    for (const auto& probe : started) {
      probes.OnResult(probe.id, probe.bytes_max, now);
      if (probe.method == "iperf3") probes.OnBandwidthSample(probe.source, probe.target, now);
    }
  }
  EXPECT_GE(bandwidth_probes, 12 * 3) << "every link is measured again and again";
  const double budget = 200.0 * (100 << 20) * 0.005 + 12 * ProbeScheduler::kInitialBytes;
  EXPECT_LE(static_cast<double>(probes.spent_bytes()), budget);
}

TEST(ProbeSchedulerTest, SilentProbeFreesItsNodesAndWithoutCreditNothingStarts) {
  ProbeScheduler probes;
  probes.OfferLink("a", "b", {true, 1, 1 << 20});
  auto route = probes.Next(1000);
  ASSERT_EQ(route.size(), 1u);
  EXPECT_EQ(route[0].method, "traceroute");
  EXPECT_TRUE(probes.Next(1001).empty()) << "both nodes are busy";
  const auto first = probes.Next(1006);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].bytes_max, ProbeScheduler::kInitialBytes);
  EXPECT_TRUE(probes.Next(1100).empty()) << "the first grant is used up and training sends nothing";
  probes.OnTrainingBytes(1ull << 30, 0.005);
  EXPECT_EQ(probes.Next(1101).size(), 1u);
}

TEST(AuthTest, RolesAndHashes) {
  const auto tokens = Authenticator::Parse(
      "# people\nviewer look\n"
      "operator sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 # test\n"
      "admin root\n",
      "tokens");
  ASSERT_TRUE(tokens.ok()) << ToString(tokens.status());
  EXPECT_TRUE(tokens->Authorize("Bearer look", Role::kViewer).ok());
  EXPECT_EQ(tokens->Authorize("Bearer look", Role::kOperator).code(),
            StatusCode::kPermissionDenied);
  EXPECT_TRUE(tokens->Authorize("Bearer test", Role::kOperator).ok());
  EXPECT_TRUE(tokens->Authorize("Bearer root", Role::kAdmin).ok());
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer x", "look", "Basic look"}) {
    EXPECT_EQ(tokens->Authorize(wrong, Role::kViewer).code(), StatusCode::kUnauthenticated)
        << wrong;
  }
  EXPECT_THAT(Message(Authenticator::Parse("root x\n", "f").status()),
              testing::HasSubstr("f:1: unknown role 'root'"));
  EXPECT_FALSE(Authenticator::Parse("admin\n", "f").ok());
  EXPECT_FALSE(Authenticator::Parse("admin sha256:12\n", "f").ok());
  EXPECT_FALSE(Authenticator::Parse("\n", "f").ok()) << "an empty file must not permit access";
}

TEST(LoopbackTest, OnlyAddressesAndOneNameAreOfThisMachine) {
  for (const char* yes : {"127.0.0.1", "127.8.9.10", "localhost", "::1", "[::1]"}) {
    EXPECT_TRUE(IsLoopback(yes)) << yes;
  }
  for (const char* no : {"0.0.0.0", "::", "127.evil.example", "127.", "127.0.0.1.evil.example",
                         "localhost.evil.example", "128.0.0.1", "", "[::]"}) {
    EXPECT_FALSE(IsLoopback(no)) << no;
  }
  for (const char* yes : {"127.0.0.1:7700", "[::1]:7700", "localhost:1", "unix:/run/weir.sock"}) {
    EXPECT_TRUE(IsLoopbackTarget(yes)) << yes;
  }
  for (const char* no : {"127.evil.example:7700", "10.0.0.1:7700", "train-0:7700", "[fe80::1]:1"}) {
    EXPECT_FALSE(IsLoopbackTarget(no)) << no;
  }
}

TEST(RoutesTest, MatchesVerbsAndDecodesNames) {
  auto match = MatchRoute("GET", "/v1/jobs/a%2Fb:explain");
  ASSERT_TRUE(match.ok());
  EXPECT_STREQ(match->route->method, "Explain");
  EXPECT_EQ(match->path_fields.at("job"), "a/b");
  match = MatchRoute("GET", "/v1/jobs/a:b");
  ASSERT_TRUE(match.ok());
  EXPECT_STREQ(match->route->method, "GetJob");
  EXPECT_STREQ(MatchRoute("POST", "/v1:simulate")->route->method, "Simulate");
  EXPECT_STREQ(MatchRoute("POST", "/v1/policies:validate")->route->method, "ValidatePolicy");
  EXPECT_STREQ(MatchRoute("GET", "/v1/jobs/x/series")->route->method, "GetSeries");
  EXPECT_EQ(MatchRoute("POST", "/v1/jobs").status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(MatchRoute("GET", "/v1/absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MatchRoute("GET", "/v1/jobs/").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MatchRoute("GET", "/v1/jobs/%").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MatchRoute("GET", "/v1/jobs/%zz").status().code(), StatusCode::kInvalidArgument);
  for (const Route& route : Routes()) EXPECT_NE(MethodOf(route), nullptr) << route.method;
}

TEST(RoutesTest, EveryAdminMethodHasARoute) {
  const auto* service = v1::Event::descriptor()->file()->FindServiceByName("AdminService");
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& name = service->method(i)->name();
    EXPECT_TRUE(std::any_of(Routes().begin(), Routes().end(), [&](const Route& route) {
      return name == route.method;
    })) << name;
  }
}

TEST(RoutesTest, FieldsAreSetByType) {
  v1::ListDecisionsRequest request;
  EXPECT_TRUE(SetField(&request, "job", "j").ok());
  EXPECT_TRUE(SetField(&request, "page_size", "7").ok());
  EXPECT_EQ(request.page_size(), 7u);
  EXPECT_EQ(SetField(&request, "page_size", "-1").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SetField(&request, "page_size", "7x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SetField(&request, "pagesize", "7").code(), StatusCode::kInvalidArgument);
  v1::WatchRequest watch;
  EXPECT_TRUE(SetField(&watch, "kinds", "job,decision").ok());
  EXPECT_EQ(watch.kinds_size(), 2);
}

TEST(EventHubTest, FiltersBoundsAndCloses) {
  EventHub hub;
  v1::WatchRequest request;
  request.add_kinds("job");
  request.set_job("a");
  const auto subscription = *hub.Subscribe(request);
  const auto publish = [&](const std::string& kind, const std::string& job) {
    v1::Event event;
    event.set_kind(kind);
    event.set_job(job);
    hub.Publish(std::move(event));
  };
  publish("job", "b");
  publish("step", "a");
  EXPECT_EQ(subscription->TryNext(), nullptr);
  publish("job", "a");
  EXPECT_NE(subscription->TryNext(), nullptr);
  for (size_t i = 0; i < Subscription::kQueueMax + 10; ++i) publish("job", "a");
  EXPECT_EQ(subscription->dropped(), 10u);
  request.add_kinds("nonsense");
  EXPECT_THAT(Message(hub.Subscribe(request).status()), testing::HasSubstr("valid: decision"));
  hub.Close();
  EXPECT_TRUE(subscription->closed());
  EXPECT_EQ(hub.Subscribe({}).status().code(), StatusCode::kUnavailable);
}

TEST(ExecutorTest, CallsReturnAndStopRunsWhatWasQueued) {
  Executor executor(std::chrono::milliseconds(1));
  std::atomic<int> ticks{0}, ran{0};
  executor.Start([&] { ++ticks; });
  EXPECT_EQ(executor.Call([] { return NotFound("x"); }).code(), StatusCode::kNotFound);
  while (ticks < 3) ASSERT_TRUE(executor.Call([] { return OkStatus(); }).ok());
  for (int i = 0; i < 100; ++i) executor.Post([&] { ++ran; });
  executor.Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(executor.Post([] {}));
  EXPECT_EQ(executor.Call([] { return OkStatus(); }).code(), StatusCode::kUnavailable);
}

constexpr char kGood[] = "name: slow\njobs: [\"lm*\"]\nobjective: throughput\n";
constexpr char kBad[] = "name: slow\nbogus_key: 3\n";

TEST(PolicySetTest, RejectedTextKeepsTheOldPolicy) {
  PolicySet policies;
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", kGood}}, 1));
  EXPECT_TRUE(policies.last_reload_successful());
  ASSERT_NE(policies.Match("lm-1"), nullptr);
  EXPECT_EQ(policies.Match("other"), nullptr);
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", kBad}}, 2));
  EXPECT_FALSE(policies.last_reload_successful());
  EXPECT_EQ(policies.last_success_unix_s(), 1);
  ASSERT_NE(policies.Match("lm-1"), nullptr) << "the old policy must stay";
  EXPECT_EQ(policies.Match("lm-1")->policy.objective, "throughput");
  EXPECT_THAT(policies.All()[0].error, testing::HasSubstr("bogus_key"));
  EXPECT_FALSE(policies.LoadFiles({{"/p/a.yaml", kBad}}, 3)) << "nothing changed";
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", kGood}}, 4));
  EXPECT_TRUE(policies.last_reload_successful());
  EXPECT_TRUE(policies.LoadFiles({}, 5));
  EXPECT_EQ(policies.Match("lm-1"), nullptr);
}

TEST(PolicySetTest, ObjectivesAreCheckedBeforeAPolicyIsActive) {
  PolicySet policies;
  const std::string unknown = "name: p\nobjective:\n  name: fastest\n";
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", unknown}}, 1));
  EXPECT_FALSE(policies.last_reload_successful());
  EXPECT_EQ(policies.Match("job"), nullptr);
  const std::string why = policies.All()[0].error;
  EXPECT_THAT(why, testing::StartsWith("/p/a.yaml:3: objective.name: "));
  EXPECT_THAT(why, testing::HasSubstr("fastest"));
  EXPECT_THAT(why, testing::HasSubstr("time_to_accuracy"));
  for (const bool dry_run : {true, false}) {
    const auto applied = policies.Apply("p", unknown, 2, dry_run);
    EXPECT_EQ(applied.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(applied.status()), testing::HasSubstr("delay_target"));
  }
  EXPECT_FALSE(policies.Apply("", "objective: delay_target\n", 3, false).ok())
      << "it lacks its target";
  EXPECT_TRUE(
      policies.Apply("", "objective: {name: delay_target, delay_target_s: 0.1}\n", 4, false).ok());
}

constexpr char kPluginPolicy[] = "name: mine\njobs: [lm]\nbounds:\n  codecs: [block_mean]\n";

TEST(PolicySetTest, UnknownCodecsAreRefusedWhenAPolicyIsLoaded) {
  PolicySet policies;
  for (const bool dry_run : {true, false}) {
    const auto applied = policies.Apply("", "bounds: {codecs: [topk]}\n", 1, dry_run);
    EXPECT_EQ(applied.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(
        Message(applied.status()),
        testing::AllOf(testing::StartsWith("policy:1: bounds.codecs: expected one of adaq, "),
                       testing::HasSubstr("sidco:fit=gp"),
                       testing::EndsWith("found 'topk'; the nearest is 'top_k'")));
  }
  EXPECT_TRUE(policies.Apply("", "bounds: {codecs: [top_k]}\n", 1, true).ok());
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", kGood}}, 1));
  EXPECT_TRUE(
      policies.LoadFiles({{"/p/a.yaml", StrCat(kGood, "bounds: {collectives: [rong]}\n")}}, 2));
  EXPECT_FALSE(policies.last_reload_successful());
  EXPECT_THAT(policies.All()[0].error,
              testing::HasSubstr("/p/a.yaml:4: bounds.collectives: expected one of "));
  EXPECT_TRUE(policies.Match("lm-1")->policy.collectives.empty()) << "the old policy must stay";
}

TEST(PolicySetTest, NamesOfAPluginAreKnownFromItsFirstRankOn) {
  PolicySet policies;
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", kPluginPolicy}, {"/p/b.yaml", kBad}}, 1));
  EXPECT_EQ(policies.Match("lm"), nullptr);
  EXPECT_FALSE(policies.Apply("", kPluginPolicy, 1, true).ok());
  v1::Capabilities declared;
  declared.add_codecs()->set_name("top_k");
  EXPECT_FALSE(policies.Learn(declared, 2)) << "nothing is new";
  declared.add_codecs()->set_name("block_mean");
  EXPECT_TRUE(policies.Learn(declared, 3));
  ASSERT_NE(policies.Match("lm"), nullptr);
  EXPECT_THAT(policies.Match("lm")->policy.codecs, testing::ElementsAre("block_mean"));
  EXPECT_EQ(policies.Match("lm")->loaded_unix_s, 3);
  EXPECT_FALSE(policies.last_reload_successful()) << "the other file is still wrong";
  EXPECT_TRUE(policies.Apply("", kPluginPolicy, 4, true).ok());
  EXPECT_FALSE(policies.Learn(declared, 5));
  // A text that was removed from the directory is not tried again.
  PolicySet others;
  others.LoadFiles({{"/p/a.yaml", kPluginPolicy}}, 1);
  others.LoadFiles({}, 2);
  EXPECT_FALSE(others.Learn(declared, 3));
  EXPECT_EQ(others.Match("lm"), nullptr);
}

TEST(PolicySetTest, NamesAreBoundedInNumberAndForm) {
  PolicySet policies;
  v1::Capabilities declared;
  for (size_t i = 0; i <= PolicySet::kNamesMax; ++i)
    declared.add_codecs()->set_name(StrCat("c", i));
  (void)policies.Learn(declared, 1);
  EXPECT_LE(policies.known().codecs.size(), PolicySet::kNamesMax);
  EXPECT_TRUE(policies.known().codecs.contains("top_k"));
  v1::Capabilities odd;
  odd.add_codecs()->set_name("a\nE controller: forged");
  odd.add_collectives()->set_name("");
  EXPECT_TRUE(NamesOf(odd).codecs.empty());
  EXPECT_TRUE(NamesOf(odd).collectives.empty());
}

TEST(PolicySetTest, AppliedPoliciesComeFirstAndDryRunChangesNothing) {
  PolicySet policies;
  policies.LoadFiles({{"/p/a.yaml", kGood}}, 1);
  ASSERT_TRUE(policies.Apply("mine", "name: mine\n", 2, true).ok());
  EXPECT_EQ(policies.Match("lm-1")->name, "slow");
  ASSERT_TRUE(policies.Apply("mine", "name: mine\n", 2, false).ok());
  EXPECT_EQ(policies.Match("lm-1")->name, "mine");
  EXPECT_EQ(policies.Apply("mine", "name: yours\n", 2, false).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(policies.Apply("mine", kBad, 2, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(policies.All().back().name, "default");
}

TEST(PolicySetTest, EffectivePolicySurvivesItsRecord) {
  PolicyOverride pin;
  pin.kind = PolicyOverride::Kind::kPin;
  pin.codec = "fp16";
  pin.collective = "ring";
  const auto made = MakeEffectivePolicy("slow", kGood, pin);
  ASSERT_TRUE(made.ok());
  const auto decoded = DecodeEffectivePolicy(made->record);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->objective, "fixed");
  EXPECT_EQ(decoded->fixed_codec, "fp16");
  EXPECT_EQ(decoded->jobs, std::vector<std::string>{"lm*"});
  EXPECT_EQ(DecodeEffectivePolicy("{}").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(DecodeEffectivePolicy("").status().code(), StatusCode::kDataLoss);
}

TEST(PolicyWatcherTest, SeesEditsAndAConfigMapSwap) {
  char name[] = "/tmp/weir-policies-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  const fs::path directory = name;
  BoundedQueue<PolicyWatcher::Contents> seen(16);
  {
    PolicyWatcher watcher(directory,
                          [&](PolicyWatcher::Contents c) { seen.TryPush(std::move(c)); });
    const auto next = [&] {
      auto contents = seen.Pop(RealClock().Now() + std::chrono::seconds(10));
      return contents.has_value() ? std::move(*contents)
                                  : PolicyWatcher::Contents(NotFound("no event"));
    };
    EXPECT_TRUE(next()->empty());
    std::ofstream(directory / "a.yaml") << kGood;
    auto contents = next();
    // The watcher may see a partial write; the next event completes it.
    while (contents.ok() && (contents->empty() || contents->begin()->second != kGood))
      contents = next();
    ASSERT_TRUE(contents.ok());
    EXPECT_EQ(contents->size(), 1u);
    // Kubernetes mounts files as links through ..data, which it replaces by a rename.
    fs::create_directory(directory / "..one");
    fs::create_directory(directory / "..two");
    std::ofstream(directory / "..one" / "b.yaml") << "name: one\n";
    std::ofstream(directory / "..two" / "b.yaml") << "name: two\n";
    fs::create_directory_symlink("..one", directory / "..data");
    fs::create_symlink("..data/b.yaml", directory / "b.yaml");
    contents = next();
    while (contents.ok() && contents->size() != 2) contents = next();
    ASSERT_TRUE(contents.ok());
    EXPECT_EQ(contents->at((directory / "b.yaml").string()), "name: one\n");
    fs::create_directory_symlink("..two", directory / "..data_tmp");
    fs::rename(directory / "..data_tmp", directory / "..data");
    contents = next();
    ASSERT_TRUE(contents.ok());
    EXPECT_EQ(contents->at((directory / "b.yaml").string()), "name: two\n");
  }
  fs::remove_all(directory);
  EXPECT_EQ(ReadPolicyDirectory(directory).status().code(), StatusCode::kNotFound);
}

TEST(StatusMappingTest, CodesAndErrorJson) {
  EXPECT_EQ(HttpCode(StatusCode::kOk), 200);
  EXPECT_EQ(HttpCode(StatusCode::kNotFound), 404);
  EXPECT_EQ(HttpCode(StatusCode::kUnauthenticated), 401);
  EXPECT_EQ(HttpCode(StatusCode::kPermissionDenied), 403);
  EXPECT_EQ(HttpCode(StatusCode::kUnavailable), 503);
  EXPECT_EQ(ErrorJson(NotFound("no \"x\"")), R"({"code":5,"message":"no \"x\"","details":[]})");
}

}  // namespace
}  // namespace weir
