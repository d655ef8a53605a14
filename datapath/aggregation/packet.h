// SPDX-License-Identifier: Apache-2.0
#pragma once
// Packets between workers and an aggregator in the network. A software aggregator and a P4
// switch share one layout: fixed offsets, network byte order, no optional fields before the lanes,
// and one octet that selects how the rest is parsed. Bytes: proto/WIRE.md section 4.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir::aggregation {

/// The contents of a packet's lanes, and how the aggregator combines them.
enum class PacketMode : uint8_t {
  kSum = 1,     // int32, added modulo 2^32 (SwitchML)
  kMax = 2,     // uint32, the greatest (also bits of non-negative floats, which order alike)
  kTable = 3,   // four-bit indices up, sums of the levels they select down (THC)
  kSparse = 4,  // int32 blocks; blocks of zeros are not sent (OmniReduce)
  kFloat = 5,   // float32, added with separate exponents and mantissas (FPISA)
};

/// Set in packets from the aggregator. An aggregator drops packets with it, a worker those without.
inline constexpr uint8_t kPacketReply = 1;
/// Lanes are little-endian, for aggregators whose adders are. The flag is the same in all packets
/// of a lease.
inline constexpr uint8_t kPacketLittleEndian = 2;
/// The checksum field is valid; without this flag it is 0.
inline constexpr uint8_t kPacketChecked = 4;
/// Some sum did not fit into its lane. Only in replies, from aggregators that detect it.
inline constexpr uint8_t kPacketOverflow = 8;
/// The packet has no payload, and `detail` is a Notice. Only in replies.
inline constexpr uint8_t kPacketNotice = 16;
/// The packet has no payload: it carries only the exponent for a later packet (kSum).
inline constexpr uint8_t kPacketLead = 32;

/// Why the aggregator answers without a result in cases where repeating the packet is of no use.
enum class Notice : uint32_t {
  kMismatch = 1,  // the other workers sum another operation or offset in this slot and round
  kExpired = 2,   // the round ended without this worker, and its result is not kept any more
};

/// The exponent where no finite scale exists, because some element of the chunk is NaN or infinite.
inline constexpr uint16_t kExponentNonFinite = 0xFFFF;

/// The next block of a column in which the worker has no more blocks (kSparse).
inline constexpr uint32_t kNoBlock = 0xFFFFFFFF;

struct PacketHeader {
  PacketMode mode = PacketMode::kSum;
  uint8_t flags = 0;
  uint8_t columns = 0;  // kSparse: 1 .. kColumnsMax blocks per packet; else 0
  uint16_t lease = 0;
  uint32_t epoch = 0;          // of the lease; 0 is never granted
  uint64_t cookie = 0;         // of the lease and epoch; the same for all workers
  uint16_t slot = 0;           // within the lease's range
  uint16_t lanes = 0;          // per packet, or per block (kSparse); given by the lease
  uint32_t round = 0;          // uses of the slot in this epoch before; bit 0 selects the set
  uint32_t operation = 0;      // the same in all contributions to a round, as is `offset`
  uint32_t offset = 0;         // position in the operation's tensor, in packets
  uint16_t contributions = 0;  // in a reply: number of workers in the sum; else 0
  uint16_t exponent = 0;       // kSum: of the chunk that this slot carries next; replies: greatest
  uint32_t detail = 0;  // kTable: bits of a sum; kSparse: set of columns with a block; Notice
  uint32_t checksum = 0;
  friend bool operator==(const PacketHeader&, const PacketHeader&) = default;
};

inline constexpr size_t kPacketHeaderBytes = 48;
inline constexpr size_t kPacketLanesMax = 256;        // of four octets
inline constexpr size_t kPacketTableLanesMax = 1024;  // of one octet; half as many of two
inline constexpr size_t kColumnsMax = 32;
inline constexpr size_t kWorkersMax = 64;  // of one aggregator
inline constexpr size_t kWorldMax = 4096;  // of a tree of aggregators
/// Size of the set of contributing workers, which precedes the sums of kTable.
inline constexpr size_t kContributorBytes = 8;
/// The largest packet, which fits an MTU of 1280 octets under IPv4 and UDP.
inline constexpr size_t kPacketBytesMax = kPacketHeaderBytes + kColumnsMax * 4 + 1024;

/// The number of octets after the header, which follows from the header alone; 0 for a notice or a
/// lead. header: accepted by DecodePacket. Thread-safe, O(1).
size_t PayloadBytes(const PacketHeader& header);

/// Writes the header, with a checksum of 0. Thread-safe, O(1).
void EncodePacketHeader(const PacketHeader& header, std::span<std::byte, kPacketHeaderBytes> out);

/// Sets kPacketChecked and the checksum of a whole packet, computed over all octets but the
/// checksum's. At most kPacketBytesMax octets. O(n).
void SealPacket(std::span<std::byte> packet);

/// A header and a view of its payload in the datagram.
struct Packet {
  PacketHeader header;
  std::span<const std::byte> payload;
};

/// Parses a datagram without trusting it: the payload must have exactly the length that the header
/// implies, and the checksum must be right if the flag says that there is one. The sender and the
/// lease are checked elsewhere. kDataLoss names field, expected and found. The payload is a view of
/// `datagram`. Thread-safe, O(n).
StatusOr<Packet> DecodePacket(std::span<const std::byte> datagram);

/// Describes a packet in messages: "lease 3 epoch 2 slot 5 round 7 operation 9 offset 1".
std::string Describe(const PacketHeader& header);

/// lanes[i] = 32-bit lane i of the payload, which has at least lanes.size() * 4 octets. StoreLanes
/// is the inverse; its arguments may be the same memory.
void LoadLanes(std::span<const std::byte> payload, bool little_endian, std::span<uint32_t> lanes);
void StoreLanes(std::span<const uint32_t> lanes, bool little_endian, std::span<std::byte> payload);

}  // namespace weir::aggregation
