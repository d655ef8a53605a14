// SPDX-License-Identifier: Apache-2.0
// The store through its interface, and the effects of crashes and damaged files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/controller/store/store_fixture.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

TEST_F(SqliteStoreTest, ReturnsWhatWasStoredAfterReopening) {
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
  }
  auto store = Open();
  const auto nodes = *store->ListNodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].payload, "{\"a\":2}");
  EXPECT_EQ(nodes[0].last_seen_unix_s, 3.0);
  EXPECT_EQ((*store->ListJobs())[0].name, "j");
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

TEST_F(SqliteStoreTest, DecisionsPageNewestFirstAndKeepTheirInputs) {
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

TEST_F(SqliteStoreTest, RetentionIsBounded) {
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

TEST_F(SqliteStoreTest, TextsThatDecisionsShareAreStoredOnce) {
  auto store = Open();
  StoredDecision decision = MakeDecision("j", 1);
  decision.base = std::string(100000, 'b');
  decision.policy = std::string(50000, 'p');
  int64_t last = 0;
  for (decision.step = 1; decision.step <= 200; ++decision.step) {
    const auto id = store->AddDecision(decision);
    ASSERT_TRUE(id.ok());
    last = *id;
  }
  const StoredDecision whole = *store->GetDecision(last);
  EXPECT_EQ(whole.base, decision.base);
  EXPECT_EQ(whole.policy, decision.policy);
  store.reset();
  EXPECT_LT(fs::file_size(path_), 1u << 20) << "200 decisions with 150 kB in common";
}

TEST_F(SqliteStoreTest, SwitchesOutliveEverythingElseWithinTheQuota) {
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

TEST_F(SqliteStoreTest, IfSwitchesExceedTheQuotaTheirOldestInputsAreDeleted) {
  StoreLimits limits;
  limits.decision_bytes_per_job_max = 50'000;
  auto store = Open(limits);
  StoredDecision decision = MakeDecision("j", 1);
  decision.switched = true;
  decision.snapshot = std::string(2000, 's');
  for (decision.step = 1; decision.step <= 128; ++decision.step) {
    ASSERT_TRUE(store->AddDecision(decision).ok());
  }
  const auto switches = *store->ListDecisions("j", 0, 1000);
  ASSERT_EQ(switches.size(), 128u);
  EXPECT_EQ(store->GetDecision(switches.back().id)->snapshot, "");
  EXPECT_EQ(store->GetDecision(switches.front().id)->snapshot.size(), 2000u);
}

TEST_F(SqliteStoreTest, ARemovedJobLosesItsRows) {
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
TEST_F(SqliteStoreTest, RefusalsDoNotDisplaceOtherRecordsAndNothingChangesThem) {
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
  store.reset();
  EXPECT_EQ(RunScript(R"py(import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1]).execute("UPDATE audit SET actor = 'bob'")
except sqlite3.IntegrityError as error:
    assert "append-only" in str(error), error
else:
    sys.exit("changed")
)py"),
            0);
}

TEST_F(SqliteStoreTest, SurvivesKillNine) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto store = OpenSqliteStore(path_);
    if (!store.ok()) _exit(1);
    for (uint64_t step = 1;; ++step) {
      if (!(*store)->AddDecision(MakeDecision("j", step)).ok()) _exit(2);
      if (write(pipe_ends[1], &step, sizeof(step)) != sizeof(step)) _exit(3);
    }
  }
  close(pipe_ends[1]);
  uint64_t acknowledged = 0;
  while (acknowledged < 200) {
    ASSERT_EQ(read(pipe_ends[0], &acknowledged, sizeof(acknowledged)),
              ssize_t{sizeof(acknowledged)});
  }
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  uint64_t later = 0;
  while (read(pipe_ends[0], &later, sizeof(later)) == ssize_t{sizeof(later)}) acknowledged = later;
  close(pipe_ends[0]);
  auto store = Open();
  const auto newest = *store->ListDecisions("j", 0, 1);
  ASSERT_EQ(newest.size(), 1u);
  EXPECT_GE(newest[0].step, acknowledged) << "a write that returned was lost";
}

// This also holds for a file of an earlier release, which did not restrict it.
TEST_F(SqliteStoreTest, OtherUsersCannotReadTheState) {
  const auto others = [](const fs::path& path) {
    return fs::status(path).permissions() & fs::perms::others_all;
  };
  for (const bool existing : {false, true}) {
    SCOPED_TRACE(existing);
    if (existing) fs::permissions(path_, fs::perms::others_read, fs::perm_options::add);
    auto store = Open();
    ASSERT_TRUE(store->PutFact("lease_owner_secret", "s").ok());
    for (const char* suffix : {"", "-wal", "-shm"}) {
      EXPECT_EQ(others(path_.string() + suffix), fs::perms::none) << suffix;
    }
  }
}

TEST_F(SqliteStoreTest, SecondControllerIsRefused) {
  auto store = Open();
  const auto second = OpenSqliteStore(path_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(second.status()), testing::HasSubstr("another controller"));
}

TEST_F(SqliteStoreTest, FileThatIsNoDatabaseIsAClearError) {
  std::ofstream(path_) << std::string(8192, 'x');
  const auto store = OpenSqliteStore(path_);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(Message(store.status()), testing::AllOf(testing::HasSubstr(path_.string()),
                                                      testing::HasSubstr("move it away")));
}

TEST_F(SqliteStoreTest, NewerSchemaIsRefused) {
  Open().reset();
  ASSERT_EQ(
      std::system(StrCat("sqlite3 ", path_.string(),
                         " 'PRAGMA user_version=99' 2>/dev/null ||"
                         " python3 -c \"import sqlite3;c=sqlite3.connect('",
                         path_.string(), "');c.execute('PRAGMA user_version=99');c.commit()\"")
                      .c_str()),
      0);
  const auto store = OpenSqliteStore(path_);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(Message(store.status()), testing::HasSubstr("has schema 99"));
}

TEST_F(SqliteStoreTest, MissingDirectoryIsAClearError) {
  const auto store = OpenSqliteStore(directory_ / "absent" / "state.db");
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kUnavailable);
}

TEST_F(SqliteStoreTest, DeletedThingsAreGoneAndPlanVersionsGoOn) {
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

}  // namespace
}  // namespace weir
