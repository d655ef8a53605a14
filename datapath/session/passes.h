#pragma once
// Passes over every element of a gradient. Compiled to be fast where the rest of this directory is
// compiled to be soon.

#include <cstddef>
#include <span>

#include "datapath/session/bucket_table.h"

namespace weir {

// Statistics of a codec that makes none look at one block in eight: below 1 % of a step.
inline constexpr size_t kSampleBlock = 4096;
inline constexpr size_t kSampleEvery = 8;

/// x *= scale; false when an element is NaN or infinite, before or after. O(n); thread-safe.
bool ScaleFinite(std::span<float> x, float scale);

/// Whether every element stays finite when rounded to `dtype`. O(n); thread-safe.
bool FitsDtype(std::span<const float> x, Dtype dtype);

/// The share of blocks of `block` elements, the last one perhaps shorter, that hold anything but
/// zeros; 0 of nothing. block >= 1. Reads a block up to its first such element: O(n) of zeros, O(n
/// / block) of a dense gradient. Thread-safe.
double BlockDensityOf(std::span<const float> x, size_t block);

/// The sum of squares, estimated from those blocks. Thread-safe.
double SampledEnergy(std::span<const float> x);

}  // namespace weir
