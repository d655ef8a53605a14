#include "datapath/transport/builtin/verbs/hello.h"

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/wire/frame.h"

namespace weir::verbs {
namespace {
constexpr uint32_t kMagic = 0x52494557;  // "WEIR"
constexpr uint32_t kVersion = 1;
constexpr size_t kCheckedBytes = kHelloBytes - sizeof(uint32_t);
}  // namespace

std::array<std::byte, kHelloBytes> EncodeHello(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes;
  ByteWriter writer(bytes);
  writer.Write(kMagic);
  writer.Write(kVersion);
  writer.Write(hello.job);
  writer.Write(hello.rank);
  writer.Write(hello.world);
  writer.Write(hello.expected_peer);
  writer.Write(hello.window.slot_bytes);
  writer.Write(hello.window.slots);
  writer.Write(Checksum(std::span(bytes).first(kCheckedBytes)));
  WEIR_CHECK(writer.ok() && writer.offset() == kHelloBytes);
  return bytes;
}

StatusOr<Hello> DecodeHello(std::span<const std::byte> bytes) {
  if (bytes.size() < kHelloBytes) {
    return DataLoss(StrCat("hello: expected ", kHelloBytes, " bytes, found ", bytes.size()));
  }
  ByteReader reader(bytes);
  uint32_t magic = 0, version = 0, checksum = 0;
  Hello hello;
  WEIR_RETURN_IF_ERROR(reader.Read(&magic));
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  if (magic != kMagic) return DataLoss(StrCat("hello: expected magic ", kMagic, ", found ", magic));
  if (version != kVersion) {
    return DataLoss(StrCat("hello: expected version ", kVersion, ", found ", version));
  }
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.job));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.world));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.expected_peer));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.window.slot_bytes));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.window.slots));
  WEIR_RETURN_IF_ERROR(reader.Read(&checksum));
  const uint32_t expected = Checksum(bytes.first(kCheckedBytes));
  if (checksum != expected) {
    return DataLoss(StrCat("hello: expected checksum ", expected, ", found ", checksum));
  }
  const Window& window = hello.window;
  if (window.slot_bytes < kSlotBytesMin || window.slot_bytes > kSlotBytesMax) {
    return DataLoss(StrCat("hello: expected slots of ", kSlotBytesMin, "..", kSlotBytesMax,
                           " bytes, found ", window.slot_bytes));
  }
  if (window.slots < kSlotsMin || window.slots > kSlotsMax) {
    return DataLoss(
        StrCat("hello: expected ", kSlotsMin, "..", kSlotsMax, " slots, found ", window.slots));
  }
  return hello;
}

}  // namespace weir::verbs
