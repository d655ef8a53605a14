#pragma once
// The instruction sets that XXH3 is compiled for; chosen once, at run time. All give equal results.

#include <cstddef>
#include <cstdint>

namespace weir {

struct ChecksumKernels {
  uint64_t (*hash)(const void* bytes, size_t size);
  void (*reset)(void* state);
  void (*update)(void* state, const void* bytes, size_t size);
  uint64_t (*digest)(const void* state);
};

const ChecksumKernels& BaselineChecksumKernels();
/// Null where the CPU or the compiler lacks AVX2 and AVX-512.
const ChecksumKernels* Avx2ChecksumKernels();
const ChecksumKernels* Avx512ChecksumKernels();

}  // namespace weir
