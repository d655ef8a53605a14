// SPDX-License-Identifier: Apache-2.0
// The part of the checksum that reads every byte, compiled for every instruction set.

#include <array>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "datapath/wire/checksum_fold.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Everything below is compiled once per target.
#include "datapath/wire/checksum.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir::checksum_internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kStates = 8, kStateBytes = 16;

#if HWY_TARGET == HWY_SCALAR
// For CPUs without AES instructions; about sixty times as slow.

constexpr uint8_t Double(uint8_t x) {
  return static_cast<uint8_t>((x << 1) ^ ((x & 0x80) != 0 ? 0x1b : 0));
}

// The contribution of a byte to its column, with row 0 in the lowest byte: 2, 1, 1 and 3 times its
// value in the S-box.
constexpr std::array<uint32_t, 256> MakeColumns() {
  std::array<uint32_t, 256> columns = {};
  uint8_t p = 1, q = 1;  // powers of 3 and of its inverse, so that p * q = 1
  do {
    p ^= Double(p);
    q ^= static_cast<uint8_t>(q << 1);
    q ^= static_cast<uint8_t>(q << 2);
    q ^= static_cast<uint8_t>(q << 4);
    if ((q & 0x80) != 0) q ^= 0x09;
    columns[p] = q;
  } while (p != 1);
  for (uint32_t& column : columns) {
    uint8_t s = 0x63;
    for (int turn = 0; turn < 5; ++turn) s ^= static_cast<uint8_t>((column * 0x101) >> (8 - turn));
    const uint8_t twice = Double(s);
    column = twice | uint32_t{s} << 8 | uint32_t{s} << 16 | uint32_t{uint8_t(twice ^ s)} << 24;
  }
  return columns;
}

void FoldBlock(const std::byte* block, std::byte* state) {
  static constexpr std::array<uint32_t, 256> kColumns = MakeColumns();
  std::array<uint8_t, kStateBytes> before;
  std::memcpy(before.data(), state, kStateBytes);
  for (size_t column = 0; column < 4; ++column) {
    uint32_t sum = 0;
    for (size_t row = 0; row < 4; ++row) {
      sum ^= std::rotl(kColumns[before[4 * ((column + row) % 4) + row]], static_cast<int>(8 * row));
    }
    for (size_t row = 0; row < 4; ++row) {
      state[4 * column + row] = block[4 * column + row] ^ static_cast<std::byte>(sum >> (8 * row));
    }
  }
}

void FoldRuns(const std::byte* runs, size_t count, std::byte* states) {
  for (size_t block = 0; block < count * kStates; ++block) {
    FoldBlock(runs + block * kStateBytes, states + block % kStates * kStateBytes);
  }
}

#else

void FoldRuns(const std::byte* runs, size_t count, std::byte* states) {
  // Intel's cores start one AES instruction per cycle, over four blocks in the widest vectors.
  // AMD's start two per cycle, of one block each, and wider vectors give them no more blocks. Both
  // then fold as fast as they read.
  constexpr size_t kVectorBytes = HWY_TARGET == HWY_AVX3_DL ? 4 * kStateBytes : kStateBytes;
  constexpr size_t kVectors = kStates * kStateBytes / kVectorBytes;
  const hn::FixedTag<uint8_t, kVectorBytes> d;
  const auto* from = reinterpret_cast<const uint8_t*>(runs);
  auto* const kept = reinterpret_cast<uint8_t*>(states);
  hn::Vec<hn::FixedTag<uint8_t, kVectorBytes> > s[kVectors];
  for (size_t j = 0; j < kVectors; ++j) s[j] = hn::LoadU(d, kept + j * kVectorBytes);
  for (; count > 0; --count, from += kVectors * kVectorBytes) {
    for (size_t j = 0; j < kVectors; ++j) {
      s[j] = hn::AESRound(s[j], hn::LoadU(d, from + j * kVectorBytes));
    }
  }
  for (size_t j = 0; j < kVectors; ++j) hn::StoreU(s[j], d, kept + j * kVectorBytes);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace weir::checksum_internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::checksum_internal {

HWY_EXPORT(FoldRuns);

void FoldRuns(const std::byte* runs, size_t count, std::byte* states) {
  HWY_DYNAMIC_DISPATCH(FoldRuns)(runs, count, states);
}

}  // namespace weir::checksum_internal
#endif  // HWY_ONCE
