// SPDX-License-Identifier: Apache-2.0
// The embedded store: one SQLite file in WAL mode. A write that returned is in the log file, so it
// survives kill -9; only a power failure may lose the last moments (synchronous=NORMAL).

#include <limits>

#include "controller/store/sqlite_backup.h"
#include "controller/store/sqlite_schema.h"
#include "controller/store/store.h"

namespace weir {
namespace {

// The limits are enforced once in this many decisions.
constexpr int64_t kCompactEvery = 64;
constexpr int64_t kDeletedJobsMax = 10000;  // of which the highest plan version is kept
constexpr int64_t kPlansKept = 16;          // the newest of a job, whatever their size
constexpr int64_t kFreedPagesMax = 512;     // given back to the file system at a time
constexpr uint64_t kPageBytes = 4096;       // SQLite's default

class SqliteStore : public Store {
 public:
  SqliteStore(std::unique_ptr<SqliteDatabase> database, StoreLimits limits)
      : database_(std::move(database)), limits_(limits) {}

  Status Initialise() {
    WEIR_RETURN_IF_ERROR(BringToPresentSchema(*database_));
    WEIR_RETURN_IF_ERROR(CheckRows(*database_));
    WEIR_RETURN_IF_ERROR(
        database_->Execute(StrCat("PRAGMA max_page_count=", limits_.bytes_max / kPageBytes)));
    return OkStatus();
  }

  Status PutNode(const StoredNode& node) override {
    WEIR_RETURN_IF_ERROR(Write(
        "INSERT INTO node VALUES (?1, ?2, ?3, row_sum(?1, ?2, ?3)) ON CONFLICT (name) DO UPDATE SET"
        " payload = ?2, last_seen_unix_s = ?3, sum = row_sum(?1, ?2, ?3)",
        node.name, node.payload, node.last_seen_unix_s));
    // All agents may connect at once, and the limit needs the nodes in order.
    if (++node_writes_ % kCompactEvery != 0) return OkStatus();
    return Write(
        "DELETE FROM node WHERE name IN (SELECT name FROM node ORDER BY last_seen_unix_s DESC"
        " LIMIT -1 OFFSET ?1)",
        Signed(limits_.nodes_max));
  }

  Status DeleteNode(std::string_view name) override {
    return Write("DELETE FROM node WHERE name = ?1", name);
  }

  StatusOr<std::vector<StoredNode>> ListNodes() override {
    return Read<StoredNode>("SELECT name, payload, last_seen_unix_s FROM node ORDER BY name",
                            [](const SqliteStatement& row) {
                              return StoredNode{row.Text(0), row.Text(1), row.Real(2)};
                            });
  }

  Status PutJob(const StoredJob& job) override {
    WEIR_RETURN_IF_ERROR(
        Write("INSERT OR REPLACE INTO job VALUES (?1, ?2, ?3, row_sum(?1, ?2, ?3))", job.name,
              job.payload, job.updated_unix_s));
    WEIR_ASSIGN_OR_RETURN(const int64_t jobs, Number("SELECT count(*) FROM job"));
    if (jobs <= Signed(limits_.jobs_max)) return OkStatus();
    WEIR_ASSIGN_OR_RETURN(
        const auto forgotten,
        Read<std::string>(
            "SELECT name FROM job ORDER BY updated_unix_s DESC LIMIT -1 OFFSET ?1",
            [](const SqliteStatement& row) { return row.Text(0); }, Signed(limits_.jobs_max)));
    for (const std::string& name : forgotten) WEIR_RETURN_IF_ERROR(DeleteJob(name));
    return OkStatus();
  }

  StatusOr<std::vector<StoredJob>> ListJobs() override {
    return Read<StoredJob>("SELECT name, payload, updated_unix_s FROM job ORDER BY name",
                           [](const SqliteStatement& row) {
                             return StoredJob{row.Text(0), row.Text(1), row.Real(2)};
                           });
  }

  Status DeleteJob(const std::string& name) override {
    // Ranks may still run a plan, so versions must not begin again.
    WEIR_RETURN_IF_ERROR(
        Write("INSERT OR REPLACE INTO fact SELECT name, value, row_sum(name, value) FROM"
              " (SELECT 'plans/' || ?1 AS name, CAST(max(version) AS TEXT) AS value FROM plan"
              "  WHERE job = ?1 HAVING max(version) IS NOT NULL)",
              name));
    WEIR_RETURN_IF_ERROR(
        Write("DELETE FROM fact WHERE name LIKE 'plans/%' AND rowid NOT IN (SELECT rowid FROM fact"
              " WHERE name LIKE 'plans/%' ORDER BY rowid DESC LIMIT ?1)",
              kDeletedJobsMax));
    int deleted = 0;
    for (const char* sql : {"DELETE FROM job WHERE name = ?1", "DELETE FROM plan WHERE job = ?1",
                            "DELETE FROM decision WHERE job = ?1", "DELETE FROM pin WHERE job = ?1",
                            "DELETE FROM fact WHERE name = 'progress/' || ?1"}) {
      WEIR_RETURN_IF_ERROR(Write(sql, name));
      deleted += sqlite3_changes(database_->handle());
    }
    return deleted > 0 ? OkStatus() : NotFound(StrCat("no job '", name, "'"));
  }

  Status ClaimPlan(const StoredPlan& plan) override {
    WEIR_ASSIGN_OR_RETURN(const uint64_t highest, HighestPlanVersion(plan.job));
    if (plan.version > highest) return PutPlan(plan);
    return MakeStatus(StatusCode::kAlreadyExists,
                      StrCat("job ", plan.job, " has had plan ", highest, " already, so plan ",
                             plan.version, " is not new"));
  }

  Status PutPlan(const StoredPlan& plan) override {
    WEIR_RETURN_IF_ERROR(
        Write("INSERT OR REPLACE INTO plan (job, version, payload, state, unix_s, bytes, sum)"
              " VALUES (?1, ?2, ?3, ?4, ?5, byte_count(?3), row_sum(?1, ?2, ?4, ?5, ?3))",
              plan.job, Signed(plan.version), plan.payload, plan.state, plan.unix_s));
    WEIR_RETURN_IF_ERROR(Write("DELETE FROM plan WHERE job = ?1 AND version <= ?2 - ?3", plan.job,
                               Signed(plan.version), Signed(limits_.plans_per_job_max)));
    if (plan.version % kPlansKept != 0) return OkStatus();
    WEIR_RETURN_IF_ERROR(MakeRoomForPlans("job = ?1", plan.job, limits_.plan_bytes_per_job_max));
    return MakeRoomForPlans("?1 = ''", "", limits_.plan_bytes_max);
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
            "SELECT max(coalesce((SELECT max(version) FROM plan WHERE job = ?1), 0),"
            " coalesce((SELECT CAST(value AS INTEGER) FROM fact WHERE name = 'plans/' || ?1), 0))",
            [](const SqliteStatement& row) { return static_cast<uint64_t>(row.Integer(0)); }, job));
    return rows.empty() ? 0 : rows.front();
  }

  StatusOr<int64_t> AddDecision(const StoredDecision& decision) override {
    WEIR_ASSIGN_OR_RETURN(const std::string base, ShareText(decision.base));
    WEIR_ASSIGN_OR_RETURN(const std::string policy, ShareText(decision.policy));
    WEIR_RETURN_IF_ERROR(
        Write("INSERT INTO decision (job, step, unix_s, payload, snapshot, policy, switched,"
              " base_hash, policy_hash, bytes, sum) VALUES (?1, ?2, ?3, ?4, ?5, '', ?6, ?7, ?8,"
              " byte_count(?4, ?5), row_sum(?1, ?2, ?3, ?6, ?7, ?8, ?4, ?5, ''))",
              decision.job, Signed(decision.step), decision.unix_s, decision.payload,
              decision.snapshot, int64_t{decision.switched}, base, policy));
    const int64_t id = sqlite3_last_insert_rowid(database_->handle());
    // Not at every decision, so that the common write stays short.
    if (id % kCompactEvery == 0) WEIR_RETURN_IF_ERROR(Compact(decision.job));
    return id;
  }

  Status UpdateDecision(int64_t id, std::string_view payload) override {
    WEIR_RETURN_IF_ERROR(
        Write("UPDATE decision SET payload = ?2, bytes = byte_count(?2, snapshot, policy), sum ="
              " row_sum(job, step, unix_s, switched, base_hash, policy_hash, ?2, snapshot, policy)"
              " WHERE id = ?1",
              id, payload));
    if (sqlite3_changes(database_->handle()) == 0) return NotFound(StrCat("no decision ", id));
    return OkStatus();
  }

  StatusOr<StoredDecision> GetDecision(int64_t id) override {
    WEIR_ASSIGN_OR_RETURN(
        auto rows,
        Read<StoredDecision>(
            "SELECT id, job, step, unix_s, payload, switched, snapshot,"
            " CASE policy_hash WHEN '' THEN policy ELSE coalesce((SELECT text FROM shared_text"
            "   WHERE hash = policy_hash), '') END,"
            " coalesce((SELECT text FROM shared_text WHERE hash = base_hash), '')"
            " FROM decision WHERE id = ?1",
            [](const SqliteStatement& row) {
              StoredDecision decision = DecisionHead(row);
              decision.snapshot = row.Text(6);
              decision.policy = row.Text(7);
              decision.base = row.Text(8);
              return decision;
            },
            id));
    if (rows.empty()) return NotFound(StrCat("no decision ", id));
    return std::move(rows.front());
  }

  StatusOr<std::vector<StoredDecision>> ListDecisions(std::string_view job, int64_t before,
                                                      size_t count_max,
                                                      bool switched_only) override {
    const int64_t below = before > 0 ? before : std::numeric_limits<int64_t>::max();
    const std::string sql =
        StrCat("SELECT id, job, step, unix_s, payload, switched FROM decision WHERE id < ?1",
               job.empty() ? " AND ?3 = ''" : " AND job = ?3", switched_only ? " AND switched" : "",
               " ORDER BY id DESC LIMIT ?2");
    return Read<StoredDecision>(sql, DecisionHead, below, Signed(count_max), job);
  }

  Status PutPolicy(const StoredPolicy& policy) override {
    return Write("INSERT OR REPLACE INTO policy VALUES (?1, ?2, ?3, row_sum(?1, ?2, ?3))",
                 policy.name, policy.source, policy.applied_unix_s);
  }

  Status DeletePolicy(std::string_view name) override {
    return Write("DELETE FROM policy WHERE name = ?1", name);
  }

  StatusOr<std::vector<StoredPolicy>> ListPolicies() override {
    return Read<StoredPolicy>("SELECT name, source, applied_unix_s FROM policy ORDER BY name",
                              [](const SqliteStatement& row) {
                                return StoredPolicy{row.Text(0), row.Text(1), row.Real(2)};
                              });
  }

  Status PutPin(const StoredPin& pin) override {
    return Write("INSERT OR REPLACE INTO pin VALUES (?1, ?2, ?3, row_sum(?1, ?2, ?3))", pin.job,
                 pin.payload, pin.unix_s);
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
    WEIR_RETURN_IF_ERROR(
        Write("INSERT INTO audit (unix_s, actor, action, target, detail, refused, sum)"
              " VALUES (?1, ?2, ?3, ?4, ?5, ?6, row_sum(?1, ?2, ?3, ?4, ?5, ?6))",
              entry.unix_s, entry.actor, entry.action, entry.target, entry.detail,
              int64_t{entry.refused}));
    return Write(
        "DELETE FROM audit WHERE refused = ?1 AND id <="
        " (SELECT id FROM audit WHERE refused = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        int64_t{entry.refused},
        Signed(entry.refused ? limits_.audit_refused_max : limits_.audit_max));
  }

  StatusOr<std::vector<AuditEntry>> ListAudit(size_t count_max, int64_t before) override {
    return Read<AuditEntry>(
        "SELECT unix_s, actor, action, target, detail, refused, id FROM audit"
        " WHERE ?1 = 0 OR id < ?1 ORDER BY id DESC LIMIT ?2",
        [](const SqliteStatement& row) {
          return AuditEntry{row.Real(0), row.Text(1),         row.Text(2),   row.Text(3),
                            row.Text(4), row.Integer(5) != 0, row.Integer(6)};
        },
        before, Signed(count_max));
  }

  Status PutFact(std::string_view name, std::string_view value) override {
    return Write("INSERT OR REPLACE INTO fact VALUES (?1, ?2, row_sum(?1, ?2))", name, value);
  }

  StatusOr<std::string> GetFact(std::string_view name) override {
    WEIR_ASSIGN_OR_RETURN(auto rows,
                          Read<std::string>(
                              "SELECT value FROM fact WHERE name = ?1",
                              [](const SqliteStatement& row) { return row.Text(0); }, name));
    return rows.empty() ? "" : std::move(rows.front());
  }

  StatusOr<StoreUsage> Usage() override {
    StoreUsage usage;
    WEIR_ASSIGN_OR_RETURN(const int64_t pages, Number("PRAGMA page_count"));
    WEIR_ASSIGN_OR_RETURN(const int64_t page_bytes, Number("PRAGMA page_size"));
    usage.bytes = static_cast<uint64_t>(pages * page_bytes);
    struct Row {
      std::string job;
      uint64_t bytes;
    };
    WEIR_ASSIGN_OR_RETURN(
        const auto rows, Read<Row>("SELECT job, sum(bytes) FROM plan GROUP BY job"
                                   " UNION ALL SELECT job, sum(bytes) FROM decision GROUP BY job",
                                   [](const SqliteStatement& row) {
                                     return Row{row.Text(0), static_cast<uint64_t>(row.Integer(1))};
                                   }));
    for (const Row& row : rows) usage.job_bytes[row.job] += row.bytes;
    return usage;
  }

  Status Backup(const std::string& path) const override {
    // The path of a database does not change, and nothing else here is used.
    if (database_->path() == ":memory:") {
      return FailedPrecondition("the state is in memory only (--state :memory:)");
    }
    return CopyChecked(database_->path(), path);
  }

 private:
  // SQLite integers are signed; versions, steps and limits stay far below 2^63.
  static int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }

  static StoredDecision DecisionHead(const SqliteStatement& row) {
    StoredDecision decision;
    decision.id = row.Integer(0);
    decision.job = row.Text(1);
    decision.step = static_cast<uint64_t>(row.Integer(2));
    decision.unix_s = row.Real(3);
    decision.payload = row.Text(4);
    decision.switched = row.Integer(5) != 0;
    return decision;
  }

  /// Stores `text` unless it is stored already, and returns its name; an empty text has none.
  StatusOr<std::string> ShareText(std::string_view text) {
    if (text.empty()) return std::string();
    std::string hash = TextHash(text);
    WEIR_RETURN_IF_ERROR(Write("INSERT OR IGNORE INTO shared_text VALUES (?1, ?2)", hash, text));
    return hash;
  }

  /// A statement that returns one number.
  template <typename... Args>
  StatusOr<int64_t> Number(std::string_view sql, const Args&... args) {
    WEIR_ASSIGN_OR_RETURN(
        const auto rows,
        Read<int64_t>(
            sql, [](const SqliteStatement& row) { return row.Integer(0); }, args...));
    return rows.empty() ? 0 : rows.front();
  }

  struct SizedRow {
    int64_t id, bytes;
  };
  StatusOr<std::vector<SizedRow>> SizedRows(std::string_view sql, std::string_view job) {
    return Read<SizedRow>(
        sql,
        [](const SqliteStatement& row) {
          return SizedRow{row.Integer(0), row.Integer(1)};
        },
        job);
  }

  /// Deletes the oldest decisions that kept the plan, then the inputs of the oldest others, until
  /// the decisions that `where` selects have at most three quarters of `bytes_max`.
  Status MakeRoom(const std::string& where, std::string_view job, uint64_t bytes_max) {
    WEIR_ASSIGN_OR_RETURN(
        int64_t bytes,
        Number(StrCat("SELECT coalesce(sum(bytes), 0) FROM decision WHERE ", where), job));
    if (bytes <= Signed(bytes_max)) return OkStatus();
    const int64_t goal = Signed(bytes_max) * 3 / 4;
    for (const bool switched : {false, true}) {
      WEIR_ASSIGN_OR_RETURN(
          const auto rows,
          SizedRows(StrCat("SELECT id, ", switched ? "byte_count(snapshot)" : "bytes",
                           " FROM decision WHERE ", where, " AND switched = ",
                           switched ? "1 AND snapshot <> ''" : "0", " ORDER BY id"),
                    job));
      for (const SizedRow& row : rows) {
        if (bytes <= goal) return OkStatus();
        WEIR_RETURN_IF_ERROR(Write(
            switched ? "UPDATE decision SET snapshot = '', base_hash = '',"
                       " bytes = byte_count(payload, policy), sum = row_sum(job, step, unix_s,"
                       " switched, '', policy_hash, payload, '', policy) WHERE id = ?1"
                     : "DELETE FROM decision WHERE id = ?1",
            row.id));
        bytes -= row.bytes;
      }
    }
    return OkStatus();
  }

  /// Deletes the oldest of the plans that `where` selects until they have at most three quarters of
  /// `bytes_max`, but none of the newest of a job.
  Status MakeRoomForPlans(const std::string& where, std::string_view job, uint64_t bytes_max) {
    WEIR_ASSIGN_OR_RETURN(
        int64_t bytes,
        Number(StrCat("SELECT coalesce(sum(bytes), 0) FROM plan WHERE ", where), job));
    if (bytes <= Signed(bytes_max)) return OkStatus();
    WEIR_ASSIGN_OR_RETURN(
        const auto rows, SizedRows(StrCat("SELECT rowid, bytes FROM plan WHERE ", where,
                                          " AND version <= (SELECT max(version) FROM plan AS newest"
                                          " WHERE newest.job = plan.job) - ",
                                          kPlansKept, " ORDER BY unix_s, version"),
                                   job));
    for (const SizedRow& row : rows) {
      if (bytes <= Signed(bytes_max) * 3 / 4) return OkStatus();
      WEIR_RETURN_IF_ERROR(Write("DELETE FROM plan WHERE rowid = ?1", row.id));
      bytes -= row.bytes;
    }
    return OkStatus();
  }

  Status Compact(const std::string& job) {
    WEIR_RETURN_IF_ERROR(
        Write("DELETE FROM decision WHERE job = ?1 AND id IN (SELECT id FROM decision WHERE job ="
              " ?1 AND switched = 0 ORDER BY id DESC LIMIT -1 OFFSET ?2)",
              job, Signed(limits_.decisions_per_job_max)));
    WEIR_RETURN_IF_ERROR(MakeRoom("job = ?1", job, limits_.decision_bytes_per_job_max));
    WEIR_RETURN_IF_ERROR(MakeRoom("?1 = ''", "", limits_.decision_bytes_max));
    WEIR_RETURN_IF_ERROR(
        Write("DELETE FROM shared_text WHERE NOT EXISTS (SELECT 1 FROM decision WHERE base_hash ="
              " hash) AND NOT EXISTS (SELECT 1 FROM decision WHERE policy_hash = hash)"));
    return database_->Execute(StrCat("PRAGMA incremental_vacuum(", kFreedPagesMax, ")"));
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

  const std::unique_ptr<SqliteDatabase> database_;
  const StoreLimits limits_;
  uint64_t node_writes_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path, StoreLimits limits) {
  WEIR_ASSIGN_OR_RETURN(auto database, SqliteDatabase::Open(path));
  auto store = std::make_unique<SqliteStore>(std::move(database), limits);
  WEIR_RETURN_IF_ERROR(store->Initialise());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace weir
