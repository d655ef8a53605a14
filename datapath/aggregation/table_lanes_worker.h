#pragma once
// THC for lanes that a codec has made: levels of a table go up as four-bit indices, sums of levels
// come down and become sums of lanes.

#include <array>
#include <cstdint>
#include <span>

#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Lanes are integers of the lease's sum_bits in memory's byte order: a level of the lease's table
/// minus half the greatest one, as the codec thc has them. Sums are exact, whatever the order. Not
/// thread-safe. See Worker for the loop. Source: Li et al., "THC: accelerating distributed deep
/// learning using tensor homomorphic compression", NSDI 2024, section 5; deviates: sums of fewer
/// than all workers are errors, since a sum of lanes cannot say whose it is (TableWorker can).
class TableLanesWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kTable, its greatest level even, no cut-off.
  TableLanesWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Whether all of `lanes` are whole lanes that are levels. O(n).
  bool Carries(std::span<const std::byte> lanes) const;

  /// Starts to fill `sums` (of the size of `lanes`, no overlap) with the sums over all workers.
  /// lanes: which it Carries. Both must outlive the operation. kInvalidArgument: sizes differ; else
  /// as ChunkWorker::StartChunks. O(packets).
  Status Begin(std::span<const std::byte> lanes, std::span<std::byte> sums, uint32_t operation,
               TimePoint deadline);

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;

 private:
  template <typename Lane>
  uint8_t IndexOf(const std::byte* lane) const;
  template <typename Lane>
  bool AllCarried(std::span<const std::byte> lanes) const;
  template <typename Lane>
  void Pack(std::span<const std::byte> lanes, std::span<std::byte> payload) const;

  const size_t lane_bytes_;
  const int half_;                       // of the greatest level
  std::array<uint8_t, 256> index_ = {};  // by level; kNoIndex: none
  std::span<const std::byte> lanes_;
  std::span<std::byte> sums_;
};

}  // namespace weir::aggregation
