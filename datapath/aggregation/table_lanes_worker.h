// SPDX-License-Identifier: Apache-2.0
#pragma once
// THC for lanes that a codec has made: levels of a table go up as four-bit indices, sums of levels
// come down and are converted to sums of lanes.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/aggregation/lane_kernels.h"
#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Lanes are integers of the lease's sum_bits in the byte order of memory. Each is a level of the
/// lease's table minus half the greatest one, as the codec `thc` produces them. Sums are exact in
/// any order. Not thread-safe. See Worker for the loop. Source: Li et al., "THC: accelerating
/// distributed deep learning using tensor homomorphic compression", NSDI 2024, sections 5 and 6;
/// deviates: where the lease has a cut-off, a sum comes with the set of its contributors, so that a
/// worker that was left out keeps its lanes; without a cut-off, sums of fewer than all workers are
/// errors.
class TableLanesWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kTable, its greatest level even.
  TableLanesWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Returns whether `lanes` consists of whole lanes which are all levels. O(n).
  bool Carries(std::span<const std::byte> lanes) const;

  /// Starts to write the sums over all workers to `sums`, which has the size of `lanes` and does
  /// not overlap it. lanes: accepted by Carries. Both must outlive the operation. kInvalidArgument:
  /// the sizes differ. Other errors: as ChunkWorker::StartChunks. O(packets).
  Status Begin(std::span<const std::byte> lanes, std::span<std::byte> sums, uint32_t operation,
               TimePoint deadline);

  /// Bytes of lanes in a packet. The last packet may have fewer.
  size_t packet_lane_bytes() const { return lease().lanes * lane_bytes_; }

  /// For each packet of the operation, the set of workers in its sum (bit w: worker w). 0: the
  /// reply has not come, or, only with a cut-off, the round ended without this worker and its
  /// result is lost, so that the sums are 0. All workers that have a set or a sum have the same
  /// one.
  std::span<const uint64_t> contributors() const { return contributors_; }

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;
  Status AcceptChunkLoss(uint64_t index) override;

 private:
  LevelLanes AsLevels(std::span<const std::byte> lanes) const;
  std::span<std::byte> Sums(uint64_t index) const;

  const size_t lane_bytes_;
  const int half_;  // half of the greatest level
  std::span<const std::byte> lanes_;
  std::span<std::byte> sums_;
  std::vector<uint64_t> contributors_;
};

}  // namespace weir::aggregation
