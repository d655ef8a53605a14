// SPDX-License-Identifier: Apache-2.0
#pragma once
// Passes over every element of a gradient. They are compiled for speed, while the rest of this
// directory is compiled for a short build.

#include <cstddef>
#include <span>

#include "datapath/session/bucket_table.h"

namespace weir {

/// Whether every element stays finite when rounded to `dtype`. O(n); thread-safe.
bool FitsDtype(std::span<const float> x, Dtype dtype);

/// The share of blocks that hold a value other than zero; 0 if `x` is empty. A block has `block`
/// elements (at least 1), the last one perhaps fewer. Reads a block up to its first such value:
/// O(n) for zeros, O(n / block) for a dense gradient. Thread-safe.
double BlockDensityOf(std::span<const float> x, size_t block);

}  // namespace weir
