// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thin owner of one SQLite connection and its prepared statements. Errors are Status; nothing
// throws.

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// One use of a prepared statement: bind in order, then step. Resets the statement when destroyed,
/// so it must die before the database and before the same text is used again.
class SqliteStatement {
 public:
  SqliteStatement(sqlite3* database, sqlite3_stmt* statement, std::string path)
      : database_(database), statement_(statement), path_(std::move(path)) {}
  SqliteStatement(SqliteStatement&& other) noexcept;
  SqliteStatement& operator=(SqliteStatement&&) = delete;
  ~SqliteStatement();

  SqliteStatement& Bind(std::string_view text);
  SqliteStatement& Bind(int64_t value);
  SqliteStatement& Bind(double value);

  /// True when there is a row to read, false at the end.
  StatusOr<bool> Step();
  /// Steps to the end.
  Status Run();

  std::string Text(int column) const;
  int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double Real(int column) const { return sqlite3_column_double(statement_, column); }

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_;
  std::string path_;
  int next_ = 1;
};

/// The right to change a state file, which one process has at a time. The kernel takes it back when
/// the process dies, however it dies.
class StateLock {
 public:
  /// kFailedPrecondition: another process has it; kUnavailable: PATH.lock cannot be created.
  static StatusOr<StateLock> Take(const std::string& path);
  StateLock() = default;  // of no file
  StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StateLock& operator=(StateLock&& other) noexcept;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

/// Statements may use these functions, whose results are the same on every machine:
/// row_sum(column, ...), a checksum; byte_count(text, ...), the bytes of all texts together;
/// text_hash(text), 32 hexadecimal digits (see TextHash).
class SqliteDatabase {
 public:
  /// See OpenSqliteStore for the errors.
  static StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path);
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  /// Runs statements that return nothing.
  Status Execute(const std::string& sql);
  /// The statement is prepared on first use and kept. `sql` must be a literal: its text is the key.
  StatusOr<SqliteStatement> Prepare(std::string_view sql);

  sqlite3* handle() const { return handle_; }
  const std::string& path() const { return path_; }

 private:
  SqliteDatabase(sqlite3* handle, StateLock lock, std::string path)
      : handle_(handle), lock_(std::move(lock)), path_(std::move(path)) {}

  sqlite3* handle_;
  const StateLock lock_;
  const std::string path_;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
};

/// How long a connection waits for others that use the file.
inline constexpr int kBusyTimeoutMs = 2000;

/// The name of a text that decisions share.
std::string TextHash(std::string_view text);

/// The message about a damaged state file: what was found, and what to do.
std::string Damaged(std::string_view path, std::string_view found);

/// The Status of a SQLite result on `path`; OK for SQLITE_OK, ROW and DONE.
Status SqliteStatus(sqlite3* database, int result, std::string_view path);

}  // namespace weir
