// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reduce-scatter, all-gather and all-reduce on a circulant graph, for any world size. In each of
// ceil(log2 N) rounds a rank sends to one partner and receives from another, which are a fixed
// distance apart, and each round has about half as much data as the one before. Source: J. L.
// Traeff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024. The numbers of
// latencies and of bytes are both the least possible, so no second algorithm is needed for other
// sizes.
//
// Cost as in README.md, for n bytes of lanes: each half ceil(log2 N) alpha + (N-1)/N n beta, the
// reduce-scatter also (N-1)/N n gamma. Errors are the group's.

#include <span>

#include "datapath/collective/group.h"
#include "datapath/collective/primitives.h"

namespace weir {

/// Cuts the lanes into one chunk per rank, as Partition does (equal chunks where the world divides
/// the lanes), and leaves in chunk `rank` its sum over all ranks. The other chunks hold partial
/// sums afterwards. Each element is summed once, in a fixed order.
Status CirculantReduceScatter(Group& group, const Lanes& lanes);

/// The second half of an all-reduce: copies every chunk from its owner to all ranks. The chunks are
/// those of CirculantReduceScatter.
Status CirculantAllGather(Group& group, const Lanes& lanes);

/// The chunk of CirculantReduceScatter that `rank` of `world` owns.
std::span<std::byte> CirculantChunk(const Lanes& lanes, int rank, int world);

/// Copies chunk r of `chunks` (one per rank, chunk_bytes > 0 each) from rank r to all ranks.
Status CirculantAllGather(Group& group, std::span<std::byte> chunks, size_t chunk_bytes);

/// Both halves. Every rank ends with the same bits.
Status CirculantAllReduce(Group& group, const Lanes& lanes);

}  // namespace weir
