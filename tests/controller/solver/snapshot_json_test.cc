// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

Snapshot Odd() {
  Snapshot snapshot = test::MakeSnapshot(5, 1.0 / 3, 1e8 / 7, 3);
  snapshot.step = std::numeric_limits<uint64_t>::max();
  snapshot.job = "a \"quoted\" näme\n";
  snapshot.latency_s = {0.1 + 0.2, 5e-324, 1e300};
  snapshot.reduce_s_per_byte = 1.0 / 7e9;
  snapshot.incumbent = {{"top_k", "sparse_all_gather", 0.1, 65536}, {}, {}};
  snapshot.seconds_since_switch = 12.345678901234567;
  snapshot.codecs[1].payload_scale = 1.0 / 3;
  snapshot.collectives[2].gain_scale = 2.0 / 3;
  snapshot.window_bytes = 4194304;
  snapshot.host_bandwidth_bytes_per_s = 1e9 / 3;
  snapshot.metadata_overhead_s = 1e-4 / 3;
  return snapshot;
}

TEST(SnapshotJsonTest, RoundTripIsExact) {
  const Snapshot snapshot = Odd();
  const std::string text = SerializeSnapshot(snapshot);
  const auto back = ParseSnapshot(text);
  ASSERT_TRUE(back.ok()) << ToString(back.status());
  EXPECT_TRUE(*back == snapshot);
  EXPECT_EQ(SerializeSnapshot(*back), text);
}

TEST(SnapshotJsonTest, DecisionsOfOriginalAndReplayAreIdentical) {
  const Snapshot snapshot = test::MakeSnapshot(4, 1e-3 / 3, 1e8 / 7, 6);
  const auto replayed = ParseSnapshot(SerializeSnapshot(snapshot));
  const auto a = Decide(snapshot, {}), b = Decide(*replayed, {});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->digest, b->digest);
  EXPECT_EQ(ReasonText(a->facts), ReasonText(b->facts));
  EXPECT_EQ(a->digest.size(), 16u);
}

TEST(SnapshotJsonTest, MissingKeysKeepDefaults) {
  const auto snapshot = ParseSnapshot(R"({"job": "x"})");
  ASSERT_TRUE(snapshot.ok());
  EXPECT_EQ(snapshot->job, "x");
  EXPECT_EQ(snapshot->world, 1);
}

TEST(SnapshotJsonTest, WrongInputNamesThePlace) {
  const auto error = [](const char* text) {
    const auto snapshot = ParseSnapshot(text);
    EXPECT_FALSE(snapshot.ok()) << text;
    return snapshot.ok() ? "" : Message(snapshot.status());
  };
  EXPECT_THAT(error(""), HasSubstr("expected JSON"));
  EXPECT_THAT(error("[1]"), HasSubstr("snapshot: expected an object, found array"));
  EXPECT_THAT(error(R"({"world": 1.5})"), HasSubstr("snapshot.world: expected an integer"));
  EXPECT_THAT(error(R"({"world": 99999999999})"),
              HasSubstr("snapshot.world: expected an integer in range"));
  EXPECT_THAT(error(R"({"world": -3000000000})"), HasSubstr("snapshot.world"));
  EXPECT_THAT(error(R"({"step": -1})"), HasSubstr("snapshot.step"));
  EXPECT_THAT(error(R"({"job": 3})"), HasSubstr("snapshot.job: expected a string, found number"));
  EXPECT_THAT(error(R"({"buckets": {}})"), HasSubstr("snapshot.buckets: expected a list"));
  EXPECT_THAT(error(R"({"buckets": [{"gains": [1, "x"]}]})"),
              HasSubstr("snapshot.buckets[0].gains[1]: expected a number, found string"));
  EXPECT_THAT(error(R"({"codecs": [{"encode": 3}]})"),
              HasSubstr("snapshot.codecs[0].encode: expected an object"));
  EXPECT_THAT(error(R"({"nonsense": 3})"), HasSubstr("1 unknown"));
}

TEST(SnapshotJsonTest, HostileInputIsAnswered) {
  const std::string deep(200000, '[');
  EXPECT_FALSE(ParseSnapshot(deep).ok());
  const std::string text = SerializeSnapshot(Odd());
  for (size_t size = 0; size < text.size(); size += 97)
    EXPECT_FALSE(ParseSnapshot(text.substr(0, size)).ok());
}

}  // namespace
}  // namespace weir
