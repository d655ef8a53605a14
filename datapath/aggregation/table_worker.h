#pragma once
// Sums of four-bit indices into a table of levels (THC): indices up, sums of levels down, with the
// set of workers that they are of, because rounds may end without some.

#include <span>
#include <vector>

#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Not thread-safe. See Worker for the loop. What indices stand for (norm, rotation, residual) is
/// the caller's: a MaxWorker finds the shared norm while the caller rotates.
/// Source: Li et al., "THC: accelerating distributed deep learning using tensor homomorphic
/// compression", NSDI 2024, sections 5 and 6; deviates: sums say whose they are, so that a worker
/// that was left out keeps its contribution as residual, and a mean is over those that count.
class TableWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kTable.
  TableWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Starts to fill `means` (of the size of `indices`): the mean of the contributors' levels minus
  /// half the greatest level, so that a table symmetric around its centre decodes to zero mean; 0
  /// where the result is lost. indices: below kTableLevels. Both must outlive the operation.
  /// kInvalidArgument: sizes differ, or an index is too large; else as ChunkWorker::StartChunks.
  /// O(n).
  Status Begin(std::span<const uint8_t> indices, std::span<float> means, uint32_t operation,
               TimePoint deadline);

  /// Workers in the mean of packet `index`, which covers elements index * lanes on; bit w: worker
  /// w. 0: lost.
  uint64_t contributors(uint64_t index) const { return contributors_[index]; }

  /// Whether this worker's element i is in the means; if not, all of it is residual.
  bool Contributed(size_t element) const {
    return (contributors_[element / lease().lanes] >> rank() & 1) != 0;
  }

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;
  Status AcceptChunkLoss(uint64_t index) override;

 private:
  std::span<float> Means(uint64_t index) const;

  const float centre_;
  std::span<const uint8_t> indices_;
  std::span<float> means_;
  std::vector<uint64_t> contributors_;
};

}  // namespace weir::aggregation
