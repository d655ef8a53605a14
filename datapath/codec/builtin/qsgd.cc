// SPDX-License-Identifier: Apache-2.0
// Stochastic quantisation in lanes with a scale that all ranks share, so that payloads add.
//
// qsgd: with M = the maximum over ranks of max|x| and L = floor((2^(bits - 1) - 1) / world), lane =
// floor(x * L / M + u), where u is uniform in [0, 1), from a hash of (seed, rank, position). The
// sum of all ranks' lanes then fits the lane without wrapping.
// Payload: n two's complement lanes of `bits` bits (quantised_lanes.h).
// Source: Alistarh et al., "QSGD", NeurIPS 2017. The scale is the shared max-norm, which makes
// payloads add, as in Xin et al., "Global-QSGD: practical floatless quantization for distributed
// learning with theoretical guarantees", 2023; deviates: a residual, because few levels are left at
// large world sizes.
//
// qsgd:memory=none: linear Global-QSGD, which is the same with 8 bits and without a residual, as in
// its paper (standard dithering); deviates: 127 / world is rounded down, because otherwise rounding
// up on every rank would overflow a lane.
//
// qsgd:levels=exponential: exponential Global-QSGD, also without a residual. Lanes hold signs and
// powers of two relative to the maximum M over all ranks, and add without being decoded: the sum of
// two lanes is rounded at random to one of the two powers around it, so that the sum over all ranks
// has the right mean.
// Payload: n octets, with the sign at bit 7, a random bit 6, and a level l in bits 5 to 0. The
// magnitude is 2^(E + l - 127), or 0 for l = 0. With e the biased exponent of M, E = e - 39, within
// 0 .. 191. A rank sends magnitudes from M 2^-38 up, and 23 powers above M are left for the sum. A
// sum that should reach the largest level stays there; for 256 ranks with M each that happens once
// in 2^150 times.
//
// Additions: in most collectives one rank sums a chunk, but in recursive doubling both partners do,
// and they must get the same bits. The noise is therefore derived from what both know: the shared
// seed, the contents of both operands (their checksums, added, so that either order gives the same)
// and the position. The contents give new noise at every hop. Without them, a lane that an addition
// once left unchanged would stay unchanged whenever the same code is added again, and the mean
// would be wrong. The random bits have the same purpose for buckets of a few elements, whose
// contents may not change otherwise; with n lanes, a draw is repeated with probability 4^-n at
// most. Additions round, so their losses accumulate: about 0.07 of the square of each partial sum.
// Source: Xin et al., as above (exponential dithering); deviates: powers of two in place of M times
// powers of two, which makes coding exact, and enough of them for any input and any number of
// ranks.

#include <algorithm>
#include <bit>

#include "datapath/base/random.h"
#include "datapath/codec/quantised_lanes.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

class QsgdCodec : public GridLaneCodec {
 public:
  explicit QsgdCodec(CodecTraits traits) : traits_(std::move(traits)) {}

  const CodecTraits& Traits() const override { return traits_; }

 protected:
  float Levels(const EncodeContext& context) const override {
    const int largest = (1 << (LaneBits(context) - 1)) - 1;
    return static_cast<float>(largest / context.world);
  }

 private:
  const CodecTraits traits_;
};

CodecSetting GridLanes(int bits) {
  const int largest = (1 << (bits - 1)) - 1;
  return {.bits = bits,
          .fixed_bits = static_cast<double>(bits),
          .levels = static_cast<double>(largest),
          .world_max = largest};
}

CodecTraits LinearQsgdTraits() {
  return {
      .name = "qsgd",
      .summary = "integer lanes on a shared grid, stochastic rounding (Alistarh et al. 2017)",
      .unbiased = true,
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .settings = {GridLanes(8), GridLanes(4), GridLanes(2), GridLanes(16)},
      .error_model = ErrorModel::kMaxScaled,
      .levels_divided_by_world = true,
      .error_divisor = 6,
  };
}

CodecTraits QsgdWithoutMemory() {
  CodecTraits traits = LinearQsgdTraits();
  traits.name = "qsgd:memory=none";
  traits.summary = "int8 lanes on a shared grid without a residual (Xin et al. 2023)";
  traits.needs_error_feedback = false;
  traits.settings = {GridLanes(8)};
  return traits;
}

// --- levels=exponential --------------------------------------------------------------------------

constexpr int kLevelMax = 63;
constexpr uint8_t kSalt = 1 << 6;
/// The number of powers of two by which sums may exceed M.
constexpr int kHeadroom = 24;

/// The biased exponent at level 0.
int ExponentMin(const EncodeContext& context) {
  const auto exponent = static_cast<int>(std::bit_cast<uint32_t>(context.shared_max.one()) >> 23);
  return std::clamp(exponent + kHeadroom - kLevelMax, 0, 254 - kLevelMax);
}

class ExponentialQsgdCodec : public LaneCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  void Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const override {
    WEIR_CHECK(sum.size() == addend.size());
    for (size_t at = 0; at < sum.size(); at += kernels::kBlockElements) {
      const size_t size = std::min(kernels::kBlockElements, sum.size() - at);
      const std::span<std::byte> to = sum.subspan(at, size);
      const std::span<const std::byte> from = addend.subspan(at, size);
      const uint64_t contents = uint64_t{Checksum(to)} + Checksum(from);
      kernels::AccumulatePowers(reinterpret_cast<uint8_t*>(to.data()),
                                reinterpret_cast<const uint8_t*>(from.data()), size,
                                MixSeed(context.seed, contents), static_cast<uint32_t>(at));
    }
  }

 protected:
  void QuantiseBlock(const EncodeContext& context, const kernels::Block& block, size_t at,
                     float* rest, const LaneCodes& codes, kernels::Sums* sums) const override {
    const int least = ExponentMin(context);
    const kernels::PowersOfTwo powers{
        .exponent_min = least,
        .exponent_max = least + kLevelMax,
        .seed = MixSeed(context.seed, static_cast<uint64_t>(context.rank))};
    kernels::EncodePowers(block, powers, static_cast<uint32_t>(at), codes.codes8, rest, sums);
    kernels::SaltPowers(codes.codes8, block.size, MixSeed(powers.seed, kSalt),
                        static_cast<uint32_t>(at));
  }

  void AddLanes(const EncodeContext& context, const uint8_t* lanes, float scale,
                std::span<float> out) const override {
    uint8_t codes[kernels::kBlockElements];
    for (size_t i = 0; i < out.size(); ++i) codes[i] = lanes[i] & static_cast<uint8_t>(~kSalt);
    kernels::DecodeAddPowers(codes, out.size(), ExponentMin(context), scale, out.data());
  }

 private:
  const CodecTraits traits_ = {
      .name = "qsgd:levels=exponential",
      .summary = "powers of two of a shared maximum that add at random (Xin et al. 2023)",
      .unbiased = true,
      // The loss of additions grows with the number of ranks, and is not kept in any residual.
      .opt_in = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .sum_error_squared = 0.072,
      .settings = {{.fixed_bits = 8, .relative_error_squared = 0.0819}},
      .error_model = ErrorModel::kRelative,
  };
};

}  // namespace

void RegisterQsgd(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<QsgdCodec>(LinearQsgdTraits()));
  registry.Add(id, std::make_unique<QsgdCodec>(QsgdWithoutMemory()));
  registry.Add(id, std::make_unique<ExponentialQsgdCodec>());
}

}  // namespace weir
