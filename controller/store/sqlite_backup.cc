// SPDX-License-Identifier: Apache-2.0
// Backup and restore of the embedded store. A connection of its own reads the file: in WAL mode it
// sees the state of one moment, and neither waits for the controller's connection nor delays it.

#include "controller/store/sqlite_backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "controller/store/sqlite_schema.h"
#include "controller/store/store.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Ranks may run plans that were made after the backup; fewer than this many.
constexpr int64_t kVersionsSkipped = 10000;

struct Connection {
  explicit Connection(std::string file) : path(std::move(file)) {}
  ~Connection() { sqlite3_close_v2(handle); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Status Open(int flags) {
    const int opened = sqlite3_open_v2(path.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX, nullptr);
    WEIR_RETURN_IF_ERROR(SqliteStatus(handle, opened, path));
    sqlite3_busy_timeout(handle, kBusyTimeoutMs);
    return OkStatus();
  }

  const std::string path;
  sqlite3* handle = nullptr;
};

Status CreateFor(const std::string& path) {
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) {
    close(fd);
    return OkStatus();
  }
  if (errno == EEXIST)
    return MakeStatus(StatusCode::kAlreadyExists, StrCat("there is a file '", path, "'"));
  return Unavailable(StrCat("cannot create '", path, "': ", strerror(errno)));
}

Status CopyPages(const std::string& from, const std::string& to) {
  Connection source(from), target(to);
  WEIR_RETURN_IF_ERROR(source.Open(SQLITE_OPEN_READWRITE));
  WEIR_RETURN_IF_ERROR(target.Open(SQLITE_OPEN_READWRITE));
  sqlite3_backup* copy = sqlite3_backup_init(target.handle, "main", source.handle, "main");
  if (copy == nullptr) return SqliteStatus(target.handle, sqlite3_errcode(target.handle), to);
  // In one go: a copy in parts would begin again whenever the controller writes.
  const int copied = sqlite3_backup_step(copy, -1);
  const int finished = sqlite3_backup_finish(copy);
  if (copied != SQLITE_DONE) {
    return SqliteStatus(target.handle, finished == SQLITE_OK ? copied : finished, from);
  }
  // One file holds all of it, with no log beside it.
  return SqliteStatus(
      target.handle,
      sqlite3_exec(target.handle, "PRAGMA journal_mode=DELETE", nullptr, nullptr, nullptr), to);
}

void RemoveState(const std::string& path) {
  std::error_code ignored;
  for (const char* ending : {"", "-wal", "-shm", "-journal"}) fs::remove(path + ending, ignored);
}

Status Move(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error || error == std::errc::no_such_file_or_directory) return OkStatus();
  return Unavailable(StrCat("cannot rename '", from, "' to '", to, "': ", error.message()));
}

Status PrepareCopy(const std::string& path, const std::string& changes) {
  WEIR_ASSIGN_OR_RETURN(const auto database, SqliteDatabase::Open(path));
  WEIR_RETURN_IF_ERROR(BringToPresentSchema(*database));
  WEIR_RETURN_IF_ERROR(CheckRows(*database));
  // One file holds all of it, with no log beside it.
  return database->Execute(changes + "PRAGMA journal_mode=DELETE");
}

}  // namespace

Status CopyDatabase(const std::string& from, const std::string& to) {
  WEIR_RETURN_IF_ERROR(CreateFor(to));
  const Status copied = CopyPages(from, to);
  if (!copied.ok()) RemoveState(to);
  return copied;
}

Status CopyChecked(const std::string& from, const std::string& to, const std::string& changes) {
  WEIR_RETURN_IF_ERROR(CopyDatabase(from, to));
  Status ready = PrepareCopy(to, changes);
  std::error_code ignored;
  fs::remove(to + ".lock", ignored);
  if (!ready.ok()) RemoveState(to);
  return ready;
}

Status RestoreSqliteStore(const std::string& backup, const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(backup, ignored)) return NotFound(StrCat("no backup '", backup, "'"));
  // Keeps controllers away from the state while its files change places.
  WEIR_ASSIGN_OR_RETURN(const StateLock lock, StateLock::Take(path));
  const std::string fresh = path + ".restoring";
  RemoveState(fresh);
  const std::string skip_versions =
      StrCat("UPDATE fact SET value = CAST(value + ", kVersionsSkipped,
             " AS TEXT) WHERE name LIKE 'plans/%';"
             "INSERT OR REPLACE INTO fact (name, value) SELECT 'plans/' || job,"
             " CAST(max(version) + ",
             kVersionsSkipped,
             " AS TEXT) FROM plan GROUP BY job;"
             "UPDATE fact SET sum = row_sum(name, value) WHERE name LIKE 'plans/%';");
  WEIR_RETURN_IF_ERROR(CopyChecked(backup, fresh, skip_versions));
  const std::string former = path + ".before-restore";
  RemoveState(former);
  for (const char* ending : {"-wal", "-shm", ""}) {
    WEIR_RETURN_IF_ERROR(Move(path + ending, former + ending));
  }
  return Move(fresh, path);
}

}  // namespace weir
