#pragma once
// What codecs with shared metadata need before they encode.

#include <span>

#include "datapath/collective/group.h"

namespace weir {

/// Every element becomes its maximum over all ranks, the same bits everywhere; NaN when any rank's
/// is NaN. All ranks give equally many. One latency where all of it is at most 64 KiB, else two
/// times ceil(log2 N) of them and 2(N-1)/N of the bytes (circulant.h). Errors are the group's.
Status AllReduceMax(Group& group, std::span<float> values);

}  // namespace weir
