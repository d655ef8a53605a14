// Chooses the instruction set of the payload checksum and holds the baseline one.

#include "datapath/wire/checksum.h"

#include "datapath/wire/checksum_kernels.h"
#include "datapath/wire/checksum_kernels.inc"
#include "datapath/wire/frame.h"

namespace weir {
namespace {
const ChecksumKernels& Kernels() {
  static const ChecksumKernels& chosen = []() -> const ChecksumKernels& {
    for (const ChecksumKernels* wide : {Avx512ChecksumKernels(), Avx2ChecksumKernels()}) {
      if (wide != nullptr) return *wide;
    }
    return BaselineChecksumKernels();
  }();
  return chosen;
}
}  // namespace

const ChecksumKernels& BaselineChecksumKernels() { return kKernels; }

uint32_t Checksum(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(Kernels().hash(bytes.data(), bytes.size()));
}

void ChecksumStream::Reset() {
  static_assert(sizeof(XXH3_state_t) <= kStateBytes && alignof(XXH3_state_t) <= 64);
  Kernels().reset(state_);
}

void ChecksumStream::Update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) Kernels().update(state_, bytes.data(), bytes.size());
}

uint32_t ChecksumStream::Digest() const { return static_cast<uint32_t>(Kernels().digest(state_)); }

}  // namespace weir
