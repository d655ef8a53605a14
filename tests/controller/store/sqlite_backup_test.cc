// SPDX-License-Identifier: Apache-2.0
// Copies of the state while it is in use, and what comes back from them.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "tests/controller/store/store_fixture.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class SqliteBackupTest : public SqliteStoreTest {
 protected:
  std::string CopyPath() const { return directory_ / "copy.db"; }
};

TEST_F(SqliteBackupTest, HoldsOneMomentWhileTheStoreIsWrittenTo) {
  auto store = Open();
  // Two rows that always change together: a copy of one moment has both or neither.
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(store->AddDecision(MakeDecision("j", i)).ok());
  }
  std::atomic<bool> copied{false};
  Status status;
  std::thread copier([&] {
    status = store->Backup(CopyPath());
    copied = true;
  });
  uint64_t written = 50;
  while (!copied) ASSERT_TRUE(store->AddDecision(MakeDecision("j", written++)).ok());
  copier.join();
  ASSERT_TRUE(status.ok()) << ToString(status);
  EXPECT_FALSE(fs::exists(CopyPath() + "-wal"));
  EXPECT_FALSE(fs::exists(CopyPath() + ".lock"));
  struct stat made {};
  ASSERT_EQ(stat(CopyPath().c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600u) << "it holds the controller's secret";
  const auto copy = OpenSqliteStore(CopyPath());
  ASSERT_TRUE(copy.ok()) << ToString(copy.status());
  const auto decisions = *(*copy)->ListDecisions("j", 0, 1'000'000);
  ASSERT_GE(decisions.size(), 50u);
  EXPECT_LE(decisions.size(), written);
  for (size_t i = 0; i < decisions.size(); ++i) {
    ASSERT_EQ(decisions[i].step, decisions.size() - 1 - i) << "a gap";
  }
}

TEST_F(SqliteBackupTest, DoesNotReplaceAFile) {
  auto store = Open();
  ASSERT_TRUE(store->Backup(CopyPath()).ok());
  const Status again = store->Backup(CopyPath());
  EXPECT_EQ(again.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(again), testing::HasSubstr(CopyPath()));
}

TEST_F(SqliteBackupTest, StateInMemoryHasNoFile) {
  const auto store = OpenSqliteStore(":memory:");
  EXPECT_EQ((*store)->Backup(CopyPath()).code(), StatusCode::kFailedPrecondition);
}

TEST_F(SqliteBackupTest, RestoreBringsEverythingBackAndSkipsPlanVersions) {
  {
    auto store = Open();
    ASSERT_TRUE(store->PutNode({"n1", "{}", 2.0}).ok());
    ASSERT_TRUE(store->PutPlan({"j", 7, "{}", "active", 5.0}).ok());
    ASSERT_TRUE(store->PutJob({"gone", "{}", 5.0}).ok());
    ASSERT_TRUE(store->PutPlan({"gone", 3, "{}", "active", 5.0}).ok());
    ASSERT_TRUE(store->DeleteJob("gone").ok());
    ASSERT_TRUE(store->Backup(CopyPath()).ok());
    // Not in the backup, but ranks may run them.
    ASSERT_TRUE(store->PutPlan({"j", 8, "{}", "active", 5.0}).ok());
    ASSERT_TRUE(store->PutNode({"n2", "{}", 3.0}).ok());
    const Status busy = RestoreSqliteStore(CopyPath(), path_);
    EXPECT_EQ(busy.code(), StatusCode::kFailedPrecondition) << "a controller uses it";
  }
  const Status restored = RestoreSqliteStore(CopyPath(), path_);
  ASSERT_TRUE(restored.ok()) << ToString(restored);
  {
    auto store = Open();
    EXPECT_EQ(store->ListNodes()->size(), 1u);
    EXPECT_TRUE(store->GetPlan("j", 7)->has_value());
    EXPECT_FALSE(store->GetPlan("j", 8)->has_value());
    EXPECT_GT(*store->HighestPlanVersion("j"), 8u);
    EXPECT_GT(*store->HighestPlanVersion("gone"), 3u);
  }
  path_ += ".before-restore";
  EXPECT_EQ(Open()->ListNodes()->size(), 2u);
}

TEST_F(SqliteBackupTest, ADamagedBackupLeavesTheStateAsItWas) {
  {
    auto store = Open();
    ASSERT_TRUE(store->PutNode({"n1", std::string(500, 'n'), 2.0}).ok());
    ASSERT_TRUE(store->Backup(CopyPath()).ok());
  }
  std::string bytes(fs::file_size(CopyPath()), '\0');
  std::ifstream(CopyPath(), std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes[bytes.find("nnnn") + 2] = 'm';
  std::ofstream(CopyPath(), std::ios::binary) << bytes;
  EXPECT_EQ(RestoreSqliteStore(CopyPath(), path_).code(), StatusCode::kDataLoss);
  EXPECT_EQ(RestoreSqliteStore(CopyPath() + "x", path_).code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(path_.string() + ".restoring"));
  EXPECT_EQ(Open()->ListNodes()->size(), 1u);
}

TEST_F(SqliteBackupTest, UsageCountsPlansAndDecisionsOfEachJob) {
  auto store = Open();
  StoredDecision decision = MakeDecision("j", 1);
  decision.payload = "\u00e4\u00f6";  // four bytes
  decision.snapshot = std::string(1000, 's');
  const auto id = store->AddDecision(decision);
  ASSERT_TRUE(store->PutPlan({"k", 1, std::string(300, 'p'), "active", 0}).ok());
  EXPECT_EQ(store->Usage()->job_bytes, (std::map<std::string, uint64_t>{{"j", 1004}, {"k", 300}}));
  ASSERT_TRUE(store->UpdateDecision(*id, "longer").ok());
  const StoreUsage usage = *store->Usage();
  EXPECT_EQ(usage.job_bytes.at("j"), 1006u);
  EXPECT_GE(usage.bytes, 8192u);
}

TEST_F(SqliteBackupTest, PlansHaveAQuotaButTheNewestStay) {
  StoreLimits limits;
  limits.plan_bytes_per_job_max = 100'000;
  auto store = Open(limits);
  for (uint64_t version = 1; version <= 320; ++version) {
    ASSERT_TRUE(
        store->PutPlan({"j", version, std::string(2000, 'p'), "active", 1.0 * version}).ok());
    ASSERT_TRUE(store->PutPlan({"big", version, std::string(50'000, 'p'), "active", 0}).ok());
  }
  EXPECT_LE(store->Usage()->job_bytes.at("j"), 100'000u);
  EXPECT_FALSE(store->GetPlan("j", 200)->has_value());
  EXPECT_TRUE(store->GetPlan("j", 290)->has_value());
  for (uint64_t version = 305; version <= 320; ++version) {
    EXPECT_TRUE(store->GetPlan("big", version)->has_value()) << version;
  }
  EXPECT_LE(store->Usage()->job_bytes.at("big"), 32u * 50'000u);
}

TEST_F(SqliteBackupTest, WhatIsDeletedGivesItsRoomBack) {
  StoreLimits limits;
  limits.decision_bytes_per_job_max = 20u << 20;
  auto store = Open(limits);
  StoredDecision decision = MakeDecision("j", 1);
  decision.snapshot = std::string(100'000, 's');
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(store->AddDecision(decision).ok());
  const uint64_t full = store->Usage()->bytes;
  EXPECT_GT(full, 10'000'000u);
  ASSERT_TRUE(store->DeleteJob("j").ok());
  decision.job = "k";
  decision.snapshot = "s";
  for (int i = 0; i < 640; ++i) ASSERT_TRUE(store->AddDecision(decision).ok());
  EXPECT_LT(store->Usage()->bytes, full / 4);
}

TEST_F(SqliteBackupTest, AtTheLastLimitWritesAreRefusedAndNothingIsLost) {
  StoreLimits limits;
  limits.bytes_max = 1u << 20;
  limits.plan_bytes_per_job_max = limits.plan_bytes_max = 100u << 20;
  auto store = Open(limits);
  Status status;
  uint64_t version = 0;
  while (status.ok() && version < 100) {
    status = store->PutPlan({"j", ++version, std::string(50'000, 'p'), "active", 0});
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << ToString(status);
  EXPECT_TRUE(store->GetPlan("j", version - 1)->has_value());
  store = nullptr;
  limits.bytes_max = 8u << 20;
  store = Open(limits);
  EXPECT_TRUE(store->PutPlan({"j", version, std::string(50'000, 'p'), "active", 0}).ok());
}

// The tables as releases of each schema made them.
constexpr const char* kFormerSchemas = R"py(import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
c.executescript("""
CREATE TABLE node (name TEXT PRIMARY KEY, payload TEXT NOT NULL, last_seen_unix_s REAL NOT NULL);
CREATE TABLE job (name TEXT PRIMARY KEY, payload TEXT NOT NULL, updated_unix_s REAL NOT NULL);
CREATE TABLE plan (job TEXT NOT NULL, version INTEGER NOT NULL, payload TEXT NOT NULL,
                   state TEXT NOT NULL, unix_s REAL NOT NULL, PRIMARY KEY (job, version));
CREATE TABLE decision (id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL,
                       step INTEGER NOT NULL, unix_s REAL NOT NULL, payload TEXT NOT NULL,
                       snapshot TEXT NOT NULL, policy TEXT NOT NULL);
CREATE INDEX decision_by_job ON decision (job, id);
CREATE TABLE policy (name TEXT PRIMARY KEY, source TEXT NOT NULL, applied_unix_s REAL NOT NULL);
CREATE TABLE pin (job TEXT PRIMARY KEY, payload TEXT NOT NULL, unix_s REAL NOT NULL);
CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, unix_s REAL NOT NULL, actor TEXT NOT NULL,
                    action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO node VALUES ('n1', '{}', 2.5);
INSERT INTO job VALUES ('j', '{}', 3.5);
INSERT INTO plan VALUES ('j', 7, '{"plan":7}', 'active', 4.5);
INSERT INTO policy VALUES ('p', 'name: p', 5.5);
INSERT INTO pin VALUES ('j', '{}', 6.5);
INSERT INTO audit VALUES (4, 7.5, 'ann', 'Pin', 'j', 'why');
INSERT INTO fact VALUES ('plans/gone', '12');
INSERT INTO decision VALUES (5, 'j', 3, 4, '{"switched":true}', 'inputs', 'policy'),
                            (9, 'j', 4, 5, '{"switched":false}', 'inputs', 'policy');
""")
version = int(sys.argv[2])
if version >= 2:
    c.executescript("""
CREATE TABLE shared_text (hash TEXT PRIMARY KEY, text TEXT NOT NULL);
ALTER TABLE decision ADD COLUMN switched INTEGER NOT NULL DEFAULT 0;
ALTER TABLE decision ADD COLUMN base_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE decision ADD COLUMN policy_hash TEXT NOT NULL DEFAULT '';
CREATE INDEX decision_by_switch ON decision (job, switched, id);
UPDATE decision SET switched = id = 5;
""")
if version >= 3:
    c.executescript("""
ALTER TABLE audit ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;
CREATE INDEX audit_by_refused ON audit (refused, id);
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
""")
c.execute(f"PRAGMA user_version={version}")
c.commit()
)py";

template <typename T>
T FrontOf(const StatusOr<std::vector<T>>& list) {
  return list.ok() && !list->empty() ? list->front() : T{};
}

class FormerSchemaTest : public SqliteStoreTest, public testing::WithParamInterface<int> {};

TEST_P(FormerSchemaTest, BecomesThePresentOneAndLeavesACopy) {
  ASSERT_EQ(RunScript(kFormerSchemas, std::to_string(GetParam())), 0);
  for (int opened = 0; opened < 2; ++opened) {
    auto store = Open();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(FrontOf(store->ListNodes()).last_seen_unix_s, 2.5);
    EXPECT_EQ(FrontOf(store->ListJobs()).name, "j");
    EXPECT_EQ(store->GetPlan("j", 7)->value().payload, "{\"plan\":7}");
    EXPECT_EQ(FrontOf(store->ListPolicies()).source, "name: p");
    EXPECT_EQ(FrontOf(store->ListPins()).unix_s, 6.5);
    EXPECT_EQ(FrontOf(store->ListAudit(10)).id, 4);
    EXPECT_EQ(*store->HighestPlanVersion("gone"), 12u);
    ASSERT_EQ(store->ListDecisions("j", 0, 10)->size(), 2u);
    const auto switches = *store->ListDecisions("j", 0, 10, /*switched_only=*/true);
    ASSERT_EQ(switches.size(), 1u);
    const StoredDecision whole = *store->GetDecision(switches[0].id);
    EXPECT_EQ(whole.id, 5);
    EXPECT_EQ(whole.snapshot, "inputs");
    EXPECT_EQ(whole.policy, "policy");
    EXPECT_EQ(whole.base, "");
  }
  EXPECT_EQ(*Open()->AddDecision(MakeDecision("j", 1)), 10) << "ids go on";
  // The former release can go on with the copy.
  path_ += StrCat(".schema-", GetParam());
  EXPECT_EQ(RunScript(StrCat("import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\n"
                             "assert c.execute('PRAGMA user_version').fetchone()[0] == ",
                             GetParam(),
                             "\nassert c.execute('SELECT count(*) FROM decision')"
                             ".fetchone()[0] == 2\n")),
            0);
}

INSTANTIATE_TEST_SUITE_P(All, FormerSchemaTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace weir
