// SPDX-License-Identifier: Apache-2.0
// Which control plane a controller serves when it begins and ceases to lead.

#include "controller/server/succession.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/server/admin_calls.h"
#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

class FakeLeadership : public Leadership {
 public:
  std::optional<Tenure> tenure() const override { return held; }
  LeadershipView view() const override { return said; }
  void Resign(uint64_t term, const std::string& why) override {
    resigned = StrCat(term, ": ", why);
    held.reset();
  }
  void Lead(uint64_t term) {
    held = Tenure{term, {}};
    said.leads = true;
    ++said.revision;
  }
  void Follow(const std::string& address) {
    held.reset();
    said.leads = false;
    said.leader = ControllerAddress{address, "http://" + address};
    ++said.revision;
  }

  std::optional<Tenure> held;
  LeadershipView said;
  std::string resigned;
};

class SuccessionTest : public ::testing::Test {
 protected:
  SuccessionTest() {
    Succession::Options options;
    options.begin = [this] {
      ++begun_;
      return begin_;
    };
    options.end = [this] { ++ended_; };
    succession_ =
        std::make_unique<Succession>(options, clock_, *store_, events_, served_, &leadership_);
    EXPECT_TRUE(succession_->Begin().ok());
  }
  void Tick() {
    clock_.Advance(std::chrono::seconds(10));
    succession_->OnTick();
  }
  Status Connect(const std::shared_ptr<FakeAgent>& agent) {
    v1::AgentMessage hello;
    hello.mutable_hello()->set_node("n");
    hello.mutable_hello()->set_address("127.0.0.1");
    return served_->agents.OnMessage(agent, hello);
  }

  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_ = std::move(*OpenSqliteStore(":memory:"));
  FakeLeadership leadership_;
  ServedPlane served_{&leadership_};
  Status begin_;
  int begun_ = 0, ended_ = 0;
  std::unique_ptr<Succession> succession_;
};

TEST_F(SuccessionTest, AStandbyShowsWhatIsStoredAndNamesTheLeader) {
  leadership_.Follow("a:7700");
  ASSERT_TRUE(store_->PutPolicy({"p", "name: p\njobs: [\"x\"]\n", 1}).ok());
  Tick();
  EXPECT_FALSE(served_.acts());
  EXPECT_EQ(served_.RequireActing().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(served_.RequireActing()), HasSubstr("the leader is at a:7700"));
  EXPECT_TRUE(served_.RequireLeaderKnown().ok());
  EXPECT_NE(served_->fleet.policies().Find("p"), nullptr);
  ASSERT_TRUE(store_->DeletePolicy("p").ok());
  Tick();
  EXPECT_NE(served_->fleet.policies().Find("p"), nullptr) << "copied though nothing changed";
  leadership_.Follow("a:7700");
  Tick();
  EXPECT_EQ(served_->fleet.policies().Find("p"), nullptr);
  EXPECT_EQ(begun_, 0);
}

TEST_F(SuccessionTest, ActsFromTheFirstTickOfATenureToItsEnd) {
  leadership_.Lead(4);
  EXPECT_FALSE(served_.acts()) << "the state has not been read yet";
  EXPECT_THAT(Message(served_.RequireActing()), HasSubstr("begins to lead"));
  Tick();
  EXPECT_TRUE(served_.acts());
  EXPECT_EQ(served_.term(), 4u);
  EXPECT_EQ(begun_, 1);
  const auto agent = std::make_shared<FakeAgent>();
  ASSERT_TRUE(Connect(agent).ok());
  EXPECT_TRUE(served_->fleet.nodes().Connected("n"));
  leadership_.Follow("b:7700");
  EXPECT_FALSE(served_.acts()) << "it is over before the next tick";
  EXPECT_FALSE(agent->closed);
  Tick();
  EXPECT_TRUE(agent->closed);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(served_.term(), 0u);
  EXPECT_NE(served_->fleet.nodes().Find("n"), nullptr) << "it stays known";
}

TEST_F(SuccessionTest, ATenureAfterATenureHasAnotherPlane) {
  leadership_.Lead(4);
  Tick();
  const auto agent = std::make_shared<FakeAgent>();
  ASSERT_TRUE(Connect(agent).ok());
  leadership_.Lead(9);
  EXPECT_FALSE(served_.acts()) << "what the plane knows is of the former tenure";
  Tick();
  EXPECT_TRUE(served_.acts());
  EXPECT_EQ(served_.term(), 9u);
  EXPECT_TRUE(agent->closed);
  EXPECT_FALSE(served_->fleet.nodes().Connected("n"));
  EXPECT_EQ(begun_, 2);
  EXPECT_EQ(ended_, 1);
}

TEST_F(SuccessionTest, WhoCannotLeadResigns) {
  begin_ = Unavailable("no secret");
  leadership_.Lead(4);
  Tick();
  EXPECT_EQ(leadership_.resigned, "4: no secret");
  EXPECT_FALSE(served_.acts());
  EXPECT_EQ(ended_, 1);
}

TEST_F(SuccessionTest, WithoutALeaderTheReasonIsSaid) {
  leadership_.said.store = Unavailable("no etcd member answers");
  Tick();
  EXPECT_THAT(Message(served_.RequireActing()), HasSubstr("no etcd member answers"));
  EXPECT_FALSE(served_.RequireLeaderKnown().ok());
  EXPECT_THAT(served_.MetricsText(), HasSubstr("\nweir_store_available 0\n"));
  EXPECT_THAT(served_.MetricsText(), HasSubstr("\nweir_leader_known 0\n"));
  leadership_.said.store = OkStatus();
  leadership_.Lead(1);
  Tick();
  EXPECT_THAT(served_.MetricsText(), HasSubstr("\nweir_leader 1\n"));
  EXPECT_THAT(served_.MetricsText(), HasSubstr("\nweir_store_available 1\n"));
}

TEST_F(SuccessionTest, AStandbyRefusesChangesAndWatchers) {
  leadership_.Follow("a:7700");
  Tick();
  Executor executor;
  Authenticator authenticator;
  AuditTrail audit(*store_);
  Backups backups(*store_, "/nonexistent/backup");
  AdminCalls calls(executor, served_, audit, authenticator, backups);
  const Credentials local{.peer = "here", .local = {.role = Role::kAdmin}};
  EXPECT_TRUE(calls.Admit(local, RouteOf("ListJobs"), v1::ListJobsRequest()).ok());
  EXPECT_TRUE(calls.Admit(local, RouteOf("ListAudit"), v1::ListAuditRequest()).ok());
  for (const char* method : {"Pin", "ApplyPolicy", "ForgetJob", "Watch"}) {
    v1::PinRequest request;
    request.set_job("j");
    const auto caller = calls.Admit(local, RouteOf(method), request);
    EXPECT_EQ(caller.status().code(), StatusCode::kUnavailable) << method;
  }
  leadership_.Lead(3);
  Tick();
  EXPECT_TRUE(calls.Admit(local, RouteOf("Pin"), v1::PinRequest()).ok());
}

}  // namespace
}  // namespace weir
