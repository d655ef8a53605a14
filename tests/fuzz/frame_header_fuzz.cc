// Frame headers from arbitrary bytes: decoding never crashes, and what it accepts encodes to the
// same bytes.

#include <cstdlib>
#include <cstring>

#include "datapath/base/check.h"
#include "datapath/wire/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  std::memcpy(bytes.data(), data, size < bytes.size() ? size : bytes.size());
  // A random checksum never fits: half of the inputs get a right one, so that the fields are
  // reached.
  if (size > 0 && (data[size - 1] & 1) != 0) {
    const uint32_t checksum = Checksum(std::span(bytes).first(kFrameHeaderBytes - 4));
    std::memcpy(bytes.data() + kFrameHeaderBytes - 4, &checksum, sizeof checksum);
  }
  const StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) {
    WEIR_CHECK(header.status().code() == StatusCode::kDataLoss);
    return 0;
  }
  WEIR_CHECK(header->payload_bytes <= kFramePayloadBytesMax);
  std::array<std::byte, kFrameHeaderBytes> again;
  EncodeFrameHeader(*header, again);
  WEIR_CHECK(again == bytes);
  return 0;
}
