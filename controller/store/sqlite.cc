// SPDX-License-Identifier: Apache-2.0
// The embedded store: one SQLite file in WAL mode. A write that returned is in the log file, so it
// survives kill -9; only a power failure may lose the last moments (synchronous=NORMAL).

#include <limits>

#include "controller/store/sqlite_database.h"
#include "controller/store/store.h"

namespace weir {
namespace {

constexpr int64_t kSchemaVersion = 1;

constexpr const char* kSchema = R"sql(
CREATE TABLE node (name TEXT PRIMARY KEY, payload TEXT NOT NULL, last_seen_unix_s REAL NOT NULL);
CREATE TABLE job (name TEXT PRIMARY KEY, payload TEXT NOT NULL, updated_unix_s REAL NOT NULL);
CREATE TABLE plan (job TEXT NOT NULL, version INTEGER NOT NULL, payload TEXT NOT NULL,
                   state TEXT NOT NULL, unix_s REAL NOT NULL, PRIMARY KEY (job, version));
CREATE TABLE decision (id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, step INTEGER NOT NULL,
                       unix_s REAL NOT NULL, payload TEXT NOT NULL, snapshot TEXT NOT NULL,
                       policy TEXT NOT NULL);
CREATE INDEX decision_by_job ON decision (job, id);
CREATE TABLE policy (name TEXT PRIMARY KEY, source TEXT NOT NULL, applied_unix_s REAL NOT NULL);
CREATE TABLE pin (job TEXT PRIMARY KEY, payload TEXT NOT NULL, unix_s REAL NOT NULL);
CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, unix_s REAL NOT NULL, actor TEXT NOT NULL,
                    action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
)sql";

class SqliteStore : public Store {
 public:
  SqliteStore(std::unique_ptr<SqliteDatabase> database, StoreLimits limits)
      : database_(std::move(database)), limits_(limits) {}

  Status Initialise() {
    int64_t version = 0;
    {
      WEIR_ASSIGN_OR_RETURN(SqliteStatement read, database_->Prepare("PRAGMA user_version"));
      WEIR_RETURN_IF_ERROR(read.Step().status());
      version = read.Integer(0);
    }
    if (version == kSchemaVersion) return OkStatus();
    if (version > kSchemaVersion) {
      return FailedPrecondition(StrCat("state file '", database_->path(), "' has schema ", version,
                                       "; this release knows up to ", kSchemaVersion));
    }
    const std::string sql =
        StrCat("BEGIN IMMEDIATE;", kSchema, "PRAGMA user_version=", kSchemaVersion, ";COMMIT;");
    const Status created = database_->Execute(sql);
    if (!created.ok() && sqlite3_get_autocommit(database_->handle()) == 0) {
      (void)database_->Execute("ROLLBACK");
    }
    return created;
  }

  Status PutNode(const StoredNode& node) override {
    WEIR_RETURN_IF_ERROR(Write("INSERT OR REPLACE INTO node VALUES (?1, ?2, ?3)", node.name,
                               node.payload, node.last_seen_unix_s));
    return Write(
        "DELETE FROM node WHERE name IN (SELECT name FROM node ORDER BY last_seen_unix_s DESC"
        " LIMIT -1 OFFSET ?1)",
        Signed(limits_.nodes_max));
  }

  StatusOr<std::vector<StoredNode>> ListNodes() override {
    return Read<StoredNode>("SELECT name, payload, last_seen_unix_s FROM node ORDER BY name",
                            [](const SqliteStatement& row) {
                              return StoredNode{row.Text(0), row.Text(1), row.Real(2)};
                            });
  }

  Status PutJob(const StoredJob& job) override {
    WEIR_RETURN_IF_ERROR(Write("INSERT OR REPLACE INTO job VALUES (?1, ?2, ?3)", job.name,
                               job.payload, job.updated_unix_s));
    return Write(
        "DELETE FROM job WHERE name IN (SELECT name FROM job ORDER BY updated_unix_s DESC"
        " LIMIT -1 OFFSET ?1)",
        Signed(limits_.jobs_max));
  }

  StatusOr<std::vector<StoredJob>> ListJobs() override {
    return Read<StoredJob>("SELECT name, payload, updated_unix_s FROM job ORDER BY name",
                           [](const SqliteStatement& row) {
                             return StoredJob{row.Text(0), row.Text(1), row.Real(2)};
                           });
  }

  Status PutPlan(const StoredPlan& plan) override {
    WEIR_RETURN_IF_ERROR(Write("INSERT OR REPLACE INTO plan VALUES (?1, ?2, ?3, ?4, ?5)", plan.job,
                               Signed(plan.version), plan.payload, plan.state, plan.unix_s));
    return Write("DELETE FROM plan WHERE job = ?1 AND version <= ?2 - ?3", plan.job,
                 Signed(plan.version), Signed(limits_.plans_per_job_max));
  }

  StatusOr<std::optional<StoredPlan>> GetPlan(std::string_view job, uint64_t version) override {
    WEIR_ASSIGN_OR_RETURN(auto rows, Read<StoredPlan>(
                                         "SELECT job, version, payload, state, unix_s FROM plan"
                                         " WHERE job = ?1 AND version = ?2",
                                         [](const SqliteStatement& row) {
                                           return StoredPlan{row.Text(0),
                                                             static_cast<uint64_t>(row.Integer(1)),
                                                             row.Text(2), row.Text(3), row.Real(4)};
                                         },
                                         job, Signed(version)));
    if (rows.empty()) return std::optional<StoredPlan>();
    return std::optional<StoredPlan>(std::move(rows.front()));
  }

  StatusOr<uint64_t> HighestPlanVersion(std::string_view job) override {
    WEIR_ASSIGN_OR_RETURN(
        auto rows,
        Read<uint64_t>(
            "SELECT coalesce(max(version), 0) FROM plan WHERE job = ?1",
            [](const SqliteStatement& row) { return static_cast<uint64_t>(row.Integer(0)); }, job));
    return rows.empty() ? 0 : rows.front();
  }

  StatusOr<int64_t> AddDecision(const StoredDecision& decision) override {
    WEIR_RETURN_IF_ERROR(
        Write("INSERT INTO decision (job, step, unix_s, payload, snapshot, policy)"
              " VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
              decision.job, Signed(decision.step), decision.unix_s, decision.payload,
              decision.snapshot, decision.policy));
    const int64_t id = sqlite3_last_insert_rowid(database_->handle());
    // Pruning now and then keeps the common write short; the bound is met within 64 rows.
    if (id % 64 == 0) {
      WEIR_RETURN_IF_ERROR(Write(
          "DELETE FROM decision WHERE job = ?1 AND id IN (SELECT id FROM decision WHERE job = ?1"
          " ORDER BY id DESC LIMIT -1 OFFSET ?2)",
          decision.job, Signed(limits_.decisions_per_job_max)));
    }
    return id;
  }

  Status UpdateDecision(int64_t id, std::string_view payload) override {
    WEIR_RETURN_IF_ERROR(Write("UPDATE decision SET payload = ?2 WHERE id = ?1", id, payload));
    if (sqlite3_changes(database_->handle()) == 0) return NotFound(StrCat("no decision ", id));
    return OkStatus();
  }

  StatusOr<StoredDecision> GetDecision(int64_t id) override {
    WEIR_ASSIGN_OR_RETURN(
        auto rows, Read<StoredDecision>(
                       "SELECT id, job, step, unix_s, payload, snapshot, policy FROM decision"
                       " WHERE id = ?1",
                       [](const SqliteStatement& row) {
                         StoredDecision decision = DecisionHead(row);
                         decision.snapshot = row.Text(5);
                         decision.policy = row.Text(6);
                         return decision;
                       },
                       id));
    if (rows.empty()) return NotFound(StrCat("no decision ", id));
    return std::move(rows.front());
  }

  StatusOr<std::vector<StoredDecision>> ListDecisions(std::string_view job, int64_t before,
                                                      size_t count_max) override {
    const int64_t below = before > 0 ? before : std::numeric_limits<int64_t>::max();
    if (job.empty()) {
      return Read<StoredDecision>(
          "SELECT id, job, step, unix_s, payload FROM decision WHERE id < ?1 ORDER BY id DESC "
          "LIMIT ?2",
          DecisionHead, below, Signed(count_max));
    }
    return Read<StoredDecision>(
        "SELECT id, job, step, unix_s, payload FROM decision WHERE id < ?1 AND job = ?3"
        " ORDER BY id DESC LIMIT ?2",
        DecisionHead, below, Signed(count_max), job);
  }

  Status PutPolicy(const StoredPolicy& policy) override {
    return Write("INSERT OR REPLACE INTO policy VALUES (?1, ?2, ?3)", policy.name, policy.source,
                 policy.applied_unix_s);
  }

  StatusOr<std::vector<StoredPolicy>> ListPolicies() override {
    return Read<StoredPolicy>("SELECT name, source, applied_unix_s FROM policy ORDER BY name",
                              [](const SqliteStatement& row) {
                                return StoredPolicy{row.Text(0), row.Text(1), row.Real(2)};
                              });
  }

  Status PutPin(const StoredPin& pin) override {
    return Write("INSERT OR REPLACE INTO pin VALUES (?1, ?2, ?3)", pin.job, pin.payload,
                 pin.unix_s);
  }

  Status DeletePin(std::string_view job) override {
    return Write("DELETE FROM pin WHERE job = ?1", job);
  }

  StatusOr<std::vector<StoredPin>> ListPins() override {
    return Read<StoredPin>("SELECT job, payload, unix_s FROM pin ORDER BY job",
                           [](const SqliteStatement& row) {
                             return StoredPin{row.Text(0), row.Text(1), row.Real(2)};
                           });
  }

  Status AddAudit(const AuditEntry& entry) override {
    WEIR_RETURN_IF_ERROR(Write(
        "INSERT INTO audit (unix_s, actor, action, target, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
        entry.unix_s, entry.actor, entry.action, entry.target, entry.detail));
    const int64_t id = sqlite3_last_insert_rowid(database_->handle());
    return Write("DELETE FROM audit WHERE id <= ?1", id - Signed(limits_.audit_max));
  }

  StatusOr<std::vector<AuditEntry>> ListAudit(size_t count_max) override {
    return Read<AuditEntry>(
        "SELECT unix_s, actor, action, target, detail FROM audit ORDER BY id DESC LIMIT ?1",
        [](const SqliteStatement& row) {
          return AuditEntry{row.Real(0), row.Text(1), row.Text(2), row.Text(3), row.Text(4)};
        },
        Signed(count_max));
  }

  Status PutFact(std::string_view name, std::string_view value) override {
    return Write("INSERT OR REPLACE INTO fact VALUES (?1, ?2)", name, value);
  }

  StatusOr<std::string> GetFact(std::string_view name) override {
    WEIR_ASSIGN_OR_RETURN(auto rows,
                          Read<std::string>(
                              "SELECT value FROM fact WHERE name = ?1",
                              [](const SqliteStatement& row) { return row.Text(0); }, name));
    return rows.empty() ? "" : std::move(rows.front());
  }

 private:
  // SQLite integers are signed; versions, steps and limits stay far below 2^63.
  static int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }

  static StoredDecision DecisionHead(const SqliteStatement& row) {
    return StoredDecision{row.Integer(0),
                          row.Text(1),
                          static_cast<uint64_t>(row.Integer(2)),
                          row.Real(3),
                          row.Text(4),
                          "",
                          ""};
  }

  template <typename... Args>
  Status Write(std::string_view sql, const Args&... args) {
    WEIR_ASSIGN_OR_RETURN(SqliteStatement statement, database_->Prepare(sql));
    (statement.Bind(args), ...);
    return statement.Run();
  }

  template <typename Row, typename Make, typename... Args>
  StatusOr<std::vector<Row>> Read(std::string_view sql, Make make, const Args&... args) {
    WEIR_ASSIGN_OR_RETURN(SqliteStatement statement, database_->Prepare(sql));
    (statement.Bind(args), ...);
    std::vector<Row> rows;
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const bool row, statement.Step());
      if (!row) return rows;
      rows.push_back(make(statement));
    }
  }

  std::unique_ptr<SqliteDatabase> database_;
  const StoreLimits limits_;
};

}  // namespace

StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path, StoreLimits limits) {
  WEIR_ASSIGN_OR_RETURN(auto database, SqliteDatabase::Open(path));
  auto store = std::make_unique<SqliteStore>(std::move(database), limits);
  WEIR_RETURN_IF_ERROR(store->Initialise());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace weir
