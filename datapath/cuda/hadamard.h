// SPDX-License-Identifier: Apache-2.0
#pragma once
// The randomised Hadamard transform of datapath/codec/kernels/hadamard.h in shared memory. Every
// coordinate gets the same additions in the same order as on the host, so the bytes are the same.

#include "datapath/base/random.h"
#include "datapath/codec/kernels/hadamard.h"
#include "datapath/cuda/team.h"

namespace weir::cuda {

inline constexpr unsigned kRotation = kernels::kRotationElements;
/// The number of rotations that a team transforms at the same time.
inline constexpr unsigned kRotations = 2;

/// Shared memory of a team. A free word after every 32 keeps threads that read runs of 16 elements
/// out of each other's banks.
struct RotatedTile {
  static constexpr unsigned kWords = kRotation + kRotation / 32;
  float words[kRotations * kWords];
  uint32_t signs[kRotations * kRotation / 32];

  WEIR_DEVICE float& At(unsigned rotation, unsigned i) {
    return words[rotation * kWords + i + i / 32];
  }
  /// The sign bit of element i, to be exchanged with that of its value.
  WEIR_DEVICE uint32_t SignOf(unsigned rotation, unsigned i) const {
    return signs[(rotation * kRotation + i) / 32] >> (i % 32) << 31;
  }
};

/// Draws the signs of rotations `first` and later.
WEIR_DEVICE inline void DrawSigns(Team& team, RotatedTile& tile, uint64_t seed, uint64_t first) {
  constexpr unsigned kPairs = kRotation / 64;
  team.ForEach(kRotations * kPairs, [&](unsigned i) {
    const uint64_t bits = MixSeed(seed, first * kPairs + i);
    tile.signs[2 * i] = static_cast<uint32_t>(bits);
    tile.signs[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
  });
}

/// The levels with strides kCount / 2 to 1 of kCount values.
template <unsigned kCount>
WEIR_DEVICE inline void Butterflies(float (&v)[kCount]) {
  WEIR_UNROLL
  for (unsigned stride = kCount / 2; stride > 0; stride /= 2) {
    WEIR_UNROLL
    for (unsigned j = 0; j < kCount; ++j) {
      if ((j & stride) != 0) continue;
      const float a = v[j], b = v[j + stride];
      v[j] = a + b;
      v[j + stride] = a - b;
    }
  }
}

/// The levels of all whole rotations of the tile, each in eight values per thread, then sixteen.
/// The first three levels are those with strides 512, 256 and 128.
WEIR_DEVICE inline void TransformWhole(Team& team, RotatedTile& tile) {
  constexpr unsigned kStep = kRotation / 8;
  team.ForEach(kRotations * kStep, [&](unsigned i) {
    const unsigned rotation = i / kStep, at = i % kStep;
    float v[8];
    WEIR_UNROLL
    for (unsigned k = 0; k < 8; ++k) v[k] = tile.At(rotation, at + k * kStep);
    Butterflies(v);
    WEIR_UNROLL
    for (unsigned k = 0; k < 8; ++k) tile.At(rotation, at + k * kStep) = v[k];
  });
  team.ForEach(kRotations * kStep, [&](unsigned i) {
    const unsigned rotation = i / kStep, at = i % kStep / 16 * 128 + i % 16;
    float v[8];
    WEIR_UNROLL
    for (unsigned k = 0; k < 8; ++k) v[k] = tile.At(rotation, at + k * 16);
    Butterflies(v);
    WEIR_UNROLL
    for (unsigned k = 0; k < 8; ++k) tile.At(rotation, at + k * 16) = v[k];
  });
  constexpr unsigned kRuns = kRotation / 16;
  team.ForEach(kRotations * kRuns, [&](unsigned i) {
    const unsigned rotation = i / kRuns, at = i % kRuns * 16;
    float v[16];
    WEIR_UNROLL
    for (unsigned k = 0; k < 16; ++k) v[k] = tile.At(rotation, at + k);
    Butterflies(v);
    WEIR_UNROLL
    for (unsigned k = 0; k < 16; ++k) tile.At(rotation, at + k) = v[k];
  });
}

/// The levels of one rotation of `size` elements, a power of two.
WEIR_DEVICE inline void TransformPart(Team& team, RotatedTile& tile, unsigned rotation,
                                      unsigned size) {
  for (unsigned stride = size / 2; stride > 0; stride /= 2) {
    team.ForEach(size / 2, [&](unsigned i) {
      const unsigned at = i / stride * 2 * stride + i % stride;
      const float a = tile.At(rotation, at), b = tile.At(rotation, at + stride);
      tile.At(rotation, at) = a + b;
      tile.At(rotation, at + stride) = a - b;
    });
  }
}

/// The elements of a tile of rotations, of which the last may be short and padded.
struct RotatedSpan {
  unsigned count;    // elements of the tensor
  unsigned size[2];  // of each rotation with padding; 0: there is none
  static_assert(kRotations == 2);

  WEIR_DEVICE RotatedSpan(size_t at, size_t n)
      : count(n - at < kRotations * kRotation ? static_cast<unsigned>(n - at)
                                              : kRotations * kRotation),
        size{Padded(count < kRotation ? count : kRotation),
             Padded(count < kRotation ? 0 : count - kRotation)} {}

  WEIR_DEVICE unsigned total() const { return size[0] + size[1]; }
  /// The next power of two, at least kernels::kRotationMin; 0 for 0.
  static WEIR_DEVICE unsigned Padded(unsigned count) {
    if (count == 0) return 0;
    unsigned size = kernels::kRotationMin;
    while (size < count) size *= 2;
    return size;
  }
};

/// y = H y for every rotation of the tile.
WEIR_DEVICE inline void Transform(Team& team, RotatedTile& tile, const RotatedSpan& span) {
  if (span.total() == kRotations * kRotation) {
    TransformWhole(team, tile);
    return;
  }
  for (unsigned rotation = 0; rotation < kRotations; ++rotation) {
    TransformPart(team, tile, rotation, span.size[rotation]);
  }
}

}  // namespace weir::cuda
