// SPDX-License-Identifier: Apache-2.0
// See sqlite_database.h. The lock file keeps a second controller away: two writers would hand out
// the same plan versions. The kernel releases the lock when the process dies, however it dies.

#include "controller/store/sqlite_database.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weir {
namespace {

// A row's checksum covers the types and lengths of its columns, too, so that no text can move from
// one column to the next unnoticed.
void RowSum(sqlite3_context* context, int count, sqlite3_value** columns) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (int i = 0; i < count; ++i) {
    const int type = sqlite3_value_type(columns[i]);
    int64_t head[2] = {type, 0};
    std::string_view text;
    if (type == SQLITE_INTEGER) {
      head[1] = sqlite3_value_int64(columns[i]);
    } else if (type == SQLITE_FLOAT) {
      head[1] = std::bit_cast<int64_t>(sqlite3_value_double(columns[i]));
    } else if (type != SQLITE_NULL) {
      const void* data = sqlite3_value_blob(columns[i]);
      text = {static_cast<const char*>(data), static_cast<size_t>(sqlite3_value_bytes(columns[i]))};
      head[1] = static_cast<int64_t>(text.size());
    }
    XXH3_64bits_update(&state, head, sizeof(head));
    XXH3_64bits_update(&state, text.data(), text.size());
  }
  sqlite3_result_int64(context, static_cast<int64_t>(XXH3_64bits_digest(&state)));
}

void ByteCount(sqlite3_context* context, int count, sqlite3_value** texts) {
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += sqlite3_value_bytes(texts[i]);
  sqlite3_result_int64(context, bytes);
}

void TextHashOf(sqlite3_context* context, int, sqlite3_value** text) {
  const void* data = sqlite3_value_blob(text[0]);
  const auto size = static_cast<size_t>(sqlite3_value_bytes(text[0]));
  const std::string hash = TextHash({static_cast<const char*>(data), size});
  sqlite3_result_text(context, hash.data(), static_cast<int>(hash.size()), SQLITE_TRANSIENT);
}

int DefineFunctions(sqlite3* handle) {
  constexpr int kFlags = SQLITE_UTF8 | SQLITE_DETERMINISTIC;
  int result = sqlite3_create_function_v2(handle, "row_sum", -1, kFlags, nullptr, RowSum, nullptr,
                                          nullptr, nullptr);
  if (result != SQLITE_OK) return result;
  result = sqlite3_create_function_v2(handle, "byte_count", -1, kFlags, nullptr, ByteCount, nullptr,
                                      nullptr, nullptr);
  if (result != SQLITE_OK) return result;
  return sqlite3_create_function_v2(handle, "text_hash", 1, kFlags, nullptr, TextHashOf, nullptr,
                                    nullptr, nullptr);
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

std::string Damaged(std::string_view path, std::string_view found) {
  return StrCat("state file '", path, "' is damaged or not a Weir state file: ", found,
                "; bring back a backup with 'weir-controller --state ", path,
                " --restore FILE', or move it away to start with an empty one");
}

std::string TextHash(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return digits;
}

StatusOr<StateLock> StateLock::Take(const std::string& path) {
  const std::string lock_path = path + ".lock";
  const int fd = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable(StrCat("cannot create '", lock_path, "': ", strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return FailedPrecondition(StrCat("state file '", path, "' is in use by another controller"));
  }
  return StateLock(fd);
}

StateLock& StateLock::operator=(StateLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

StateLock::~StateLock() {
  if (fd_ >= 0) close(fd_);
}

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
  StateLock lock;
  if (path != ":memory:") {
    WEIR_ASSIGN_OR_RETURN(lock, StateLock::Take(path));
    WEIR_RETURN_IF_ERROR(KeepFromOthers(path));
  }
  sqlite3* handle = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(handle, std::move(lock), path));
  WEIR_RETURN_IF_ERROR(SqliteStatus(handle, opened, path));
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  WEIR_RETURN_IF_ERROR(SqliteStatus(handle, DefineFunctions(handle), path));
  // A file that is not a database fails at one of these.
  // Freed pages can go back to the file system; of an existing file only after a VACUUM.
  WEIR_RETURN_IF_ERROR(database->Execute("PRAGMA auto_vacuum=INCREMENTAL"));
  WEIR_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode=WAL"));
  WEIR_RETURN_IF_ERROR(database->Execute("PRAGMA synchronous=NORMAL"));
  return database;
}

SqliteDatabase::~SqliteDatabase() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close_v2(handle_);
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
