// SPDX-License-Identifier: Apache-2.0
// The same for every store, through its interface: SQLite in a file, and a real etcd.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "controller/store/etcd/election.h"
#include "controller/store/etcd/etcd_store.h"
#include "controller/store/store.h"
#include "tests/support/etcd_cluster.h"

namespace weir {
namespace {

/// A store that can be closed and opened again.
class Place {
 public:
  virtual ~Place() = default;
  virtual std::unique_ptr<Store> Open(const StoreLimits& limits) = 0;
};

class SqlitePlace : public Place {
 public:
  SqlitePlace() {
    char name[] = "/tmp/weir-store-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~SqlitePlace() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<Store> Open(const StoreLimits& limits) override {
    auto store = OpenSqliteStore(directory_ + "/state.db", limits);
    EXPECT_TRUE(store.ok()) << ToString(store.status());
    return store.ok() ? std::move(*store) : nullptr;
  }

 private:
  std::string directory_;
};

class EtcdPlace : public Place {
 public:
  EtcdPlace() : election_({.etcd = cluster_.Options(), .identity = "test"}) {
    EXPECT_TRUE(cluster_.WaitReady().ok());
    election_.Start({});
  }
  std::unique_ptr<Store> Open(const StoreLimits& limits) override {
    const TimePoint end = RealClock().Now() + std::chrono::seconds(20);
    while (!election_.tenure().has_value() && RealClock().Now() < end) usleep(10'000);
    EXPECT_TRUE(election_.tenure().has_value());
    return OpenEtcdStore(cluster_.Options(), election_, limits);
  }

 private:
  EtcdCluster cluster_{1};
  EtcdElection election_;
};

class StoreConformanceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "sqlite") {
      place_ = std::make_unique<SqlitePlace>();
      return;
    }
    const std::string why = EtcdCluster::WhyNot();
    if (!why.empty()) GTEST_SKIP() << why;
    place_ = std::make_unique<EtcdPlace>();
  }
  std::unique_ptr<Store> Open(const StoreLimits& limits = {}) { return place_->Open(limits); }
  static StoredDecision MakeDecision(std::string job, uint64_t step) {
    return {0,           std::move(job), step, 1.5, StrCat("{\"step\":", step, "}"),
            "{\"s\":1}", "policy text"};
  }

  std::unique_ptr<Place> place_;
};

TEST_P(StoreConformanceTest, ReturnsWhatWasStoredAfterReopening) {
  {
    auto store = Open();
    ASSERT_TRUE(store->PutNode({"n1", "{\"a\":1}", 2.0}).ok());
    ASSERT_TRUE(store->PutNode({"n1", "{\"a\":2}", 3.0}).ok());
    ASSERT_TRUE(store->PutJob({"j", "{}", 4.0}).ok());
    ASSERT_TRUE(store->PutPlan({"j", 7, "{\"plan\":7}", "offered", 5.0}).ok());
    ASSERT_TRUE(store->PutPlan({"j", 7, "{\"plan\":7}", "active", 5.0}).ok());
    ASSERT_TRUE(store->PutPolicy({"p", "name: p\n", 6.0}).ok());
    ASSERT_TRUE(store->PutPin({"j", "{\"codec\":\"fp16\"}", 7.0}).ok());
    ASSERT_TRUE(store->AddAudit({8.0, "ann", "pin", "j", "because"}).ok());
    ASSERT_TRUE(store->PutFact("k", "v").ok());
    ASSERT_TRUE(store->Flush().ok());
  }
  auto store = Open();
  const auto nodes = *store->ListNodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].payload, "{\"a\":2}");
  EXPECT_EQ(nodes[0].last_seen_unix_s, 3.0);
  const auto jobs = *store->ListJobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].name, "j");
  EXPECT_EQ((*store->GetPlan("j", 7))->state, "active");
  EXPECT_FALSE((*store->GetPlan("j", 8)).has_value());
  EXPECT_EQ(*store->HighestPlanVersion("j"), 7u);
  EXPECT_EQ(*store->HighestPlanVersion("other"), 0u);
  EXPECT_EQ((*store->ListPolicies())[0].source, "name: p\n");
  EXPECT_EQ((*store->ListPins())[0].payload, "{\"codec\":\"fp16\"}");
  EXPECT_EQ((*store->ListAudit(10))[0].actor, "ann");
  EXPECT_EQ(*store->GetFact("k"), "v");
  EXPECT_EQ(*store->GetFact("unset"), "");
  ASSERT_TRUE(store->DeletePin("j").ok());
  ASSERT_TRUE(store->DeletePin("j").ok());
  EXPECT_TRUE((*store->ListPins()).empty());
}

// Names may hold anything, and no name reaches into the entries of another.
TEST_P(StoreConformanceTest, NamesAreAnyTexts) {
  const std::vector<std::string> names = {"a",        "a/b",     "a/b/00000000000000000001",
                                          "%2F",      "é\n\x01", std::string("\xff\xfe", 2),
                                          "../leader"};
  auto store = Open();
  for (const std::string& name : names) {
    ASSERT_TRUE(store->PutJob({name, "of " + name, 1}).ok());
    ASSERT_TRUE(store->PutPlan({name, 1, "plan of " + name, "active", 1}).ok());
    ASSERT_TRUE(store->PutPin({name, "{}", 1}).ok());
    ASSERT_TRUE(store->AddDecision(MakeDecision(name, 3)).ok());
  }
  ASSERT_TRUE(store->DeleteJob("a").ok());
  store = nullptr;
  store = Open();
  const auto jobs = *store->ListJobs();
  ASSERT_EQ(jobs.size(), names.size() - 1);
  for (const StoredJob& job : jobs) {
    EXPECT_EQ(job.payload, "of " + job.name);
    EXPECT_EQ((*store->GetPlan(job.name, 1))->payload, "plan of " + job.name);
    EXPECT_EQ(store->ListDecisions(job.name, 0, 10)->size(), 1u) << job.name;
  }
  EXPECT_EQ(store->ListPins()->size(), names.size() - 1);
}

TEST_P(StoreConformanceTest, APlanVersionIsGivenOnce) {
  auto store = Open();
  ASSERT_TRUE(store->ClaimPlan({"j", 3, "first", "offered", 1}).ok());
  for (const uint64_t version : {1u, 2u, 3u}) {
    EXPECT_EQ(store->ClaimPlan({"j", version, "other", "offered", 1}).code(),
              StatusCode::kAlreadyExists);
  }
  store = nullptr;
  store = Open();
  EXPECT_EQ(store->ClaimPlan({"j", 3, "other", "offered", 1}).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ((*store->GetPlan("j", 3))->payload, "first");
  ASSERT_TRUE(store->ClaimPlan({"j", 4, "next", "offered", 1}).ok());
  ASSERT_TRUE(store->DeleteJob("j").ok());
  EXPECT_EQ(store->ClaimPlan({"j", 4, "other", "offered", 1}).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(store->ClaimPlan({"j", 5, "after", "offered", 1}).ok());
  EXPECT_TRUE(store->ClaimPlan({"k", 1, "of another job", "offered", 1}).ok());
}

TEST_P(StoreConformanceTest, DecisionsPageNewestFirstAndKeepTheirInputs) {
  auto store = Open();
  for (uint64_t step = 1; step <= 5; ++step) {
    ASSERT_TRUE(store->AddDecision(MakeDecision(step % 2 == 0 ? "even" : "odd", step)).ok());
  }
  auto page = *store->ListDecisions("", 0, 2);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].step, 5u);
  EXPECT_EQ(page[0].snapshot, "") << "lists stay small";
  page = *store->ListDecisions("", page[1].id, 10);
  ASSERT_EQ(page.size(), 3u);
  EXPECT_EQ(page[0].step, 3u);
  page = *store->ListDecisions("even", 0, 10);
  ASSERT_EQ(page.size(), 2u);
  ASSERT_TRUE(store->UpdateDecision(page[0].id, "{\"outcome\":\"active\"}").ok());
  const StoredDecision whole = *store->GetDecision(page[0].id);
  EXPECT_EQ(whole.payload, "{\"outcome\":\"active\"}");
  EXPECT_EQ(whole.snapshot, "{\"s\":1}");
  EXPECT_EQ(whole.policy, "policy text");
  EXPECT_EQ(store->GetDecision(999).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->UpdateDecision(999, "{}").code(), StatusCode::kNotFound);
}

TEST_P(StoreConformanceTest, LongListsComeInPagesOfAnySize) {
  auto store = Open();
  for (uint64_t step = 1; step <= 260; ++step) {
    StoredDecision decision = MakeDecision(step % 2 == 0 ? "even" : "odd", step);
    decision.switched = step % 10 == 0;
    ASSERT_TRUE(store->AddDecision(decision).ok());
  }
  EXPECT_EQ(store->ListDecisions("", 0, 1000)->size(), 260u);
  EXPECT_EQ(store->ListDecisions("odd", 0, 1000)->size(), 130u);
  EXPECT_EQ(store->ListDecisions("odd", 0, 1000, /*switched_only=*/true)->size(), 0u);
  const auto switches = *store->ListDecisions("even", 0, 7, /*switched_only=*/true);
  ASSERT_EQ(switches.size(), 7u);
  EXPECT_EQ(switches.back().step, 200u);
  EXPECT_EQ(store->ListDecisions("", 0, 7, /*switched_only=*/true)->back().step, 200u);
}

TEST_P(StoreConformanceTest, RetentionIsBounded) {
  StoreLimits limits;
  limits.decisions_per_job_max = 10;
  limits.plans_per_job_max = 5;
  limits.audit_max = 3;
  limits.nodes_max = 2;
  auto store = Open(limits);
  for (uint64_t i = 1; i <= 128; ++i) {
    ASSERT_TRUE(store->AddDecision(MakeDecision("j", i)).ok());
    ASSERT_TRUE(store->PutPlan({"j", i, "{}", "active", 0}).ok());
    ASSERT_TRUE(store->AddAudit({static_cast<double>(i), "a", "b", "c", "d"}).ok());
    ASSERT_TRUE(store->PutNode({StrCat("n", i), "{}", static_cast<double>(i)}).ok());
  }
  EXPECT_EQ((*store->ListDecisions("j", 0, 1000)).size(), 10u);
  EXPECT_FALSE((*store->GetPlan("j", 123)).has_value());
  EXPECT_TRUE((*store->GetPlan("j", 124)).has_value());
  EXPECT_EQ((*store->ListAudit(100)).size(), 3u);
  const auto nodes = *store->ListNodes();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].name, "n128");
}

TEST_P(StoreConformanceTest, SwitchesOutliveEverythingElseWithinTheQuota) {
  StoreLimits limits;
  limits.decisions_per_job_max = 1000;
  limits.decision_bytes_per_job_max = 100'000;
  limits.decision_bytes_max = 150'000;
  auto store = Open(limits);
  StoredDecision decision = MakeDecision("j", 1);
  for (const char* job : {"j", "k"}) {
    decision.job = job;
    for (uint64_t step = 1; step <= 512; ++step) {
      decision.step = step;
      decision.switched = step % 100 == 1;
      decision.payload = std::string(200, 'x');
      decision.snapshot = std::string(2000, 's');
      ASSERT_TRUE(store->AddDecision(decision).ok());
    }
  }
  uint64_t bytes = 0;
  for (const char* job : {"j", "k"}) {
    const auto all = *store->ListDecisions(job, 0, 10000);
    const auto switches = *store->ListDecisions(job, 0, 10000, /*switched_only=*/true);
    EXPECT_LT(all.size(), 60u);
    ASSERT_EQ(switches.size(), 6u) << job;
    EXPECT_EQ(switches.back().step, 1u);
    for (const StoredDecision& one : all)
      bytes += 200 + store->GetDecision(one.id)->snapshot.size();
  }
  EXPECT_LT(bytes, 150'000u);
}

TEST_P(StoreConformanceTest, IfSwitchesExceedTheQuotaTheirOldestInputsAreDeleted) {
  StoreLimits limits;
  limits.decision_bytes_per_job_max = 50'000;
  auto store = Open(limits);
  StoredDecision decision = MakeDecision("j", 1);
  decision.switched = true;
  decision.snapshot = std::string(2000, 's');
  decision.base = "base";
  for (decision.step = 1; decision.step <= 128; ++decision.step) {
    ASSERT_TRUE(store->AddDecision(decision).ok());
  }
  const auto switches = *store->ListDecisions("j", 0, 1000);
  ASSERT_EQ(switches.size(), 128u);
  EXPECT_EQ(store->GetDecision(switches.back().id)->snapshot, "");
  EXPECT_EQ(store->GetDecision(switches.front().id)->snapshot.size(), 2000u);
  EXPECT_EQ(store->GetDecision(switches.front().id)->base, "base");
}

TEST_P(StoreConformanceTest, SharedTextsStayWhileADecisionNeedsThem) {
  StoreLimits limits;
  limits.decisions_per_job_max = 3;
  auto store = Open(limits);
  StoredDecision decision = MakeDecision("j", 1);
  for (decision.step = 1; decision.step <= 128; ++decision.step) {
    decision.base = StrCat("base ", decision.step / 40);
    decision.policy = "policy";
    ASSERT_TRUE(store->AddDecision(decision).ok());
  }
  const auto kept = *store->ListDecisions("j", 0, 100);
  ASSERT_EQ(kept.size(), 3u);
  for (const StoredDecision& one : kept) {
    const StoredDecision whole = *store->GetDecision(one.id);
    EXPECT_EQ(whole.base, StrCat("base ", one.step / 40));
    EXPECT_EQ(whole.policy, "policy");
  }
}

TEST_P(StoreConformanceTest, ARemovedJobLosesItsRows) {
  StoreLimits limits;
  limits.jobs_max = 1;
  auto store = Open(limits);
  ASSERT_TRUE(store->PutJob({"old", "{}", 1}).ok());
  ASSERT_TRUE(store->PutPlan({"old", 1, "{}", "active", 0}).ok());
  ASSERT_TRUE(store->AddDecision(MakeDecision("old", 1)).ok());
  ASSERT_TRUE(store->PutJob({"young", "{}", 2}).ok());
  EXPECT_TRUE((*store->ListDecisions("old", 0, 10)).empty());
  EXPECT_FALSE((*store->GetPlan("old", 1)).has_value());
}

// A caller whose requests are all refused must not push other records out of the trail.
TEST_P(StoreConformanceTest, RefusalsDoNotDisplaceOtherRecords) {
  StoreLimits limits;
  limits.audit_refused_max = 5;
  limits.audit_max = 3;
  auto store = Open(limits);
  ASSERT_TRUE(store->AddAudit({1, "ann", "Pin", "j", "first"}).ok());
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store->AddAudit({2.0 + i, "", "Pin", "j", "no", true}).ok());
  }
  const auto kept = *store->ListAudit(100);
  ASSERT_EQ(kept.size(), 6u);
  EXPECT_TRUE(kept.front().refused);
  EXPECT_EQ(kept.back().detail, "first");
  const auto older = *store->ListAudit(2, kept[3].id);
  ASSERT_EQ(older.size(), 2u);
  EXPECT_EQ(older[0].id, kept[4].id);
}

TEST_P(StoreConformanceTest, DeletedThingsAreGoneAndPlanVersionsGoOn) {
  auto store = Open();
  ASSERT_TRUE(store->PutNode({"n1", "{}", 2.0}).ok());
  ASSERT_TRUE(store->PutPolicy({"p", "name: p\n", 6.0}).ok());
  for (const char* job : {"j", "k"}) {
    ASSERT_TRUE(store->PutJob({job, "{}", 4.0}).ok());
    ASSERT_TRUE(store->PutPlan({job, 7, "{}", "active", 5.0}).ok());
    ASSERT_TRUE(store->PutPin({job, "{}", 7.0}).ok());
    ASSERT_TRUE(store->AddDecision(MakeDecision(job, 1)).ok());
  }
  EXPECT_TRUE(store->DeleteNode("n1").ok());
  EXPECT_TRUE(store->DeletePolicy("p").ok());
  EXPECT_TRUE(store->DeleteJob("j").ok());
  store = nullptr;
  store = Open();
  EXPECT_TRUE(store->ListNodes()->empty());
  EXPECT_TRUE(store->ListPolicies()->empty());
  ASSERT_EQ(store->ListJobs()->size(), 1u);
  EXPECT_EQ(store->ListJobs()->front().name, "k");
  EXPECT_EQ(store->ListPins()->size(), 1u);
  EXPECT_EQ(store->ListDecisions("", 0, 10)->size(), 1u);
  EXPECT_FALSE(store->GetPlan("j", 7)->has_value());
  EXPECT_EQ(*store->HighestPlanVersion("j"), 7u);
  ASSERT_TRUE(store->PutPlan({"j", 8, "{}", "active", 5.0}).ok());
  EXPECT_EQ(*store->HighestPlanVersion("j"), 8u);
  EXPECT_EQ(store->DeleteJob("absent").code(), StatusCode::kNotFound);
}

// A plan of thousands of buckets takes megabytes as JSON.
TEST_P(StoreConformanceTest, TakesWhatFitsAMessage) {
  std::string large;
  for (int bucket = 0; large.size() < (6u << 20); ++bucket) {
    large += StrCat("{\"bucket\":", bucket, ",\"codec\":\"top_k\",\"ratio\":0.01},");
  }
  auto store = Open();
  ASSERT_TRUE(store->PutPlan({"j", 1, large, "active", 0}).ok());
  StoredDecision decision = MakeDecision("j", 1);
  decision.payload = decision.snapshot = decision.base = large;
  const auto id = store->AddDecision(decision);
  ASSERT_TRUE(id.ok()) << ToString(id.status());
  EXPECT_EQ((*store->GetPlan("j", 1))->payload, large);
  EXPECT_EQ(store->GetDecision(*id)->snapshot, large);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest, ::testing::Values("sqlite", "etcd"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace weir
