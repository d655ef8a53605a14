#include "datapath/aggregation/table_lanes_worker.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/check.h"

namespace weir::aggregation {
namespace {

constexpr uint8_t kNoIndex = 0xFF;

int GreatestLevel(const Lease& lease) {
  return *std::max_element(lease.levels.begin(), lease.levels.end());
}

}  // namespace

TableLanesWorker::TableLanesWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : ChunkWorker(lease, limits, rank),
      lane_bytes_(static_cast<size_t>(lease.sum_bits) / 8),
      half_(GreatestLevel(lease) / 2) {
  WEIR_CHECK(lease.mode == PacketMode::kTable && GreatestLevel(lease) % 2 == 0);
  index_.fill(kNoIndex);
  for (size_t i = 0; i < lease.levels.size(); ++i) {
    uint8_t& index = index_[lease.levels[i]];
    if (index == kNoIndex) index = static_cast<uint8_t>(i);  // short tables repeat a level
  }
}

template <typename Lane>
uint8_t TableLanesWorker::IndexOf(const std::byte* lane) const {
  Lane value;
  std::memcpy(&value, lane, sizeof value);
  const auto level = static_cast<unsigned>(value + half_);
  return level < index_.size() ? index_[level] : kNoIndex;
}

template <typename Lane>
bool TableLanesWorker::AllCarried(std::span<const std::byte> lanes) const {
  unsigned greatest = 0;
  for (size_t at = 0; at < lanes.size(); at += sizeof(Lane)) {
    greatest = std::max<unsigned>(greatest, IndexOf<Lane>(&lanes[at]));
  }
  return greatest < kTableLevels;
}

bool TableLanesWorker::Carries(std::span<const std::byte> lanes) const {
  if (lanes.size() % lane_bytes_ != 0) return false;
  return lane_bytes_ == 1 ? AllCarried<int8_t>(lanes) : AllCarried<int16_t>(lanes);
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

// The even element in the high four bits. What fills up the last packet is in nobody's sum.
template <typename Lane>
void TableLanesWorker::Pack(std::span<const std::byte> lanes, std::span<std::byte> payload) const {
  const size_t pairs = lanes.size() / (2 * sizeof(Lane));
  for (size_t i = 0; i < pairs; ++i) {
    const std::byte* const pair = &lanes[2 * i * sizeof(Lane)];
    payload[i] =
        static_cast<std::byte>(IndexOf<Lane>(pair) << 4 | IndexOf<Lane>(pair + sizeof(Lane)));
  }
  std::fill(payload.begin() + static_cast<ptrdiff_t>(pairs), payload.end(), std::byte(0));
  if (lanes.size() % (2 * sizeof(Lane)) != 0) {
    const std::byte* const last = &lanes[2 * pairs * sizeof(Lane)];
    payload[pairs] = static_cast<std::byte>(IndexOf<Lane>(last) << 4);
  }
}

void TableLanesWorker::Build(uint64_t index, PacketHeader*, std::span<std::byte> payload) {
  const size_t chunk = packet_lane_bytes();
  const auto lanes = lanes_.subspan(index * chunk, std::min(chunk, lanes_.size() - index * chunk));
  const std::span<std::byte> indices = payload.first(lease().lanes / size_t{2});
  if (lane_bytes_ == 1) {
    Pack<int8_t>(lanes, indices);
  } else {
    Pack<int16_t>(lanes, indices);
  }
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
  const bool strangers = lease().workers < 64 && contributors >> lease().workers != 0;
  if (count < least || strangers || count != packet.header.contributions) {
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
