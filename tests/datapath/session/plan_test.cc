// Plans: what is refused and how the refusal names the key.

#include "datapath/session/plan.h"

#include <gtest/gtest.h>

#include <fstream>

namespace weir {
namespace {

constexpr char kGood[] = R"({"job": "j", "version": 7, "digest": "d",
  "fallback": {"codec": "identity", "collective": "ring"},
  "buckets": [{"bucket": "00000000000000ff",
               "choice": {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.01,
                          "segment_bytes": 65536}}]})";

TEST(PlanTest, ReadsEveryField) {
  const auto plan = ParsePlan(kGood, UnknownKeys::kReject);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->job, "j");
  EXPECT_EQ(plan->version, 7u);
  EXPECT_EQ(plan->digest, "d");
  EXPECT_EQ(ChoiceFor(*plan, 0xff).codec, "top_k");
  EXPECT_EQ(ChoiceFor(*plan, 0xff).ratio, 0.01);
  EXPECT_EQ(ChoiceFor(*plan, 0xff).segment_bytes, 65536u);
  EXPECT_EQ(ChoiceFor(*plan, 0xfe).codec, "identity");
}

TEST(PlanTest, SurvivesItsOwnJsonWithLargeVersions) {
  auto plan = *ParsePlan(kGood, UnknownKeys::kReject);
  plan.version = (uint64_t{1} << 60) + 1;
  const auto again = ParsePlan(PlanToJson(plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->version, plan.version);
  EXPECT_EQ(again->buckets, plan.buckets);
  EXPECT_EQ(PlanDigest(*again), PlanDigest(plan));
}

TEST(PlanTest, DigestDependsOnContentAlone) {
  const auto plan = *ParsePlan(kGood, UnknownKeys::kReject);
  auto other = plan;
  other.digest = "something else";
  EXPECT_EQ(PlanDigest(other), PlanDigest(plan));
  other.buckets.begin()->second.ratio = 0.011;
  EXPECT_NE(PlanDigest(other), PlanDigest(plan));
  // Pinned: ranks of different builds compare it when they connect.
  Plan pinned;
  pinned.job = "j";
  pinned.version = 7;
  pinned.buckets[255] = Choice{"top_k", "sparse_all_gather", 0.01, 65536};
  EXPECT_EQ(PlanDigest(pinned), 0xe19047ed37b400ca);
}

struct BadPlan {
  const char* text;
  const char* blamed;  // what the message must contain
};

class BadPlanTest : public ::testing::TestWithParam<BadPlan> {};

TEST_P(BadPlanTest, IsRefusedNamingTheKey) {
  const auto plan = ParsePlan(GetParam().text, UnknownKeys::kReject);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(plan.status()).find(GetParam().blamed), std::string::npos)
      << ToString(plan.status());
}

#define CHOICE(x) R"({"fallback": {"codec": "c", "collective": "r", )" x "}}"
INSTANTIATE_TEST_SUITE_P(
    Each, BadPlanTest,
    ::testing::Values(
        BadPlan{"", "byte"}, BadPlan{"[]", "plan: expected an object"},
        BadPlan{"{\"version\": 0}", "plan.version"}, BadPlan{"{\"version\": -1}", "plan.version"},
        BadPlan{"{\"version\": 1.5}", "plan.version"},
        BadPlan{"{\"version\": \"1x\"}", "plan.version"},
        BadPlan{"{\"version\": \"18446744073709551616\"}", "plan.version"},
        BadPlan{"{\"version\": 1, \"version\": 2}", "duplicate key 'version'"},
        BadPlan{"{\"versoin\": 1}", "plan.versoin: unknown key"},
        BadPlan{"{\"job\": 3}", "plan.job"}, BadPlan{"{\"buckets\": {}}", "plan.buckets"},
        BadPlan{"{\"fallback\": {\"codec\": \"c\"}}", "plan.fallback.collective"},
        BadPlan{"{\"fallback\": {\"collective\": \"c\"}}", "plan.fallback.codec"},
        BadPlan{CHOICE("\"ratio\": 0"), "plan.fallback.ratio"},
        BadPlan{CHOICE("\"ratio\": 1.01"), "plan.fallback.ratio"},
        BadPlan{CHOICE("\"ratio\": \"NaN\""), "plan.fallback.ratio"},
        BadPlan{CHOICE("\"segment_bytes\": 12"), "plan.fallback.segment_bytes"},
        BadPlan{CHOICE("\"segment_bytes\": 4294967296"), "plan.fallback.segment_bytes"},
        BadPlan{CHOICE("\"levels\": 3"), "plan.fallback.levels: unknown key"},
        BadPlan{R"({"buckets": [{"bucket": "12", "choice": {}}]})", "plan.buckets[0].bucket"},
        BadPlan{R"({"buckets": [{"bucket": "00000000000000f0"}]})", "plan.buckets[0].choice"},
        BadPlan{R"({"buckets": [3]})", "plan.buckets[0]"},
        BadPlan{R"({"buckets": [
            {"bucket": "00000000000000f0", "choice": {"codec": "c", "collective": "r"}},
            {"bucket": "00000000000000F0", "choice": {"codec": "c", "collective": "r"}}]})",
                "plan.buckets[1].bucket: duplicate"}));

TEST(PlanTest, UnknownKeysFromTheAgentAreIgnored) {
  EXPECT_TRUE(ParsePlan(R"({"version": 1, "later": [{}]})", UnknownKeys::kIgnore).ok());
}

TEST(PlanTest, DeepAndLargeTextsAreRefusedBeforeParsing) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_NE(Message(ParsePlan(deep, UnknownKeys::kIgnore).status()).find("nested"),
            std::string::npos);
  const std::string large(kPlanBytesMax + 1, ' ');
  EXPECT_NE(Message(ParsePlan(large, UnknownKeys::kIgnore).status()).find("at most"),
            std::string::npos);
}

TEST(PlanFileTest, NamesTheFile) {
  const std::string path = ::testing::TempDir() + "/bad-plan.json";
  std::ofstream(path) << "{\"version\": 0}";
  const Status bad = ReadPlanFile(path).status();
  EXPECT_NE(Message(bad).find(path), std::string::npos) << ToString(bad);
  EXPECT_EQ(ReadPlanFile(path + ".absent").status().code(), StatusCode::kNotFound);
  std::ofstream(path) << R"({"fallback": {"codec": "fp16", "collective": "tree"}})";
  const auto good = ReadPlanFile(path);
  ASSERT_TRUE(good.ok()) << ToString(good.status());
  EXPECT_EQ(good->version, 1u);
}

Plan PlanOf(const char* codec, const char* collective, double ratio = 1) {
  Plan plan;
  plan.version = 1;
  plan.fallback = Choice{codec, collective, ratio, 0};
  return plan;
}

TEST(ValidatePlanTest, RefusesWhatCannotRunHere) {
  PlanLimits limits;
  limits.job = "j";
  limits.world = 4;
  EXPECT_TRUE(ValidatePlan(PlanOf("identity", "ring"), limits).ok());
  const Status codec = ValidatePlan(PlanOf("nope", "ring"), limits);
  EXPECT_EQ(codec.code(), StatusCode::kNotFound);
  EXPECT_NE(Message(codec).find("identity"), std::string::npos);  // lists the valid ones
  EXPECT_EQ(ValidatePlan(PlanOf("identity", "nope"), limits).code(), StatusCode::kNotFound);
  const Status form = ValidatePlan(PlanOf("top_k", "ring", 0.1), limits);
  EXPECT_EQ(form.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(form).find("opaque"), std::string::npos);
  EXPECT_FALSE(ValidatePlan(PlanOf("top_k", "sparse_all_gather", 1e-9), limits).ok());
  limits.world = 100000;
  EXPECT_FALSE(ValidatePlan(PlanOf("top_k", "sparse_all_gather", 0.1), limits).ok());
  limits.world = 4;
  Plan foreign = PlanOf("identity", "ring");
  foreign.job = "other";
  EXPECT_NE(Message(ValidatePlan(foreign, limits)).find("plan.job"), std::string::npos);
  Plan listed = PlanOf("identity", "ring");
  listed.buckets[0xabc] = Choice{"qsgd8", "nope", 1, 0};
  EXPECT_NE(Message(ValidatePlan(listed, limits)).find("0000000000000abc"), std::string::npos);
}

TEST(ValidatePlanTest, RefusesWhatDoesNotFitInMemory) {
  PlanLimits limits;
  limits.world = 4;
  limits.bucket_elements = {{1, 1000000}};
  limits.memory_bytes_max = 1000;
  EXPECT_TRUE(ValidatePlan(PlanOf("identity", "ring"), limits).ok());  // works in place
  EXPECT_FALSE(ValidatePlan(PlanOf("fp16", "ring"), limits).ok());
  limits.memory_bytes_max = 8000000;
  const Plan sparse = PlanOf("top_k", "sparse_all_gather", 0.01);
  const Status status = ValidatePlan(sparse, limits);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(status).find("8000000"), std::string::npos);
  limits.residual_bytes_held = 8000000;  // it runs already
  EXPECT_TRUE(ValidatePlan(sparse, limits).ok());
  // Of many small buckets only a few are in flight at a time.
  limits.bucket_elements.clear();
  for (uint64_t key = 0; key < 1000; ++key) limits.bucket_elements[key] = 1000;
  limits.memory_bytes_max = 100000;
  EXPECT_TRUE(ValidatePlan(PlanOf("fp16", "ring"), limits).ok());
}

}  // namespace
}  // namespace weir
