// SPDX-License-Identifier: Apache-2.0
// Frame headers and hellos from arbitrary bytes: decoding never crashes, and what it accepts
// encodes to the same bytes.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "datapath/base/check.h"
#include "datapath/transport/mesh/hello.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

void DecodeHeader(std::array<std::byte, kFrameHeaderBytes> bytes, bool fit, FrameCheck check) {
  // A random checksum is never right, so half of the inputs get a right one and the fields are
  // reached.
  if (fit) {
    const bool checksums = check == FrameCheck::kChecksums;
    if (!checksums) std::memset(bytes.data() + 60, 0, sizeof(uint32_t));
    const uint32_t checksum =
        checksums ? Checksum(std::span(bytes).first(kFrameHeaderBytes - 4)) : 0;
    std::memcpy(bytes.data() + kFrameHeaderBytes - 4, &checksum, sizeof checksum);
  }
  const StatusOr<FrameHeader> header = DecodeFrameHeader(bytes, check);
  if (!header.ok()) {
    WEIR_CHECK(header.status().code() == StatusCode::kDataLoss);
    return;
  }
  WEIR_CHECK(header->payload_bytes <= kFramePayloadBytesMax);
  std::array<std::byte, kFrameHeaderBytes> again;
  EncodeFrameHeader(*header, again, check);
  WEIR_CHECK(again == bytes);
}

void DecodeHelloPayload(std::span<const std::byte> bytes) {
  const StatusOr<mesh::DecodedHello> decoded = mesh::DecodeHello(bytes);
  if (!decoded.ok()) {
    WEIR_CHECK(decoded.status().code() == StatusCode::kDataLoss);
    return;
  }
  std::vector<std::byte> again = mesh::EncodeHelloPayload(decoded->hello);
  again.insert(again.end(), decoded->proof.begin(), decoded->proof.end());
  WEIR_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

}  // namespace
}  // namespace weir

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  std::memcpy(bytes.data(), data, size < bytes.size() ? size : bytes.size());
  const bool fit = size > 0 && (data[size - 1] & 1) != 0;
  DecodeHeader(bytes, fit, FrameCheck::kChecksums);
  DecodeHeader(bytes, fit, FrameCheck::kTag);
  DecodeHelloPayload(std::as_bytes(std::span(data, size)));
  return 0;
}
