// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "datapath/aggregation/lane_kernels.h"
#include "datapath/aggregation/packet.h"

namespace weir::aggregation {

uint16_t ExponentCode(std::span<const float> chunk) {
  const uint32_t greatest = GreatestMagnitude(chunk.data(), chunk.size());
  if (greatest == 0) return kExponentZero;
  if (greatest >= 0x7F800000u) return kExponentNonFinite;
  int e = 0;
  std::frexp(std::bit_cast<float>(greatest), &e);  // greatest = m * 2^e, 1/2 <= m < 1
  return static_cast<uint16_t>(e + kExponentBias);
}

int LaneBits(int workers) {
  return std::bit_width(static_cast<uint32_t>(std::numeric_limits<int32_t>::max() / workers)) - 1;
}

void Quantise(std::span<const float> chunk, uint16_t code, int bits, std::span<uint32_t> lanes) {
  if (code == kExponentZero || code == kExponentNonFinite) {
    std::fill(lanes.begin(), lanes.end(), 0);
    return;
  }
  // The scale is between 2^-119 and 2^179, so its product with a float is exact in double. The
  // limit has no effect on data that matches its code; otherwise it keeps the conversion to int32
  // defined.
  const LaneGrid grid = {.scale = std::ldexp(1.0, bits - (code - kExponentBias)),
                         .limit = std::ldexp(1.0, bits)};
  RoundLanes(chunk.data(), grid, lanes.data(), chunk.size());
  std::fill(lanes.begin() + static_cast<ptrdiff_t>(chunk.size()), lanes.end(), 0);
}

void Dequantise(std::span<const uint32_t> lanes, uint16_t code, int bits, std::span<float> out) {
  if (code == kExponentZero || code == kExponentNonFinite) {
    const float value = code == kExponentZero ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    std::fill(out.begin(), out.end(), value);
    return;
  }
  const double step = std::ldexp(1.0, code - kExponentBias - bits);
  ScaleLanes(lanes.data(), step, out.data(), out.size());
}

}  // namespace weir::aggregation
