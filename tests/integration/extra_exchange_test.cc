// SPDX-License-Identifier: Apache-2.0
// Adding an exchange form takes one file and one line in a list (and likewise a collective that
// serves the form), as in tests/support/extra_exchange; no other code knows of it. Ranks must offer
// it with the codecs that it carries, controllers must find them compatible, and sessions must run
// it.

#include "controller/messages/json.h"
#include "controller/messages/mapping.h"
#include "controller/model/cost_model.h"
#include "datapath/agent_link/agent_protocol.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

TEST(ExtraExchangeTest, ControllersLearnOfItFromRanks) {
  v1::Capabilities capabilities;
  ASSERT_TRUE(FromJson(CapabilitiesJson(), &capabilities).ok());
  const CollectiveModel* offered = nullptr;
  const JobCapabilities declared = ToModel(capabilities);
  for (const CollectiveModel& collective : declared.collectives) {
    if (collective.name == "double_gather") offered = &collective;
  }
  ASSERT_NE(offered, nullptr);
  EXPECT_EQ(offered->form, "double_sums");
  std::vector<std::string> carried;
  for (const CodecModel& codec : CodecsOf(declared, 4)) {
    if (Compatible(codec, *offered, 4)) carried.push_back(codec.name);
  }
  EXPECT_EQ(carried, std::vector<std::string>{"identity"});
}

TEST(ExtraExchangeTest, RunsInSessions) {
  const std::string plan = testing::TempFile(
      "plan.json", R"({"fallback": {"codec": "identity", "collective": "double_gather"}})");
  testing::SessionWorld job({.world = 3, .plan_file = plan});
  job.Up();
  const size_t n = 1000;
  const uint64_t key = job.Define({{"p", n}});
  // In float32, whatever the order of the first two, 1 would be lost beside 2^25.
  std::vector<std::vector<float>> data = {
      std::vector<float>(n, 0x1p25f), std::vector<float>(n, 1.0f), std::vector<float>(n, -0x1p25f)};
  job.Begin();
  job.AllReduce(key, data);
  job.End();
  for (const auto& sum : data) EXPECT_EQ(sum, std::vector<float>(n, 1.0f));
}

TEST(ExtraExchangeTest, PlansOfOtherCodecsAreRefused) {
  Plan plan;
  plan.version = 1;
  plan.fallback.codec = "top_k";
  plan.fallback.collective = "double_gather";
  plan.fallback.ratio = 0.1;
  const Status valid = ValidatePlan(plan, PlanLimits{});
  EXPECT_EQ(valid.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(valid).find("carries double_sums"), std::string::npos) << ToString(valid);
}

}  // namespace
}  // namespace weir
