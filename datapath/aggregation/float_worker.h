// SPDX-License-Identifier: Apache-2.0
#pragma once
// An all-reduce of floats that the aggregator adds as floats (FPISA).

#include <span>

#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Not thread-safe. See Worker for the loop.
class FloatWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kFloat.
  FloatWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Starts to replace `data` by the sum over all workers; it must outlive the operation. Every
  /// worker gets the same bits, but another order of packets gives other bits: see float_lanes.h.
  /// Errors: as ChunkWorker::StartChunks.
  Status Begin(std::span<float> data, uint32_t operation, TimePoint deadline);

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;

 private:
  std::span<float> Chunk(uint64_t index) const;

  std::span<float> data_;
};

}  // namespace weir::aggregation
