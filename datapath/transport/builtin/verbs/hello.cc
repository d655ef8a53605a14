// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/hello.h"

#include <algorithm>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/wire/frame.h"

namespace weir::verbs {
namespace {
constexpr uint32_t kMagic = 0x52494557;  // "WEIR"
constexpr uint16_t kVersion = 2;
constexpr uint16_t kHello = 1, kProof = 2;
constexpr size_t kCheckedBytes = kRequestBytes - sizeof(uint32_t);

void WritePrefix(ByteWriter& writer, uint16_t kind) {
  writer.Write(kMagic);
  writer.Write(kVersion);
  writer.Write(kind);
}

Status ReadPrefix(ByteReader& reader, uint16_t expected_kind) {
  uint32_t magic = 0;
  uint16_t version = 0, kind = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&magic));
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  WEIR_RETURN_IF_ERROR(reader.Read(&kind));
  if (magic != kMagic) return DataLoss(StrCat("hello: expected magic ", kMagic, ", found ", magic));
  if (version != kVersion) {
    return DataLoss(StrCat("hello: expected version ", kVersion, ", found ", version));
  }
  if (kind != expected_kind) {
    return DataLoss(StrCat("hello: expected kind ", expected_kind, ", found ", kind));
  }
  return OkStatus();
}

Status CheckWindow(const Window& window) {
  if (window.slot_bytes < kSlotBytesMin || window.slot_bytes > kSlotBytesMax) {
    return DataLoss(StrCat("hello: expected slots of ", kSlotBytesMin, "..", kSlotBytesMax,
                           " bytes, found ", window.slot_bytes));
  }
  if (window.slots < kSlotsMin || window.slots > kSlotsMax) {
    return DataLoss(
        StrCat("hello: expected ", kSlotsMin, "..", kSlotsMax, " slots, found ", window.slots));
  }
  return OkStatus();
}
}  // namespace

Request EncodeHello(const Hello& hello) {
  Request bytes;
  ByteWriter writer(bytes);
  WritePrefix(writer, kHello);
  writer.Write(hello.job);
  writer.Write(hello.rank);
  writer.Write(hello.world);
  writer.Write(hello.expected_peer);
  writer.Write(hello.window.slot_bytes);
  writer.Write(static_cast<uint16_t>(hello.window.slots));
  writer.Write(static_cast<uint16_t>(hello.protection));
  writer.Write(hello.nonce);
  writer.Write(Checksum(std::span(bytes).first(kCheckedBytes)));
  WEIR_CHECK(writer.ok() && writer.offset() == kRequestBytes);
  return bytes;
}

StatusOr<Hello> DecodeHello(std::span<const std::byte> bytes) {
  if (bytes.size() < kRequestBytes) {
    return DataLoss(StrCat("hello: expected ", kRequestBytes, " bytes, found ", bytes.size()));
  }
  ByteReader reader(bytes);
  Hello hello;
  uint16_t slots = 0, protection = 0;
  uint32_t checksum = 0;
  WEIR_RETURN_IF_ERROR(ReadPrefix(reader, kHello));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.job));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.world));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.expected_peer));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.window.slot_bytes));
  WEIR_RETURN_IF_ERROR(reader.Read(&slots));
  WEIR_RETURN_IF_ERROR(reader.Read(&protection));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.nonce));
  WEIR_RETURN_IF_ERROR(reader.Read(&checksum));
  const uint32_t expected = Checksum(bytes.first(kCheckedBytes));
  if (checksum != expected) {
    return DataLoss(StrCat("hello: expected checksum ", expected, ", found ", checksum));
  }
  hello.window.slots = slots;
  WEIR_RETURN_IF_ERROR(CheckWindow(hello.window));
  if (protection > static_cast<uint16_t>(Protection::kEncrypted)) {
    return DataLoss(StrCat("hello: protection: expected 0..2, found ", protection));
  }
  hello.protection = static_cast<Protection>(protection);
  return hello;
}

Challenge EncodeChallenge(const Hello& acceptor, const Secret& proof) {
  Challenge bytes;
  const Request hello = EncodeHello(acceptor);
  std::copy(proof.begin(), proof.end(), std::copy(hello.begin(), hello.end(), bytes.begin()));
  return bytes;
}

bool IsChallenge(std::span<const std::byte> bytes) {
  uint32_t magic = 0;
  return ByteReader(bytes).Read(&magic).ok() && magic == kMagic;
}

StatusOr<DecodedChallenge> DecodeChallenge(std::span<const std::byte> bytes) {
  if (bytes.size() < kChallengeBytes) {
    return DataLoss(
        StrCat("challenge: expected ", kChallengeBytes, " bytes, found ", bytes.size()));
  }
  DecodedChallenge challenge;
  WEIR_ASSIGN_OR_RETURN(challenge.acceptor, DecodeHello(bytes.first(kRequestBytes)));
  WEIR_RETURN_IF_ERROR(ByteReader(bytes.subspan(kRequestBytes)).Read(&challenge.proof));
  return challenge;
}

Request EncodeProof(const HelloNonce& nonce, const Secret& proof) {
  Request bytes;
  ByteWriter writer(bytes);
  WritePrefix(writer, kProof);
  writer.Write(nonce);
  writer.Write(proof);
  WEIR_CHECK(writer.ok() && writer.offset() == kRequestBytes);
  return bytes;
}

bool IsProof(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  return ReadPrefix(reader, kProof).ok();
}

StatusOr<DecodedProof> DecodeProof(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  DecodedProof decoded;
  WEIR_RETURN_IF_ERROR(ReadPrefix(reader, kProof));
  WEIR_RETURN_IF_ERROR(reader.Read(&decoded.nonce));
  WEIR_RETURN_IF_ERROR(reader.Read(&decoded.proof));
  return decoded;
}

}  // namespace weir::verbs
