// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fleet over a store in memory, with simulated ranks of one job, for tests of what it decides.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/controller/fleet/fake_cluster.h"

namespace weir {

class FleetFixture : public testing::Test {
 protected:
  void SetUp() override {
    auto store = OpenSqliteStore(":memory:");
    ASSERT_TRUE(store.ok()) << ToString(store.status());
    store_ = std::move(*store);
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
  }
  /// Applies a policy, which must be valid.
  void Apply(const std::string& source) {
    v1::ApplyPolicyRequest request;
    request.set_source(source);
    v1::ApplyPolicyResponse response;
    const Status applied = plane_->admin.ApplyPolicy(request, &response);
    ASSERT_TRUE(applied.ok()) << ToString(applied);
  }
  v1::Job Job() {
    v1::GetJobRequest request;
    request.set_name("lm");
    v1::Job job;
    EXPECT_TRUE(plane_->admin.GetJob(request, &job).ok());
    return job;
  }
  /// The decisions that offered a plan, without candidates.
  std::vector<v1::Decision> PlansNewestFirst() {
    v1::ListDecisionsRequest request;
    request.set_plans_only(true);
    request.set_page_size(500);
    v1::ListDecisionsResponse plans;
    EXPECT_TRUE(plane_->admin.ListDecisions(request, &plans).ok());
    return {plans.decisions().begin(), plans.decisions().end()};
  }

  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{4, clock_};
};

}  // namespace weir
