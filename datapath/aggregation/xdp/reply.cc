// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/xdp/reply.h"

#include <cstring>

#include "datapath/aggregation/xdp/kernel_maps.h"

namespace weir::aggregation {
namespace {

// Converts lanes from the order of kernel_maps.h to the lease's byte order.
void WriteLanes(const Lease& lease, const weir_xdp_set& set, std::span<std::byte> payload) {
  if (lease.mode == PacketMode::kSum) {
    uint64_t words[WEIR_XDP_STATE_WORDS];
    for (size_t i = 0; i < WEIR_XDP_STATE_WORDS; ++i) {
      words[i] = lease.little_endian ? set.state[i] : __builtin_bswap64(set.state[i]);
    }
    std::memcpy(payload.data(), words, size_t{lease.lanes} * 4);
    return;
  }
  const uint64_t contributors = __builtin_bswap64(set.contributors);
  std::memcpy(payload.data(), &contributors, sizeof contributors);
  const std::span<std::byte> sums = payload.subspan(kContributorBytes);
  std::memcpy(sums.data(), set.state, sums.size());
  if (lease.sum_bits == 8 || lease.little_endian) return;
  for (size_t i = 0; i + 1 < sums.size(); i += 2) std::swap(sums[i], sums[i + 1]);
}

}  // namespace

std::vector<std::byte> XdpReply(const Lease& lease, const weir_xdp_request& request,
                                const weir_xdp_slot& slot) {
  const int64_t round = request.round;
  const weir_xdp_set& set = slot.sets[round & 1];
  if (round > slot.newest || round + 1 < slot.newest || set.complete == 0) return {};
  PacketHeader header = RequestHeader(lease);
  header.flags |= kPacketReply;
  if (set.lead != 0) header.flags |= kPacketLead;
  if (set.overflow != 0) header.flags |= kPacketOverflow;
  header.slot = static_cast<uint16_t>(request.slot);
  header.round = request.round;
  header.operation = __builtin_bswap32(set.operation);
  header.offset = __builtin_bswap32(set.offset);
  header.contributions = set.count;
  header.exponent = set.exponent;
  std::vector<std::byte> reply(kPacketHeaderBytes + PayloadBytes(header));
  EncodePacketHeader(header, std::span(reply).first<kPacketHeaderBytes>());
  if (set.lead == 0) WriteLanes(lease, set, std::span(reply).subspan(kPacketHeaderBytes));
  return reply;
}

}  // namespace weir::aggregation
