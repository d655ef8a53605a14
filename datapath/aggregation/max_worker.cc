// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/max_worker.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir::aggregation {

MaxWorker::MaxWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : ChunkWorker(lease, limits, rank), lanes_(lease.lanes) {
  WEIR_CHECK(lease.mode == PacketMode::kMax);
}

Status MaxWorker::Begin(std::span<uint32_t> values, uint32_t operation, TimePoint deadline) {
  const uint64_t packets = (values.size() + lease().lanes - 1) / lease().lanes;
  WEIR_RETURN_IF_ERROR(
      StartChunks({.operation = operation, .packets = packets, .deadline = deadline}));
  values_ = values;
  return OkStatus();
}

std::span<uint32_t> MaxWorker::Chunk(uint64_t index) const {
  const size_t at = index * lease().lanes;
  return values_.subspan(at, std::min<size_t>(lease().lanes, values_.size() - at));
}

void MaxWorker::Build(uint64_t index, PacketHeader*, std::span<std::byte> payload) {
  const std::span<uint32_t> chunk = Chunk(index);
  std::copy(chunk.begin(), chunk.end(), lanes_.begin());
  std::fill(lanes_.begin() + static_cast<ptrdiff_t>(chunk.size()), lanes_.end(), 0);
  StoreLanes(lanes_, lease().little_endian, payload);
}

Status MaxWorker::AcceptChunk(uint64_t index, const Packet& packet) {
  const std::span<uint32_t> chunk = Chunk(index);
  LoadLanes(packet.payload, lease().little_endian, lanes_);
  for (size_t i = 0; i < chunk.size(); ++i) {
    if (lanes_[i] < chunk[i]) {
      return DataLoss(StrCat("rank ", rank(), ": greatest of ", Describe(packet.header), " lane ",
                             i, ": expected at least ", chunk[i], ", found ", lanes_[i]));
    }
    chunk[i] = lanes_[i];
  }
  return OkStatus();
}

}  // namespace weir::aggregation
