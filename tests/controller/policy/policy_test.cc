// SPDX-License-Identifier: Apache-2.0
#include "controller/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view source, const PolicyNames* known = nullptr) {
  const auto policy = ParsePolicy(source, "p.yaml", known);
  EXPECT_FALSE(policy.ok()) << "accepted: " << source;
  if (policy.ok()) return "";
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
  return Message(policy.status());
}

TEST(PolicyTest, ReadsEveryKey) {
  const auto policy = ParsePolicy(R"(
name: a-b
jobs: ["x*", "y?"]
namespaces: [team-a]
labels: {stage: "dev*"}
priority: -3
objective: {name: fixed, progress_exponent: 0.5, progress_deviation: 0.1, delay_target_s: 0.25, moo_weight_time: 0.7,
            codec: top_k, collective: sparse_all_gather, ratio: 0.01}
bounds: {ratio_min: 0.01, ratio_max: 0.3, gain_min: 0.2, residual_ratio_max: 50,
         codecs: [top_k, identity], collectives: [ring]}
switching: {dwell_min_s: 3, improvement_min: 0.1, confidence: 0.8, flaps_max: 2, flap_window_s: 60,
            lease_s: 9, loss_tolerance: 0.2, loss_patience_steps: 7, dense_checks: never}
probing: {budget_ratio: 0.01, interval_s: 5, latency_interval_s: 0.5}
)",
                                  "p.yaml");
  ASSERT_TRUE(policy.ok()) << ToString(policy.status());
  EXPECT_EQ(policy->name, "a-b");
  EXPECT_THAT(policy->jobs, ElementsAre("x*", "y?"));
  EXPECT_THAT(policy->namespaces, ElementsAre("team-a"));
  EXPECT_THAT(policy->labels,
              ElementsAre(std::pair<const std::string, std::string>("stage", "dev*")));
  EXPECT_EQ(policy->priority, -3);
  EXPECT_EQ(policy->objective, "fixed");
  EXPECT_EQ(policy->progress_exponent, 0.5);
  EXPECT_EQ(policy->progress_deviation, 0.1);
  EXPECT_EQ(policy->delay_target_s, 0.25);
  EXPECT_EQ(policy->moo_weight_time, 0.7);
  EXPECT_EQ(policy->fixed_codec, "top_k");
  EXPECT_EQ(policy->fixed_collective, "sparse_all_gather");
  EXPECT_EQ(policy->fixed_ratio, 0.01);
  EXPECT_EQ(policy->ratio_min, 0.01);
  EXPECT_EQ(policy->ratio_max, 0.3);
  EXPECT_EQ(policy->gain_min, 0.2);
  EXPECT_EQ(policy->residual_ratio_max, 50);
  EXPECT_THAT(policy->codecs, ElementsAre("top_k", "identity"));
  EXPECT_THAT(policy->collectives, ElementsAre("ring"));
  EXPECT_EQ(policy->dwell_min_s, 3);
  EXPECT_EQ(policy->improvement_min, 0.1);
  EXPECT_EQ(policy->confidence, 0.8);
  EXPECT_EQ(policy->flaps_max, 2);
  EXPECT_EQ(policy->flap_window_s, 60);
  EXPECT_EQ(policy->lease_s, 9);
  EXPECT_EQ(policy->loss_tolerance, 0.2);
  EXPECT_EQ(policy->loss_patience_steps, 7);
  EXPECT_EQ(policy->dense_checks, "never");
  EXPECT_EQ(policy->probe_budget_ratio, 0.01);
  EXPECT_EQ(policy->probe_interval_s, 5);
  EXPECT_EQ(policy->latency_interval_s, 0.5);
}

TEST(PolicyTest, AbsentKeysKeepDefaultsAndObjectiveMayBeAName) {
  const auto policy = ParsePolicy("objective: throughput\n", "p.yaml");
  ASSERT_TRUE(policy.ok()) << ToString(policy.status());
  EXPECT_EQ(policy->objective, "throughput");
  EXPECT_EQ(policy->name, Policy{}.name);
  EXPECT_EQ(policy->confidence, Policy{}.confidence);
  EXPECT_THAT(policy->jobs, ElementsAre("*"));
}

TEST(PolicyTest, DenseIsTheOperatorsNameOfIdentity) {
  const auto policy = ParsePolicy(
      "objective: {name: fixed, codec: dense}\nbounds: {codecs: [dense, top_k]}\n", "p");
  ASSERT_TRUE(policy.ok()) << ToString(policy.status());
  EXPECT_EQ(policy->fixed_codec, "identity");
  EXPECT_THAT(policy->codecs, testing::ElementsAre("identity", "top_k"));
}

TEST(PolicyTest, ReadsJson) {
  const auto policy = ParsePolicy(R"({"name": "j", "bounds": {"ratio_min": 1e-3}})", "p.json");
  ASSERT_TRUE(policy.ok()) << ToString(policy.status());
  EXPECT_EQ(policy->name, "j");
  EXPECT_EQ(policy->ratio_min, 0.001);
}

TEST(PolicyTest, UnknownKeyNamesLineAndAllowedKeys) {
  EXPECT_THAT(ErrorOf("name: a\nbounds:\n  ratio_mim: 0.1\n"),
              AllOf(HasSubstr("p.yaml:3: bounds:"), HasSubstr("unknown key 'ratio_mim'"),
                    HasSubstr("ratio_min")));
}

TEST(PolicyTest, DuplicateKeyIsRefused) {
  EXPECT_THAT(ErrorOf("name: a\nname: b\n"), HasSubstr("p.yaml:2: name: expected once"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: 0.1, gain_min: 0.2}"), HasSubstr("bounds.gain_min"));
}

TEST(PolicyTest, NumbersAreDecimalUnquotedAndInRange) {
  EXPECT_THAT(
      ErrorOf("switching: {flaps_max: 010}"),
      HasSubstr("p.yaml:1: switching.flaps_max: expected an integer in [1, 1000], found '010'"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: 0x1}"), HasSubstr("found '0x1'"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: .inf}"), HasSubstr("found '.inf'"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: nan}"), HasSubstr("found 'nan'"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: \"0.5\"}"), HasSubstr("bounds.gain_min"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: 1.01}"),
              HasSubstr("expected a number in [0, 1], found '1.01'"));
  EXPECT_THAT(ErrorOf("bounds: {ratio_min: 0}"),
              HasSubstr("expected a number in (0, 1], found '0'"));
  EXPECT_THAT(ErrorOf("switching: {flaps_max: 1.5}"), HasSubstr("expected an integer"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: }"), HasSubstr("found nothing"));
  EXPECT_THAT(ErrorOf("bounds: {gain_min: 1e999}"), HasSubstr("bounds.gain_min"));
}

TEST(PolicyTest, CodecsMayBeVariants) {
  for (const char* list : {"bounds: {codecs: [sidco:fit=gp, top_k]}",
                           "bounds:\n  codecs:\n    - sidco:fit=gp\n    - top_k\n",
                           R"({"bounds": {"codecs": ["sidco:fit=gp", "top_k"]}})"}) {
    const auto policy = ParsePolicy(list, "p.yaml");
    ASSERT_TRUE(policy.ok()) << list << ": " << Message(policy.status());
    EXPECT_THAT(policy->codecs, ElementsAre("sidco:fit=gp", "top_k"));
  }
  const auto fixed =
      ParsePolicy("objective: {name: fixed, codec: qsgd:memory=none, collective: ring}", "p.yaml");
  ASSERT_TRUE(fixed.ok()) << Message(fixed.status());
  EXPECT_EQ(fixed->fixed_codec, "qsgd:memory=none");
}

TEST(PolicyTest, UnknownCodecsAndCollectivesAreRefusedWithTheNearest) {
  const PolicyNames known = {.codecs = {"identity", "top_k", "sidco", "sidco:fit=gp"},
                             .collectives = {"mesh", "ring"}};
  EXPECT_TRUE(ParsePolicy("bounds: {codecs: [top_k, sidco:fit=gp], collectives: [ring]}\n"
                          "objective: {name: fixed, codec: top_k, collective: mesh}\n",
                          "p.yaml", &known)
                  .ok());
  EXPECT_EQ(ErrorOf("bounds:\n  codecs:\n    - identity\n    - topk\n", &known),
            "p.yaml:4: bounds.codecs: expected one of identity, sidco, sidco:fit=gp, top_k, found "
            "'topk'; the nearest is 'top_k'");
  EXPECT_EQ(
      ErrorOf("name: p\nbounds: {collectives: [ring, rign]}\n", &known),
      "p.yaml:2: bounds.collectives: expected one of mesh, ring, found 'rign'; the nearest is "
      "'ring'");
  // If no name is near, or only the variant is wrong, the error lists the variants of the codec.
  EXPECT_EQ(ErrorOf("bounds: {collectives: [switchml]}", &known),
            "p.yaml:1: bounds.collectives: expected one of mesh, ring, found 'switchml'");
  EXPECT_EQ(
      ErrorOf("bounds: {codecs: [sidco:fit=gb]}", &known),
      "p.yaml:1: bounds.codecs: expected one of sidco, sidco:fit=gp, found 'sidco:fit=gb'; the "
      "nearest is 'sidco:fit=gp'");
  EXPECT_THAT(ErrorOf("objective:\n  name: fixed\n  codec: identiti\n", &known),
              AllOf(HasSubstr("p.yaml:3: objective.codec: expected one of identity"),
                    HasSubstr("found 'identiti'; the nearest is 'identity'")));
  // The name must be known even if the objective does not use it.
  EXPECT_THAT(
      ErrorOf("objective: {name: throughput, collective: rang}", &known),
      HasSubstr("p.yaml:1: objective.collective: expected one of mesh, ring, found 'rang'"));
  const PolicyNames none;
  EXPECT_THAT(ErrorOf("bounds: {codecs: [top_k]}", &none), HasSubstr("found 'top_k'"));
}

TEST(PolicyTest, WrongShapesAreRefused) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("found nothing"));
  EXPECT_THAT(ErrorOf("just text"), HasSubstr("expected a section"));
  EXPECT_THAT(ErrorOf("[1, 2]"), HasSubstr("expected a section"));
  EXPECT_THAT(ErrorOf("bounds: 3"), HasSubstr("p.yaml:1: bounds: expected a section"));
  EXPECT_THAT(ErrorOf("jobs: all"), HasSubstr("jobs: expected a list of patterns, found 'all'"));
  EXPECT_THAT(ErrorOf("jobs: []"), HasSubstr("found 0"));
  EXPECT_THAT(ErrorOf("jobs: [a, a]"), HasSubstr("expected each entry once"));
  EXPECT_THAT(ErrorOf("bounds: {codecs: [[top_k]]}"), HasSubstr("found the entry a list"));
  EXPECT_THAT(ErrorOf("bounds: {codecs: [\"to p\"]}"), HasSubstr("found the entry 'to p'"));
  EXPECT_THAT(ErrorOf("bounds: {collectives: [\"a:b=c\"]}"), HasSubstr("found the entry 'a:b=c'"));
  EXPECT_THAT(ErrorOf("name: a:b=c"), HasSubstr("name: expected a name"));
  EXPECT_THAT(ErrorOf("name: {a: b}"), HasSubstr("name: expected a name"));
  EXPECT_THAT(ErrorOf("? [a]\n: b\n"), HasSubstr("expected a plain key"));
  EXPECT_THAT(ErrorOf("name: !!python/object x"), HasSubstr("expected no tag"));
  EXPECT_THAT(ErrorOf("name: a\n---\nname: b\n"), HasSubstr("found a second"));
  EXPECT_THAT(ErrorOf("name: [unclosed"), HasSubstr("expected YAML or JSON"));
}

// yaml-cpp 0.7 makes empty documents of a stray comma without end.
TEST(PolicyTest, StrayCommasEnd) {
  for (const char* source : {",", "[],", "{},", ",[", "name: a\n---\n,"}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("p.yaml:")) << source;
  }
}

TEST(PolicyTest, SizeAndNestingAreBounded) {
  EXPECT_THAT(ErrorOf(std::string(70000, '#')), HasSubstr("at most 65536 bytes, found 70000"));
  EXPECT_THAT(ErrorOf("name: " + std::string(60000, '[')), HasSubstr("nesting of at most 16"));
  std::string block;  // nesting by indentation
  for (int i = 0; i < 200; ++i) block += std::string(i, ' ') + "a:\n";
  EXPECT_THAT(ErrorOf(block), HasSubstr("unknown key"));
  std::string dashes = "jobs:\n ";
  for (int i = 0; i < 20000; ++i) dashes += "- ";
  ErrorOf(dashes);
  EXPECT_THAT(ErrorOf(std::string("name: a\0b", 9)), HasSubstr("zero byte"));
}

TEST(PolicyTest, AliasesCannotExplode) {
  ErrorOf("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nname: *c\n");
}

TEST(PolicyTest, ContradictionsAreRefused) {
  EXPECT_THAT(ErrorOf("bounds: {ratio_min: 0.5, ratio_max: 0.1}"),
              HasSubstr("expected at most ratio_max 0.1, found 0.5"));
  EXPECT_THAT(ErrorOf("objective: delay_target"), HasSubstr("objective.delay_target_s"));
}

TEST(PolicyTest, AQuorumIsForLossyLanesAlone) {
  const auto policy = ParsePolicy("aggregation: {quorum: 0.75, cutoff_ms: 20}\n", "p.yaml");
  ASSERT_TRUE(policy.ok()) << ToString(policy.status());
  EXPECT_EQ(policy->quorum, 0.75);
  EXPECT_EQ(policy->cutoff_ms, 20);
  const std::string both = "aggregation: {quorum: 0.75, cutoff_ms: 20}\n";
  EXPECT_TRUE(
      ParsePolicy(both + "objective: {name: fixed, codec: thc, collective: thc_table}", "p").ok());
  EXPECT_TRUE(ParsePolicy(both + "bounds: {collectives: [ring, thc_table]}", "p").ok());
  EXPECT_THAT(ErrorOf("aggregation: {quorum: 0.75}"), HasSubstr("found quorum alone"));
  EXPECT_THAT(ErrorOf("aggregation: {cutoff_ms: 5}"), HasSubstr("found cutoff_ms alone"));
  EXPECT_THAT(ErrorOf("aggregation: {quorum: 1.5, cutoff_ms: 5}"), HasSubstr("aggregation.quorum"));
  EXPECT_THAT(ErrorOf("aggregation: {quorum: 0, cutoff_ms: 5}"), HasSubstr("aggregation.quorum"));
  EXPECT_THAT(ErrorOf("aggregation: {quorum: 0.5, cutoff_ms: 60001}"),
              HasSubstr("aggregation.cutoff_ms"));
  EXPECT_THAT(ErrorOf("aggregation: {quorum: 0.5, cutof_ms: 5}"), HasSubstr("unknown key"));
  EXPECT_THAT(ErrorOf(both + "objective: {name: fixed, collective: switchml}"),
              HasSubstr("objective.collective: expected thc_table for aggregation.quorum, since "
                        "every rank must be in sums of exact lanes, found switchml"));
  EXPECT_THAT(ErrorOf(both + "bounds: {collectives: [switchml, ring]}"),
              HasSubstr("bounds.collectives: expected thc_table"));
}

TEST(PolicyTest, ChecksumsAreOnByDefault) {
  EXPECT_TRUE(ParsePolicy("name: a\n", "p")->checksums);
  EXPECT_FALSE(ParsePolicy("aggregation: {checksums: false}", "p")->checksums);
  EXPECT_TRUE(ParsePolicy("aggregation: {checksums: true}", "p")->checksums);
  for (const char* other : {"0", "no", "False", "\"true\"", "''", "~", "[true]"}) {
    EXPECT_THAT(ErrorOf(StrCat("aggregation: {checksums: ", other, "}")),
                HasSubstr("aggregation.checksums: expected true or false"))
        << other;
  }
}

TEST(PolicyTest, RulesForNcclAreForNodes) {
  const auto policy = ParsePolicy(R"(
nccl:
  nodes: ["gpu-*"]
  rules:
    - {algorithm: tree, protocol: ll, bytes_end: 65536}
    - {function: all_gather, algorithm: ring, protocol: ll128, bytes_min: 65536, bytes_end: 4294967296, ranks: 8,
       channels: 4, chunk_bytes: 131072}
)",
                                  "p.yaml");
  ASSERT_TRUE(policy.ok()) << ToString(policy.status());
  ASSERT_EQ(policy->nccl_rules.size(), 2u);
  EXPECT_EQ(policy->nccl_rules[0],
            (NcclRule{.algorithm = "tree", .protocol = "ll", .bytes_end = 65536}));
  EXPECT_EQ(policy->nccl_rules[1], (NcclRule{.function = "all_gather",
                                             .algorithm = "ring",
                                             .protocol = "ll128",
                                             .bytes_min = 65536,
                                             .bytes_end = 1ull << 32,
                                             .ranks = 8,
                                             .channels = 4,
                                             .chunk_bytes = 131072}));
  EXPECT_TRUE(SteersNccl(*policy, "gpu-7"));
  EXPECT_FALSE(SteersNccl(*policy, "cpu-7"));
  EXPECT_FALSE(SteersNccl(Policy{}, "gpu-7"));
  // The values of a policy, as a difference shows them, are a document again.
  const auto again =
      ParsePolicy(StrCat("nccl: {rules: ", PolicyValues(*policy).at("nccl.rules"), "}"), "q.yaml");
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->nccl_rules, policy->nccl_rules);
}

TEST(PolicyTest, WrongRulesForNcclAreNamed) {
  const auto rule = [](const std::string& text) {
    return ErrorOf(StrCat("nccl:\n  rules:\n    - {algorithm: ring, protocol: ll}\n    - ", text));
  };
  EXPECT_THAT(rule("{algorithm: rings, protocol: ll}"),
              AllOf(HasSubstr("p.yaml:4: nccl.rules[1].algorithm: expected one of"),
                    HasSubstr("the nearest is 'ring'")));
  EXPECT_THAT(rule("{protocol: ll}"),
              HasSubstr("nccl.rules[1].algorithm: expected a name, found nothing"));
  EXPECT_THAT(rule("{algorithm: ring}"),
              HasSubstr("nccl.rules[1].protocol: expected a name, found nothing"));
  EXPECT_THAT(rule("{algorithm: ring, protocol: ll, bytes_min: 8, bytes_end: 8}"),
              HasSubstr("expected 0, or more than bytes_min 8, found 8"));
  EXPECT_THAT(rule("{algorithm: ring, protocol: ll, chunk_bytes: 5000}"),
              HasSubstr("expected a multiple of 4096, found 5000"));
  EXPECT_THAT(rule("{algorithm: ring, protocol: ll, bytes_min: -1}"),
              HasSubstr("expected an integer in [0, 1125899906842624], found '-1'"));
  EXPECT_THAT(rule("{algorithm: ring, protocol: ll, size: 8}"), HasSubstr("unknown key 'size'"));
  EXPECT_THAT(rule("ring"), HasSubstr("nccl.rules[1]: expected a section"));
  EXPECT_THAT(rule("!!map {algorithm: ring, protocol: ll}"), HasSubstr("expected no tag"));
  EXPECT_THAT(ErrorOf("nccl: {rules: {algorithm: ring}}"),
              HasSubstr("nccl.rules: expected a list of at most 256 sections, found a section"));
  std::string many = "nccl: {rules: [";
  for (int i = 0; i < 257; ++i) many += "{algorithm: ring, protocol: ll}, ";
  EXPECT_THAT(ErrorOf(many + "]}"), HasSubstr("expected a list of at most 256 sections"));
}

TEST(PolicyTest, EveryPrefixOfADocumentIsAnsweredWithoutThrowing) {
  const std::string text =
      "name: a\nobjective: {name: moo, moo_weight_time: 0.5}\njobs: ['a*', \"b\"]\n";
  for (size_t size = 0; size <= text.size(); ++size) {
    const auto policy = ParsePolicy(std::string_view(text).substr(0, size), "p");
    EXPECT_TRUE(policy.ok() || !Message(policy.status()).empty());
  }
}

TEST(PolicyMatchesTest, ShellPatterns) {
  Policy policy;
  policy.jobs = {"resnet-*", "a?c", "*x*y"};
  EXPECT_TRUE(PolicyMatches(policy, "resnet-50"));
  EXPECT_TRUE(PolicyMatches(policy, "resnet-"));
  EXPECT_FALSE(PolicyMatches(policy, "resnet"));
  EXPECT_TRUE(PolicyMatches(policy, "abc"));
  EXPECT_FALSE(PolicyMatches(policy, "ac"));
  EXPECT_TRUE(PolicyMatches(policy, "xxyzy"));
  EXPECT_FALSE(PolicyMatches(policy, "xyz"));
  policy.jobs = {"*"};
  EXPECT_TRUE(PolicyMatches(policy, ""));
}

TEST(PolicyMatchesTest, NamespacesAndLabelsMustMatchToo) {
  Policy policy;
  policy.jobs = {"lm*"};
  EXPECT_TRUE(PolicyMatches(policy, "lm-1"));
  policy.namespaces = {"team-?"};
  EXPECT_FALSE(PolicyMatches(policy, "lm-1")) << "the job has no namespace";
  EXPECT_TRUE(PolicyMatches(policy, "lm-1", {{"namespace", "team-a"}}));
  EXPECT_FALSE(PolicyMatches(policy, "lm-1", {{"namespace", "team"}}));
  policy.labels = {{"stage", "dev*"}, {"tier", "*"}};
  EXPECT_FALSE(PolicyMatches(policy, "lm-1", {{"namespace", "team-a"}, {"stage", "dev"}}));
  const JobLabels all = {{"namespace", "team-a"}, {"stage", "devel"}, {"tier", ""}, {"x", "y"}};
  EXPECT_TRUE(PolicyMatches(policy, "lm-1", all));
  EXPECT_FALSE(PolicyMatches(policy, "resnet", all));
}

TEST(PolicyTest, LabelsAreNames) {
  EXPECT_THAT(ErrorOf("labels: {a: b, a: c}\n"),
              HasSubstr("labels: expected names, each key once"));
  EXPECT_THAT(ErrorOf("labels: {a: [b]}\n"), HasSubstr("labels"));
  EXPECT_THAT(ErrorOf("labels: [a]\n"), HasSubstr("labels: expected a section"));
  EXPECT_THAT(ErrorOf("labels: {\"a b\": c}\n"), HasSubstr("labels"));
}

constexpr char kFloor[] = "bounds.gain_min";

TEST(PolicyTest, TheDefaultHasAFloorUnderGain) {
  EXPECT_GT(Policy{}.gain_min, 0);
  const auto policy = ParsePolicy("name: a\n", "p.yaml");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->gain_min, Policy{}.gain_min);
  EXPECT_EQ(PolicyValues(*policy).at(kFloor), "0.01");
  Policy none;
  none.gain_min = 0;
  EXPECT_EQ(ParsePolicy("name: a\n", "p.yaml", nullptr, none)->gain_min, 0);
}

// Walks a schema and gives each of its values as "section.key".
void CheckSchema(const nlohmann::json& schema, const std::string& path,
                 const std::map<std::string, std::string>& values, std::set<std::string>* seen) {
  ASSERT_EQ(schema.at("additionalProperties"), false);
  for (const auto& [key, property] : schema.at("properties").items()) {
    const std::string name = path.empty() ? key : path + "." + key;
    EXPECT_FALSE(property.value("description", "").empty()) << name;
    if (property.contains("properties") || property.contains("oneOf")) {
      CheckSchema(property.contains("oneOf") ? property["oneOf"][1] : property, name, values, seen);
      continue;
    }
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_EQ(property.at("default").dump(), values.at(name)) << name;
    seen->insert(name);
  }
}

TEST(PolicySchemaTest, HasEveryKeyWithItsDefaultAndLimits) {
  const PolicyNames known{.codecs = {"dense", "top_k"}, .collectives = {"ring"}};
  const auto schema = nlohmann::json::parse(PolicySchema(known, {"fixed", "throughput"}));
  const auto values = PolicyValues(Policy{});
  std::set<std::string> seen;
  CheckSchema(schema, "", values, &seen);
  EXPECT_EQ(seen.size(), values.size());
  const auto& bounds = schema["properties"]["bounds"]["properties"];
  EXPECT_EQ(bounds["ratio_min"]["exclusiveMinimum"], 0);
  EXPECT_EQ(bounds["gain_min"]["maximum"], 1);
  EXPECT_EQ(bounds["codecs"]["items"]["enum"], nlohmann::json({"dense", "top_k"}));
  EXPECT_EQ(schema["properties"]["objective"]["oneOf"][0]["enum"],
            nlohmann::json({"fixed", "throughput"}));
  EXPECT_EQ(schema["properties"]["switching"]["properties"]["flaps_max"]["type"], "integer");
  const auto& rules = schema["properties"]["nccl"]["properties"]["rules"];
  EXPECT_EQ(rules["maxItems"], 256);
  EXPECT_EQ(rules["items"]["properties"]["protocol"]["enum"],
            nlohmann::json({"ll", "ll128", "simple"}));
  EXPECT_EQ(rules["items"]["additionalProperties"], false);
}

TEST(PolicyExamplesTest, EveryShippedPolicyParses) {
  const auto directory = std::filesystem::path(WEIR_TEST_SOURCE_DIR) / ".." / "deploy" / "policies";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".yaml" && entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path());
    std::ostringstream text;
    text << in.rdbuf();
    const auto policy = ParsePolicy(text.str(), entry.path().filename().string());
    EXPECT_TRUE(policy.ok()) << ToString(policy.status());
    ++files;
  }
  EXPECT_GE(files, 5);
}

TEST(PolicyExamplesTest, DefaultFileMatchesTheDefaults) {
  const auto path = std::filesystem::path(WEIR_TEST_SOURCE_DIR) / "../deploy/policies/default.yaml";
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  const auto file = ParsePolicy(text.str(), "default.yaml");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(PolicyValues(*file), PolicyValues(Policy{}));
}

}  // namespace
}  // namespace weir
