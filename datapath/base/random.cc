// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/random.h"

#include <cmath>

namespace weir {

uint64_t Random::Next() {
  const uint64_t value = Mix64(state_);
  state_ += 0x9E3779B97F4A7C15ull;
  return value;
}

uint64_t Random::Below(uint64_t bound) {
  // Lemire's multiply-shift with rejection.
  unsigned __int128 product = static_cast<unsigned __int128>(Next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<unsigned __int128>(Next()) * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

double Random::Normal() {
  const double u = 1.0 - Uniform();  // (0, 1]: the logarithm is finite
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * Uniform());
}

}  // namespace weir
