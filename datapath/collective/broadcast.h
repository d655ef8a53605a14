// SPDX-License-Identifier: Apache-2.0
#pragma once
// Exchanges of buffers whose sizes every rank knows, in place and without a copy: broadcast, direct
// exchange between pairs (gather, scatter, all-to-all), barrier. Errors are the group's.

#include <span>
#include <vector>

#include "datapath/collective/group.h"

namespace weir {

/// How a broadcast of n bytes travels in a world of N, in segments of s bytes; alpha and beta as in
/// README.md, L = ceil(log2 N).
enum class BroadcastWay {
  kTree,     // binomial tree: L (alpha + n beta)
  kScatter,  // every rank gets a part and sends it to all: (L+1) alpha + 2 (N-1)/N n beta
  kChain,    // from rank to rank, segment by segment: (N-1) (alpha + s beta) + n beta
};

/// The sizes at which the algorithm changes, as data. A tree is no longer used where its L copies
/// of n bytes cost more than a latency. A chain is used where the time of its first segment through
/// all ranks is small in comparison: (N-1) s against (1 - 2/N) n.
struct BroadcastThresholds {
  size_t scatter_bytes_min = 64 << 10;
  double chain_segments_per_rank_min = 1.5;
};

/// The algorithm for `bytes` bytes. In a world of two, tree and chain are the same and nothing is
/// scattered.
/// Pure; thread-safe.
BroadcastWay ChooseBroadcast(size_t bytes, int world, size_t segment_bytes,
                             const BroadcastThresholds& thresholds = {});

/// Copies `bytes` (equal sizes) of rank `root` to all ranks, by the algorithm of ChooseBroadcast.
/// Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
/// MPICH", IJHPCA 19(1), 2005, section 4.2, for the tree and for scatter and all-gather (van de
/// Geijn; here the scatter is direct and the all-gather circulant); the pipelined chain is the
/// textbook's.
Status Broadcast(Group& group, int root, std::span<std::byte> bytes);

/// Sends outgoing[r] to rank r and fills incoming[r] from it, for all pairs at once; both have
/// world entries. This rank's own entries are ignored (the caller copies them), and empty entries
/// are not sent. Both sides know the sizes. Takes one latency; every byte crosses each NIC once.
/// Gather, scatter and all-to-all are special cases.
Status DirectExchange(Group& group, std::span<const std::span<const std::byte>> outgoing,
                      std::span<const std::span<std::byte>> incoming);

/// Returns when every rank has called it. ceil(log2 N) latencies. Source: Hensgen, Finkel, Manber,
/// "Two algorithms for barrier synchronization", IJPP 17(1), 1988 (dissemination).
Status DisseminationBarrier(Group& group);

}  // namespace weir
