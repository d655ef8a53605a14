#pragma once
// Passes over every element of a gradient. Compiled to be fast where the rest of this directory is
// compiled to be soon.

#include <cstddef>
#include <span>

#include "datapath/session/bucket_table.h"

namespace weir {

/// Whether every element stays finite when rounded to `dtype`. O(n); thread-safe.
bool FitsDtype(std::span<const float> x, Dtype dtype);

/// The share of blocks of `block` elements, the last one perhaps shorter, that hold anything but
/// zeros; 0 of nothing. block >= 1. Reads a block up to its first such element: O(n) of zeros, O(n
/// / block) of a dense gradient. Thread-safe.
double BlockDensityOf(std::span<const float> x, size_t block);

}  // namespace weir
