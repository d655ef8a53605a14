// Kernels that read the two parts of Rice codes: where the ones of the quotients stand, and what
// positions they make with the plain bits.

#include "datapath/codec/kernels_index.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels_index.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Compiled once per target from here on.
#include "datapath/codec/kernels_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

size_t FindOnes(const uint8_t* bytes, size_t size, size_t most, size_t* bit, uint32_t* ones) {
  constexpr size_t kWord = sizeof(uint64_t);
  const size_t begin = *bit, end = 8 * size;
  size_t at = begin, word_at = begin, found = 0;
  while (found < most && at < end) {
    const size_t octet = at / 8;
    uint64_t word = 0;
    if (octet + kWord <= size) {
      std::memcpy(&word, bytes + octet, kWord);
    } else {
      std::memcpy(&word, bytes + octet, size - octet);
    }
    word >>= at % 8;
    const size_t here = hwy::PopCount(word);
    const auto base = static_cast<uint32_t>(at - begin);
    // Eight at a time, some in vain: whether there is another one could not be foreseen.
    for (size_t i = 0; i < here; i += 8) {
      for (size_t j = i; j < i + 8; ++j) {
        const uint64_t rest = word | uint64_t{1} << 63;  // a place for those in vain
        ones[found + j] = base + static_cast<uint32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(rest));
        word &= word - 1;
      }
    }
    found += here;
    word_at = at;
    at = std::min(end, 8 * (octet + kWord));
  }
  if (found >= most) {
    found = most;
    // The last one is of the last word, whose place is known whole.
    if (most > 0) at = word_at + (ones[most - 1] - static_cast<uint32_t>(word_at - begin)) + 1;
  }
  *bit = at;
  return found;
}

uint64_t PlacePositions(const uint32_t* ones, const uint8_t* plain, size_t size, int bits,
                        uint64_t next, uint32_t* out) {
  const U32 d;
  const hn::Rebind<uint8_t, U32> octets;
  const VU32 one = hn::Set(d, 1);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= size; i += hn::Lanes(d)) {
    const VU32 zeros = hn::Sub(hn::Sub(hn::LoadU(d, ones + i), hn::LoadU(d, ones + i - 1)), one);
    const VU32 low = hn::PromoteTo(d, hn::LoadU(octets, plain + i));
    hn::StoreU(hn::Or(hn::ShiftLeftSame(zeros, bits), low), d, out + i);
  }
  for (; i < size; ++i) out[i] = (ones[i] - ones[i - 1] - 1) << bits | plain[i];
  for (size_t j = 0; j < size; ++j) {
    const uint64_t position = next + out[j];
    out[j] = static_cast<uint32_t>(position);
    next = position + 1;
  }
  return next;
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::kernels {

HWY_EXPORT(FindOnes);
HWY_EXPORT(PlacePositions);

size_t FindOnes(const uint8_t* bytes, size_t size, size_t most, size_t* bit,
                uint32_t* ones) noexcept {
  return HWY_DYNAMIC_DISPATCH(FindOnes)(bytes, size, most, bit, ones);
}

uint64_t PlacePositions(const uint32_t* ones, const uint8_t* plain, size_t size, int bits,
                        uint64_t next, uint32_t* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(PlacePositions)(ones, plain, size, bits, next, out);
}

}  // namespace weir::kernels
#endif  // HWY_ONCE
