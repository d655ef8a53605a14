// SPDX-License-Identifier: Apache-2.0
// JSON between rank and agent: the messages that are sent, and hostile input.

#include "datapath/agent_link/agent_protocol.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "datapath/base/json.h"
#include "datapath/base/random.h"
#include "datapath/session/telemetry.h"

namespace weir {
namespace {

nlohmann::json Parsed(const RankMessage& message) {
  auto document = ParseJson(EncodeRankMessage(message), 4u << 20);
  EXPECT_TRUE(document.ok()) << ToString(document.status());
  return *document;
}

TEST(RankMessageTest, HelloSaysHowFramesAreProtected) {
  RankHello hello;
  EXPECT_EQ(Parsed(hello)["hello"]["frame_protection"], "FRAME_PROTECTION_CHECKED");
  EXPECT_EQ(Parsed(hello)["hello"]["unauthenticated_peers"], 0);
  hello.protection = Protection::kAuthenticated;
  EXPECT_EQ(Parsed(hello)["hello"]["frame_protection"], "FRAME_PROTECTION_AUTHENTICATED");
  hello.protection = Protection::kEncrypted;
  hello.unauthenticated_peers = 3;
  EXPECT_EQ(Parsed(hello)["hello"]["frame_protection"], "FRAME_PROTECTION_ENCRYPTED");
  EXPECT_EQ(Parsed(hello)["hello"]["unauthenticated_peers"], 3);
}

TEST(RankMessageTest, HelloCarriesTheLabelsOfTheJob) {
  RankHello hello;
  EXPECT_FALSE(Parsed(hello)["hello"].contains("labels"));
  hello.labels = {{"namespace", "team-a"}, {"stage", "dev"}};
  EXPECT_EQ(Parsed(hello)["hello"]["labels"],
            nlohmann::json({{"namespace", "team-a"}, {"stage", "dev"}}));
}

TEST(RankMessageTest, HelloCarriesThePlanAndWhatThisBuildCanDo) {
  RankHello hello;
  hello.job = "j\xff";  // not UTF-8
  hello.rank = 3;
  hello.world = 4;
  hello.step = uint64_t{1} << 53;
  Plan plan;
  plan.version = 9;
  hello.active_plan = std::make_shared<const Plan>(plan);
  hello.active_plan_version = 9;
  EXPECT_FALSE(Parsed(hello)["hello"].contains("aggregation_address"));
  EXPECT_FALSE(Parsed(hello)["hello"].contains("memory_group"));
  hello.lowest_rank = 2;
  EXPECT_EQ(Parsed(hello)["hello"]["memory_group"], 3);
  hello.aggregation_address = "10.0.0.7:40000";
  const auto json = Parsed(hello)["hello"];
  EXPECT_EQ(json["aggregation_address"], "10.0.0.7:40000");
  EXPECT_EQ(json["rank"], 3);
  EXPECT_EQ(json["step"], "9007199254740992");  // beyond what a double holds
  EXPECT_EQ(json["active_plan"]["version"], 9);
  EXPECT_EQ(json["active_plan"]["fallback"]["codec"], "identity");
  EXPECT_GE(json["capabilities"]["codecs"].size(), 6u);
  EXPECT_GE(json["capabilities"]["collectives"].size(), 6u);
  bool found = false;
  for (const auto& codec : json["capabilities"]["codecs"]) {
    if (codec["name"] != "top_k") continue;
    found = true;
    EXPECT_EQ(codec["form"], "opaque");
    EXPECT_EQ(codec["error_model"], "selection");
    EXPECT_EQ(codec["uses_ratio"], true);
    EXPECT_GT(codec["contraction"], 0);
    EXPECT_EQ(codec["rotated"], false);
    EXPECT_FALSE(codec["summary"].get<std::string>().empty());
    EXPECT_FALSE(codec.contains("encode"));
  }
  EXPECT_TRUE(found);
}

/// Names of the fields of a message of rank.proto.
std::set<std::string> FieldsOf(const std::string& message) {
  std::ifstream file(std::string(WEIR_TEST_SOURCE_DIR) + "/../proto/weir/v1/rank.proto");
  EXPECT_TRUE(file.is_open());
  std::set<std::string> fields;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "message " + message + " {") inside = true;
    if (line == "}") inside = false;
    const size_t equals = line.find(" = ");
    if (!inside || equals == line.npos || line.find("//") < equals) continue;
    const size_t begin = line.rfind(' ', equals - 1) + 1;
    fields.insert(line.substr(begin, equals - begin));
  }
  return fields;
}

TEST(RankMessageTest, SumsOfCallersAreOfferedWhereAllCanMakeThem) {
  for (const bool can : {false, true}) {
    RankHello hello;
    hello.caller_sums = can;
    const auto message = Parsed(hello);
    int found = 0;
    for (const auto& collective : message["hello"]["capabilities"]["collectives"]) {
      EXPECT_EQ(collective["by_caller"], collective["name"] == "framework");
      found += collective["name"] == "framework";
    }
    EXPECT_EQ(found, can ? 1 : 0);
  }
  EXPECT_EQ(CapabilitiesJson().find("framework"), std::string::npos);
}

TEST(RankMessageTest, CapabilitiesHaveTheFieldsOfTheProto) {
  const DeviceCodecTimings timings{.on_host = {{"top_k", {}}}, .on_device = {{"top_k", {}}}};
  RankHello hello;
  hello.device_timings = &timings;
  const auto keys = [](const nlohmann::json& object) {
    std::set<std::string> names;
    for (const auto& [name, value] : object.items()) names.insert(name);
    return names;
  };
  const auto message = Parsed(hello);  // items() does not keep it alive
  size_t seen = 0;
  for (const auto& codec : message["hello"]["capabilities"]["codecs"]) {
    if (codec["name"] != "top_k") continue;
    EXPECT_EQ(keys(codec), FieldsOf("CodecCapability"));
    EXPECT_EQ(keys(codec["settings"][0]), FieldsOf("CodecSetting"));
    ++seen;
  }
  EXPECT_EQ(seen, 1u);
  EXPECT_EQ(keys(message["hello"]["gradient_device"]), FieldsOf("GradientDevice"));
  const auto& exchange = message["hello"]["capabilities"]["collectives"][0]["exchange"];
  EXPECT_EQ(keys(exchange), FieldsOf("ExchangeForm"));
}

TEST(RankMessageTest, HelloOfADeviceCarriesItsTimesAndThoseOfTheHostWithCopies) {
  const DeviceCodecTimings timings{
      .on_host = {{"top_k", {{1e-9, 0}, {}}}, {"dgc", {{2e-9, 0}, {}}}},
      .on_device = {{"top_k", {{1e-11, 0}, {}}}},
      .copy_out_s_per_byte = 3e-11,
      .copy_in_s_per_byte = 4e-11};
  RankHello hello;
  EXPECT_FALSE(Parsed(hello)["hello"].contains("gradient_device"));
  hello.device_timings = &timings;
  hello.device_linked = true;
  const auto json = Parsed(hello)["hello"];
  EXPECT_EQ(json["gradient_device"]["copy_out_s_per_byte"], 3e-11);
  EXPECT_EQ(json["gradient_device"]["copy_in_s_per_byte"], 4e-11);
  EXPECT_EQ(json["gradient_device"]["linked"], true);
  size_t seen = 0;
  for (const auto& codec : json["capabilities"]["codecs"]) {
    EXPECT_EQ(codec.contains("device_encode"), codec["name"] == "top_k");
    if (codec["name"] != "top_k") continue;
    EXPECT_EQ(codec["encode"]["per_element_s"], 1e-9);
    EXPECT_EQ(codec["device_encode"]["per_element_s"], 1e-11);
    ++seen;
  }
  EXPECT_EQ(seen, 1u);
}

TEST(RankMessageTest, HelloCarriesMeasuredCodecTimes) {
  const std::map<std::string, CodecTiming> timings = {{"top_k", {{1e-9, 5e-9}, {0, 8e-9}}}};
  RankHello hello;
  hello.codec_timings = &timings;
  const auto json = Parsed(hello);
  for (const auto& codec : json["hello"]["capabilities"]["codecs"]) {
    ASSERT_EQ(codec.contains("encode"), codec["name"] == "top_k");
    if (codec["name"] != "top_k") continue;
    EXPECT_EQ(codec["encode"]["per_kept_s"], 5e-9);
    EXPECT_EQ(codec["decode"]["per_element_s"], 0.0);
  }
}

TEST(RankMessageTest, NonFiniteNumbersAreTheTextsOfProto3) {
  StepReport report;
  report.loss = std::nan("");
  report.step_s = std::numeric_limits<double>::infinity();
  const auto json = Parsed(report)["step"];
  EXPECT_EQ(json["loss"], "NaN");
  EXPECT_EQ(json["step_s"], "Infinity");
}

TEST(RankMessageTest, OfManyPeersArrivalsAreReportedInTurn) {
  std::vector<ArrivalSample> samples;
  for (int peer = 0; peer < 20; ++peer) {
    samples.emplace_back();
    samples.back().peer = peer;
  }
  std::set<int> reported;
  for (uint64_t step = 1; step <= 5; ++step) {
    const auto turn = InTurn(samples, step);
    ASSERT_EQ(turn.size(), kArrivalsMax);
    for (const ArrivalSample& sample : turn) reported.insert(sample.peer);
  }
  EXPECT_EQ(reported.size(), samples.size());
  samples.resize(3);
  EXPECT_EQ(InTurn(samples, 7).size(), 3u);
}

TEST(RankMessageTest, EveryKindHasItsKey) {
  BucketTable table;
  table.buckets.push_back({0xab, 10, 1, "float16", std::vector<std::string>(100, "w")});
  StepReport step;
  step.buckets.emplace_back();
  step.gains.push_back({1, {1, 0.5}, {1, 0.9}, 4});
  step.block_densities = {{1, 64, 0.25, 0.5}, {1, 256, 0.75}};
  step.arrivals.push_back({3, 4e-8, 0.1, 2e-8, 300000, 2, true});
  PathReport paths;
  paths.paths.push_back({.peer = 2, .medium = "shm", .congestion_window_bytes = 14480});
  paths.addresses = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};
  EXPECT_EQ(Parsed(table)["buckets"]["buckets"][0]["key"], "00000000000000ab");
  EXPECT_EQ(Parsed(table)["buckets"]["buckets"][0]["parameters"].size(), 64u);
  EXPECT_EQ(Parsed(table)["buckets"]["buckets"][0]["sharded"], false);
  table.buckets[0].sharded = true;
  EXPECT_EQ(Parsed(table)["buckets"]["buckets"][0]["sharded"], true);
  EXPECT_EQ(Parsed(step)["step"]["gains"][0]["gains"][1], 0.9);
  EXPECT_EQ(Parsed(step)["step"]["buckets"].size(), 1u);
  const auto densities = Parsed(step)["step"]["block_densities"];
  EXPECT_EQ(densities[0]["bucket"], "0000000000000001");
  EXPECT_EQ(densities[0]["combined"], 0.5);
  EXPECT_EQ(densities[0]["has_combined"], true);
  EXPECT_EQ(densities[1]["block_elements"], 256);
  EXPECT_EQ(densities[1]["own"], 0.75);
  EXPECT_FALSE(densities[1].contains("has_combined"));
  const auto arrival = Parsed(step)["step"]["arrivals"][0];
  EXPECT_EQ(arrival["peer_rank"], 3);
  EXPECT_EQ(arrival["s_per_byte"], 4e-8);
  EXPECT_EQ(arrival["relative_deviation"], 0.1);
  EXPECT_EQ(arrival["ingress_s_per_byte"], 2e-8);
  EXPECT_EQ(arrival["payload_bytes"], 300000);
  EXPECT_EQ(arrival["trains"], 2);
  EXPECT_EQ(arrival["within_burst"], true);
  EXPECT_EQ(Parsed(paths)["paths"]["paths"][0]["congestion_window_bytes"], 14480);
  EXPECT_EQ(Parsed(paths)["paths"]["paths"][0]["peer_rank"], 2);
  EXPECT_EQ(Parsed(paths)["paths"]["paths"][0]["medium"], "shm");
  EXPECT_EQ(Parsed(paths)["paths"]["paths"][0]["peer_address"], "10.0.0.3:1");
  EXPECT_EQ(Parsed(PlanAck{7, "n"})["ack"]["version"], 7);
  EXPECT_EQ(Parsed(PlanNack{7, "n", "why"})["nack"]["reason"], "why");
  EXPECT_EQ(Parsed(PlanActive{7, 8})["active"]["step"], 8);
  EXPECT_EQ(Parsed(RankEvent{"closing", "", 1, -1})["event"]["guilty_rank"], -1);
}

TEST(RankMessageTest, AnEventHasBucketAndParameter) {
  const auto event = Parsed(RankEvent{"non_finite", "", 1, 3, 0xab, "layer.weight"})["event"];
  EXPECT_EQ(event["bucket"], "00000000000000ab");
  EXPECT_EQ(event["parameter"], "layer.weight");
  EXPECT_EQ(Parsed(RankEvent{"closing", "", 1, -1})["event"]["bucket"], "");
}

TEST(RankMessageTest, TheParameterOfAnEventIsBoundedAndNoCharacterIsCut) {
  RankEvent event{"non_finite", "", 1, 3};
  event.parameter = std::string(255, 'a') + "é" + std::string(1000, 'b');
  EXPECT_EQ(Parsed(event)["event"]["parameter"], std::string(255, 'a'));
  event.parameter = std::string(254, 'a') + "é" + std::string(1000, 'b');
  EXPECT_EQ(Parsed(event)["event"]["parameter"], std::string(254, 'a') + "é");
}

TEST(RankCommandTest, ReadsEachCommandWithIntegersInBothForms) {
  const auto offer = ParseRankCommand(
      R"({"offer": {"nonce": "n", "plan": {"version": "12", "later": 1}}, "unknown": 3})");
  ASSERT_TRUE(offer.ok()) << ToString(offer.status());
  const auto& o = std::get<PlanOffer>(*offer);
  EXPECT_EQ(o.version, 12u);
  EXPECT_EQ(o.nonce, "n");
  ASSERT_TRUE(o.plan.ok());
  EXPECT_EQ(o.plan->version, 12u);
  EXPECT_EQ(std::get<PlanArm>(*ParseRankCommand(R"({"arm": {"version": 3}})")).version, 3u);
  EXPECT_EQ(std::get<PlanWithdraw>(*ParseRankCommand(R"({"withdraw": {"version": "4"}})")).version,
            4u);
  EXPECT_EQ(std::get<RankRefusal>(*ParseRankCommand(R"({"refusal": {"reason": "r"}})")).reason,
            "r");
  EXPECT_FALSE(o.lease_plan.has_value());
  const auto leased = ParseRankCommand(
      R"({"offer": {"nonce": "n", "plan": {"version": 12}, "lease_plan": {"version": "13"}}})");
  ASSERT_TRUE(leased.ok()) << ToString(leased.status());
  ASSERT_TRUE(std::get<PlanOffer>(*leased).lease_plan.has_value());
  EXPECT_EQ(std::get<PlanOffer>(*leased).lease_plan->version, 13u);
  EXPECT_EQ(std::get<PlanLease>(*ParseRankCommand(R"({"lease": {"lease_s": 2.5}})")).lease_s, 2.5);
  EXPECT_EQ(std::get<PlanLease>(*ParseRankCommand(R"({"lease": {}})")).lease_s, 0);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*ParseRankCommand(R"({"future": {}})")));
}

TEST(RankCommandTest, AWrongPlanInAReadableOfferCanBeNacked) {
  const auto offer =
      ParseRankCommand(R"({"offer": {"nonce": "n", "plan": {"version": 12, "buckets": 3}}})");
  ASSERT_TRUE(offer.ok());
  const auto& o = std::get<PlanOffer>(*offer);
  EXPECT_EQ(o.version, 12u);
  EXPECT_FALSE(o.plan.ok());
  EXPECT_NE(Message(o.plan.status()).find("plan.buckets"), std::string::npos);
  const auto lease = ParseRankCommand(
      R"({"offer": {"nonce": "n", "plan": {"version": 12}, "lease_plan": {"buckets": 3}}})");
  ASSERT_TRUE(lease.ok());
  EXPECT_NE(Message(std::get<PlanOffer>(*lease).plan.status()).find("lease_plan"),
            std::string::npos);
}

TEST(RankCommandTest, HostileTextsAreErrors) {
  for (const std::string& text :
       {std::string(),
        std::string("{"),
        std::string("null"),
        std::string("[1]"),
        std::string(R"({"arm": 3})"),
        std::string(R"({"arm": {"version": -3}})"),
        std::string(R"({"arm": {"version": 1e30}})"),
        std::string(R"({"arm": {}})"),
        std::string(R"({"offer": {}})"),
        std::string(R"({"offer": {"plan": []}})"),
        std::string(R"({"offer": {"nonce": 3, "plan": {}}})"),
        std::string(R"({"refusal": {"reason": {}}})"),
        std::string("{\"arm\": \xff}"),
        std::string(R"({"lease": {"lease_s": -1}})"),
        std::string(R"({"lease": {"lease_s": "NaN"}})"),
        std::string(R"({"lease": 3})"),
        std::string(R"({"lease": {"lease_s": 1e300}})"),
        R"({"offer": {"nonce": ")" + std::string(1000, 'x') + R"(", "plan": {}}})",
        std::string(100000, '['),
        R"({"a":)" + std::string(50000, '{')}) {
    const auto command = ParseRankCommand(text);
    EXPECT_FALSE(command.ok()) << text.substr(0, 60);
    EXPECT_EQ(command.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(RankCommandTest, RandomDamageNeverCrashes) {
  const std::string good =
      R"({"offer": {"nonce": "n", "plan": {"version": "12", "fallback": {"codec": "top_k",)"
      R"("collective": "sparse_all_gather", "ratio": 0.1}, "buckets": [{"bucket":)"
      R"("00000000000000ff", "choice": {"codec": "fp16", "collective": "ring"}}]}}})";
  ASSERT_TRUE(ParseRankCommand(good).ok());
  Random random(11);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      const size_t at = random.Below(text.size());
      switch (random.Below(3)) {
        case 0:
          text[at] = static_cast<char>(random.Below(256));
          break;
        case 1:
          text.erase(at, 1 + random.Below(5));
          break;
        default:
          text.insert(at, 1, "{}[]\",:0-"[random.Below(9)]);
          break;
      }
    }
    refused += ParseRankCommand(text).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace weir
