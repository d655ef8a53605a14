// SPDX-License-Identifier: Apache-2.0
// Plans: what is refused and how the refusal names the key.

#include "datapath/plan/plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "tests/support/temp_file.h"

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
  EXPECT_EQ(PlanDigest(pinned), 0x73c80c205411bd7d);
}

constexpr char kLeased[] = R"({"version": 7,
  "fallback": {"codec": "identity", "collective": "switchml"},
  "leases": [{"collective": "switchml", "aggregator": "tor-1", "address": "10.0.0.9:7000",
              "mode": "sum", "id": 3, "epoch": 12, "cookie": "00ff00ff00ff00fe", "slots": 64,
              "lanes": 256}]})";

TEST(PlanTest, ReadsLeasesAndWritesThemAgain) {
  const auto plan = ParsePlan(kLeased, UnknownKeys::kReject);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  ASSERT_EQ(plan->leases.size(), 1u);
  const AggregatorLease expected = {.collective = "switchml",
                                    .aggregator = "tor-1",
                                    .address = "10.0.0.9:7000",
                                    .mode = "sum",
                                    .id = 3,
                                    .epoch = 12,
                                    .cookie = 0x00ff00ff00ff00fe,
                                    .slots = 64,
                                    .lanes = 256};
  EXPECT_EQ(plan->leases.at("switchml"), expected);
  const auto again = ParsePlan(PlanToJson(*plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->leases, plan->leases);
  EXPECT_EQ(PlanDigest(*again), PlanDigest(*plan));
}

// Pinned: ranks of different builds compare it, by the text that WIRE section 2 gives.
TEST(PlanTest, DigestCoversLeases) {
  Plan plan;
  plan.job = "j";
  plan.version = 7;
  plan.leases["switchml"] = {"switchml", "tor-1", "10.0.0.9:7000", "sum", 3, 12, 0xfe, 64, 256};
  EXPECT_EQ(PlanDigest(plan), 0xe1cf476ba7b1811d);
  Plan other = plan;
  other.leases["switchml"].epoch = 13;
  EXPECT_NE(PlanDigest(other), PlanDigest(plan));
  other = plan;
  other.leases["switchml"].columns = 4;
  EXPECT_NE(PlanDigest(other), PlanDigest(plan));
}

TEST(PlanTest, ReadsAndDigestsTheOrderOfTheRing) {
  const auto plan = ParsePlan(R"({"version": 7, "ring_order": [0, 2, 1]})", UnknownKeys::kReject);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->ring_order, (std::vector{0, 2, 1}));
  const auto again = ParsePlan(PlanToJson(*plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->ring_order, plan->ring_order);
  EXPECT_EQ(PlanDigest(*again), PlanDigest(*plan));
  Plan other = *plan;
  other.ring_order = {0, 1, 2};
  EXPECT_NE(PlanDigest(other), PlanDigest(*plan));
  other.ring_order = {};
  EXPECT_NE(PlanDigest(other), PlanDigest(*plan));
}

TEST(Plan, SyncIsParsedAndPartOfTheDigest) {
  const StatusOr<Plan> plan = ParsePlan(
      R"({"version": 7, "sync": {"every": 32, "outer": "OUTER_STEP_SGD_NESTEROV", "outer_rate": 0.7,
          "outer_momentum": 0.9, "fragments": 4, "overlap_steps": 7, "mix": 0.5}})",
      UnknownKeys::kReject);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Sync sync = {32, OuterStep::kSgdNesterov, 0.7, 0.9, 4, 7, 0.5};
  EXPECT_EQ(plan->sync, sync);
  const StatusOr<Plan> again = ParsePlan(PlanToJson(*plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sync, sync);
  EXPECT_EQ(PlanDigest(*again), PlanDigest(*plan));
  EXPECT_EQ(CanonicalText(sync), "sync|32|OUTER_STEP_SGD_NESTEROV|0.7|0.9|4|7|0.5\n");
  std::vector<Sync> others(10, sync);
  others[0] = Sync();
  others[1].every = 64;
  others[2].outer = OuterStep::kAverage;
  others[3].rate = 0.8;
  others[4].momentum = 0.8;
  others[5].fragments = 2;
  others[6].overlap = 6;
  others[7].mix = 0.25;
  others[8].residual_decay = 0.95;
  others[9].transform = SyncTransform::kDct;
  for (const Sync& other : others) {
    Plan changed = *plan;
    changed.sync = other;
    EXPECT_NE(PlanDigest(changed), PlanDigest(*plan));
    const StatusOr<Plan> read = ParsePlan(PlanToJson(changed), UnknownKeys::kReject);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->sync, other);
  }
  PlanLimits limits;
  EXPECT_NE(Message(ValidatePlan(*plan, limits)).find("expected a sum of gradients in every step"),
            std::string::npos);
  limits.local_steps = true;
  EXPECT_TRUE(ValidatePlan(*plan, limits).ok());
}

TEST(PlanTest, ReadsAndDigestsTheSharesOfShards) {
  const auto plan =
      ParsePlan(R"({"version": 7, "shard_shares": [65536, 0, 0]})", UnknownKeys::kReject);
  ASSERT_TRUE(plan.ok()) << ToString(plan.status());
  EXPECT_EQ(plan->shard_shares, (std::vector<uint32_t>{65536, 0, 0}));
  const auto again = ParsePlan(PlanToJson(*plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->shard_shares, plan->shard_shares);
  EXPECT_EQ(PlanDigest(*again), PlanDigest(*plan));
  Plan other = *plan;
  other.shard_shares = {0, 65536, 0};
  EXPECT_NE(PlanDigest(other), PlanDigest(*plan));
  other.shard_shares = {};
  EXPECT_NE(PlanDigest(other), PlanDigest(*plan));
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
                "plan.buckets[1].bucket: duplicate"},
        BadPlan{R"({"ring_order": 3})", "plan.ring_order"},
        BadPlan{R"({"ring_order": [0, -1]})", "plan.ring_order[1]"},
        BadPlan{R"({"ring_order": [0, 1.5]})", "plan.ring_order[1]"},
        BadPlan{R"({"ring_order": [4294967296]})", "plan.ring_order[0]"},
        BadPlan{R"({"shard_shares": {}})", "plan.shard_shares"},
        BadPlan{R"({"sync": []})", "plan.sync"},
        BadPlan{R"({"sync": {"every": 0}})", "plan.sync.every: expected 1..65536, found 0"},
        BadPlan{R"({"sync": {"outer": "adam"}})", "plan.sync.outer"},
        BadPlan{R"({"sync": {"outer_rate": 0}})", "plan.sync.outer_rate"},
        BadPlan{R"({"sync": {"outer_momentum": 1}})", "plan.sync.outer_momentum"},
        BadPlan{R"({"sync": {"evry": 2}})", "evry"},
        BadPlan{R"({"sync": {"every": 6, "fragments": 4}})",
                "plan.sync.fragments: expected a divisor of 6"},
        BadPlan{R"({"sync": {"every": 6, "fragments": 3, "overlap_steps": 2}})",
                "plan.sync.overlap_steps: expected less than 2"},
        BadPlan{R"({"sync": {"mix": 1.5}})", "plan.sync.mix"},
        BadPlan{R"({"sync": {"residual_decay": 1.5}})", "plan.sync.residual_decay"},
        BadPlan{R"({"sync": {"transform": "fft"}})", "plan.sync.transform"},
        BadPlan{R"({"shard_shares": [0, -1]})", "plan.shard_shares[1]"},
        BadPlan{R"({"shard_shares": [0.5]})", "plan.shard_shares[0]"},
        BadPlan{R"({"shard_shares": [65537]})",
                "plan.shard_shares[0]: expected an integer of 0 to 65536, found 65537"},
        BadPlan{R"({"leases": {}})", "plan.leases"},
        BadPlan{R"({"leases": [3]})", "plan.leases[0]"},
        BadPlan{R"({"leases": [{"cookie": "00000000000000f0"}]})", "plan.leases[0].collective"},
        BadPlan{R"({"leases": [{"collective": "s", "cookie": "12"}]})", "plan.leases[0].cookie"},
        BadPlan{R"({"leases": [{"collective": "s"}]})", "plan.leases[0].cookie"},
        BadPlan{R"({"leases": [{"collective": "s", "cookie": "00000000000000f0", "id": -1}]})",
                "plan.leases[0].id"},
        BadPlan{R"({"leases": [{"collective": "s", "cookie": "00000000000000f0", "bits": 1}]})",
                "plan.leases[0].bits: unknown key"},
        BadPlan{R"({"leases": [{"collective": "s", "cookie": "00000000000000f0"},
                               {"collective": "s", "cookie": "00000000000000f1"}]})",
                "plan.leases[1].collective: duplicate"}));

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
  const std::string path = testing::TempFile("bad.json", R"({"version": 0})");
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

TEST(ValidatePlanTest, CallersSumOnlyWhereAllCan) {
  PlanLimits limits;
  limits.world = 2;
  const Status refused = ValidatePlan(PlanOf("identity", "framework"), limits);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(refused).find("a process group of the training job"), std::string::npos);
  limits.caller_sums = true;
  EXPECT_TRUE(ValidatePlan(PlanOf("identity", "framework"), limits).ok());
  EXPECT_FALSE(ValidatePlan(PlanOf("top_k", "framework", 0.1), limits).ok());
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
  listed.buckets[0xabc] = Choice{"qsgd", "nope", 1, 0};
  EXPECT_NE(Message(ValidatePlan(listed, limits)).find("0000000000000abc"), std::string::npos);
}

TEST(ValidatePlanTest, VariantsOfACodecAreChosenByName) {
  PlanLimits limits;
  limits.world = 4;
  const Plan plan = PlanOf("sidco:fit=gp", "sparse_all_gather", 0.1);
  EXPECT_TRUE(ValidatePlan(plan, limits).ok());
  const auto again = ParsePlan(PlanToJson(plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->fallback, plan.fallback);
  EXPECT_NE(PlanDigest(plan), PlanDigest(PlanOf("sidco", "sparse_all_gather", 0.1)));
  for (const char* unknown : {"sidco:fit=gamma", "sidco:shape=gp", "sidco:"}) {
    const Status status = ValidatePlan(PlanOf(unknown, "sparse_all_gather", 0.1), limits);
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_TRUE(Message(status).ends_with("valid: sidco, sidco:fit=e, sidco:fit=gp, sidco:fit=p"))
        << Message(status);
  }
}

TEST(ValidatePlanTest, RefusesARingThatIsNotOfEveryRankOnce) {
  PlanLimits limits;
  limits.job = "j";
  limits.world = 4;
  Plan plan = PlanOf("identity", "ring");
  plan.ring_order = {2, 0, 3, 1};
  EXPECT_TRUE(ValidatePlan(plan, limits).ok());
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, std::vector{0, 1, 2, 3, 4},
                                        std::vector{0, 1, 2, 2}, std::vector{0, 1, 2, 4}}) {
    plan.ring_order = order;
    const Status status = ValidatePlan(plan, limits);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(Message(status).find("plan.ring_order: expected each of 4 ranks once"),
              std::string::npos)
        << ToString(status);
  }
}

TEST(ValidatePlanTest, RefusesSharesThatAreNotOfEveryRankOrDoNotAddUp) {
  PlanLimits limits;
  limits.job = "j";
  limits.world = 3;
  Plan plan = PlanOf("identity", "mesh");
  for (const std::vector<uint32_t>& shares :
       {std::vector<uint32_t>{65536, 0, 0}, std::vector<uint32_t>{21846, 21845, 21845}}) {
    plan.shard_shares = shares;
    EXPECT_TRUE(ValidatePlan(plan, limits).ok());
  }
  plan.shard_shares = {32768, 32768};
  EXPECT_NE(Message(ValidatePlan(plan, limits))
                .find("plan.shard_shares: expected a share for each of 3 ranks, found 2"),
            std::string::npos);
  plan.shard_shares = {32768, 32768, 1};
  const Status status = ValidatePlan(plan, limits);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("plan.shard_shares: expected a sum of 65536, found 65537"),
            std::string::npos)
      << ToString(status);
}

TEST(ValidatePlanTest, RefusesChoicesWithoutTheirLease) {
  PlanLimits limits;
  limits.world = 4;
  const Status none = ValidatePlan(PlanOf("identity", "switchml"), limits);
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(none).find("lease"), std::string::npos) << ToString(none);
  const Plan leased = *ParsePlan(kLeased, UnknownKeys::kReject);
  EXPECT_TRUE(ValidatePlan(leased, limits).ok()) << ToString(ValidatePlan(leased, limits));
  Plan narrow = leased;
  narrow.fallback.codec = "fp16";
  const Status form = ValidatePlan(narrow, limits);
  EXPECT_NE(Message(form).find("float_lanes"), std::string::npos) << ToString(form);
  limits.world = 65;
  EXPECT_FALSE(ValidatePlan(leased, limits).ok());
}

TEST(ValidatePlanTest, TakesLeasesInColumns) {
  PlanLimits limits;
  limits.world = 4;
  Plan plan = PlanOf("identity", "omnireduce");
  EXPECT_FALSE(ValidatePlan(plan, limits).ok());
  plan.leases["omnireduce"] = {"omnireduce", "tor-1", "10.0.0.9:7000", "sparse", 3, 12, 0xfe, 64,
                               64,           4};
  EXPECT_TRUE(ValidatePlan(plan, limits).ok()) << ToString(ValidatePlan(plan, limits));
  const auto again = ParsePlan(PlanToJson(plan), UnknownKeys::kReject);
  ASSERT_TRUE(again.ok()) << ToString(again.status());
  EXPECT_EQ(again->leases, plan.leases);
}

TEST(ValidatePlanTest, TakesTheTableOfTheCodecAlone) {
  PlanLimits limits;
  limits.world = 4;
  Plan plan = PlanOf("thc", "thc_table");
  plan.fallback.bits = 8;
  AggregatorLease lease = {.collective = "thc_table",
                           .aggregator = "tor-1",
                           .address = "10.0.0.9:7000",
                           .mode = "table",
                           .id = 3,
                           .epoch = 12,
                           .cookie = 0xfe,
                           .slots = 64,
                           .lanes = 1024};
  const auto status = [&] {
    plan.leases["thc_table"] = lease;
    return ValidatePlan(plan, limits);
  };
  EXPECT_NE(Message(status()).find("sum bits"), std::string::npos) << ToString(status());
  lease.sum_bits = 8;
  const CodecSetting* setting = FindSetting((*Codecs().Find("thc"))->Traits(), {.bits = 8}, 4);
  lease.levels = setting->lane_levels;
  lease.levels.resize(16, setting->lane_levels.back());
  EXPECT_TRUE(status().ok()) << ToString(status());
  EXPECT_EQ(plan.leases, ParsePlan(PlanToJson(plan), UnknownKeys::kReject)->leases);
  const uint64_t digest = PlanDigest(plan);
  lease.quorum = 3;
  EXPECT_NE(Message(status()).find("cut-off"), std::string::npos) << ToString(status());
  lease.cutoff_us = 20'000;
  EXPECT_TRUE(status().ok()) << ToString(status());
  EXPECT_EQ(plan.leases, ParsePlan(PlanToJson(plan), UnknownKeys::kReject)->leases);
  EXPECT_NE(PlanDigest(plan), digest);
  EXPECT_EQ(TermsOf(lease, 4)->quorum, 3);
  EXPECT_EQ(TermsOf(lease, 4)->cutoff, std::chrono::milliseconds(20));
  lease.quorum = 5;
  EXPECT_NE(Message(status()).find("quorum: expected 1 .. workers, found 5"), std::string::npos);
  lease.quorum = lease.cutoff_us = 0;
  EXPECT_TRUE(TermsOf(lease, 4)->checked);
  lease.unchecked = true;
  EXPECT_TRUE(status().ok()) << ToString(status());
  EXPECT_EQ(plan.leases, ParsePlan(PlanToJson(plan), UnknownKeys::kReject)->leases);
  EXPECT_NE(PlanDigest(plan), digest);
  EXPECT_FALSE(TermsOf(lease, 4)->checked);
  lease.unchecked = false;
  // Lanes of other levels would add up to something else without anybody noticing.
  --lease.levels[1];
  EXPECT_NE(Message(status()).find("table of the lease: expected 8 bits"), std::string::npos)
      << ToString(status());
  EXPECT_NE(PlanDigest(plan), digest);
  ++lease.levels[1];
  plan.fallback.bits = 16;
  EXPECT_FALSE(status().ok());
  plan.fallback = {.codec = "thc_uniform", .collective = "thc_table"};
  EXPECT_NE(Message(status()).find("table_lanes"), std::string::npos) << ToString(status());
}

TEST(ValidatePlanTest, RefusesLeasesThatMakeNoSense) {
  PlanLimits limits;
  limits.world = 4;
  const auto refusal = [&](const std::function<void(AggregatorLease*)>& spoil) {
    Plan plan = *ParsePlan(kLeased, UnknownKeys::kReject);
    spoil(&plan.leases.at("switchml"));
    const Status status = ValidatePlan(plan, limits);
    EXPECT_EQ(Message(status).find("00ff00ff"), std::string::npos) << "tells the cookie";
    return status.ok() ? "accepted" : Message(status);
  };
  EXPECT_NE(refusal([](auto* l) { l->address = "tor-1:7000"; }).find("address"), std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->mode = "max"; }).find("mode: expected 'sum'"),
            std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->id = 65536; }).find("id: expected at most 65535"),
            std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->slots = 0; }).find("slots"), std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->slots = 65536; }).find("slots"), std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->lanes = 257; }).find("lanes"), std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->epoch = 0; }).find("epoch"), std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->columns = 4; }).find("columns"), std::string::npos);
  EXPECT_NE(refusal([](auto* l) { l->quorum = l->cutoff_us = 3; }).find("in table mode only"),
            std::string::npos)
      << "sums of float32 and int32 lanes are exact, or no sums";
  const auto sparse = [](uint32_t lanes, uint32_t columns) {
    return [=](auto* l) {
      *l = {"omnireduce", "tor-1", l->address, "sparse", 3, 12, l->cookie, 64, lanes, columns};
    };
  };
  EXPECT_NE(refusal(sparse(64, 0)).find("columns"), std::string::npos);
  EXPECT_NE(refusal(sparse(64, 5)).find("lanes times columns"), std::string::npos);
  EXPECT_NE(refusal(sparse(1, 260)).find("columns: expected at most 32"), std::string::npos);
  Plan plan = *ParsePlan(kLeased, UnknownKeys::kReject);
  plan.leases["ring"] = plan.leases.at("switchml");
  plan.leases["ring"].collective = "ring";
  EXPECT_NE(Message(ValidatePlan(plan, limits)).find("uses no aggregator"), std::string::npos);
}

TEST(ValidatePlanTest, RefusesWhatDoesNotFitInMemory) {
  PlanLimits limits;
  limits.world = 4;
  limits.buckets = {{1, {.elements = 1000000, .shape = {}}}};
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
  // If there are many small buckets, only a few are in flight at a time.
  limits.buckets.clear();
  for (uint64_t key = 0; key < 1000; ++key) limits.buckets[key].elements = 1000;
  limits.memory_bytes_max = 26000;  // thirteen
  EXPECT_TRUE(ValidatePlan(PlanOf("fp16", "ring"), limits).ok());
  limits.encode_workers = 2;
  EXPECT_FALSE(ValidatePlan(PlanOf("fp16", "ring"), limits).ok());
}

}  // namespace
}  // namespace weir
