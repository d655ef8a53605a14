#pragma once
// The scale of half-precision lanes, which the codecs of the host and of the device share.

#include <bit>
#include <cstdint>

namespace weir {

/// The factor from a value to its lane, and the largest lane of one rank.
struct HalfScale {
  float scale;
  float limit;

  explicit HalfScale(int world) {
    const int halvings = std::bit_width(static_cast<unsigned>(world - 1));
    scale = std::bit_cast<float>(static_cast<uint32_t>(127 - halvings) << 23);
    // Rounded down to 11 significant bits, so that the conversion does not round it up.
    const float share = 65504.0f / static_cast<float>(world);
    limit = std::bit_cast<float>(std::bit_cast<uint32_t>(share) & 0xFFFFE000u);
  }
};

}  // namespace weir
