// SPDX-License-Identifier: Apache-2.0
// Decisions for gradients on devices say where codecs run, and take it into account.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

/// On the host no codec pays, on a device top_k does.
Snapshot OnDevices() {
  Snapshot snapshot = test::MakeSnapshot(4, 2e-5, 5e7);
  snapshot.devices = {.copy_out_s_per_byte = 1e-10, .copy_in_s_per_byte = 1e-10, .known = true};
  for (CodecModel& codec : snapshot.codecs) {
    if (codec.name != "top_k") continue;
    codec.encode = codec.decode = {1e-5, 4e-8, 0, 1e-9};
    codec.device_encode = codec.device_decode = {1e-5, 2e-11, 0, 1e-12};
    codec.on_device = true;
  }
  for (CollectiveModel& collective : snapshot.collectives) {
    collective.exchange.on_devices = collective.form == "opaque" || collective.form == "lanes";
  }
  return snapshot;
}

Decision DecidedOn(const Snapshot& snapshot) {
  Policy policy;
  policy.codecs = {"identity", "top_k"};
  const auto decision = Decide(snapshot, policy);
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
  return decision.value_or(Decision{});
}

const CandidatePlan& Candidate(const Decision& decision, const std::string& codec) {
  for (const CandidatePlan& plan : decision.top) {
    if (plan.choices.front().codec == codec) return plan;
  }
  return decision.chosen;
}

TEST(DevicePlaceTest, DecisionsSayWhereTheyEncode) {
  Snapshot snapshot = OnDevices();
  const Decision there = DecidedOn(snapshot);
  EXPECT_EQ(Candidate(there, "top_k").encoding, (EncodingPlace{CodecPlace::kDevice, 0}));
  EXPECT_EQ(Candidate(there, "identity").encoding.place, CodecPlace::kNowhere);
  EXPECT_NEAR(Candidate(there, "identity").encoding.copies_s, 1e7 * 2e-10, 1e-9);
  ASSERT_EQ(there.chosen.choices.front().codec, "top_k") << there.chosen.label;
  EXPECT_THAT(ReasonText(there.facts), HasSubstr(", encoded on the GPU, predicts"));
  for (CodecModel& codec : snapshot.codecs) codec.on_device = false;
  const Decision here = DecidedOn(snapshot);
  ASSERT_EQ(here.chosen.choices.front().codec, "identity") << here.chosen.label;
  EXPECT_THAT(ReasonText(here.facts), HasSubstr(", not encoded (copies 2 ms), predicts"));
  for (CodecModel& codec : snapshot.codecs) codec.encode = codec.decode = {1e-5, 1e-9, 0, 1e-11};
  const Decision fast = DecidedOn(snapshot);
  ASSERT_EQ(fast.chosen.choices.front().codec, "top_k") << fast.chosen.label;
  EXPECT_THAT(ReasonText(fast.facts), HasSubstr(", encoded on the host (copies 2 ms), predicts"));
}

TEST(DevicePlaceTest, GradientsOfTheHostHaveNoPlace) {
  Snapshot snapshot = OnDevices();
  snapshot.devices = {};
  const Decision decision = DecidedOn(snapshot);
  EXPECT_EQ(decision.chosen.encoding, EncodingPlace{});
  EXPECT_EQ(ReasonText(decision.facts).find("encoded"), std::string::npos);
}

TEST(DevicePlaceTest, StoredSnapshotsKeepIt) {
  Snapshot snapshot = OnDevices();
  snapshot.devices.linked = true;
  snapshot.memory.device_s_per_byte = 3e-11;
  const auto read = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(read.ok()) << ToString(read.status());
  EXPECT_EQ(*read, snapshot);
  EXPECT_EQ(DecidedOn(*read).digest, DecidedOn(snapshot).digest);
}

}  // namespace
}  // namespace weir
