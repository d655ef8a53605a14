// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/passes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace weir {

bool FitsDtype(std::span<const float> x, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return true;
  // The smallest magnitudes that round to infinity.
  const float limit = dtype == Dtype::kFloat16 ? 65520.0f : 0x1.FFp127f;
  bool fits = true;
  for (const float value : x) fits &= std::fabs(value) < limit;
  return fits;
}

double BlockDensityOf(std::span<const float> x, size_t block) {
  size_t blocks = 0, held = 0;
  for (size_t at = 0; at < x.size(); at += block) {
    const auto part = x.subspan(at, std::min(block, x.size() - at));
    held += std::any_of(part.begin(), part.end(), [](float value) { return value != 0; });
    ++blocks;
  }
  return blocks == 0 ? 0 : static_cast<double>(held) / static_cast<double>(blocks);
}

}  // namespace weir
