// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies of a state file while it is in use.

#include <string>

#include "datapath/base/status.h"

namespace weir {

/// Copies the state file `from` as of one moment to the new file `to`, which only its owner can
/// read. Other connections may write in the meantime, in this process or another one. A failed copy
/// leaves nothing. Thread-safe. kAlreadyExists: there is a file `to`; kUnavailable: a file cannot
/// be read or written; kDataLoss: `from` is damaged.
Status CopyDatabase(const std::string& from, const std::string& to);
/// The same, but `to` has the present schema, and its rows were compared with their checksums.
/// `changes`: statements for the copy, each with a semicolon.
Status CopyChecked(const std::string& from, const std::string& to, const std::string& changes = "");

}  // namespace weir
