// XXH3 with 512-bit vectors. CMake compiles this file with -mavx512f on x86-64; nothing else may
// live here, for its code runs only after the CPU was asked.

#include "datapath/wire/checksum_kernels.h"

#if defined(__AVX512F__)
#include "datapath/wire/checksum_kernels.inc"

namespace weir {
const ChecksumKernels* Avx512ChecksumKernels() {
  return __builtin_cpu_supports("avx512f") ? &kKernels : nullptr;
}
}  // namespace weir
#else
namespace weir {
const ChecksumKernels* Avx512ChecksumKernels() { return nullptr; }
}  // namespace weir
#endif
