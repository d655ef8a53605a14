// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/table_lanes_worker.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/check.h"

namespace weir::aggregation {
namespace {

int GreatestLevel(const Lease& lease) {
  return *std::max_element(lease.levels.begin(), lease.levels.end());
}

}  // namespace

TableLanesWorker::TableLanesWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : ChunkWorker(lease, limits, rank),
      lane_bytes_(static_cast<size_t>(lease.sum_bits) / 8),
      half_(GreatestLevel(lease) / 2) {
  WEIR_CHECK(lease.mode == PacketMode::kTable && GreatestLevel(lease) % 2 == 0);
}

LevelLanes TableLanesWorker::AsLevels(std::span<const std::byte> lanes) const {
  return {.in = lanes.data(),
          .count = lanes.size() / lane_bytes_,
          .lane_bytes = lane_bytes_,
          .levels = lease().levels.data(),
          .half = half_};
}

bool TableLanesWorker::Carries(std::span<const std::byte> lanes) const {
  return lanes.size() % lane_bytes_ == 0 && AreLevels(AsLevels(lanes));
}

Status TableLanesWorker::Begin(std::span<const std::byte> lanes, std::span<std::byte> sums,
                               uint32_t operation, TimePoint deadline) {
  if (lanes.size() != sums.size()) {
    return InvalidArgument(StrCat("operation ", operation, ": expected room for ", lanes.size(),
                                  " bytes of sums, found ", sums.size()));
  }
  const size_t packets = (lanes.size() + packet_lane_bytes() - 1) / packet_lane_bytes();
  WEIR_RETURN_IF_ERROR(
      StartChunks({.operation = operation, .packets = packets, .deadline = deadline}));
  lanes_ = lanes;
  sums_ = sums;
  contributors_.assign(packets, 0);
  return OkStatus();
}

void TableLanesWorker::Build(uint64_t index, PacketHeader*, std::span<std::byte> payload) {
  const size_t chunk = packet_lane_bytes();
  const auto lanes = lanes_.subspan(index * chunk, std::min(chunk, lanes_.size() - index * chunk));
  PackLevels(AsLevels(lanes), payload.data());
  // The padding of the last packet goes into sums that no worker reads.
  const size_t packed = (lanes.size() / lane_bytes_ + 1) / 2;
  std::fill(payload.begin() + static_cast<ptrdiff_t>(packed), payload.begin() + lease().lanes / 2,
            std::byte(0));
}

std::span<std::byte> TableLanesWorker::Sums(uint64_t index) const {
  const size_t at = index * packet_lane_bytes();
  return sums_.subspan(at, std::min(packet_lane_bytes(), sums_.size() - at));
}

Status TableLanesWorker::AcceptChunk(uint64_t index, const Packet& packet) {
  uint64_t contributors;
  std::memcpy(&contributors, packet.payload.data(), sizeof contributors);
  contributors = __builtin_bswap64(contributors);
  const int count = std::popcount(contributors);
  const int least = lease().quorum == 0 ? lease().workers : lease().quorum;
  const bool unknown = lease().workers < 64 && contributors >> lease().workers != 0;
  if (count < least || unknown || count != packet.header.contributions) {
    return DataLoss(StrCat("rank ", rank(), ": reply to ", Describe(packet.header), ": expected ",
                           least, " contributions or more among ", lease().workers, ", found ",
                           packet.header.contributions, " of a set of ", count));
  }
  contributors_[index] = contributors;
  const std::span<std::byte> out = Sums(index);
  const std::byte* const in = packet.payload.data() + kContributorBytes;
  const int centre = count * half_;
  if (lane_bytes_ == 1) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::byte>(std::to_integer<int>(in[i]) - centre);
    }
    return OkStatus();
  }
  for (size_t i = 0; i < out.size(); i += 2) {
    uint16_t sum;
    std::memcpy(&sum, in + i, sizeof sum);
    if (!lease().little_endian) sum = __builtin_bswap16(sum);
    const auto lane = static_cast<int16_t>(sum - centre);
    std::memcpy(&out[i], &lane, sizeof lane);
  }
  return OkStatus();
}

Status TableLanesWorker::AcceptChunkLoss(uint64_t index) {
  if (lease().cutoff == Duration::zero()) return ChunkWorker::AcceptChunkLoss(index);
  const std::span<std::byte> out = Sums(index);
  std::fill(out.begin(), out.end(), std::byte(0));
  return OkStatus();
}

}  // namespace weir::aggregation
