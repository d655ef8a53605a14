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
  SqliteDatabase(sqlite3* handle, int lock, std::string path)
      : handle_(handle), lock_(lock), path_(std::move(path)) {}

  sqlite3* handle_;
  int lock_;
  const std::string path_;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
};

/// The Status of a SQLite result on `path`; OK for SQLITE_OK, ROW and DONE.
Status SqliteStatus(sqlite3* database, int result, std::string_view path);

}  // namespace weir
