#pragma once
// Reduce-scatter, all-gather and all-reduce on a circulant graph: partners are a fixed distance
// apart, one to send to and one to receive from at a time, in ceil(log2 N) rounds of about half as
// much data each, for any world size. Source: J. L. Traeff, "Optimal, Non-pipelined Reduce-scatter
// and Allreduce Algorithms", 2024. Both bounds, latencies and bytes, are the least possible, so no
// second algorithm is needed for other sizes.
//
// Cost as in README.md, for n bytes of lanes: each half ceil(log2 N) alpha + (N-1)/N n beta, the
// reduce-scatter also (N-1)/N n gamma. Errors are the group's.

#include <span>

#include "datapath/collective/group.h"
#include "datapath/collective/primitives.h"

namespace weir {

/// Cuts the lanes into one chunk per rank (as Partition does: equal ones where the world divides
/// them) and leaves in chunk `rank` its sum over all ranks. The other chunks are left as partial
/// sums. Each element is summed once, in a fixed order.
Status CirculantReduceScatter(Group& group, const Lanes& lanes);

/// The other half: every chunk becomes what its owner holds there. Chunks as of
/// CirculantReduceScatter; nothing is added.
Status CirculantAllGather(Group& group, const Lanes& lanes);

/// The chunk of CirculantReduceScatter that `rank` of `world` owns.
std::span<std::byte> CirculantChunk(const Lanes& lanes, int rank, int world);

/// Fills chunk r of `chunks` (chunk_bytes > 0 each, one per rank) with what rank r holds there.
Status CirculantAllGather(Group& group, std::span<std::byte> chunks, size_t chunk_bytes);

/// Both: every rank ends with the same bits.
Status CirculantAllReduce(Group& group, const Lanes& lanes);

}  // namespace weir
