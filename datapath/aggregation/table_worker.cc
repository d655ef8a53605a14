// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/table_worker.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/check.h"

namespace weir::aggregation {

TableWorker::TableWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : ChunkWorker(lease, limits, rank),
      centre_(0.5f *
              static_cast<float>(*std::max_element(lease.levels.begin(), lease.levels.end()))) {
  WEIR_CHECK(lease.mode == PacketMode::kTable);
}

Status TableWorker::Begin(std::span<const uint8_t> indices, std::span<float> means,
                          uint32_t operation, TimePoint deadline) {
  if (indices.size() != means.size()) {
    return InvalidArgument(StrCat("operation ", operation, ": expected ", indices.size(),
                                  " means, found ", means.size()));
  }
  const auto large = std::find_if(indices.begin(), indices.end(),
                                  [](uint8_t index) { return index >= kTableLevels; });
  if (large != indices.end()) {
    return InvalidArgument(StrCat("operation ", operation, ": index of element ",
                                  large - indices.begin(), ": expected at most 15, found ",
                                  int{*large}));
  }
  const uint64_t packets = (indices.size() + lease().lanes - 1) / lease().lanes;
  WEIR_RETURN_IF_ERROR(
      StartChunks({.operation = operation, .packets = packets, .deadline = deadline}));
  indices_ = indices;
  means_ = means;
  contributors_.assign(packets, 0);
  return OkStatus();
}

std::span<float> TableWorker::Means(uint64_t index) const {
  const size_t at = index * lease().lanes;
  return means_.subspan(at, std::min<size_t>(lease().lanes, means_.size() - at));
}

void TableWorker::Build(uint64_t index, PacketHeader*, std::span<std::byte> payload) {
  const size_t at = index * lease().lanes;
  for (size_t i = 0; i < lease().lanes; i += 2) {
    const uint8_t even = at + i < indices_.size() ? indices_[at + i] : 0;
    const uint8_t odd = at + i + 1 < indices_.size() ? indices_[at + i + 1] : 0;
    payload[i / 2] = static_cast<std::byte>(even << 4 | odd);
  }
}

Status TableWorker::AcceptChunk(uint64_t index, const Packet& packet) {
  uint64_t contributors;
  std::memcpy(&contributors, packet.payload.data(), sizeof contributors);
  contributors = __builtin_bswap64(contributors);
  const int count = std::popcount(contributors);
  const bool unknown = lease().workers < 64 && contributors >> lease().workers != 0;
  if (count == 0 || unknown || count != packet.header.contributions) {
    return DataLoss(StrCat("rank ", rank(), ": reply to ", Describe(packet.header),
                           ": expected contributors among ", lease().workers, ", found ",
                           packet.header.contributions, " in the set ", contributors));
  }
  contributors_[index] = contributors;
  const std::span<const std::byte> sums = packet.payload.subspan(kContributorBytes);
  const std::span<float> means = Means(index);
  for (size_t i = 0; i < means.size(); ++i) {
    uint16_t sum = std::to_integer<uint8_t>(sums[i]);
    if (lease().sum_bits == 16) {
      std::memcpy(&sum, sums.data() + i * 2, sizeof sum);
      if (!lease().little_endian) sum = __builtin_bswap16(sum);
    }
    means[i] = static_cast<float>(sum) / static_cast<float>(count) - centre_;
  }
  return OkStatus();
}

Status TableWorker::AcceptChunkLoss(uint64_t index) {
  const std::span<float> means = Means(index);
  std::fill(means.begin(), means.end(), 0.0f);
  return OkStatus();
}

}  // namespace weir::aggregation
