// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/frame.h"

#include <cstdio>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"

namespace weir {
namespace {
constexpr uint32_t kMagic = 0x52494557;  // "WEIR" in memory order
constexpr uint8_t kVersion = 3;
constexpr size_t kChecksummedBytes = kFrameHeaderBytes - sizeof(uint32_t);

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}
}  // namespace

void EncodeFrameHeader(const FrameHeader& h, std::span<std::byte, kFrameHeaderBytes> out,
                       FrameCheck check) {
  const bool checksums = check == FrameCheck::kChecksums;
  ByteWriter writer(out);
  writer.Write(kMagic);
  writer.Write(kVersion);
  writer.Write(static_cast<uint8_t>(h.type));
  writer.Write(h.flags);
  writer.Write(h.source_rank);
  writer.Write(uint16_t{0});
  writer.Write(h.slot);
  writer.Write(h.plan_version);
  writer.Write(h.op_sequence);
  writer.Write(h.bucket);
  writer.Write(h.control.version);
  writer.Write(h.control.step);
  writer.Write(h.payload_bytes);
  writer.Write(checksums ? h.payload_checksum : 0u);
  writer.Write(h.message);
  writer.Write(checksums ? Checksum(out.first<kChecksummedBytes>()) : 0u);
  WEIR_CHECK(writer.ok() && writer.offset() == kFrameHeaderBytes);
}

StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                        FrameCheck check) {
  ByteReader reader(bytes);
  FrameHeader h;
  uint32_t magic = 0, checksum = 0;
  uint8_t version = 0, type = 0;
  uint16_t reserved16 = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&magic));
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  WEIR_RETURN_IF_ERROR(reader.Read(&type));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.flags));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.source_rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&reserved16));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.slot));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.plan_version));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.op_sequence));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.bucket));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.control.version));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.control.step));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.payload_bytes));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.payload_checksum));
  WEIR_RETURN_IF_ERROR(reader.Read(&h.message));
  WEIR_RETURN_IF_ERROR(reader.Read(&checksum));
  if (magic != kMagic) {
    return DataLoss(StrCat("frame magic: expected ", Hex(kMagic), ", found ", Hex(magic)));
  }
  if (version != kVersion) {
    return DataLoss(StrCat("frame version: expected ", int{kVersion}, ", found ", int{version}));
  }
  const bool checksums = check == FrameCheck::kChecksums;
  const uint32_t computed = checksums ? Checksum(bytes.first<kChecksummedBytes>()) : 0;
  if (checksum != computed) {
    return DataLoss(StrCat("frame header checksum: expected ", computed, ", found ", checksum));
  }
  if (type < 1 || type > 4) return DataLoss(StrCat("frame type: expected 1..4, found ", int{type}));
  if (reserved16 != 0) {
    return DataLoss(StrCat("frame reserved bytes: expected 0, found ", reserved16));
  }
  if (!checksums && h.payload_checksum != 0) {
    return DataLoss(StrCat("frame payload checksum: expected 0, found ", h.payload_checksum));
  }
  if (h.payload_bytes > kFramePayloadBytesMax) {
    return DataLoss(StrCat("frame payload: expected at most ", kFramePayloadBytesMax,
                           " bytes, found ", h.payload_bytes));
  }
  h.type = static_cast<FrameType>(type);
  return h;
}

std::string Describe(const FrameHeader& h) {
  // Operations that belong to no step (a session's start and its agreements) are numbered from the
  // top.
  constexpr uint64_t kOutsideSteps = uint64_t{1} << 63;
  const std::string op = h.op_sequence < kOutsideSteps ? StrCat(h.op_sequence) : "outside steps";
  return StrCat("plan ", h.plan_version, " op ", op, " message ", h.message, " slot ", h.slot,
                " bucket ", Hex(h.bucket), " from rank ", h.source_rank);
}

}  // namespace weir
