// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exchange of maxima that codecs with shared metadata need before they encode.

#include <span>

#include "datapath/collective/group.h"

namespace weir {

/// Every element becomes its maximum over all ranks, the same bits everywhere; NaN when any rank's
/// is NaN. All ranks pass equally many elements. Takes one latency if the vectors of all ranks have
/// at most 64 KiB together, else twice ceil(log2 N) latencies and 2(N-1)/N of the bytes
/// (circulant.h). Errors are the group's.
Status AllReduceMax(Group& group, std::span<float> values);

}  // namespace weir
