// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/packet.h"

#include <array>
#include <bit>
#include <cstring>

#include "datapath/aggregation/lane_kernels.h"
#include "datapath/base/check.h"
#include "datapath/wire/frame.h"

namespace weir::aggregation {
namespace {

constexpr uint16_t kPacketMagic = 0x5741;  // "WA"
constexpr uint8_t kPacketVersion = 2;
constexpr size_t kChecksumAt = 44;
constexpr uint8_t kFlagsKnown = kPacketReply | kPacketLittleEndian | kPacketChecked |
                                kPacketOverflow | kPacketNotice | kPacketLead;

constexpr uint8_t Swap(uint8_t v) { return v; }
constexpr uint16_t Swap(uint16_t v) { return __builtin_bswap16(v); }
constexpr uint32_t Swap(uint32_t v) { return __builtin_bswap32(v); }
constexpr uint64_t Swap(uint64_t v) { return __builtin_bswap64(v); }

// Fields have fixed places in a complete header, so the compiler turns these into plain loads and
// stores. A cursor that can fail would cost a call for each field.
template <typename T>
void Put(T value, std::byte* at) {
  const T wire = Swap(value);
  std::memcpy(at, &wire, sizeof wire);
}

template <typename T>
T Get(const std::byte* at) {
  T wire;
  std::memcpy(&wire, at, sizeof wire);
  return Swap(wire);
}

uint32_t PacketChecksum(std::span<const std::byte> packet) {
  // The packet is joined first, because at this size hashing pieces costs more than copying them.
  // The buffer is aligned as vectors are; otherwise the loads of the hash would cross the stores of
  // the copy and stall.
  alignas(64) std::array<std::byte, kPacketBytesMax> joined;
  const size_t payload = packet.size() - kPacketHeaderBytes;
  WEIR_CHECK(packet.size() <= joined.size());
  std::memcpy(joined.data(), packet.data(), kChecksumAt);
  if (payload > 0) {
    std::memcpy(joined.data() + kChecksumAt, packet.data() + kPacketHeaderBytes, payload);
  }
  return Checksum(std::span(joined).first(kChecksumAt + payload));
}

Status Wrong(std::string_view field, std::string_view expected, uint64_t found) {
  return DataLoss(StrCat("packet ", field, ": expected ", expected, ", found ", found));
}

/// Rejects flags that contradict each other or the mode, which aggregators could read differently.
Status CheckFlags(const PacketHeader& h) {
  const bool reply = (h.flags & kPacketReply) != 0;
  if ((h.flags & ~kFlagsKnown) != 0) return Wrong("flags", "known ones", h.flags);
  if (!reply && (h.flags & (kPacketOverflow | kPacketNotice)) != 0) {
    return Wrong("flags", "no overflow and no notice in a request", h.flags);
  }
  if ((h.flags & kPacketLead) != 0 && h.mode != PacketMode::kSum) {
    return Wrong("flags", "a lead in mode 1 only", h.flags);
  }
  if (!reply && h.contributions != 0) return Wrong("contributions", "0", h.contributions);
  if (h.contributions > kWorldMax) return Wrong("contributions", "at most 4096", h.contributions);
  return OkStatus();
}

Status CheckShape(const PacketHeader& h) {
  if ((h.flags & kPacketNotice) != 0) {
    if (h.detail < 1 || h.detail > 2) return Wrong("notice", "1 or 2", h.detail);
    return OkStatus();
  }
  if (h.lanes == 0) return Wrong("lanes", "at least 1", 0);
  switch (h.mode) {
    case PacketMode::kSum:
    case PacketMode::kMax:
    case PacketMode::kFloat:
      if (h.lanes > kPacketLanesMax) return Wrong("lanes", "at most 256", h.lanes);
      if (h.detail != 0) return Wrong("detail", "0", h.detail);
      break;
    case PacketMode::kTable:
      if (h.detail != 8 && h.detail != 16) return Wrong("sum bits", "8 or 16", h.detail);
      if (h.lanes % 2 != 0) return Wrong("lanes", "an even number", h.lanes);
      if (h.lanes > kPacketTableLanesMax * 8 / h.detail) {
        return Wrong("lanes", "at most 1024 of 8 or 512 of 16 bits", h.lanes);
      }
      break;
    case PacketMode::kSparse:
      if (h.columns == 0 || h.columns > kColumnsMax) {
        return Wrong("columns", "1 .. 32", h.columns);
      }
      if (size_t{h.lanes} * h.columns > kPacketLanesMax) {
        return Wrong("lanes", "at most 256 in all columns", h.lanes);
      }
      if (uint64_t{h.detail} >> h.columns != 0) {
        return Wrong("set of columns", "those that exist", h.detail);
      }
      break;
  }
  if (h.mode != PacketMode::kSparse && h.columns != 0) return Wrong("columns", "0", h.columns);
  return OkStatus();
}

PacketHeader ReadFields(const std::byte* at) {
  PacketHeader h;
  h.mode = static_cast<PacketMode>(at[3]);
  h.flags = Get<uint8_t>(at + 4);
  h.columns = Get<uint8_t>(at + 5);
  h.lease = Get<uint16_t>(at + 6);
  h.epoch = Get<uint32_t>(at + 8);
  h.cookie = Get<uint64_t>(at + 12);
  h.slot = Get<uint16_t>(at + 20);
  h.lanes = Get<uint16_t>(at + 22);
  h.round = Get<uint32_t>(at + 24);
  h.operation = Get<uint32_t>(at + 28);
  h.offset = Get<uint32_t>(at + 32);
  h.contributions = Get<uint16_t>(at + 36);
  h.exponent = Get<uint16_t>(at + 38);
  h.detail = Get<uint32_t>(at + 40);
  h.checksum = Get<uint32_t>(at + kChecksumAt);
  return h;
}

}  // namespace

size_t PayloadBytes(const PacketHeader& h) {
  if ((h.flags & (kPacketNotice | kPacketLead)) != 0) return 0;
  switch (h.mode) {
    case PacketMode::kSum:
    case PacketMode::kMax:
    case PacketMode::kFloat:
      return size_t{h.lanes} * 4;
    case PacketMode::kTable:
      if ((h.flags & kPacketReply) == 0) return h.lanes / 2;
      return kContributorBytes + size_t{h.lanes} * h.detail / 8;
    case PacketMode::kSparse:
      return size_t{h.columns} * 4 + std::popcount(h.detail) * size_t{h.lanes} * 4;
  }
  return 0;
}

void EncodePacketHeader(const PacketHeader& h, std::span<std::byte, kPacketHeaderBytes> out) {
  std::byte* const at = out.data();
  Put(kPacketMagic, at);
  Put(kPacketVersion, at + 2);
  Put(static_cast<uint8_t>(h.mode), at + 3);
  Put(h.flags, at + 4);
  Put(h.columns, at + 5);
  Put(h.lease, at + 6);
  Put(h.epoch, at + 8);
  Put(h.cookie, at + 12);
  Put(h.slot, at + 20);
  Put(h.lanes, at + 22);
  Put(h.round, at + 24);
  Put(h.operation, at + 28);
  Put(h.offset, at + 32);
  Put(h.contributions, at + 36);
  Put(h.exponent, at + 38);
  Put(h.detail, at + 40);
  Put(uint32_t{0}, at + kChecksumAt);
}

void SealPacket(std::span<std::byte> packet) {
  WEIR_CHECK(packet.size() >= kPacketHeaderBytes);
  WEIR_CHECK(packet.size() <= kPacketBytesMax);
  packet[4] |= std::byte{kPacketChecked};
  // For the hash, the header moves up over its checksum, so that all hashed bytes are contiguous.
  std::array<std::byte, kChecksumAt> header;
  std::memcpy(header.data(), packet.data(), kChecksumAt);
  std::memcpy(packet.data() + sizeof(uint32_t), header.data(), kChecksumAt);
  const uint32_t checksum = Checksum(packet.subspan(sizeof(uint32_t)));
  std::memcpy(packet.data(), header.data(), kChecksumAt);
  Put(checksum, packet.data() + kChecksumAt);
}

StatusOr<Packet> DecodePacket(std::span<const std::byte> datagram) {
  if (datagram.size() < kPacketHeaderBytes) {
    return Wrong("length", "a header of 48 octets", datagram.size());
  }
  const auto magic = Get<uint16_t>(datagram.data());
  if (magic != kPacketMagic) return Wrong("magic", "22337", magic);
  const auto version = std::to_integer<uint8_t>(datagram[2]);
  if (version != kPacketVersion) return Wrong("version", StrCat(int{kPacketVersion}), version);
  const auto mode = std::to_integer<uint8_t>(datagram[3]);
  if (mode < 1 || mode > 5) return Wrong("mode", "1 .. 5", mode);
  Packet packet{.header = ReadFields(datagram.data()),
                .payload = datagram.subspan(kPacketHeaderBytes)};
  const PacketHeader& h = packet.header;
  WEIR_RETURN_IF_ERROR(CheckFlags(h));
  WEIR_RETURN_IF_ERROR(CheckShape(h));
  if (packet.payload.size() != PayloadBytes(h)) {
    return Wrong("payload", StrCat(PayloadBytes(h), " octets"), packet.payload.size());
  }
  if ((h.flags & kPacketChecked) == 0) {
    if (h.checksum != 0) return Wrong("checksum", "0 where it does not count", h.checksum);
  } else if (const uint32_t computed = PacketChecksum(datagram); computed != h.checksum) {
    return Wrong("checksum", StrCat(computed), h.checksum);
  }
  return packet;
}

std::string Describe(const PacketHeader& h) {
  return StrCat("lease ", h.lease, " epoch ", h.epoch, " slot ", h.slot, " round ", h.round,
                " operation ", h.operation, " offset ", h.offset);
}

void LoadLanes(std::span<const std::byte> payload, bool little_endian, std::span<uint32_t> lanes) {
  WEIR_CHECK(payload.size() >= lanes.size_bytes());
  if (lanes.empty()) return;
  const std::span<std::byte> out = std::as_writable_bytes(lanes);
  if (!little_endian) return SwapLanes(payload.data(), out.data(), lanes.size());
  std::memcpy(out.data(), payload.data(), out.size());
}

void StoreLanes(std::span<const uint32_t> lanes, bool little_endian, std::span<std::byte> payload) {
  WEIR_CHECK(payload.size() >= lanes.size_bytes());
  if (lanes.empty()) return;
  const std::span<const std::byte> in = std::as_bytes(lanes);
  if (!little_endian) return SwapLanes(in.data(), payload.data(), lanes.size());
  if (payload.data() != in.data()) std::memcpy(payload.data(), in.data(), in.size());
}

}  // namespace weir::aggregation
