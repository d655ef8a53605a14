// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/policy_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "controller/fleet/policy_watcher.h"
#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/mapping.h"
#include "datapath/base/bounded_queue.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

PolicyNames Builtin() { return NamesOf(BuiltinCapabilities()); }

constexpr char kGood[] = "name: slow\njobs: [\"lm*\"]\nobjective: throughput\n";
constexpr char kBad[] = "name: slow\nbogus_key: 3\n";

TEST(PolicySetTest, RejectedTextKeepsTheOldPolicy) {
  PolicySet policies(Builtin());
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
  PolicySet policies(Builtin());
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
  PolicySet policies(Builtin());
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
  PolicySet policies(Builtin());
  EXPECT_TRUE(policies.LoadFiles({{"/p/a.yaml", kPluginPolicy}, {"/p/b.yaml", kBad}}, 1));
  EXPECT_EQ(policies.Match("lm"), nullptr);
  EXPECT_FALSE(policies.Apply("", kPluginPolicy, 1, true).ok());
  v1::Capabilities declared;
  declared.add_codecs()->set_name("top_k");
  EXPECT_FALSE(policies.Learn(NamesOf(declared), 2)) << "nothing is new";
  declared.add_codecs()->set_name("block_mean");
  EXPECT_TRUE(policies.Learn(NamesOf(declared), 3));
  ASSERT_NE(policies.Match("lm"), nullptr);
  EXPECT_THAT(policies.Match("lm")->policy.codecs, testing::ElementsAre("block_mean"));
  EXPECT_EQ(policies.Match("lm")->loaded_unix_s, 3);
  EXPECT_FALSE(policies.last_reload_successful()) << "the other file is still wrong";
  EXPECT_TRUE(policies.Apply("", kPluginPolicy, 4, true).ok());
  EXPECT_FALSE(policies.Learn(NamesOf(declared), 5));
  // A text that was removed from the directory is not tried again.
  PolicySet others(Builtin());
  others.LoadFiles({{"/p/a.yaml", kPluginPolicy}}, 1);
  others.LoadFiles({}, 2);
  EXPECT_FALSE(others.Learn(NamesOf(declared), 3));
  EXPECT_EQ(others.Match("lm"), nullptr);
}

TEST(PolicySetTest, NamesAreBoundedInNumberAndForm) {
  PolicySet policies(Builtin());
  v1::Capabilities declared;
  for (size_t i = 0; i <= PolicySet::kNamesMax; ++i)
    declared.add_codecs()->set_name(StrCat("c", i));
  (void)policies.Learn(NamesOf(declared), 1);
  EXPECT_LE(policies.known().codecs.size(), PolicySet::kNamesMax);
  EXPECT_TRUE(policies.known().codecs.contains("top_k"));
  v1::Capabilities odd;
  odd.add_codecs()->set_name("a\nE controller: forged");
  odd.add_collectives()->set_name("");
  EXPECT_TRUE(NamesOf(odd).codecs.empty());
  EXPECT_TRUE(NamesOf(odd).collectives.empty());
}

TEST(PolicySetTest, AppliedPoliciesComeFirstAndDryRunChangesNothing) {
  PolicySet policies(Builtin());
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

TEST(PolicySetTest, ThePriorityThenTheOriginThenTheNameDecides) {
  PolicySet policies(Builtin());
  policies.LoadFiles(
      {{"/p/a.yaml", kGood}, {"/p/b.yaml", "name: urgent\njobs: [lm*]\npriority: 5\n"}}, 1);
  ASSERT_TRUE(policies.Apply("", "name: z\n", 2, false).ok());
  ASSERT_TRUE(policies.Apply("", "name: low\npriority: -1\n", 2, false).ok());
  EXPECT_EQ(policies.Match("lm-1")->name, "urgent");
  EXPECT_EQ(policies.Match("other")->name, "z") << "of the default priority, not the first name";
  std::vector<std::string> names;
  for (const PolicyEntry& entry : policies.All()) names.push_back(entry.name);
  EXPECT_THAT(names, testing::ElementsAre("urgent", "z", "slow", "low", "default"));
}

TEST(PolicySetTest, LabelsAndNamespacesSelect) {
  PolicySet policies(Builtin());
  ASSERT_TRUE(policies.Apply("", "name: a\nnamespaces: [team-a]\n", 1, false).ok());
  ASSERT_TRUE(policies.Apply("", "name: b\nlabels: {stage: dev}\npriority: 1\n", 1, false).ok());
  EXPECT_EQ(policies.Match("lm"), nullptr);
  EXPECT_EQ(policies.Match("lm", {{"namespace", "team-a"}})->name, "a");
  EXPECT_EQ(policies.Match("lm", {{"namespace", "team-a"}, {"stage", "dev"}})->name, "b");
}

TEST(PolicySetTest, DeletesAppliedPoliciesOnly) {
  PolicySet policies(Builtin());
  policies.LoadFiles({{"/p/a.yaml", kGood}}, 1);
  ASSERT_TRUE(policies.Apply("", "name: mine\n", 2, false).ok());
  EXPECT_TRUE(policies.Delete("mine").ok());
  EXPECT_EQ(policies.Match("other"), nullptr);
  EXPECT_THAT(Message(policies.Delete("slow")), testing::HasSubstr("/p/a.yaml"));
  EXPECT_EQ(policies.Delete("slow").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(policies.Delete("default").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(policies.Delete("mine").code(), StatusCode::kNotFound);
}

TEST(PolicySetTest, WarnsOfNamesThatNoRankHasDeclared) {
  PolicySet policies(Builtin());
  const auto entry =
      policies.Apply("", "bounds: {codecs: [top_k, dense], collectives: [ring]}\n", 1, true);
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(policies.Warnings(entry->policy).size(), 3u);
  v1::Capabilities declared;
  declared.add_codecs()->set_name("identity");
  declared.add_collectives()->set_name("ring");
  (void)policies.Learn(NamesOf(declared), 2);
  EXPECT_THAT(policies.Warnings(entry->policy),
              testing::ElementsAre("no rank has said yet that it has the codec top_k"));
  EXPECT_TRUE(policies.Warnings(Policy{}).empty());
}

TEST(PolicySetTest, RecordsOfEarlierReleasesHaveNoFloorUnderGain) {
  const auto made = MakeEffectivePolicy("slow", kGood, {});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(DecodeEffectivePolicy(made->record)->gain_min, Policy{}.gain_min);
  std::string former = made->record;
  const std::string floor = "\"gain_floor\":0.01,";
  ASSERT_NE(former.find(floor), former.npos) << former;
  former.erase(former.find(floor), floor.size());
  EXPECT_EQ(DecodeEffectivePolicy(former)->gain_min, 0);
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

}  // namespace
}  // namespace weir
