// SPDX-License-Identifier: Apache-2.0
// The words of the audit trail about a change.

#include "controller/server/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/server/admin_calls.h"
#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
