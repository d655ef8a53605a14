// SPDX-License-Identifier: Apache-2.0
// A host whose cores other work takes: it is named, and neither plan nor beliefs change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

class BusyHostsTest : public FleetFixture {
 protected:
  v1::Explanation Explain() {
    v1::ExplainRequest request;
    request.set_job("lm");
    v1::Explanation explanation;
    EXPECT_TRUE(plane_->admin.Explain(request, &explanation).ok());
    return explanation;
  }
};

TEST_F(BusyHostsTest, ItIsNamedAndTheRatioStays) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  for (int i = 0; i < 100; ++i) cluster_.Step();
  const uint64_t version = cluster_.active().version();
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  EXPECT_THAT(Explain().text(), testing::Not(testing::HasSubstr("taken")));
  const double bandwidth = Explain().bandwidth_bytes_per_s().value();
  cluster_.starved_rank = 1;
  for (int i = 0; i < 100; ++i) cluster_.Step();
  EXPECT_EQ(cluster_.active().version(), version);
  EXPECT_TRUE(Job().ranks(1).starved());
  EXPECT_FALSE(Job().ranks(0).starved());
  EXPECT_NEAR(Job().ranks(1).cores().steal_ratio(), 0.3, 0.01);
  EXPECT_THAT(
      Explain().text(),
      testing::HasSubstr("Late: the cores of n1 are taken (steal 30 %, rank 1 waits for one "
                         "for 45 % of the time in which it could run)"));
  const std::string metrics = plane_->admin.MetricsText();
  EXPECT_THAT(metrics, testing::HasSubstr("weir_starved_ranks{training_job=\"lm\"} 1"));
  EXPECT_THAT(metrics, testing::ContainsRegex("weir_core_wait_ratio.training_job=\"lm\". 0.4[45]"));
  cluster_.starved_rank = -1;
  for (int i = 0; i < 100; ++i) cluster_.Step();
  EXPECT_EQ(cluster_.active().version(), version);
  EXPECT_THAT(Explain().text(), testing::Not(testing::HasSubstr("taken")));
  EXPECT_NEAR(std::log(Explain().bandwidth_bytes_per_s().value() / bandwidth), 0, 0.2);
}

}  // namespace
}  // namespace weir
