// Datagrams from arbitrary bytes: decoding never crashes, what it accepts encodes to the same
// bytes, and a link survives whatever well-formed packets say.

#include <cstdlib>
#include <cstring>

#include "datapath/base/check.h"
#include "datapath/transport/builtin/udp/link.h"

namespace {

using namespace weir;

void CheckHandshake(std::span<const std::byte> datagram) {
  const StatusOr<udp::Handshake> handshake = udp::DecodeHandshake(datagram);
  if (!handshake.ok()) {
    WEIR_CHECK(handshake.status().code() == StatusCode::kDataLoss);
    return;
  }
  const std::vector<std::byte> again = udp::EncodeHandshake(*handshake);
  WEIR_CHECK(again.size() == datagram.size());
  const StatusOr<udp::Handshake> twice = udp::DecodeHandshake(again);
  WEIR_CHECK(twice.ok() && twice->own_connection == handshake->own_connection);
}

void CheckPacket(std::span<const std::byte> datagram) {
  udp::Packet packet;
  if (!udp::DecodePacket(datagram, &packet).ok()) return;
  const size_t head = udp::PacketHeaderBytes(packet.ack_count);
  WEIR_CHECK(head + packet.payload.size() == datagram.size());
  std::vector<std::byte> again(head);
  udp::EncodePacketHeader(packet, again);
  WEIR_CHECK(std::memcmp(again.data() + 4, datagram.data() + 4, head - 4) == 0);
}

}  // namespace

// The input is a row of datagrams, each with its length in two octets before it. Checksum, magic
// and version are put right, because random ones never fit.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TimePoint now(std::chrono::seconds(1));
  udp::Link::Options options;
  options.send_bytes = options.receive_bytes = options.peer_window = 8192;
  udp::Link link(options, now);
  std::byte bytes[6000] = {};
  const iovec part = {bytes, sizeof bytes};
  link.Write(std::span(&part, 1));
  while (size >= 2) {
    const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
    std::vector<std::byte> datagram(length);
    if (length > 0) std::memcpy(datagram.data(), data + 2, length);
    data += 2 + length;
    size -= 2 + length;
    (void)udp::DecodePrefix(datagram);
    if (length < udp::kPrefixBytes) continue;
    std::memcpy(datagram.data() + 4, "WU\2", 3);
    udp::Seal(datagram);
    const StatusOr<udp::Prefix> prefix = udp::DecodePrefix(datagram);
    if (!prefix.ok()) continue;
    if (prefix->type != udp::DatagramType::kPacket) {
      CheckHandshake(datagram);
      continue;
    }
    CheckPacket(datagram);
    now += std::chrono::microseconds(100);
    link.OnDatagram(datagram, now);
    link.OnTimer(now);
    std::byte out[udp::kDatagramBytesMax];
    for (int i = 0; i < 8 && link.NextDatagram(now, out) > 0; ++i) {
    }
    WEIR_CHECK(link.NextTimer(now) >= now);
    const iovec room = {out, 100};
    link.Read(std::span(&room, 1));
  }
  return 0;
}
