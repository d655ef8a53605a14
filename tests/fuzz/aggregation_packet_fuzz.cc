// SPDX-License-Identifier: Apache-2.0
// Aggregation packets from arbitrary datagrams: decoding never crashes, and what it accepts encodes
// to the same bytes.

#include <array>
#include <cstring>
#include <vector>

#include "datapath/aggregation/packet.h"
#include "datapath/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  using namespace weir::aggregation;
  std::vector<std::byte> datagram(size);
  if (size > 0) std::memcpy(datagram.data(), data, size);
  // A random checksum is never right, so half of the inputs that can be packets get a right one.
  const bool packet_sized = size >= kPacketHeaderBytes && size <= kPacketBytesMax;
  if (packet_sized && (data[size - 1] & 1) != 0) SealPacket(datagram);
  const StatusOr<Packet> packet = DecodePacket(datagram);
  if (!packet.ok()) {
    WEIR_CHECK(packet.status().code() == StatusCode::kDataLoss);
    return 0;
  }
  WEIR_CHECK(size == kPacketHeaderBytes + PayloadBytes(packet->header));
  WEIR_CHECK(size <= kPacketBytesMax);
  std::vector<std::byte> again = datagram;
  EncodePacketHeader(packet->header, std::span(again).first<kPacketHeaderBytes>());
  if ((packet->header.flags & kPacketChecked) != 0) SealPacket(again);
  WEIR_CHECK(again == datagram);
  return 0;
}
