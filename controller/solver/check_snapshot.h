// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "controller/model/snapshot.h"
#include "datapath/base/status.h"

namespace weir {

/// Whether a decision can be made from it. kFailedPrecondition: it has no bucket or no bandwidth;
/// kInvalidArgument: sizes that do not fit together, and numbers out of range.
Status CheckSnapshot(const Snapshot& snapshot);

}  // namespace weir
