#pragma once
// THC for lanes that a codec has made: levels of a table go up as four-bit indices, sums of levels
// come down and become sums of lanes.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/aggregation/lane_kernels.h"
#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Lanes are integers of the lease's sum_bits in memory's byte order: a level of the lease's table
/// minus half the greatest one, as the codec thc has them. Sums are exact, whatever the order. Not
/// thread-safe. See Worker for the loop. Source: Li et al., "THC: accelerating distributed deep
/// learning using tensor homomorphic compression", NSDI 2024, sections 5 and 6; deviates: where
/// the lease has a cut-off, sums say whose they are, so that a worker that was left out keeps its
/// lanes; without one, sums of fewer than all workers are errors.
class TableLanesWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kTable, its greatest level even.
  TableLanesWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Whether all of `lanes` are whole lanes that are levels. O(n).
  bool Carries(std::span<const std::byte> lanes) const;

  /// Starts to fill `sums` (of the size of `lanes`, no overlap) with the sums over all workers.
  /// lanes: which it Carries. Both must outlive the operation. kInvalidArgument: sizes differ; else
  /// as ChunkWorker::StartChunks. O(packets).
  Status Begin(std::span<const std::byte> lanes, std::span<std::byte> sums, uint32_t operation,
               TimePoint deadline);

  /// Bytes of lanes that a packet carries; the last one may carry fewer.
  size_t packet_lane_bytes() const { return lease().lanes * lane_bytes_; }

  /// Of each packet of the operation, the workers in its sum (bit w: worker w). 0: not there yet,
  /// or the round ended without this worker and its result is lost, and the sums are 0; with a
  /// cut-off only. Both are equal for all workers that have them.
  std::span<const uint64_t> contributors() const { return contributors_; }

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;
  Status AcceptChunkLoss(uint64_t index) override;

 private:
  LevelLanes AsLevels(std::span<const std::byte> lanes) const;
  std::span<std::byte> Sums(uint64_t index) const;

  const size_t lane_bytes_;
  const int half_;  // of the greatest level
  std::span<const std::byte> lanes_;
  std::span<std::byte> sums_;
  std::vector<uint64_t> contributors_;
};

}  // namespace weir::aggregation
