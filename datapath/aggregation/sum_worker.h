// SPDX-License-Identifier: Apache-2.0
#pragma once
// An all-reduce of floats with SwitchML's protocol: integers go up, sums come down, and scales are
// agreed one window ahead.

#include <span>
#include <vector>

#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Not thread-safe. See Worker for the loop.
class SumWorker : public ChunkWorker {
 public:
  /// lease: valid, mode kSum.
  SumWorker(const Lease& lease, const TimeoutLimits& limits, int rank);

  /// Starts to write the sum of `data` over all workers to `sums`. Both have the same size on all
  /// workers, may be the same memory, and must outlive the operation. operation: the same number on
  /// all workers. Every worker gets the same bits, whatever the order of packets: the sum of the
  /// elements rounded to a chunk's grid (see quantise.h). A chunk with NaN or infinity on any
  /// worker becomes NaN on all. kInvalidArgument: the sizes differ. Other errors: as Worker::Start.
  Status Begin(std::span<const float> data, std::span<float> sums, uint32_t operation,
               TimePoint deadline);
  /// The same in place.
  Status Begin(std::span<float> data, uint32_t operation, TimePoint deadline) {
    return Begin(data, data, operation, deadline);
  }

  /// Number of chunks of the last operation that were not finite on some worker.
  uint64_t non_finite_chunks() const { return non_finite_chunks_; }

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status AcceptChunk(uint64_t index, const Packet& packet) override;

 private:
  template <typename Float>
  std::span<Float> Chunk(std::span<Float> all, uint64_t chunk) const;

  const int bits_;
  std::span<const float> data_;
  std::span<float> sums_;
  uint64_t chunks_ = 0;
  uint64_t lead_ = 0;                // packets without lanes at the beginning
  std::vector<uint16_t> exponents_;  // by chunk: this worker's until the reply, then the greatest
  std::vector<uint32_t> lanes_;
  uint64_t non_finite_chunks_ = 0;
};

}  // namespace weir::aggregation
