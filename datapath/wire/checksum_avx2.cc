// XXH3 with 256-bit vectors. CMake compiles this file with -mavx2 on x86-64; nothing else may live
// here, for its code runs only after the CPU was asked.

#include "datapath/wire/checksum_kernels.h"

#if defined(__AVX2__)
#include "datapath/wire/checksum_kernels.inc"

namespace weir {
const ChecksumKernels* Avx2ChecksumKernels() {
  return __builtin_cpu_supports("avx2") ? &kKernels : nullptr;
}
}  // namespace weir
#else
namespace weir {
const ChecksumKernels* Avx2ChecksumKernels() { return nullptr; }
}  // namespace weir
#endif
