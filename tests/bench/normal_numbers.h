// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradients for benchmarks.

#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/base/random.h"

namespace weir::bench {

/// Fills x with normal numbers of standard deviation 0.01. One long period is repeated, because
/// drawing all numbers would take longer than the benchmark.
inline void FillNormal(std::span<float> x, uint64_t seed) {
  constexpr size_t kPeriod = 1'000'003;
  Random random(seed);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = i < kPeriod ? static_cast<float>(0.01 * random.Normal()) : x[i - kPeriod];
  }
}

}  // namespace weir::bench
