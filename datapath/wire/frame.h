// SPDX-License-Identifier: Apache-2.0
#pragma once
// The header in front of every message between ranks. Bytes: proto/WIRE.md section 1.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include "datapath/base/status.h"

namespace weir {

enum class FrameType : uint8_t {
  kHello = 1,  // first frame of a connection: names job, rank and world
  kData = 2,   // one message of a collective operation
  kAbort = 3,  // the sender failed; payload: a text that names the rank at fault
  kProof = 4,  // proves that the dialer holds the job's key; ends the handshake
};

/// Announces that plan `version` becomes active at the start of step `step` (DESIGN section 6).
/// Version 0 announces nothing.
struct ControlWord {
  uint64_t version = 0;
  uint64_t step = 0;
  friend bool operator==(const ControlWord&, const ControlWord&) = default;
};

/// The contribution of some rank to this operation holds NaN or infinity, so all ranks skip the
/// step.
inline constexpr uint16_t kFlagNonFinite = 1;

/// The high octet of a frame's flags says how many of the operations that come next its sender has
/// ready to send: bit 7 + n is set where it has fewer than n. Flags that ranks forward are joined
/// bit by bit, so that in the end they hold the least number of any rank. Thread-safe, O(1).
inline constexpr int kReadyOperationsMax = 8;
constexpr uint16_t ReadyFlags(int ready) {
  return static_cast<uint16_t>((0xFFu << std::min(ready, kReadyOperationsMax) & 0xFFu) << 8);
}
constexpr int ReadyOperations(uint16_t flags) { return std::countr_zero((flags >> 8) | 0x100u); }

struct FrameHeader {
  FrameType type = FrameType::kData;
  uint16_t flags = 0;
  uint16_t source_rank = 0;
  uint32_t slot = 0;          // position inside the operation, the same on both sides
  uint32_t message = 0;       // messages of this operation sent to this receiver before
  uint64_t plan_version = 0;  // the same on both sides
  uint64_t op_sequence = 0;   // number of the operation in the job, the same on all ranks
  uint64_t bucket = 0;        // key of the bucket
  ControlWord control;
  uint32_t payload_bytes = 0;
  uint32_t payload_checksum = 0;
};

inline constexpr size_t kFrameHeaderBytes = 72;
/// Collectives split longer messages. A header that claims a longer payload is kDataLoss.
inline constexpr uint32_t kFramePayloadBytesMax = 1u << 30;

/// The protection of a header and its payload.
enum class FrameCheck : uint8_t {
  kChecksums,  // one of the header and one of the payload, both in the header
  kTag,        // the tag behind the frame (frame_seal.h); the header's checksums are 0
};

/// Writes `header`, with its checksum for kChecksums and with 0 for kTag. Thread-safe, O(1).
void EncodeFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out,
                       FrameCheck check = FrameCheck::kChecksums);

/// Parses a header. Verifies magic, version, type, the bound of the size and the header checksum,
/// or for kTag that the checksums are 0. kDataLoss names the field and what was expected and found.
/// Thread-safe, O(1).
StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                        FrameCheck check = FrameCheck::kChecksums);

/// The low 32 bits of a hash that detects damage, not forgery; proto/WIRE.md section 1 defines it.
/// Thread-safe, O(n).
uint32_t Checksum(std::span<const std::byte> bytes);

/// Describes a header in error messages, such as "plan 3 op 17 message 4 slot 2 bucket
/// 00c0ffee00c0ffee from rank 1".
std::string Describe(const FrameHeader& header);

}  // namespace weir
