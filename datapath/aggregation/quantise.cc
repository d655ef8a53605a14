#include "datapath/aggregation/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "datapath/aggregation/packet.h"

namespace weir::aggregation {

uint16_t ExponentCode(std::span<const float> chunk) {
  // Magnitudes order as their bits do; infinity and NaN lie above all others.
  uint32_t greatest = 0;
  for (const float x : chunk) {
    greatest = std::max(greatest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu);
  }
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
  // 2^-119 .. 2^179 times a float: exact in double.
  const double scale = std::ldexp(1.0, bits - (code - kExponentBias));
  // A double of this size has no bits below the unit, so adding it rounds as the hardware does.
  constexpr double kUnit = 6755399441055744.0;  // 1.5 * 2^52
  const double limit = std::ldexp(1.0, bits);
  for (size_t i = 0; i < chunk.size(); ++i) {
    // The clamp never changes a number whose code was honest; it keeps the cast defined.
    const double scaled = std::clamp(chunk[i] * scale, -limit, limit);
    lanes[i] = static_cast<uint32_t>(static_cast<int32_t>((scaled + kUnit) - kUnit));
  }
  std::fill(lanes.begin() + static_cast<ptrdiff_t>(chunk.size()), lanes.end(), 0);
}

void Dequantise(std::span<const uint32_t> lanes, uint16_t code, int bits, std::span<float> out) {
  if (code == kExponentZero || code == kExponentNonFinite) {
    const float value = code == kExponentZero ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    std::fill(out.begin(), out.end(), value);
    return;
  }
  const double step = std::ldexp(1.0, code - kExponentBias - bits);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(static_cast<int32_t>(lanes[i]) * step);
  }
}

}  // namespace weir::aggregation
