// SPDX-License-Identifier: Apache-2.0
// Tensor homomorphic compression with uniform levels. Blocks of 1024 elements are rotated by a
// randomised Hadamard transform whose signs all ranks share, which makes coordinates nearly normal.
// Let M be the largest root mean square of any rank's gradient + residual, and t the range of the
// setting. Coordinates are clamped to +-t * M and rounded at random to one of 2L + 1 levels, such
// that lanes can hold the sum of all ranks. The loss by clamping and rounding stays in the
// residual, in the domain of the input.
// Payload: RotatedElements(n) lanes of 8, 16 or 4 bits (proto/WIRE.md section 3).
// Source: Li et al., "THC", NSDI 2024, sections 4 and 5.2; deviates: there is a level at zero;
// there are as many levels as the world permits (the paper: 16 in 4 bits upwards, 8 bits downwards;
// an all-reduce has one width for both); the range follows from the number of levels in place of a
// fixed tail; tails are padded to a power of two.

#include <array>

#include "datapath/codec/rotated_lanes.h"
#include "datapath/codec/thc_table.h"

namespace weir {
namespace {

/// The range with the least expected squared error for L levels on each side, to the nearest 0.05;
/// fewer levels clip more. These are literals, because payload bytes depend on them; the test
/// recomputes them.
struct Range {
  int levels;
  float range;
};
constexpr std::array kRanges = {
    Range{2047, 5.0f}, Range{511, 4.5f}, Range{127, 3.75f}, Range{63, 3.45f}, Range{42, 3.25f},
    Range{31, 3.1f},   Range{25, 3.0f},  Range{21, 2.9f},   Range{18, 2.8f},  Range{15, 2.7f},
    Range{14, 2.65f},  Range{12, 2.6f},  Range{11, 2.55f},  Range{10, 2.5f},  Range{9, 2.4f},
    Range{8, 2.35f},   Range{7, 2.25f},  Range{6, 2.15f},   Range{5, 2.05f},  Range{4, 1.9f},
    Range{3, 1.75f},   Range{2, 1.45f},  Range{1, 1.0f}};

float RangeOf(int levels) {
  for (const Range& each : kRanges) {
    if (each.levels == levels) return each.range;
  }
  WEIR_CHECK(!"no range for this number of levels");
  return 0;
}

struct Worlds {
  int min, max;
};

std::unique_ptr<Codec> MakeThcUniform() {
  CodecTraits traits = {
      .name = "thc_uniform",
      .summary = "rotated, shared norm, uniform summable lanes (Li et al. 2024)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .shared_block = static_cast<int>(kernels::kRotationElements),
      .settings = {},
      .error_model = ErrorModel::kRelative,
      .rotated = true,
  };
  std::vector<RotatedLevels> levels;
  const auto add = [&](int bits, Worlds worlds) {
    const int centre = ((1 << (bits - 1)) - 1) / worlds.max;
    const double range = RangeOf(centre);
    std::vector<int> all(2 * centre + 1);
    for (int i = 0; i <= 2 * centre; ++i) all[i] = i;
    const double error =
        ThcRoundingError({.bits = 8, .granularity = 2 * centre, .range = range}, all) +
        ThcClippingError(range);
    traits.settings.push_back({.bits = bits,
                               .fixed_bits = static_cast<double>(bits),
                               .relative_error_squared = error,
                               .world_min = worlds.min,
                               .world_max = worlds.max});
    levels.push_back({.range = static_cast<float>(range), .centre = centre});
  };
  // All world sizes that permit the same number of levels share a setting.
  for (const int most : {127, 7}) {
    if (most == 7) {
      add(16, {1, 16});
      add(16, {17, 64});
      add(16, {65, 256});
      add(16, {257, 1024});
      add(16, {1025, 4096});
    }
    for (int first = 1; first <= most;) {
      const int last = most / (most / first);
      add(most == 127 ? 8 : 4, {first, last});
      first = last + 1;
    }
  }
  return std::make_unique<RotatedLaneCodec>(std::move(traits), std::move(levels));
}

}  // namespace

void RegisterThcUniform(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, MakeThcUniform());
}

}  // namespace weir
