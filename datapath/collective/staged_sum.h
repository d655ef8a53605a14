// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums through the staging buffers that the ranks of one host share (Transport::staging).

#include "datapath/collective/group.h"
#include "datapath/collective/primitives.h"

namespace weir {

/// Longest slot of a staging buffer. A sum of this size stays in a core's second-level cache while
/// the contributions are added, and long slots keep messages few where ranks take turns on a core.
inline constexpr size_t kStagedSlotBytesMax = 512 << 10;

/// Whether StagedAllReduce can sum `lanes` and takes less time than messages that carry them. The
/// same on every rank.
bool CanStage(const Group& group, const Lanes& lanes);

/// Sums `lanes` over all ranks, in place. Rank r sums chunk r: its own contribution, then the other
/// ranks' in ascending order after r, so that every rank gets the same bits. Every byte is copied
/// twice, into a staging buffer and out of one. Contributions are added in place, and messages
/// without lanes announce them. Requires that group.staging() is not null and that a staging
/// buffer holds 2 N lanes. kInternal, naming both ranks, when they sum different numbers of bytes.
/// Takes 2 sequential messages for each block, which is one slot of every rank.
/// Source: what MPI libraries call copy-in-copy-out (Graham and Shipman, "MPI support for
/// multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008), as
/// reduce-scatter and all-gather, in two halves so that copying and adding overlap.
Status StagedAllReduce(Group& group, const Lanes& lanes);

}  // namespace weir
