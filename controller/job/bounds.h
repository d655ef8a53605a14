// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bounds of what agents and ranks may say about a job.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

constexpr int kWorldMax = 4096;
constexpr int kTableBucketsMax = 16384;
constexpr int kCapabilitiesMax = 256;
constexpr int kLabelsMax = 32;
constexpr uint32_t kBitsMax = 64;
constexpr size_t kNameBytesMax = 253;

/// `value`, or 0 when it is not finite.
double Finite(double value);
/// kInvalidArgument unless `name` has 1 to 253 bytes, none of them a control character.
Status CheckName(std::string_view what, std::string_view name);

}  // namespace weir
