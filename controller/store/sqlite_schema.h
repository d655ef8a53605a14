// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tables of a state file, how files of former releases become files of this one, and how
// damage is found. Every row has a checksum over its columns, because SQLite itself notices damage
// only where it breaks the structure of a page.

#include "controller/store/sqlite_database.h"

namespace weir {

inline constexpr int64_t kSchemaVersion = 4;

/// Brings the tables to kSchemaVersion, in one transaction: after an error the file is as before.
/// A file of a former version is copied to PATH.schema-VERSION first, unless there is such a copy.
/// kFailedPrecondition: a newer release wrote the file. kDataLoss: its structure is damaged.
Status BringToPresentSchema(SqliteDatabase& database);

/// Compares every row with its checksum, and every index with its table. kDataLoss names some of
/// the damaged rows and says what to do. O(bytes of the file).
Status CheckRows(SqliteDatabase& database);

}  // namespace weir
