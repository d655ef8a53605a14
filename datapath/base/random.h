// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counter-based random numbers: a value depends only on (seed, counter), so every rank, SIMD target
// and replay draws the same numbers without shared state.

#include <cstdint>

namespace weir {

/// One round of the SplitMix64 finaliser: a bijection of 64-bit integers with full avalanche.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
constexpr uint64_t Mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// A seed for (a, b), such as (bucket key, step). Not symmetric.
constexpr uint64_t MixSeed(uint64_t a, uint64_t b) {
  return Mix64(Mix64(a) ^ (b + 0xD1B54A32D192ED03ull));
}

/// A sequence of 64-bit values from a seed. Not thread-safe; copyable.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed)) {}
  uint64_t Next();
  /// Uniform in [0, bound), bound >= 1, without modulo bias.
  uint64_t Below(uint64_t bound);
  /// Uniform in [0, 1).
  double Uniform();
  /// Standard normal (Box-Muller).
  double Normal();

 private:
  uint64_t state_;
};

}  // namespace weir
