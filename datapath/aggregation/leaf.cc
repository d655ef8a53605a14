// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/leaf.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir::aggregation {
namespace {

/// Re-addresses `packet` to another lease, with these flags and the byte order of the packet.
std::vector<std::byte> Rename(const Packet& packet, const Lease& lease, uint8_t flags,
                              PacketHeader* header) {
  *header = packet.header;
  header->lease = lease.id;
  header->epoch = lease.epoch;
  header->cookie = lease.cookie;
  header->flags = static_cast<uint8_t>((packet.header.flags & kPacketLittleEndian) | flags);
  header->checksum = 0;
  std::vector<std::byte> bytes(kPacketHeaderBytes + packet.payload.size());
  EncodePacketHeader(*header, std::span(bytes).first<kPacketHeaderBytes>());
  std::copy(packet.payload.begin(), packet.payload.end(),
            bytes.begin() + static_cast<ptrdiff_t>(kPacketHeaderBytes));
  if (lease.checked) SealPacket(bytes);
  return bytes;
}

}  // namespace

StatusOr<std::unique_ptr<Leaf>> Leaf::Create(const Lease& below, const Lease& above) {
  WEIR_RETURN_IF_ERROR(Validate(below));
  WEIR_RETURN_IF_ERROR(Validate(above));
  const bool tree = below.mode == PacketMode::kSum || below.mode == PacketMode::kMax;
  if (!tree || below.mode != above.mode || below.slots != above.slots ||
      below.lanes != above.lanes || below.little_endian != above.little_endian ||
      below.world == 0) {
    return InvalidArgument(StrCat(
        "leaf: expected mode 1 or 2 and a world below, and above the same mode, slots, lanes and "
        "byte order; found ",
        static_cast<int>(below.mode), ", ", below.slots, ", ", below.lanes, ", world ", below.world,
        " and above ", static_cast<int>(above.mode), ", ", above.slots, ", ", above.lanes));
  }
  return std::unique_ptr<Leaf>(new Leaf(below, above));
}

Leaf::Leaf(const Lease& below, const Lease& above)
    : below_(below), above_(above), pool_(below), rounds_(size_t{below.slots} * 2) {}

LeafOutput Leaf::OnRequest(int worker, const Packet& packet, TimePoint now) {
  const Outcome outcome = pool_.OnPacket(worker, packet, now);
  const Verdict verdict = outcome.verdict;
  if (verdict == Verdict::kNoticed) return {.to_sender = outcome.reply, .verdict = verdict};
  if (outcome.reply.empty()) return {.verdict = verdict};
  Round& round = RoundOf(packet.header);
  if (verdict == Verdict::kServed) {
    if (!round.result.empty()) return {.to_sender = round.result, .verdict = verdict};
    ++counters_.reforwarded;
    return {.up = round.up, .verdict = verdict};
  }
  // The pool's result is this leaf's contribution at the parent.
  const StatusOr<Packet> sum = DecodePacket(outcome.reply);
  WEIR_CHECK(sum.ok());
  Packet request = *sum;
  request.header.contributions = 0;
  round.up = Rename(request, above_, request.header.flags & kPacketLead, &round.header);
  round.result.clear();
  ++counters_.forwarded;
  // The parent cannot detect that a sum wrapped here, so the workers are told now.
  if ((sum->header.flags & kPacketOverflow) != 0) {
    request.header.contributions = static_cast<uint16_t>(WorldOf(below_));
    PacketHeader ignored;
    round.result = Rename(
        request, below_,
        static_cast<uint8_t>((request.header.flags & kPacketLead) | kPacketReply | kPacketOverflow),
        &ignored);
    return {.to_all = round.result, .verdict = verdict};
  }
  return {.up = round.up, .verdict = verdict};
}

LeafOutput Leaf::OnReply(std::span<const std::byte> datagram) {
  const StatusOr<Packet> packet = DecodePacket(datagram);
  if (!packet.ok() || !Fits(above_, packet->header) || (packet->header.flags & kPacketReply) == 0) {
    ++counters_.unexpected;
    return {};
  }
  const PacketHeader& h = packet->header;
  Round& round = RoundOf(h);
  const bool notice = (h.flags & kPacketNotice) != 0;
  if (round.up.empty() || !round.result.empty() || h.round != round.header.round ||
      h.operation != round.header.operation || h.offset != round.header.offset) {
    ++counters_.unexpected;
    return {};
  }
  Packet result = *packet;
  if (!notice) result.header.contributions = static_cast<uint16_t>(WorldOf(below_));
  PacketHeader ignored;
  constexpr uint8_t kKept = kPacketReply | kPacketOverflow | kPacketNotice | kPacketLead;
  round.result = Rename(result, below_, h.flags & kKept, &ignored);
  ++counters_.delivered;
  return {.to_all = round.result};
}

}  // namespace weir::aggregation
