// SPDX-License-Identifier: Apache-2.0
#pragma once
// The element-wise maximum of a few numbers over all workers: norms and exponents that a
// compression method needs before it starts.

#include <span>
#include <vector>

#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Not thread-safe. See Worker for the loop.
class MaxWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kMax.
  MaxWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Starts to replace each of `values` by the greatest over all workers; it must outlive the
  /// operation. Non-negative floats may be passed as their bits, of which those of infinity and NaN
  /// are the greatest. Errors: as ChunkWorker::StartChunks.
  Status Begin(std::span<uint32_t> values, uint32_t operation, TimePoint deadline);

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;

 private:
  std::span<uint32_t> Chunk(uint64_t index) const;

  std::span<uint32_t> values_;
  std::vector<uint32_t> lanes_;
};

}  // namespace weir::aggregation
