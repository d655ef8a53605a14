// SPDX-License-Identifier: Apache-2.0
// Requests and answers of the control interface.
#include "deploy/aggregator/lease_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "datapath/aggregation/io/address.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFull =
    R"({"job":"a-1","mode":"table","workers":["10.0.0.1:5","10.0.0.2:5"],"slots":8,"lanes":512,)"
    R"("columns":0,"world":0,"sum_bits":8,"levels":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15],)"
    R"("quorum":1,"cutoff_ms":20,"little_endian":true,"checked":false})";

TEST(LeaseApiTest, EveryKeyCounts) {
  const auto request = ParseLeaseRequest(kFull);
  ASSERT_TRUE(request.ok()) << request.status();
  const Lease& t = request->terms;
  EXPECT_EQ(request->job, "a-1");
  EXPECT_EQ(t.mode, PacketMode::kTable);
  EXPECT_EQ(t.workers, 2);
  EXPECT_EQ(AddressText(request->workers[1]), "10.0.0.2:5");
  EXPECT_EQ(t.slots, 8);
  EXPECT_EQ(t.lanes, 512);
  EXPECT_EQ(t.sum_bits, 8);
  EXPECT_EQ(t.levels.size(), 16u);
  EXPECT_EQ(t.levels[15], 15);
  EXPECT_EQ(t.quorum, 1);
  EXPECT_EQ(t.cutoff, std::chrono::milliseconds(20));
  EXPECT_TRUE(t.little_endian);
  EXPECT_FALSE(t.checked);
}

TEST(LeaseApiTest, AParentIsReadWholeOrNotAtAll) {
  const auto with = [](const std::string& parent) {
    return ParseLeaseRequest(
        R"({"job":"a","mode":"sum","workers":["10.0.0.1:5"],"slots":8,"world":2,"parent":)" +
        parent + "}");
  };
  const auto request = with(
      R"({"address":"10.0.0.9:7","lease":3,"epoch":4,"cookie":"5ad1c0ffee5ad1c0","workers":2})");
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->parent.has_value());
  EXPECT_EQ(AddressText(request->parent->address), "10.0.0.9:7");
  EXPECT_EQ(request->parent->id, 3);
  EXPECT_EQ(request->parent->epoch, 4u);
  EXPECT_EQ(request->parent->cookie, 0x5ad1c0ffee5ad1c0u);
  EXPECT_EQ(request->parent->workers, 2);
  for (const char* bad :
       {"7", "{}", R"({"address":"10.0.0.9:7","lease":3,"epoch":4,"cookie":"5a","workers":2})",
        R"({"address":"tor:7","lease":3,"epoch":4,"cookie":"5ad1c0ffee5ad1c0","workers":2})",
        R"({"address":"10.0.0.9:7","lease":70000,"epoch":4,"cookie":"5ad1c0ffee5ad1c0"})",
        R"({"address":"10.0.0.9:7","cookie":"5ad1c0ffee5ad1c0","further":1})"}) {
    EXPECT_EQ(with(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(LeaseApiTest, DefaultsAreThoseOfALease) {
  const auto request =
      ParseLeaseRequest(R"({"job":"a","mode":"sum","workers":["127.0.0.1:1"],"slots":4})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->terms.lanes, kPacketLanesMax);
  EXPECT_TRUE(request->terms.checked);
  EXPECT_FALSE(request->terms.little_endian);
}

TEST(LeaseApiTest, ErrorsNameTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "json"},
      {"[]", "lease"},
      {R"({"job":"a","mode":"sums","workers":["1.1.1.1:1"],"slots":1})", "lease.mode"},
      {R"({"job":"a","workers":["1.1.1.1:1"],"slots":1})", "lease.mode"},
      {R"({"job":"a","mode":"sum","slots":1})", "lease.workers"},
      {R"({"job":"a","mode":"sum","workers":[],"slots":1})", "lease.workers"},
      {R"({"job":"a","mode":"sum","workers":[5],"slots":1})", "lease.workers"},
      {R"({"job":"a","mode":"sum","workers":["host:1"],"slots":1})", "lease.workers"},
      {R"({"job":"a","mode":"sum","workers":["1.1.1.1:1"],"slots":65536})", "lease.slots"},
      {R"({"job":"a","mode":"sum","workers":["1.1.1.1:1"],"slots":-1})", "lease.slots"},
      {R"({"job":"a","mode":"sum","workers":["1.1.1.1:1"],"slots":1,"lanes":4096})", "lease.lanes"},
      {R"({"job":"a","mode":"sum","workers":["1.1.1.1:1"],"slots":1,"levels":[256]})",
       "lease.levels"},
      {R"({"job":"a","mode":"sum","workers":["1.1.1.1:1"],"slots":1,"checked":1})",
       "lease.checked"},
      {R"({"job":7,"mode":"sum","workers":["1.1.1.1:1"],"slots":1})", "lease.job"},
      {R"({"job":"a","mode":"sum","workers":["1.1.1.1:1"],"slots":1,"epoch":3})", "epoch"},
      {R"({"job":"a","job":"b","mode":"sum","workers":["1.1.1.1:1"],"slots":1})", "duplicate"},
  };
  for (const auto& [text, named] : cases) {
    const auto request = ParseLeaseRequest(text);
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(request.status()), HasSubstr(named)) << text;
  }
  EXPECT_FALSE(ParseLeaseRequest(std::string(kLeaseBytesMax + 1, ' ')).ok());
  EXPECT_FALSE(ParseLeaseRequest(std::string(1000, '[')).ok());
}

TEST(LeaseApiTest, CapacityIsOfAllShardsAndOfTheFreest) {
  AggregatorLimits limits;
  limits.slots = 100;
  limits.slots_per_job = 50;
  limits.leases = 4;
  std::vector<ShardStatus> shards(2);
  shards[0].slots_granted = 90;
  shards[0].leases = 3;
  shards[1].slots_granted = 30;
  shards[1].leases = 4;
  const auto json = nlohmann::json::parse(CapacityJson(limits, shards, 4e10));
  EXPECT_EQ(json["shards"], 2);
  EXPECT_EQ(json["slots"], 200);
  EXPECT_EQ(json["slots_free"], 80);
  EXPECT_EQ(json["slots_free_of_shard"], 70);
  EXPECT_EQ(json["slots_per_job"], 50);
  EXPECT_EQ(json["leases_free"], 1);
  EXPECT_EQ(json["lanes_max"], kPacketLanesMax);
  EXPECT_EQ(json["workers_max"], kWorkersMax);
  EXPECT_EQ(json["goodput_bits_per_s"], 4e10);
}

TEST(LeaseApiTest, ListNamesTheMissingAndKeepsTheCookie) {
  LeaseGrant grant{.job = "j", .lease = {}, .address = *ParseSourceAddress("127.0.0.1:9")};
  grant.lease.cookie = 0x0123456789ABCDEF;
  grant.workers = {*ParseSourceAddress("127.0.0.1:1"), *ParseSourceAddress("127.0.0.1:2")};
  grant.lease.quorum = 3;
  grant.lease.cutoff = std::chrono::milliseconds(20);
  EXPECT_THAT(GrantJson(grant), HasSubstr("\"cutoff_ms\":20"));
  EXPECT_THAT(GrantJson(grant), HasSubstr("\"quorum\":3"));
  EXPECT_THAT(GrantJson(grant), HasSubstr("0123456789abcdef"));
  StalledRound stalled{.round = {}, .age = std::chrono::milliseconds(1500), .missing = {1}};
  stalled.round.slot = 3;
  const std::string text = LeasesJson({{.grant = grant, .oldest = stalled, .idle = {}}});
  EXPECT_EQ(text.find("cookie"), std::string::npos);
  const auto waiting = nlohmann::json::parse(text)["leases"][0]["waiting"];
  EXPECT_EQ(waiting["slot"], 3);
  EXPECT_EQ(waiting["age_s"], 1.5);
  EXPECT_EQ(waiting["missing"][0]["worker"], 1);
  EXPECT_EQ(waiting["missing"][0]["address"], "127.0.0.1:2");
}

}  // namespace
}  // namespace weir::aggregation
