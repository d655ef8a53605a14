// SPDX-License-Identifier: Apache-2.0
// Elections of a leader, with real members of etcd that are killed and stopped.

#include "controller/store/etcd/election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "controller/store/etcd/etcd_store.h"
#include "tests/support/etcd_cluster.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

bool Eventually(const std::function<bool()>& true_now, double patience_s = 40) {
  const TimePoint end = RealClock().Now() + FromSeconds(patience_s);
  while (!true_now()) {
    if (RealClock().Now() > end) return false;
    usleep(10'000);
  }
  return true;
}

ControllerAddress AddressOf(const std::string& name) {
  return {name + ":7700", "http://" + name + ":7780"};
}

/// Believes for ever that it leads in a term of the past.
class StaleLeadership : public Leadership {
 public:
  explicit StaleLeadership(uint64_t term) : term_(term) {}
  std::optional<Tenure> tenure() const override {
    return Tenure{term_, RealClock().Now() + std::chrono::hours(1)};
  }
  LeadershipView view() const override { return {}; }
  void Resign(uint64_t, const std::string&) override {}

 private:
  const uint64_t term_;
};

class ElectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = EtcdCluster::WhyNot();
    if (!why.empty()) GTEST_SKIP() << why;
  }
  void StartMembers(int count) {
    cluster_ = std::make_unique<EtcdCluster>(count);
    ASSERT_TRUE(cluster_->WaitReady().ok());
  }
  std::unique_ptr<EtcdElection> Compete(const std::string& name) {
    auto election = std::make_unique<EtcdElection>(
        ElectionOptions{.etcd = cluster_->Options(), .identity = name});
    election->Start(AddressOf(name));
    return election;
  }
  static bool Leads(const EtcdElection& election) { return election.tenure().has_value(); }

  std::unique_ptr<EtcdCluster> cluster_;
};

TEST_F(ElectionTest, OneLeadsAndTheOtherKnowsWhoAndOnlyReads) {
  StartMembers(1);
  auto first = Compete("first");
  ASSERT_TRUE(Eventually([&] { return Leads(*first); }));
  auto second = Compete("second");
  ASSERT_TRUE(Eventually([&] { return second->view().leader.has_value(); }));
  EXPECT_FALSE(Leads(*second));
  EXPECT_EQ(second->view().leader->grpc, "first:7700");
  EXPECT_EQ(second->view().leader->http, "http://first:7780");
  const auto leader = OpenEtcdStore(cluster_->Options(), *first);
  const auto standby = OpenEtcdStore(cluster_->Options(), *second);
  ASSERT_TRUE(leader->PutFact("k", "v").ok());
  EXPECT_EQ(*standby->GetFact("k"), "v");
  EXPECT_EQ(standby->PutFact("k", "w").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(standby->ClaimPlan({"j", 1, "{}", "offered", 1}).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(*leader->GetFact("k"), "v");
}

TEST_F(ElectionTest, ALeaderThatEndsOrResignsIsFollowedAtOnce) {
  StartMembers(1);
  auto first = Compete("first");
  ASSERT_TRUE(Eventually([&] { return Leads(*first); }));
  auto second = Compete("second");
  const uint64_t term = first->tenure()->term;
  TimePoint begin = RealClock().Now();
  first = nullptr;
  ASSERT_TRUE(Eventually([&] { return Leads(*second); }));
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 2.0) << "it waited for the lease's end";
  EXPECT_GT(second->tenure()->term, term);
  first = Compete("first");
  ASSERT_TRUE(Eventually([&] { return first->view().leader.has_value(); }));
  begin = RealClock().Now();
  second->Resign(second->tenure()->term, "the test asks for it");
  EXPECT_FALSE(Leads(*second)) << "it is no leader from that moment on";
  ASSERT_TRUE(Eventually([&] { return Leads(*first); }));
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 2.0);
}

// The fence: even a leader whose clock stands still changes nothing after its lease.
TEST_F(ElectionTest, EtcdRefusesTheWritesOfAFormerTerm) {
  StartMembers(1);
  auto first = Compete("first");
  ASSERT_TRUE(Eventually([&] { return Leads(*first); }));
  StaleLeadership stale(first->tenure()->term);
  const auto former = OpenEtcdStore(cluster_->Options(), stale);
  ASSERT_TRUE(former->PutPolicy({"p", "of the first", 1}).ok());
  ASSERT_TRUE(former->ClaimPlan({"j", 1, "of the first", "offered", 1}).ok());
  first = nullptr;
  const auto nobody = former->PutPolicy({"p", "of nobody", 1});
  EXPECT_EQ(nobody.code(), StatusCode::kFailedPrecondition) << ToString(nobody);
  auto second = Compete("second");
  ASSERT_TRUE(Eventually([&] { return Leads(*second); }));
  const auto present = OpenEtcdStore(cluster_->Options(), *second);
  ASSERT_TRUE(present->ClaimPlan({"j", 2, "of the second", "offered", 1}).ok());

  const StoredDecision decision{.job = "j", .step = 1, .unix_s = 1, .payload = "{}"};
  for (const Status& refused :
       {former->PutPolicy({"p", "late", 1}), former->DeletePolicy("p"),
        former->ClaimPlan({"j", 2, "late", "offered", 1}),
        former->ClaimPlan({"j", 3, "late", "offered", 1}),
        former->PutPlan({"j", 1, "late", "active", 1}), former->PutPin({"j", "{}", 1}),
        former->DeleteJob("j"), former->AddAudit({1, "a", "b", "c", "d"}),
        former->AddDecision(decision).status(), former->PutFact("f", "late")}) {
    EXPECT_FALSE(refused.ok());
  }
  EXPECT_TRUE(former->PutNode({"n", "{}", 1}).ok()) << "it waits for a flush";
  EXPECT_EQ(former->Flush().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(present->ListPolicies()->front().source, "of the first");
  EXPECT_EQ((*present->GetPlan("j", 1))->payload, "of the first");
  EXPECT_EQ((*present->GetPlan("j", 2))->payload, "of the second");
  EXPECT_EQ(*present->HighestPlanVersion("j"), 2u);
  EXPECT_TRUE(present->ListNodes()->empty());
  EXPECT_TRUE(present->ListPins()->empty());
  EXPECT_TRUE(present->ListAudit(10)->empty());
  EXPECT_TRUE(present->ListDecisions("", 0, 10)->empty());
}

// A process that is stopped in the middle of its work and wakes up long after its lease.
TEST_F(ElectionTest, AStoppedLeaderDoesNotActWhenItWakes) {
  StartMembers(1);
  int to_child[2], from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto election = Compete("stopped");
    if (!Eventually([&] { return Leads(*election); })) _exit(10);
    const auto store = OpenEtcdStore(cluster_->Options(), *election);
    if (!store->ClaimPlan({"j", 1, "of the stopped one", "offered", 1}).ok()) _exit(11);
    char byte = 'x';
    if (write(from_child[1], &byte, 1) != 1) _exit(12);
    if (read(to_child[0], &byte, 1) != 1) _exit(13);  // woken
    if (Leads(*election)) _exit(14);
    if (store->ClaimPlan({"j", 3, "late", "offered", 1}).ok()) _exit(15);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(from_child[0], &byte, 1), 1);
  auto second = Compete("second");
  ASSERT_TRUE(Eventually([&] { return second->view().leader.has_value(); }));
  kill(child, SIGSTOP);
  const TimePoint stopped = RealClock().Now();
  ASSERT_TRUE(Eventually([&] { return Leads(*second); }));
  const double took_s = ToSeconds(RealClock().Now() - stopped);
  EXPECT_GT(took_s, 1.0) << "it led beside the other one's lease";
  EXPECT_LT(took_s, 8.0);
  const auto store = OpenEtcdStore(cluster_->Options(), *second);
  EXPECT_EQ(*store->HighestPlanVersion("j"), 1u);
  ASSERT_TRUE(store->ClaimPlan({"j", 2, "of the second", "offered", 1}).ok());
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  kill(child, SIGCONT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(*store->HighestPlanVersion("j"), 2u);
  for (const int end : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(end);
}

TEST_F(ElectionTest, WithoutAQuorumNobodyLeadsAndWhatIsStoredCanBeRead) {
  StartMembers(3);
  auto only = Compete("only");
  ASSERT_TRUE(Eventually([&] { return Leads(*only); }));
  const auto store = OpenEtcdStore(cluster_->Options(), *only);
  ASSERT_TRUE(store->PutFact("k", "v").ok());
  ASSERT_TRUE(Eventually([&] {  // the member that stays has it, too
    EtcdClient client(cluster_->Options());
    EtcdOptions one = cluster_->Options();
    one.members = {cluster_->Member(2)};
    EtcdClient last(one);
    const auto row = last.Range({.key = "/weir/fact/k", .serializable = true},
                                RealClock().Now() + std::chrono::seconds(1));
    return row.ok() && !row->rows.empty();
  }));
  cluster_->Kill(0);
  cluster_->Kill(1);
  ASSERT_TRUE(Eventually([&] { return !Leads(*only); }, 8)) << "it leads beyond its lease";
  EXPECT_EQ(store->PutFact("k", "w").code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Eventually([&] { return !only->view().store.ok(); }));
  EXPECT_EQ(only->view().store.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(only->view().leader.has_value());
  ASSERT_TRUE(Eventually([&] {
    const auto read = store->GetFact("k");
    return read.ok() && *read == "v";
  })) << "one member can be read";
  cluster_->Start(0);
  cluster_->Start(1);
  ASSERT_TRUE(Eventually([&] { return Leads(*only); }));
  EXPECT_TRUE(only->view().store.ok());
  EXPECT_EQ(*store->GetFact("k"), "v");
  EXPECT_TRUE(store->PutFact("k", "w").ok());
}

TEST_F(ElectionTest, OneDeadOrStoppedMemberOfThreeIsNoticedAndPassedBy) {
  StartMembers(3);
  auto only = Compete("only");
  ASSERT_TRUE(Eventually([&] { return Leads(*only); }));
  const auto store = OpenEtcdStore(cluster_->Options(), *only);
  for (int member = 0; member < 3; ++member) {
    if (member == 1) {
      cluster_->Signal(member, SIGSTOP);
    } else {
      cluster_->Kill(member);
    }
    ASSERT_TRUE(Eventually([&] {
      return Leads(*only) && store->PutFact("k", StrCat("without ", member)).ok();
    })) << member;
    EXPECT_EQ(*store->GetFact("k"), StrCat("without ", member));
    if (member == 1) {
      cluster_->Signal(member, SIGCONT);
    } else {
      cluster_->Start(member);
    }
    EtcdOptions one = cluster_->Options();
    one.members = {cluster_->Member(member)};
    EtcdClient back(one);
    ASSERT_TRUE(back.Range({.key = "k"}, RealClock().Now() + std::chrono::seconds(20)).ok());
  }
}

TEST_F(ElectionTest, OverwrittenValuesAreForgotten) {
  StartMembers(1);
  EtcdElection election({.etcd = cluster_->Options(),
                         .identity = "only",
                         .compact_interval = std::chrono::milliseconds(1)});
  election.Start(AddressOf("only"));
  ASSERT_TRUE(Eventually([&] { return Leads(election); }));
  const auto store = OpenEtcdStore(cluster_->Options(), election);
  ASSERT_TRUE(store->PutFact("k", "first").ok());
  const std::string ask = StrCat("ETCDCTL_API=3 etcdctl --endpoints=", cluster_->Member(0),
                                 " get --rev=3 /weir/fact/k 2>&1 | grep -q ");
  ASSERT_EQ(std::system((ask + "weir").c_str()), 0) << "the first value is kept for a while";
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(store->PutFact("k", "later").ok());
    return std::system((ask + "compacted").c_str()) == 0;
  }));
  EXPECT_GT(election.view().store_bytes, 0);
}

// From now on the member asks for a login; root's password is "secret".
bool SwitchLoginsOn(const std::string& member) {
  const std::string command = StrCat(
      "export ETCDCTL_API=3; for what in 'user add root:secret' 'user grant-role root root' "
      "'auth enable'; do etcdctl --endpoints=",
      member, " $what >/dev/null 2>&1 || exit 1; done");
  return std::system(command.c_str()) == 0;
}

// A cluster whose authentication is yet to be switched on takes calls from everybody.
TEST_F(ElectionTest, ALoginDoesNoHarmWhereNoneIsAsked) {
  StartMembers(1);
  EtcdOptions options = cluster_->Options();
  options.user = "root";
  options.password = "secret";
  EtcdClient client(options);
  const auto ask = [&client] {
    return client.Range({.key = "k"}, RealClock().Now() + std::chrono::seconds(2)).status();
  };
  EXPECT_TRUE(ask().ok()) << ToString(ask());
  ASSERT_TRUE(SwitchLoginsOn(cluster_->Member(0))) << "etcdctl failed";
  EXPECT_TRUE(ask().ok()) << "the same client, once a login is asked: " << ToString(ask());
}

TEST_F(ElectionTest, ALoginIsUsedAndAWrongOneIsNamed) {
  StartMembers(1);
  ASSERT_TRUE(SwitchLoginsOn(cluster_->Member(0))) << "etcdctl failed";
  EtcdOptions options = cluster_->Options();
  const auto ask = [&options] {
    EtcdClient client(options);
    return client.Range({.key = "k"}, RealClock().Now() + std::chrono::seconds(2)).status();
  };
  EXPECT_EQ(ask().code(), StatusCode::kFailedPrecondition) << ToString(ask());
  options.user = "root";
  options.password = "guess";
  EXPECT_EQ(ask().code(), StatusCode::kFailedPrecondition) << ToString(ask());
  EXPECT_THAT(Message(ask()), HasSubstr("user 'root'"));
  options.password = "secret";
  EXPECT_TRUE(ask().ok()) << ToString(ask());

  // A user that may touch nothing but Weir's keys is enough.
  ASSERT_EQ(
      std::system(
          StrCat("export ETCDCTL_API=3; for what in 'user add weir:own' 'role add weir' 'role "
                 "grant-permission weir --prefix=true readwrite /weir' 'user grant-role weir "
                 "weir'; do etcdctl --user=root:secret --endpoints=",
                 cluster_->Member(0), " $what >/dev/null 2>&1 || exit 1; done")
              .c_str()),
      0)
      << "etcdctl failed";
  EXPECT_TRUE(ask().ok()) << "another user's key, as root";
  options.user = "weir";
  options.password = "own";
  EXPECT_EQ(ask().code(), StatusCode::kFailedPrecondition) << ToString(ask());
  EtcdElection election(
      {.etcd = options, .identity = "weir", .compact_interval = std::chrono::milliseconds(1)});
  election.Start(AddressOf("weir"));
  ASSERT_TRUE(Eventually([&] { return Leads(election); }));
  const auto store = OpenEtcdStore(options, election);
  EXPECT_TRUE(store->PutFact("k", "v").ok());
  EXPECT_EQ(*store->GetFact("k"), "v");
  ASSERT_TRUE(Eventually([&] { return election.view().store_bytes > 0; }));
  EXPECT_TRUE(Leads(election));
}

TEST(EtcdAddressTest, NamesMembersAndPrefix) {
  const auto three = ParseEtcdAddress("etcd://a:1,b.example:2379,[::1]:3/team/weir/");
  ASSERT_TRUE(three.ok()) << ToString(three.status());
  EXPECT_THAT(three->members, ::testing::ElementsAre("a:1", "b.example:2379", "[::1]:3"));
  EXPECT_EQ(three->prefix, "/team/weir");
  EXPECT_FALSE(three->tls);
  EXPECT_TRUE(ParseEtcdAddress("etcds://a:1")->tls);
  EXPECT_EQ(ParseEtcdAddress("etcd://a:1")->prefix, "/weir");
  EXPECT_EQ(ParseEtcdAddress("etcd://a:1/")->prefix, "/weir");
  for (const char* wrong :
       {"", "etcd://", "etcd:///weir", "etcd://a", "etcd://a:0", "etcd://a:65536", "etcd://:1",
        "etcd://a:1,", "etcd://a:1,,b:2", "etcd://a:1,a:1", "http://a:1", "a:1"}) {
    EXPECT_EQ(ParseEtcdAddress(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace weir
