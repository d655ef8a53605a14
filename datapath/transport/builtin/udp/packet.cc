#include "datapath/transport/builtin/udp/packet.h"

#include <algorithm>
#include <cstring>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/transport/mesh/frames.h"
#include "datapath/wire/frame.h"

namespace weir::udp {
namespace {

constexpr std::array<std::byte, 2> kMagic = {std::byte{'W'}, std::byte{'U'}};
constexpr uint8_t kVersion = 3;
constexpr size_t kChecksumBytes = 4;
// Offsets and numbers stay far from overflow, so that sums of them need no checks.
constexpr uint64_t kPositionMax = uint64_t{1} << 62;

enum PacketFlag : uint8_t { kHasAcks = 1, kPing = 2, kEnd = 4, kFlagsAll = 7 };

Status Expected(std::string_view what, uint64_t expected, uint64_t found) {
  return DataLoss(StrCat("datagram ", what, ": expected ", expected, ", found ", found));
}

void WritePrefix(ByteWriter& writer, DatagramType type, uint64_t connection) {
  writer.Write(uint32_t{0});  // the checksum's place
  writer.Write(kMagic);
  writer.Write(kVersion);
  writer.Write(static_cast<uint8_t>(type));
  writer.Write(connection);
}

// The ranges descend; each is told by the numbers missing before it and by its length.
Status DecodeAcks(ByteReader& reader, size_t count, Packet* packet) {
  uint64_t largest = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&largest));
  if (largest > kPositionMax) return DataLoss(StrCat("datagram acknowledges number ", largest));
  uint64_t last = largest;
  for (size_t i = 0; i < count; ++i) {
    uint32_t gap = 0, length = 0;
    WEIR_RETURN_IF_ERROR(reader.Read(&gap));
    WEIR_RETURN_IF_ERROR(reader.Read(&length));
    if ((gap == 0) != (i == 0)) return DataLoss(StrCat("datagram ack range ", i, " has gap ", gap));
    if (length == 0 || last < uint64_t{gap} + length) {
      return DataLoss(StrCat("datagram ack range ", i, ": ", length, " numbers below ", last));
    }
    last -= gap;
    packet->acks[i] = {last - length + 1, last};
    last -= length;
  }
  packet->ack_count = count;
  return OkStatus();
}

}  // namespace

StatusOr<Prefix> DecodePrefix(std::span<const std::byte> datagram) {
  if (datagram.size() < kPrefixBytes || datagram.size() > kDatagramBytesMax) {
    return DataLoss(StrCat("datagram of ", datagram.size(), " bytes; expected ", kPrefixBytes, "..",
                           kDatagramBytesMax));
  }
  ByteReader reader(datagram);
  uint32_t checksum = 0;
  std::array<std::byte, 2> magic;
  uint8_t version = 0, type = 0;
  Prefix prefix;
  WEIR_RETURN_IF_ERROR(reader.Read(&checksum));
  WEIR_RETURN_IF_ERROR(reader.Read(&magic));
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  WEIR_RETURN_IF_ERROR(reader.Read(&type));
  WEIR_RETURN_IF_ERROR(reader.Read(&prefix.connection));
  if (magic != kMagic) return DataLoss("datagram of another protocol");
  if (version != kVersion) return Expected("version", kVersion, version);
  if (type < static_cast<uint8_t>(DatagramType::kHello) ||
      type > static_cast<uint8_t>(DatagramType::kPacket)) {
    return DataLoss(StrCat("datagram of unknown type ", type));
  }
  const uint32_t found = Checksum(datagram.subspan(kChecksumBytes));
  if (found != checksum) return Expected("checksum", checksum, found);
  prefix.type = static_cast<DatagramType>(type);
  return prefix;
}

void Seal(std::span<std::byte> datagram) {
  const uint32_t checksum = Checksum(datagram.subspan(kChecksumBytes));
  std::memcpy(datagram.data(), &checksum, kChecksumBytes);
}

// ---- handshakes

std::vector<std::byte> EncodeHandshake(const Handshake& handshake) {
  const std::string_view text = std::string_view(handshake.text).substr(0, kRefusalTextMax);
  const bool hello = handshake.type == DatagramType::kHello;
  std::vector<std::byte> datagram(hello ? kDatagramBytesMin : kHandshakeBytes + text.size());
  ByteWriter writer(datagram);
  WritePrefix(writer, handshake.type, handshake.connection);
  writer.Write(handshake.job);
  writer.Write(handshake.rank);
  writer.Write(handshake.world);
  writer.Write(handshake.expected_peer);
  writer.Write(handshake.datagram_bytes);
  writer.Write(handshake.own_connection);
  writer.Write(handshake.cookie);
  writer.Write(handshake.window);
  if (!hello) writer.WriteBytes(std::as_bytes(std::span(text)));
  WEIR_CHECK(writer.ok());
  Seal(datagram);
  return datagram;
}

StatusOr<Handshake> DecodeHandshake(std::span<const std::byte> datagram) {
  WEIR_ASSIGN_OR_RETURN(const Prefix prefix, DecodePrefix(datagram));
  Handshake handshake;
  handshake.type = prefix.type;
  handshake.connection = prefix.connection;
  ByteReader reader(datagram.subspan(kPrefixBytes));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.job));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.world));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.expected_peer));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.datagram_bytes));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.own_connection));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.cookie));
  WEIR_RETURN_IF_ERROR(reader.Read(&handshake.window));
  if (handshake.datagram_bytes < kDatagramBytesMin ||
      handshake.datagram_bytes > kDatagramBytesMax) {
    return DataLoss(StrCat("datagram size: expected ", kDatagramBytesMin, "..", kDatagramBytesMax,
                           ", found ", handshake.datagram_bytes));
  }
  if (handshake.window > kPositionMax) return DataLoss("datagram window cannot be");
  const size_t rest = reader.remaining();
  switch (handshake.type) {
    case DatagramType::kHello:  // padded, so that no answer to it is longer
      if (datagram.size() == kDatagramBytesMin) return handshake;
      return Expected("bytes of a hello", kDatagramBytesMin, datagram.size());
    case DatagramType::kRetry:
    case DatagramType::kAnswer:
      if (rest == 0) return handshake;
      return Expected("bytes", kHandshakeBytes, datagram.size());
    case DatagramType::kRefusal:
      if (rest > kRefusalTextMax) return Expected("refusal bytes", kRefusalTextMax, rest);
      handshake.text = mesh::PrintableText(reader.rest());
      return handshake;
    case DatagramType::kPacket:
      break;
  }
  return DataLoss("datagram is no handshake");
}

// ---- packets

void EncodePacketHeader(const Packet& packet, std::span<std::byte> out) {
  ByteWriter writer(out);
  WritePrefix(writer, DatagramType::kPacket, packet.connection);
  writer.Write(packet.number);
  const int flags =
      (packet.ack_count > 0 ? kHasAcks : 0) | (packet.ping ? kPing : 0) | (packet.end ? kEnd : 0);
  writer.Write(static_cast<uint8_t>(flags));
  writer.Write(static_cast<uint8_t>(packet.ack_count));
  writer.Write(packet.marks);
  writer.Write(packet.ack_delay_us);
  writer.Write(packet.window);
  writer.Write(packet.offset);
  if (packet.ack_count > 0) writer.Write(packet.acks[0].last);
  for (size_t i = 0; i < packet.ack_count; ++i) {
    const AckRange& range = packet.acks[i];
    const uint64_t gap = i == 0 ? 0 : packet.acks[i - 1].first - range.last - 1;
    writer.Write(static_cast<uint32_t>(gap));
    writer.Write(static_cast<uint32_t>(range.last - range.first + 1));
  }
  WEIR_CHECK(writer.ok());
}

Status DecodePacket(std::span<const std::byte> datagram, Packet* packet) {
  if (datagram.size() < kPacketHeaderBytes) {
    return Expected("bytes of a packet, at least", kPacketHeaderBytes, datagram.size());
  }
  ByteReader reader(datagram.subspan(kPrefixBytes - sizeof packet->connection));
  uint8_t flags = 0, count = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&packet->connection));
  WEIR_RETURN_IF_ERROR(reader.Read(&packet->number));
  WEIR_RETURN_IF_ERROR(reader.Read(&flags));
  WEIR_RETURN_IF_ERROR(reader.Read(&count));
  WEIR_RETURN_IF_ERROR(reader.Read(&packet->marks));
  WEIR_RETURN_IF_ERROR(reader.Read(&packet->ack_delay_us));
  WEIR_RETURN_IF_ERROR(reader.Read(&packet->window));
  WEIR_RETURN_IF_ERROR(reader.Read(&packet->offset));
  if ((flags & ~kFlagsAll) != 0) return DataLoss("datagram flags are unknown");
  if (packet->number == 0 || packet->number > kPositionMax || packet->offset > kPositionMax ||
      packet->window > kPositionMax) {
    return DataLoss("datagram positions cannot be");
  }
  if (count > kAckRangesMax || (count > 0) != ((flags & kHasAcks) != 0)) {
    return DataLoss(StrCat("datagram of ", count, " ack ranges; expected at most ", kAckRangesMax));
  }
  packet->ping = (flags & kPing) != 0;
  packet->end = (flags & kEnd) != 0;
  packet->ack_count = 0;
  if (count > 0) WEIR_RETURN_IF_ERROR(DecodeAcks(reader, count, packet));
  packet->payload = reader.rest();
  return OkStatus();
}

}  // namespace weir::udp
