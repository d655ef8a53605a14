#pragma once
// Sums through memory that the ranks of one host show each other, see Transport::stages.

#include "datapath/collective/group.h"
#include "datapath/collective/primitives.h"

namespace weir {

/// Longest slot of a stage: a sum stays in a core's second-level cache while others' are added, and
/// messages are few enough where ranks take turns on a core.
inline constexpr size_t kStagedSlotBytesMax = 512 << 10;

/// Whether StagedAllReduce can sum `lanes` and takes less time than messages that carry them. The
/// same on every rank.
bool CanStage(const Group& group, const Lanes& lanes);

/// Sums `lanes` over all ranks, in place: rank r sums chunk r, the ranks in ascending order after
/// its own, on every rank the same bits. Every byte is copied twice, onto a stage and off one, and
/// added from where it stands; messages without lanes say when. group.stages() is not null, and a
/// stage holds 2 N lanes. kInternal naming both when a rank sums another number of bytes.
/// 2 sequential messages for each block, which is a slot for every rank.
/// Source: what MPI libraries call copy-in-copy-out (Graham and Shipman, "MPI support for
/// multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008), as
/// reduce-scatter and all-gather, in two halves so that copying and adding overlap.
Status StagedAllReduce(Group& group, const Lanes& lanes);

}  // namespace weir
