// SPDX-License-Identifier: Apache-2.0
// Damaged state files are found when they are opened.

#include <gmock/gmock.h>

#include "datapath/base/random.h"
#include "tests/controller/store/store_fixture.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class SqliteDamageTest : public SqliteStoreTest {
 protected:
  // Some rows of every table, and enough of decisions for long texts and several pages.
  void Fill() {
    auto store = Open();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(store->PutNode({StrCat("node-", i), std::string(300, 'n'), 1.0 * i}).ok());
      ASSERT_TRUE(store->AddAudit({1.0 * i, "ann", "Pin", "j", std::string(200, 'a')}).ok());
    }
    ASSERT_TRUE(store->PutJob({"j", std::string(6000, 'j'), 4.0}).ok());
    ASSERT_TRUE(store->PutPolicy({"p", std::string(500, 'p'), 6.0}).ok());
    ASSERT_TRUE(store->PutPin({"j", "{}", 7.0}).ok());
    ASSERT_TRUE(store->PutFact("k", "v").ok());
    for (uint64_t step = 1; step <= 40; ++step) {
      StoredDecision decision = MakeDecision("j", step);
      decision.payload = std::string(2000, 'd');
      decision.snapshot = std::string(3000, 's');
      decision.base = std::string(9000, 'b');
      ASSERT_TRUE(store->AddDecision(decision).ok());
      ASSERT_TRUE(store->PutPlan({"j", step, std::string(700, 'l'), "active", 5.0}).ok());
    }
  }

  // All that the store returns.
  // All that the store returns.
  static std::string Contents(Store& store) {
    std::string all = *store.GetFact("k");
    const auto nodes = *store.ListNodes();
    for (const auto& one : nodes) all += StrCat(one.name, one.payload, one.last_seen_unix_s);
    const auto jobs = *store.ListJobs();
    for (const auto& one : jobs) all += StrCat(one.name, one.payload);
    const auto policies = *store.ListPolicies();
    for (const auto& one : policies) all += StrCat(one.name, one.source);
    const auto pins = *store.ListPins();
    for (const auto& one : pins) all += StrCat(one.job, one.payload);
    const auto audit = *store.ListAudit(1000);
    for (const auto& one : audit) all += StrCat(one.id, one.actor, one.detail);
    const auto decisions = *store.ListDecisions("", 0, 1000);
    for (const auto& one : decisions) {
      const StoredDecision whole = *store.GetDecision(one.id);
      all += StrCat(whole.id, whole.step, whole.payload, whole.snapshot, whole.base, whole.policy);
    }
    for (uint64_t version = 1; version <= 40; ++version) {
      const auto plan = *store.GetPlan("j", version);
      if (plan.has_value()) all += StrCat(version, plan->payload, plan->state);
    }
    return all;
  }

  void Overwrite(uint64_t offset, size_t bytes, char with) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << std::string(bytes, with);
  }
};

TEST_F(SqliteDamageTest, FiveHundredBytesAnywhereAreFoundOrChangeNothing) {
  Fill();
  const std::string before = Contents(*Open());
  const fs::path sound = directory_ / "sound.db";
  fs::copy_file(path_, sound);
  const uint64_t size = fs::file_size(path_);
  Random random(7);
  int found = 0;
  constexpr int kTries = 60;
  for (int i = 0; i < kTries; ++i) {
    fs::copy_file(sound, path_, fs::copy_options::overwrite_existing);
    const uint64_t offset = random.Next() % (size - 500);
    Overwrite(offset, 500, static_cast<char>(random.Next()));
    const auto store = OpenSqliteStore(path_);
    if (store.ok()) {
      EXPECT_EQ(Contents(**store), before) << "500 bytes at " << offset;
      continue;
    }
    ++found;
    EXPECT_EQ(store.status().code(), StatusCode::kDataLoss) << ToString(store.status());
    EXPECT_THAT(Message(store.status()),
                testing::AllOf(testing::HasSubstr(path_.string()), testing::HasSubstr("--restore"),
                               testing::HasSubstr("move it away")));
  }
  // The rest fell on bytes that hold nothing.
  EXPECT_GT(found, kTries * 3 / 4);
}

TEST_F(SqliteDamageTest, AChangedLetterIsNamed) {
  Fill();
  std::string bytes(fs::file_size(path_), '\0');
  std::ifstream(path_, std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const size_t at = bytes.find(std::string(300, 'n'));
  ASSERT_NE(at, bytes.npos);
  Overwrite(at + 100, 1, 'm');
  const auto store = OpenSqliteStore(path_);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(Message(store.status()),
              testing::HasSubstr("damaged or not a Weir state file: node node-"));
}

TEST_F(SqliteDamageTest, BrokenPagesAreFound) {
  Fill();
  for (const int page : {3, 5, 8, 12, 20}) Overwrite(page * 4096u, 2048, '\xff');
  const auto store = OpenSqliteStore(path_);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kDataLoss) << ToString(store.status());
}

}  // namespace
}  // namespace weir
