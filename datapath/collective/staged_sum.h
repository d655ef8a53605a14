#pragma once
// Sums through memory that the ranks of one host show each other, see Transport::stages.

#include "datapath/collective/group.h"
#include "datapath/collective/primitives.h"

namespace weir {

/// Whether StagedAllReduce can sum `lanes` and takes less time than messages that carry them. The
/// same on every rank.
bool CanStage(const Group& group, const Lanes& lanes);

/// Sums `lanes` over all ranks, in place: rank r sums chunk r, the ranks in ascending order after
/// its own, on every rank the same bits. Every byte is copied twice, onto a stage and off one, and
/// added from where it stands; messages without lanes say when. group.stages() is not null, and a
/// stage holds 2 N lanes. kInternal naming both when a rank sums another number of bytes.
/// 2 sequential messages for each block of half a stage.
/// Source: what MPI libraries call copy-in-copy-out (Graham and Shipman, "MPI support for
/// multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008), as
/// reduce-scatter and all-gather, in two halves so that copying and adding overlap.
Status StagedAllReduce(Group& group, const Lanes& lanes);

}  // namespace weir
