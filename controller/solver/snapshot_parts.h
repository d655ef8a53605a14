// SPDX-License-Identifier: Apache-2.0
#pragma once
// Snapshots in two parts: the tables of codecs and collectives, which hardly change between the
// decisions of a job and are nearly all of its bytes, and the rest.

#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

/// The tables of a snapshot that SerializeSnapshot wrote. O(bytes).
std::string TablesOf(std::string_view snapshot);

/// `snapshot` without the parts of its tables that are equal in `tables`. `tables` may be from any
/// snapshot; the more they have in common, the shorter is the result. O(bytes).
std::string WithoutTables(std::string_view snapshot, std::string_view tables);

/// The snapshot from which WithoutTables made `rest`, to the byte. kDataLoss: malformed, or with
/// other tables.
StatusOr<std::string> WithTables(std::string_view rest, std::string_view tables);

}  // namespace weir
