// SPDX-License-Identifier: Apache-2.0
// See sqlite_schema.h. Columns with long texts come last in their tables: SQLite has to walk
// through all pages of a long column to read one behind it.

#include "controller/store/sqlite_schema.h"

#include <filesystem>

#include "controller/store/sqlite_backup.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr int kDamagedNamedMax = 5;

// Version 1.
constexpr const char* kFirst = R"sql(
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

// Version 2: texts that decisions share are stored once, by their hash, and decisions say whether
// they switched the plan. Decisions of version 1 hold their policy and all of their inputs
// themselves.
constexpr const char* kSharedTexts = R"sql(
CREATE TABLE shared_text (hash TEXT PRIMARY KEY, text TEXT NOT NULL);
ALTER TABLE decision ADD COLUMN switched INTEGER NOT NULL DEFAULT 0;
UPDATE decision SET switched = payload LIKE '%"switched":true%';
ALTER TABLE decision ADD COLUMN base_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE decision ADD COLUMN policy_hash TEXT NOT NULL DEFAULT '';
CREATE INDEX decision_by_switch ON decision (job, switched, id);
)sql";

// Version 3: the audit trail tells what was refused, and nothing can change it.
constexpr const char* kAudit = R"sql(
ALTER TABLE audit ADD COLUMN refused INTEGER NOT NULL DEFAULT 0;
CREATE INDEX audit_by_refused ON audit (refused, id);
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
)sql";

// Version 4: rows have checksums, and the sizes of plans and decisions are in their indices, so
// that quotas are kept without reading the rows.
constexpr const char* kChecksums = R"sql(
ALTER TABLE node ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE node SET sum = row_sum(name, payload, last_seen_unix_s);
ALTER TABLE job ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE job SET sum = row_sum(name, payload, updated_unix_s);
ALTER TABLE policy ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE policy SET sum = row_sum(name, source, applied_unix_s);
ALTER TABLE pin ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE pin SET sum = row_sum(job, payload, unix_s);
ALTER TABLE fact ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE fact SET sum = row_sum(name, value);

DROP TRIGGER audit_is_append_only;
ALTER TABLE audit ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
UPDATE audit SET sum = row_sum(unix_s, actor, action, target, detail, refused);
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;

ALTER TABLE plan RENAME TO former_plan;
CREATE TABLE plan (job TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL,
                   unix_s REAL NOT NULL, bytes INTEGER NOT NULL, sum INTEGER NOT NULL,
                   payload TEXT NOT NULL, PRIMARY KEY (job, version));
INSERT INTO plan SELECT job, version, state, unix_s, byte_count(payload),
  row_sum(job, version, state, unix_s, payload), payload FROM former_plan;
DROP TABLE former_plan;
CREATE INDEX plan_by_size ON plan (job, version, bytes);

ALTER TABLE decision RENAME TO former_decision;
CREATE TABLE decision (id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL,
                       step INTEGER NOT NULL, unix_s REAL NOT NULL, switched INTEGER NOT NULL,
                       base_hash TEXT NOT NULL, policy_hash TEXT NOT NULL, bytes INTEGER NOT NULL,
                       sum INTEGER NOT NULL, payload TEXT NOT NULL, snapshot TEXT NOT NULL,
                       policy TEXT NOT NULL);
INSERT INTO decision SELECT id, job, step, unix_s, switched, base_hash, policy_hash,
  byte_count(payload, snapshot, policy),
  row_sum(job, step, unix_s, switched, base_hash, policy_hash, payload, snapshot, policy),
  payload, snapshot, policy FROM former_decision ORDER BY id;
DROP TABLE former_decision;
CREATE INDEX decision_by_job ON decision (job, id, bytes);
CREATE INDEX decision_by_switch ON decision (job, switched, id, bytes);
CREATE INDEX decision_by_base ON decision (base_hash);
CREATE INDEX decision_by_policy ON decision (policy_hash);
)sql";

constexpr const char* kSteps[kSchemaVersion] = {kFirst, kSharedTexts, kAudit, kChecksums};

StatusOr<int64_t> VersionOf(SqliteDatabase& database) {
  WEIR_ASSIGN_OR_RETURN(SqliteStatement read, database.Prepare("PRAGMA user_version"));
  WEIR_RETURN_IF_ERROR(read.Step().status());
  return read.Integer(0);
}

Status CopyFormer(const SqliteDatabase& database, int64_t version) {
  if (database.path() == ":memory:") return OkStatus();
  const std::string copy = StrCat(database.path(), ".schema-", version);
  std::error_code ignored;
  if (std::filesystem::exists(copy, ignored)) return OkStatus();
  WEIR_RETURN_IF_ERROR(CopyDatabase(database.path(), copy));
  Log(LogLevel::kInfo, "controller",
      StrCat("state file '", database.path(), "' has schema ", version, ": brought to ",
             kSchemaVersion, "; a copy for the former release is '", copy, "'"));
  return OkStatus();
}

// How a row of each table is called in a message, and whether it is sound.
struct TableCheck {
  const char* name;
  const char* sql;
};
constexpr TableCheck kTableChecks[] = {
    {"node", "SELECT name FROM node WHERE sum IS NOT row_sum(name, payload, last_seen_unix_s)"},
    {"job", "SELECT name FROM job WHERE sum IS NOT row_sum(name, payload, updated_unix_s)"},
    {"plan",
     "SELECT job || ' version ' || version FROM plan WHERE bytes IS NOT byte_count(payload)"
     " OR sum IS NOT row_sum(job, version, state, unix_s, payload)"},
    {"decision",
     "SELECT id || ' of job ' || job FROM decision"
     " WHERE bytes IS NOT byte_count(payload, snapshot, policy) OR sum IS NOT row_sum("
     "job, step, unix_s, switched, base_hash, policy_hash, payload, snapshot, policy)"},
    {"policy", "SELECT name FROM policy WHERE sum IS NOT row_sum(name, source, applied_unix_s)"},
    {"pin", "SELECT job FROM pin WHERE sum IS NOT row_sum(job, payload, unix_s)"},
    {"audit record",
     "SELECT id FROM audit"
     " WHERE sum IS NOT row_sum(unix_s, actor, action, target, detail, refused)"},
    {"fact", "SELECT name FROM fact WHERE sum IS NOT row_sum(name, value)"},
    {"inputs of decisions", "SELECT hash FROM shared_text WHERE hash IS NOT text_hash(text)"},
};

// A damaged name may hold any bytes.
std::string Printable(std::string text) {
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text.resize(kLongest);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace

Status BringToPresentSchema(SqliteDatabase& database) {
  WEIR_ASSIGN_OR_RETURN(const int64_t version, VersionOf(database));
  if (version == kSchemaVersion) return OkStatus();
  if (version > kSchemaVersion || version < 0) {
    return FailedPrecondition(StrCat("state file '", database.path(), "' has schema ", version,
                                     "; this release knows up to ", kSchemaVersion));
  }
  if (version > 0) WEIR_RETURN_IF_ERROR(CopyFormer(database, version));
  std::string sql = "BEGIN IMMEDIATE;";
  for (int64_t step = version; step < kSchemaVersion; ++step) sql += kSteps[step];
  sql += StrCat("PRAGMA user_version=", kSchemaVersion, ";COMMIT;");
  const Status created = database.Execute(sql);
  if (!created.ok() && sqlite3_get_autocommit(database.handle()) == 0) {
    (void)database.Execute("ROLLBACK");
  }
  if (!created.ok() || version == 0) return created;
  return database.Execute("VACUUM");  // the file gets the room back that rows have left
}

Status CheckRows(SqliteDatabase& database) {
  std::vector<std::string> found;
  for (const TableCheck& table : kTableChecks) {
    if (found.size() >= kDamagedNamedMax) break;
    WEIR_ASSIGN_OR_RETURN(SqliteStatement rows, database.Prepare(table.sql));
    while (found.size() < kDamagedNamedMax) {
      const auto row = rows.Step();
      if (!row.ok() && row.status().code() != StatusCode::kDataLoss) return row.status();
      if (!row.ok()) {
        // The page cannot be read at all, nor what follows it in this table.
        found.push_back(StrCat("a page of table '", table.name, "'"));
        break;
      }
      if (!*row) break;
      found.push_back(StrCat(table.name, " ", Printable(rows.Text(0))));
    }
  }
  if (found.empty()) {
    // There may still be indices that do not fit their tables, and pages that belong to nothing.
    WEIR_ASSIGN_OR_RETURN(SqliteStatement check, database.Prepare("PRAGMA integrity_check(1)"));
    WEIR_ASSIGN_OR_RETURN(const bool row, check.Step());
    if (row && check.Text(0) == "ok") return OkStatus();
    found.push_back(row ? Printable(check.Text(0)) : "no answer to integrity_check");
  }
  std::string names;
  for (const std::string& name : found) names += StrCat(names.empty() ? "" : ", ", name);
  return DataLoss(Damaged(database.path(), names));
}

}  // namespace weir
