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

/// `snapshot` with what its tables have in common with `tables` left out. `tables` may be of any
/// snapshot; the closer the shorter is the result. O(bytes).
std::string WithoutTables(std::string_view snapshot, std::string_view tables);

/// The snapshot of which WithoutTables made `rest`, to the byte. kDataLoss: malformed, or other
/// tables.
StatusOr<std::string> WithTables(std::string_view rest, std::string_view tables);

}  // namespace weir
