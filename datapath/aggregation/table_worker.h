// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of four-bit indices into a table of levels (THC): indices go up, sums of levels come down
// with the set of workers that contributed, because rounds may end without some.

#include <span>
#include <vector>

#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Not thread-safe. See Worker for the loop. The caller gives the indices their meaning (norm,
/// rotation, residual); a MaxWorker finds the shared norm while the caller rotates. Source: Li et
/// al., "THC: accelerating distributed deep learning using tensor homomorphic compression", NSDI
/// 2024, sections 5 and 6; deviates: sums come with the set of contributors, so that a worker that
/// was left out keeps its contribution as residual, and a mean is taken over the contributors only.
class TableWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kTable.
  TableWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Starts to write to `means`, of the size of `indices`, the mean of the contributors' levels
  /// minus half the greatest level, so that a symmetric table decodes to zero mean; 0 where the
  /// result is lost. indices: below kTableLevels. Both must outlive the operation.
  /// kInvalidArgument: the sizes differ, or an index is too large. Other errors: as
  /// ChunkWorker::StartChunks. O(n).
  Status Begin(std::span<const uint8_t> indices, std::span<float> means, uint32_t operation,
               TimePoint deadline);

  /// The set of workers in the mean of packet `index` (bit w: worker w), which covers `lanes`
  /// elements from index * lanes on. 0: the result is lost.
  uint64_t contributors(uint64_t index) const { return contributors_[index]; }

  /// Returns whether the means include this worker's element i. If not, all of it remains residual.
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
