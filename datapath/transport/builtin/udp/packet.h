#pragma once
// The datagrams between two ranks: how they look and what makes one believable. Bytes:
// proto/WIRE.md section 1.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir::udp {

enum class DatagramType : uint8_t {
  kHello = 1,    // asks to connect
  kRetry = 2,    // says: ask again, with this cookie
  kAnswer = 3,   // accepts
  kRefusal = 4,  // says why not
  kPacket = 5,   // acknowledges, carries the stream, asks for a sign of life
};

inline constexpr size_t kPrefixBytes = 16;
inline constexpr size_t kHandshakeBytes = 64;
inline constexpr size_t kPacketHeaderBytes = 48;
/// Every path must carry this much: a hello is padded to it. Without the headers of UDP and IP.
inline constexpr size_t kDatagramBytesMin = 1200;
/// An Ethernet jumbo frame's, over IPv6.
inline constexpr size_t kDatagramBytesMax = 8952;
inline constexpr size_t kAckRangesMax = 32;
inline constexpr size_t kAckBytesMax = 8 + 8 * kAckRangesMax;
inline constexpr size_t kRefusalTextMax = kDatagramBytesMin - kHandshakeBytes;

/// What every datagram begins with.
struct Prefix {
  DatagramType type = DatagramType::kPacket;
  uint64_t connection = 0;  // the receiver's name for it; 0 in a hello
};

/// kDataLoss: too short or long, a wrong checksum, magic, version or type. Thread-safe, O(n).
StatusOr<Prefix> DecodePrefix(std::span<const std::byte> datagram);

/// Hello, retry, answer and refusal.
struct Handshake {
  DatagramType type = DatagramType::kHello;
  uint64_t connection = 0;  // of the receiver; 0 in a hello
  uint64_t job = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t expected_peer = 0;   // UINT32_MAX: the sender answers
  uint32_t datagram_bytes = 0;  // the longest that the sender takes
  uint64_t own_connection = 0;  // how the sender wants its packets to be addressed
  uint64_t cookie = 0;          // in a retry, and in the hello that follows
  uint64_t window = 0;          // stream bytes that may be sent to the sender before it says more
  std::string text = {};        // of a refusal, printable
};

/// A whole datagram; a refusal's text is cut to kRefusalTextMax.
std::vector<std::byte> EncodeHandshake(const Handshake& handshake);
/// After DecodePrefix. kDataLoss: a packet, a wrong size, a datagram size or connection that cannot
/// be.
StatusOr<Handshake> DecodeHandshake(std::span<const std::byte> datagram);

/// Packet numbers first .. last, both acknowledged.
struct AckRange {
  uint64_t first;
  uint64_t last;
};

struct Packet {
  uint64_t connection = 0;
  uint64_t number = 0;  // counted from 1 in each direction, none is used twice
  bool ping = false;    // wants an acknowledgement though it carries nothing
  bool end = false;     // the stream ends behind the payload
  uint64_t window = 0;  // the peer may send stream bytes below this offset
  uint64_t offset = 0;  // of the payload in the stream
  uint32_t ack_delay_us = 0;
  uint16_t marks = 0;    // how many packets came marked by the network (ECN), modulo 2^16
  size_t ack_count = 0;  // of `acks`, which descend and do not touch
  std::array<AckRange, kAckRangesMax> acks;
  std::span<const std::byte> payload;  // of whoever was decoded

  /// Wants to be acknowledged.
  bool eliciting() const { return ping || end || !payload.empty(); }
};

/// Octets in front of the payload.
inline size_t PacketHeaderBytes(size_t ack_count) {
  return kPacketHeaderBytes + (ack_count == 0 ? 0 : 8 + 8 * ack_count);
}
/// Writes all in front of the payload, whose place is then known; Seal ends it. No range may lie
/// more than 2^32 - 1 numbers below the one before it.
void EncodePacketHeader(const Packet& packet, std::span<std::byte> out);
/// Writes the checksum of a datagram that is otherwise complete. O(n).
void Seal(std::span<std::byte> datagram);

/// After DecodePrefix. kDataLoss: what no sender sends. `packet.payload` points into `datagram`.
Status DecodePacket(std::span<const std::byte> datagram, Packet* packet);

}  // namespace weir::udp
