// SPDX-License-Identifier: Apache-2.0
// Adding a codec takes one file and one line in a list, as in tests/support/extra_codec; no other
// code knows of it. It must be offered by the rank, become a candidate of the controller, be chosen
// where it is best and only there, be explained, and run.

#include <gtest/gtest.h>

#include "controller/fleet/policy_set.h"
#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/explain.h"
#include "controller/messages/json.h"
#include "controller/messages/mapping.h"
#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "datapath/agent_link/agent_protocol.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

/// A job on a link of `bandwidth` whose ranks offer what this program's library offers.
Snapshot JobAt(double bandwidth) {
  v1::Capabilities capabilities;
  EXPECT_TRUE(FromJson(CapabilitiesJson(), &capabilities).ok());
  Snapshot snapshot = test::MakeSnapshot(4, 1e-3, bandwidth, 3);
  const JobCapabilities offered = ToModel(capabilities);
  snapshot.codecs = CodecsOf(offered, snapshot.world);
  snapshot.collectives = offered.collectives;
  for (CodecModel& codec : snapshot.codecs) ApplyPriorTimes(&codec);
  return snapshot;
}

TEST(ExtraCodecTest, IsOffered) {
  const Snapshot snapshot = JobAt(1e9);
  const CodecModel* offered = FindCodec(snapshot.codecs, "block_mean", 0);
  ASSERT_NE(offered, nullptr);
  EXPECT_EQ(offered->form, "lanes");
  EXPECT_EQ(offered->fixed_bits, 0.5);
  EXPECT_EQ(offered->relative_error_squared, 0.05);
}

TEST(ExtraCodecTest, IsChosenWhereItIsBest) {
  const Snapshot slow = JobAt(1e6);  // 10 MB of gradients through 1 MB/s
  const auto decision = Decide(slow, Policy{});
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  for (const ChoiceModel& choice : decision->chosen.choices) {
    EXPECT_EQ(choice.codec, "block_mean") << ReasonText(decision->facts);
  }
  const auto fast = Decide(JobAt(1e11), Policy{});
  ASSERT_TRUE(fast.ok()) << ToString(fast.status());
  for (const ChoiceModel& choice : fast->chosen.choices) EXPECT_NE(choice.codec, "block_mean");
  Policy without;
  without.codecs = {"identity", "top_k"};
  const auto bounded = Decide(slow, without);
  ASSERT_TRUE(bounded.ok()) << ToString(bounded.status());
  for (const ChoiceModel& choice : bounded->chosen.choices) EXPECT_NE(choice.codec, "block_mean");
}

TEST(ExtraCodecTest, APolicyMayNameItOnceARankHasDeclaredIt) {
  const std::string source = "bounds: {codecs: [block_mean]}\n";
  v1::Capabilities declared;
  ASSERT_TRUE(FromJson(CapabilitiesJson(), &declared).ok());
  PolicySet policies(
      NamesOf(BuiltinCapabilities()));  // knows what is built in, which this codec is not
  EXPECT_EQ(policies.Apply("", source, 1, true).status().code(), StatusCode::kInvalidArgument);
  (void)policies.Learn(NamesOf(declared), 2);
  EXPECT_TRUE(policies.Apply("", source, 3, true).ok());
}

TEST(ExtraCodecTest, IsExplained) {
  const Snapshot slow = JobAt(1e6);
  const auto decision = Decide(slow, Policy{});
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  const std::string reason = ReasonText(decision->facts);
  EXPECT_NE(reason.find("block_mean over "), std::string::npos) << reason;
  v1::Explanation explanation = ToProto(DescribeInputs(slow, {}));
  *explanation.mutable_decision() = ToProto(RecordOf(*decision, /*largest=*/0));
  AddWords(explanation.mutable_decision());
  const std::string text = ExplainText(explanation);
  EXPECT_NE(text.find("block_mean over "), std::string::npos) << text;
}

}  // namespace
}  // namespace weir
