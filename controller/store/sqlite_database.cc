// SPDX-License-Identifier: Apache-2.0
// See sqlite_database.h. The lock file keeps a second controller away: two writers would hand out
// the same plan versions. The kernel releases the lock when the process dies, however it dies.

#include "controller/store/sqlite_database.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weir {
namespace {

constexpr int kBusyTimeoutMs = 2000;

std::string Damaged(std::string_view path, std::string_view why) {
  return StrCat("state file '", path, "' is damaged or not a Weir state file: ", why,
                "; move it away to start with an empty one");
}

StatusOr<int> LockFile(const std::string& path) {
  const std::string lock_path = path + ".lock";
  const int fd = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable(StrCat("cannot create '", lock_path, "': ", strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return FailedPrecondition(StrCat("state file '", path, "' is in use by another controller"));
  }
  return fd;
}

// The state holds the secret by which aggregators recognise this controller. SQLite itself would
// let every user read it. Its journal gets the mode of the file.
Status KeepFromOthers(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  struct stat known {};
  const bool kept = fd >= 0 && fstat(fd, &known) == 0 &&
                    ((known.st_mode & S_IRWXO) == 0 ||
                     fchmod(fd, known.st_mode & ~static_cast<mode_t>(S_IRWXO) & 07777) == 0);
  const std::string why = strerror(errno);
  if (fd >= 0) close(fd);
  if (kept) return OkStatus();
  return Unavailable(StrCat("state file '", path, "' cannot be kept from other users: ", why));
}

}  // namespace

Status SqliteStatus(sqlite3* database, int result, std::string_view path) {
  const std::string why = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(result);
  switch (result & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return OkStatus();
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss(Damaged(path, why));
    case SQLITE_FULL:
      return ResourceExhausted(StrCat("state file '", path, "': ", why));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_IOERR:
    case SQLITE_PERM:
      return Unavailable(StrCat("state file '", path, "': ", why));
  }
  return Internal(StrCat("state file '", path, "': ", why));
}

SqliteStatement::SqliteStatement(SqliteStatement&& other) noexcept
    : database_(other.database_),
      statement_(std::exchange(other.statement_, nullptr)),
      path_(std::move(other.path_)),
      next_(other.next_) {}

SqliteStatement::~SqliteStatement() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

SqliteStatement& SqliteStatement::Bind(std::string_view text) {
  sqlite3_bind_text64(statement_, next_++, text.data() == nullptr ? "" : text.data(), text.size(),
                      SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_, next_++, value);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(double value) {
  sqlite3_bind_double(statement_, next_++, value);
  return *this;
}

StatusOr<bool> SqliteStatement::Step() {
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  return SqliteStatus(database_, result, path_);
}

Status SqliteStatement::Run() {
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const bool row, Step());
    if (!row) return OkStatus();
  }
}

std::string SqliteStatement::Text(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? ""
                         : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path) {
  int lock = -1;
  if (path != ":memory:") {
    WEIR_ASSIGN_OR_RETURN(lock, LockFile(path));
    if (const Status kept = KeepFromOthers(path); !kept.ok()) {
      close(lock);
      return kept;
    }
  }
  sqlite3* handle = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(handle, lock, path));
  WEIR_RETURN_IF_ERROR(SqliteStatus(handle, opened, path));
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  // The first statement reads the header, so a file that is not a database fails here.
  WEIR_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode=WAL"));
  WEIR_RETURN_IF_ERROR(database->Execute("PRAGMA synchronous=NORMAL"));
  {
    WEIR_ASSIGN_OR_RETURN(SqliteStatement check, database->Prepare("PRAGMA quick_check(1)"));
    WEIR_ASSIGN_OR_RETURN(const bool row, check.Step());
    if (!row || check.Text(0) != "ok") {
      return DataLoss(Damaged(path, row ? check.Text(0) : "no answer to quick_check"));
    }
  }
  return database;
}

SqliteDatabase::~SqliteDatabase() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close_v2(handle_);
  if (lock_ >= 0) close(lock_);
}

Status SqliteDatabase::Execute(const std::string& sql) {
  return SqliteStatus(handle_, sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr),
                      path_);
}

StatusOr<SqliteStatement> SqliteDatabase::Prepare(std::string_view sql) {
  auto found = statements_.find(sql);
  if (found == statements_.end()) {
    sqlite3_stmt* statement = nullptr;
    const int result = sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                                          SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    WEIR_RETURN_IF_ERROR(SqliteStatus(handle_, result, path_));
    found = statements_.emplace(std::string(sql), statement).first;
  }
  return SqliteStatement(handle_, found->second, path_);
}

}  // namespace weir
