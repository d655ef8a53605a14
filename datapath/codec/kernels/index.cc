// SPDX-License-Identifier: Apache-2.0
// Kernels that read the two parts of Rice codes: they find the ones of the quotients, and compute
// positions from them and the plain bits.

#include "datapath/codec/kernels/index.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/codec/kernels/index.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/codec/kernels/inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::kernels {
namespace HWY_NAMESPACE {

size_t FindOnes(const uint8_t* bytes, size_t size, size_t most, size_t* bit, uint32_t* ones) {
  constexpr size_t kWord = sizeof(uint64_t);
  const U32 d;
  const size_t lanes = hn::Lanes(d);
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
    const auto base = static_cast<uint32_t>(at - begin);
    if (lanes >= 8) {
      // Takes as many bits at once as there are lanes, and moves the positions of ones to the
      // front.
      uint64_t bits[2] = {word, 0};  // eight octets can be read from each position in the first
      for (size_t i = 0; i < 64; i += lanes) {
        const auto* const here = reinterpret_cast<const uint8_t*>(bits) + i / 8;
        const VU32 places = hn::Iota(d, base + static_cast<uint32_t>(i));
        hn::StoreU(hn::CompressBits(places, here), d, ones + found);
        found += hwy::PopCount(lanes < 64 ? word & ((uint64_t{1} << lanes) - 1) : word);
        word = lanes < 64 ? word >> lanes : 0;
      }
    } else {
      const size_t here = hwy::PopCount(word);
      // Takes eight at a time, some superfluous, because a branch on each would be unpredictable.
      for (size_t i = 0; i < here; i += 8) {
        for (size_t j = i; j < i + 8; ++j) {
          const uint64_t rest = word | uint64_t{1} << 63;  // gives superfluous ones a position
          ones[found + j] = base + static_cast<uint32_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(rest));
          word &= word - 1;
        }
      }
      found += here;
    }
    word_at = at;
    at = std::min(end, 8 * (octet + kWord));
  }
  if (found >= most) {
    found = most;
    // The last one is in the last word, whose full position is known.
    if (most > 0) at = word_at + (ones[most - 1] - static_cast<uint32_t>(word_at - begin)) + 1;
  }
  *bit = at;
  return found;
}

// There are ones[i] - i zeros before the i-th one, so position i is `next` plus 2^bits times that
// number, the plain bits up to the i-th, and i. The loop must keep a running sum of the plain bits
// only.
uint64_t PlacePositions(const uint32_t* ones, const uint8_t* plain, size_t size, int bits,
                        uint64_t next, uint32_t* out) {
  const uint32_t step = 1 - (uint32_t{1} << bits);  // one position more, one zero less
  auto base = static_cast<uint32_t>(next);
  uint64_t plain_sum = 0;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<uint32_t, 8> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto steps = hn::Mul(hn::Iota(d, 0), hn::Set(d, step));
  for (; i + lanes <= size; i += lanes) {
    auto sums = hn::PromoteTo(d16, hn::LoadU(d8, plain + i));
    sums = hn::Add(sums, hn::ShiftLeftLanes<1>(d16, sums));
    sums = hn::Add(sums, hn::ShiftLeftLanes<2>(d16, sums));
    sums = hn::Add(sums, hn::ShiftLeftLanes<4>(d16, sums));
    const auto behind = hn::ShiftLeftSame(hn::LoadU(d, ones + i), bits);
    const auto rest = hn::Add(hn::PromoteTo(d, sums), steps);
    hn::StoreU(hn::Add(hn::Set(d, base), hn::Add(behind, rest)), d, out + i);
    // Computes the last of `sums` again without vectors, because the next vector waits for it.
    uint64_t octets = 0;
    std::memcpy(&octets, plain + i, lanes);
    octets = (octets & 0x00ff00ff00ff00ff) + (octets >> 8 & 0x00ff00ff00ff00ff);
    const uint64_t sum = octets * 0x0001000100010001 >> 48;
    plain_sum += sum;
    base += static_cast<uint32_t>(sum + lanes * step);
  }
#endif
  for (; i < size; ++i) {
    plain_sum += plain[i];
    base += plain[i];
    out[i] = base + (ones[i] << bits);
    base += step;
  }
  if (size == 0) return next;
  const uint32_t zeros = ones[size - 1] - static_cast<uint32_t>(size - 1);
  return next + (uint64_t{zeros} << bits) + plain_sum + size;
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
