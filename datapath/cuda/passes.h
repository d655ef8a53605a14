// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared parts of the one-pass codecs: loading gradient + residual, counting statistics, adding the
// sums of teams, packing codes, and the second kernel that finishes a pass.

#include <span>

#include "datapath/cuda/device_codec.h"
#include "datapath/cuda/numbers.h"

namespace weir::cuda {

/// The operands of a pass, and where its results go. Device pointers.
struct PassInput {
  const float* gradient;
  const float* residual;  // null: zeros
  float* rest;            // null: not kept
  size_t n;
  PassSums* partials;  // one for each team
  uint32_t* bins;
  bool sampled;

  WEIR_DEVICE float Load(size_t i) const {
    return residual == nullptr ? gradient[i] : gradient[i] + residual[i];
  }
  WEIR_DEVICE void Keep(size_t i, float error) const {
    if (rest != nullptr) rest[i] = error;
  }
  WEIR_DEVICE unsigned SizeOf(size_t at, unsigned tile) const {
    return n - at < tile ? static_cast<unsigned>(n - at) : tile;
  }
};

/// The base of a program that visits every element once. kCounts: it fills the bins of the
/// statistics.
template <bool kCounts>
struct PassProgram {
  struct Shared {
    PassSums sums;
    uint32_t bins[kCounts ? GradientStatistics::kBins : 1];
  };
  PassInput in;

  template <class S>
  WEIR_DEVICE void Begin(Team& team, S& shared) const {
    team.Once([&] { shared.sums = PassSums::Zero(); });
    if constexpr (kCounts) {
      team.ForEach(GradientStatistics::kBins, [&](unsigned bin) { shared.bins[bin] = 0; });
    }
  }
  /// To be called once for each element.
  template <class S>
  WEIR_DEVICE void Count(S& shared, size_t i, float e) const {
    if constexpr (kCounts) {
      uint32_t* const bin = &shared.bins[(BitsOf(e) & kMagnitudeBits) >> 19];
      if (!in.sampled) {
        Team::Add(bin, 1);
      } else if (kernels::IsSampled(i)) {
        Team::Add(bin, kHistogramSampling);
      }
    }
  }
  template <class S>
  WEIR_DEVICE void AddSums(Team& team, S& shared, const PassSums& sums) const {
    team.Once([&] { shared.sums.Add(sums); });
  }
  template <class S>
  WEIR_DEVICE void End(Team& team, S& shared) const {
    team.Once([&] { in.partials[team.index()] = shared.sums; });
    if constexpr (kCounts) {
      team.ForEach(GradientStatistics::kBins, [&](unsigned bin) {
        if (shared.bins[bin] != 0) Team::Add(&in.bins[bin], shared.bins[bin]);
      });
    }
  }
};

/// The bytes of workspace that RunPass uses.
inline constexpr size_t kPassWorkspace = kTeamsMax * sizeof(PassSums);

/// Checks what every call has in common: the parameters, the alignment of `payload`, and the
/// workspace.
Status CheckCall(const DeviceCodec& codec, const DeviceCall& call, size_t n,
                 std::span<const std::byte> payload);
/// The same for Encode, whose spans and room it checks, too.
Status CheckEncode(const DeviceCodec& codec, const PassOperands& operands, const DeviceCall& call,
                   std::span<const std::byte> out);
/// The same for DecodeAdd into n elements.
Status CheckDecode(const DeviceCodec& codec, const DeviceCall& call, size_t n,
                   std::span<const std::byte> payload);
/// The same for Accumulate over lanes of `lane_bytes`, to which both are aligned.
Status CheckLanes(const DeviceCodec& codec, std::span<const std::byte> sum,
                  std::span<const std::byte> addend, size_t lane_bytes);
/// The operands of a pass; its bins are set to zero first.
StatusOr<PassInput> MakeInput(const PassOperands& operands, const DeviceCall& call);
/// Adds the sums of `teams` teams and writes *call.outcome; sets the payload to zeros where a sum
/// is not finite.
Status FinishPass(const DeviceCall& call, const PassSums* partials, unsigned teams,
                  std::span<std::byte> payload);

inline size_t TilesOf(size_t n, size_t tile) { return (n + tile - 1) / tile; }

/// Runs Program<kCounts>{{input}, more...} over tiles of Program's kTile elements, and finishes it.
/// `payload` is the output, whose size is known.
template <template <bool> class Program, class... More>
Status RunPass(const PassOperands& operands, const DeviceCall& call, std::span<std::byte> payload,
               const More&... more) {
  WEIR_ASSIGN_OR_RETURN(const PassInput input, MakeInput(operands, call));
  const size_t tiles = TilesOf(input.n, Program<false>::kTile);
  const StatusOr<unsigned> teams =
      call.bins != nullptr ? Launch(call.stream, tiles, Program<true>{{input}, more...})
                           : Launch(call.stream, tiles, Program<false>{{input}, more...});
  WEIR_RETURN_IF_ERROR(teams.status());
  return FinishPass(call, input.partials, *teams, payload);
}

/// Octet `octet` of `size` codes of `bits` bits each, packed from the low end. Higher bits of a
/// code are zero.
WEIR_DEVICE inline uint32_t PackedOctet(const uint8_t* codes, unsigned size, unsigned bits,
                                        unsigned octet) {
  if (bits == 8) return codes[octet];
  unsigned code = octet * 8 / bits;
  const unsigned skipped = octet * 8 - code * bits;
  uint32_t word = codes[code] >> skipped;
  for (unsigned filled = bits - skipped; filled < 8 && ++code < size; filled += bits) {
    word |= uint32_t{codes[code]} << filled;
  }
  return word & 0xFF;
}

/// Packs codes in shared memory to global memory; see kernels::PackBits.
WEIR_DEVICE inline void PackCodes(Team& team, const uint8_t* codes, unsigned size, unsigned bits,
                                  uint8_t* to) {
  const unsigned octets = (size * bits + 7) / 8;
  if (reinterpret_cast<uintptr_t>(to) % 4 != 0 || octets % 4 != 0) {
    team.ForEach(octets, [&](unsigned i) {
      to[i] = static_cast<uint8_t>(PackedOctet(codes, size, bits, i));
    });
    return;
  }
  auto* const words = reinterpret_cast<uint32_t*>(to);
  team.ForEach(octets / 4, [&](unsigned i) {
    uint32_t word = 0;
    for (unsigned j = 0; j < 4; ++j) word |= PackedOctet(codes, size, bits, 4 * i + j) << (8 * j);
    words[i] = word;
  });
}

/// Code i of packed codes.
WEIR_DEVICE inline uint32_t UnpackCode(const uint8_t* packed, unsigned bits, size_t i) {
  const size_t bit = i * bits;
  const unsigned shift = bit % 8;
  uint32_t word = packed[bit / 8];
  if (shift + bits > 8) word |= uint32_t{packed[bit / 8 + 1]} << 8;
  return word >> shift & ((1u << bits) - 1);
}
/// The value of a two's complement number of `bits` bits.
WEIR_DEVICE inline int32_t SignedCode(uint32_t code, unsigned bits) {
  return static_cast<int32_t>(code << (32 - bits)) >> (32 - bits);
}

/// The elements of a tile of programs that need no shared memory.
inline constexpr unsigned kTileElements = kernels::kBlockElements;

/// Calls visit(i) for every i < n, where `visit` is a trivially copyable functor.
template <class Visit>
struct EachProgram : TileProgram {
  Visit visit;
  size_t n;
  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const size_t at = tile * kTileElements;
    const unsigned size =
        n - at < kTileElements ? static_cast<unsigned>(n - at) : unsigned{kTileElements};
    team.ForEach(size, [&](unsigned i) { visit(at + i); });
  }
};
template <class Visit>
Status ForEachElement(Stream stream, size_t n, const Visit& visit) {
  return Launch(stream, TilesOf(n, kTileElements), EachProgram<Visit>{{}, visit, n}).status();
}

/// sum += addend over lanes of `bits` bits; see kernels::AccumulateLanes.
Status AccumulateLanes(const DeviceCodec& codec, const DeviceCall& call, unsigned bits,
                       std::span<std::byte> sum, std::span<const std::byte> addend);
/// sum += addend over float32 lanes.
Status AccumulateFloatLanes(const DeviceCodec& codec, const DeviceCall& call,
                            std::span<std::byte> sum, std::span<const std::byte> addend);
/// The bucket's maximum magnitude, or +infinity, to *maximum.
Status MaxMagnitude(std::span<const float> gradient, std::span<const float> residual,
                    const DeviceCall& call, float* maximum);

}  // namespace weir::cuda
