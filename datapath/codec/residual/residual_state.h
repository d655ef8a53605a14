// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parses the bytes of exported residuals (proto/WIRE.md section 3).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/codec/residual/error_feedback.h"

namespace weir {

inline constexpr uint32_t kResidualMagic = 0x53455257;  // "WRES"
inline constexpr uint32_t kResidualVersion = 3;
inline constexpr size_t kResidualHeaderBytes = 12, kResidualChecksumBytes = 4;
inline constexpr size_t kResidualEntryFixedBytes = 13;  // kind, name length, elements
inline constexpr size_t kResidualCodecFixedBytes = 28;  // bucket, ratio, bits, two lengths
inline constexpr uint32_t kResidualNameBytesMax = 4096;
/// The names of the kinds of entries, by number.
inline constexpr std::array kResidualKindNames = {"residual", "momentum", "ef21 memory",
                                                  "ef21 estimate", "aggregate residual"};

/// The key in hexadecimal: "00c0ffee00c0ffee".
std::string BucketKeyName(uint64_t key);

/// One parsed entry of an exported state. It refers to the bytes of the state.
struct ResidualEntry {
  uint8_t kind = 0;
  std::string name;
  uint64_t elements = 0;
  std::span<const std::byte> floats;
};

struct ResidualState {
  std::vector<ResidualEntry> entries;   // names are distinct within a kind
  std::vector<SavedCodecState> codecs;  // ascending by bucket
};

/// Parses and checks an exported state. kDataLoss with the offset: it is malformed, of another
/// version or corrupt. Thread-safe. O(bytes).
StatusOr<ResidualState> ParseResidualState(std::span<const std::byte> bytes);

}  // namespace weir
