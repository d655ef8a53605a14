// SPDX-License-Identifier: Apache-2.0
#pragma once
// Snapshots in two parts: the tables of codecs and collectives, which hardly change between the
// decisions of a job and are nearly all of its bytes, and the rest.

#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

/// A snapshot that SerializeSnapshot wrote is WithTables(least, tables) and WithTables(rest,
/// known).
struct SnapshotParts {
  std::string tables;  // its own
  std::string least;   // without them
  std::string rest;    // without what its tables have in common with the known ones
};

/// `known`: tables of any snapshot; the more they have in common with this one's, the shorter is
/// `rest`. Each text is parsed once, because decisions of many jobs spend most of their time here.
SnapshotParts SplitSnapshot(std::string_view snapshot, std::string_view known);

/// The snapshot whose part is `rest`, to the byte. kDataLoss: malformed, or with other tables.
StatusOr<std::string> WithTables(std::string_view rest, std::string_view tables);

}  // namespace weir
