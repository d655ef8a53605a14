// SPDX-License-Identifier: Apache-2.0
// The words of the audit trail about a change.

#include "controller/server/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/server/admin_calls.h"
#include "datapath/base/log.h"
#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class AuditTest : public FleetFixture {
 protected:
  void SetUp() override {
    FleetFixture::SetUp();
    audit_ = std::make_unique<AuditTrail>(*store_);
    backups_ = std::make_unique<Backups>(*store_, "/nonexistent/backup");
    served_ = std::make_unique<ServedPlane>(std::move(plane_));
    calls_ = std::make_unique<AdminCalls>(executor_, *served_, *audit_, authenticator_, *backups_);
  }
  template <typename Response, typename Request>
  Status Call(const char* method, const Request& request) {
    const Credentials local{.peer = "here", .local = {.role = Role::kAdmin}};
    const auto caller = calls_->Admit(local, RouteOf(method), request);
    if (!caller.ok()) return caller.status();
    Response response;
    return calls_->Call(*caller, RouteOf(method), request, &response);
  }
  v1::AuditRecord Newest() {
    v1::ListAuditResponse list;
    EXPECT_TRUE(audit_->List({}, &list).ok());
    EXPECT_GT(list.records_size(), 0);
    return list.records_size() > 0 ? list.records(0) : v1::AuditRecord();
  }

  Executor executor_;
  Authenticator authenticator_;
  std::unique_ptr<AuditTrail> audit_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<ServedPlane> served_;
  std::unique_ptr<AdminCalls> calls_;
};

TEST_F(AuditTest, APolicyIsThereBeforeAndAfter) {
  v1::ApplyPolicyRequest apply;
  apply.set_source("name: wide\nobjective:\n  name: throughput\n");
  ASSERT_TRUE(Call<v1::ApplyPolicyResponse>("ApplyPolicy", apply).ok());
  v1::DeletePolicyRequest remove;
  remove.set_name("wide");
  ASSERT_TRUE(Call<v1::DeletePolicyResponse>("DeletePolicy", remove).ok());
  EXPECT_THAT(Newest().before(), HasSubstr("name: throughput"));
  EXPECT_THAT(Newest().after(), IsEmpty());
}

TEST_F(AuditTest, APolicyThatIsNamedInItsTextAloneIsTheTarget) {
  v1::ApplyPolicyRequest apply;
  apply.set_source("name: wide\nobjective:\n  name: throughput\n");
  ASSERT_TRUE(Call<v1::ApplyPolicyResponse>("ApplyPolicy", apply).ok());
  apply.set_source("name: wide\npriority: 3\nobjective:\n  name: throughput\n");
  ASSERT_TRUE(Call<v1::ApplyPolicyResponse>("ApplyPolicy", apply).ok());
  EXPECT_EQ(Newest().target(), "wide");
  EXPECT_THAT(Newest().before(), AllOf(HasSubstr("name: throughput"), Not(HasSubstr("priority"))));
  EXPECT_THAT(Newest().after(), HasSubstr("priority: 3"));
}

TEST_F(AuditTest, ALevelOfTheLogIsThereBeforeAndAfter) {
  const LogLevel was = MinimumLogLevel();
  SetMinimumLogLevel(LogLevel::kInfo);
  v1::SetLogLevelRequest set;
  set.set_level("error");
  EXPECT_TRUE(Call<v1::SetLogLevelResponse>("SetLogLevel", set).ok());
  SetMinimumLogLevel(was);
  EXPECT_EQ(Newest().before(), "info");
  EXPECT_EQ(Newest().after(), "error");
}

TEST_F(AuditTest, WhatIsForgottenIsThereBefore) {
  cluster_.Connect(**served_);
  for (int rank = 0; rank < 4; ++rank) cluster_.DisconnectRank(rank);
  v1::ForgetNodeRequest node;
  node.set_name(FakeCluster::Node(3));
  ASSERT_TRUE(Call<v1::ForgetNodeResponse>("ForgetNode", node).ok());
  EXPECT_THAT(Newest().before(), HasSubstr("10.0.0.4"));
  EXPECT_THAT(Newest().after(), IsEmpty());
  v1::ForgetJobRequest job;
  job.set_name("lm");
  ASSERT_TRUE(Call<v1::ForgetJobResponse>("ForgetJob", job).ok());
  EXPECT_THAT(Newest().before(), HasSubstr("\"world\":4"));
  EXPECT_THAT(Newest().after(), IsEmpty());
}

TEST_F(AuditTest, ANodeIsNotTakenForThePolicyOfItsName) {
  v1::ApplyPolicyRequest apply;
  apply.set_source("name: wide\nobjective:\n  name: throughput\n");
  ASSERT_TRUE(Call<v1::ApplyPolicyResponse>("ApplyPolicy", apply).ok());
  v1::ForgetNodeRequest forget;
  forget.set_name("wide");
  EXPECT_EQ(Call<v1::ForgetNodeResponse>("ForgetNode", forget).code(), StatusCode::kNotFound);
  EXPECT_EQ(Newest().method(), "ForgetNode");
  EXPECT_THAT(Newest().before(), IsEmpty());
  EXPECT_THAT(Newest().after(), IsEmpty());
}

}  // namespace
}  // namespace weir
