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

}  // namespace
}  // namespace weir
