#pragma once
// Packets between workers and an aggregator in the network. One layout for a software aggregator,
// an XDP program and a P4 switch: fixed offsets, network byte order, nothing optional in front of
// the lanes, one octet that selects how what follows is parsed. Bytes: proto/WIRE.md section 4.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir::aggregation {

/// What the lanes of a packet are and what the aggregator does with them.
enum class PacketMode : uint8_t {
  kSum = 1,     // int32, added modulo 2^32 (SwitchML)
  kMax = 2,     // uint32, the greatest (bits of norms; non-negative floats order as their bits do)
  kTable = 3,   // four-bit indices up, sums of the levels that they name down (THC)
  kSparse = 4,  // int32 blocks of which zero ones stay away (OmniReduce)
  kFloat = 5,   // float32, added with separate exponents and mantissas (FPISA)
};

/// From the aggregator. An aggregator drops what has it, a worker what lacks it.
inline constexpr uint8_t kPacketReply = 1;
/// Lanes are little-endian, all of a lease or none: for aggregators whose adders are.
inline constexpr uint8_t kPacketLittleEndian = 2;
/// The checksum field counts; else it is 0.
inline constexpr uint8_t kPacketChecked = 4;
/// Some sum did not fit into its lane; in a reply only, by aggregators that notice.
inline constexpr uint8_t kPacketOverflow = 8;
/// Header only: `detail` is a Notice. In a reply only.
inline constexpr uint8_t kPacketNotice = 16;
/// Header only: it carries an exponent for a later packet and no lanes of its own (kSum).
inline constexpr uint8_t kPacketLead = 32;

/// Why the aggregator answers without a result; worth telling because repeating will not help.
enum class Notice : uint32_t {
  kMismatch = 1,  // the others sum another operation or offset in this slot and round
  kExpired = 2,   // the round ended without this worker, and its result is gone
};

/// Set in `exponent` when no finite scale exists: some element of the chunk is NaN or infinite.
inline constexpr uint16_t kExponentNonFinite = 0xFFFF;

/// A worker's column is at its end (kSparse).
inline constexpr uint32_t kNoBlock = 0xFFFFFFFF;

struct PacketHeader {
  PacketMode mode = PacketMode::kSum;
  uint8_t flags = 0;
  uint8_t columns = 0;  // kSparse: 1 .. kColumnsMax blocks travel together; else 0
  uint16_t lease = 0;
  uint32_t epoch = 0;   // of the lease; 0 is never granted
  uint64_t cookie = 0;  // of the lease and epoch; says nothing about which worker sends
  uint16_t slot = 0;    // in the lease's range
  uint16_t lanes = 0;   // per packet, or per block (kSparse); the lease's number
  uint32_t round = 0;   // how often the slot was used before in this epoch; bit 0 selects the set
  uint32_t operation = 0;      // all contributions to a round agree on these two,
  uint32_t offset = 0;         // the position in the operation's tensor, in packets
  uint16_t contributions = 0;  // in a reply: workers in the sum; else 0
  uint16_t exponent = 0;       // kSum: of the chunk that this slot carries next; replies: greatest
  uint32_t detail = 0;  // kTable: bits of a sum; kSparse: set of columns with a block; Notice
  uint32_t checksum = 0;
  friend bool operator==(const PacketHeader&, const PacketHeader&) = default;
};

inline constexpr size_t kPacketHeaderBytes = 48;
inline constexpr size_t kPacketLanesMax = 256;        // four octets each
inline constexpr size_t kPacketTableLanesMax = 1024;  // as one octet each; half as many as two
inline constexpr size_t kColumnsMax = 32;
inline constexpr size_t kWorkersMax = 64;  // of one aggregator
inline constexpr size_t kWorldMax = 4096;  // below a tree of aggregators
/// Set of the workers in the sum, in front of the sums of kTable, where workers may be missing.
inline constexpr size_t kContributorBytes = 8;
/// Fits a 1280-octet MTU under IPv4 and UDP.
inline constexpr size_t kPacketBytesMax = kPacketHeaderBytes + kColumnsMax * 4 + 1024;

/// Octets behind the header, which follow from it alone. 0 when a notice or a lead.
/// header: as DecodePacket accepts it. Thread-safe, O(1).
size_t PayloadBytes(const PacketHeader& header);

/// Writes the header, with a checksum of 0. Thread-safe, O(1).
void EncodePacketHeader(const PacketHeader& header, std::span<std::byte, kPacketHeaderBytes> out);

/// Sets kPacketChecked and the checksum of a whole packet: that of all octets but
/// the checksum's. At most kPacketBytesMax octets. O(n).
void SealPacket(std::span<std::byte> packet);

/// A header and where its payload lies in the datagram.
struct Packet {
  PacketHeader header;
  std::span<const std::byte> payload;
};

/// Parses a datagram; trusts nothing: the payload has exactly the length that the header says, and
/// a checksum that counts is right. Who sent it and which lease it belongs to is for others to ask.
/// kDataLoss names field, expected and found. The payload is a view of `datagram`. Thread-safe,
/// O(n).
StatusOr<Packet> DecodePacket(std::span<const std::byte> datagram);

/// "lease 3 epoch 2 slot 5 round 7 operation 9 offset 1", for messages.
std::string Describe(const PacketHeader& header);

/// lanes[i] = the i-th 32-bit lane of the payload, which has lanes.size() * 4 octets or more. Where
/// stored, they may be one place.
void LoadLanes(std::span<const std::byte> payload, bool little_endian, std::span<uint32_t> lanes);
void StoreLanes(std::span<const uint32_t> lanes, bool little_endian, std::span<std::byte> payload);

}  // namespace weir::aggregation
