// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared implementation of the codecs that rotate and then round to integer lanes with a range
// that all ranks share, so that payloads add. thc_uniform and thc differ only in their levels.

#include <vector>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/hadamard.h"

namespace weir {

/// For a norm outside this range, zeros are sent, because steps or sums would leave the range of
/// floats.
inline constexpr float kNormMin = 0x1p-100f, kNormMax = 0x1p100f;

/// The meaning of one setting's lanes: numbers from -centre to centre, uniform over +-range.
struct RotatedLevels {
  float range = 0;  // in units of a coordinate's standard deviation at its block's shared norm
  int centre = 1;   // world_max * centre fits the setting's lanes
  std::vector<int32_t> cells = {};  // as in kernels::SparseGrid; empty: every number is a level
};

/// Thread-safe. For each rotation, shared_max holds the root mean square of gradient + residual
/// there, padding included, of the rank where it is largest. A value outside 2^-100 .. 2^100 sends
/// zeros. One norm for the whole bucket would not do: a rotation spreads large elements over its
/// 1024 coordinates only, so it would clip the coordinates of dense regions and round those of
/// nearly empty ones to noise. Lanes have CodecSetting::bits bits: 4, 8 or 16.
class RotatedLaneCodec : public FusedCodec {
 public:
  /// `levels` correspond to traits.settings one by one.
  RotatedLaneCodec(CodecTraits traits, std::vector<RotatedLevels> levels);

  const CodecTraits& Traits() const override { return traits_; }

  /// bits / 8 octets for each coordinate; see RotatedElements.
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override;

  /// The root mean squares, or +infinity where they are not finite.
  SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                     const EncodeContext& context) const override;

  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override;

  size_t LaneBytes(const EncodeContext& context) const override;
  void Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const override;

  /// The setting and the levels that `context`, which must be valid, selects.
  const CodecSetting& SettingOf(const EncodeContext& context) const;
  const RotatedLevels& LevelsOf(const EncodeContext& context) const;

 private:
  struct Choice;
  Choice Choose(const EncodeContext& context) const;

  /// One pass, O(n log 1024). A shared_max that is not finite gives a non-finite result, a negative
  /// one kInvalidArgument.
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override;

  const CodecTraits traits_;
  const std::vector<RotatedLevels> levels_;
};

}  // namespace weir
