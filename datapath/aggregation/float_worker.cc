// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/float_worker.h"

#include <algorithm>
#include <bit>

#include "datapath/base/check.h"

namespace weir::aggregation {

FloatWorker::FloatWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : ChunkWorker(lease, limits, rank) {
  WEIR_CHECK(lease.mode == PacketMode::kFloat);
}

Status FloatWorker::Begin(std::span<float> data, uint32_t operation, TimePoint deadline) {
  const uint64_t packets = (data.size() + lease().lanes - 1) / lease().lanes;
  WEIR_RETURN_IF_ERROR(
      StartChunks({.operation = operation, .packets = packets, .deadline = deadline}));
  data_ = data;
  return OkStatus();
}

std::span<float> FloatWorker::Chunk(uint64_t index) const {
  const size_t at = index * lease().lanes;
  return data_.subspan(at, std::min<size_t>(lease().lanes, data_.size() - at));
}

void FloatWorker::Build(uint64_t index, PacketHeader*, std::span<std::byte> payload) {
  const std::span<float> chunk = Chunk(index);
  for (size_t i = 0; i < lease().lanes; ++i) {
    const uint32_t bits = i < chunk.size() ? std::bit_cast<uint32_t>(chunk[i]) : 0;
    StoreLanes({&bits, 1}, lease().little_endian, payload.subspan(i * 4));
  }
}

Status FloatWorker::AcceptChunk(uint64_t index, const Packet& packet) {
  if ((packet.header.flags & kPacketOverflow) != 0) {
    return DataLoss(
        StrCat("rank ", rank(), ": a mantissa does not fit in ", Describe(packet.header)));
  }
  const std::span<float> chunk = Chunk(index);
  for (size_t i = 0; i < chunk.size(); ++i) {
    uint32_t bits;
    LoadLanes(packet.payload.subspan(i * 4), lease().little_endian, {&bits, 1});
    chunk[i] = std::bit_cast<float>(bits);
  }
  return OkStatus();
}

}  // namespace weir::aggregation
