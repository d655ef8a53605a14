// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared implementation of the codecs whose payloads are lanes of a few bits with a scale that
// all ranks share, so that summed payloads decode to the sum: numbers on a grid, and votes.

#include <cstddef>
#include <cstdint>
#include <span>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/quantise.h"

namespace weir {

/// Payload: n lanes with as many bits as the setting's fixed_bits (1, 2, 4, 8 or 16), from the low
/// end of each octet, padded with zeros to a whole octet; 16-bit lanes are little-endian. Lanes add
/// modulo 2^bits.
class LaneCodec : public FusedCodec {
 public:
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const final;
  /// O(n). kDataLoss with the offset: the size is not that of n lanes.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const final;
  size_t LaneBytes(const EncodeContext& context) const final;
  void Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const override;

 protected:
  /// Quantises one block that begins at element `at`: into int8 or uint8 codes in codes8, or for
  /// 16-bit lanes into int16 codes in codes16. Bits above the lane's are ignored. Otherwise like a
  /// kernel.
  struct LaneCodes {
    uint8_t* codes8;
    int16_t* codes16;
  };
  virtual void QuantiseBlock(const EncodeContext& context, const kernels::Block& block, size_t at,
                             float* rest, const LaneCodes& codes, kernels::Sums* sums) const = 0;
  /// Returns true when QuantiseBlock fills codes8 with packed lanes.
  virtual bool PacksItself() const { return false; }
  /// out += scale * the values of the packed lanes (out.size() of them, at most a block).
  virtual void AddLanes(const EncodeContext& context, const uint8_t* lanes, float scale,
                        std::span<float> out) const = 0;
  /// The number of bits of a lane.
  int LaneBits(const EncodeContext& context) const;

 private:
  /// One pass, O(n). A shared_max that is not finite gives a non-finite result, a negative one
  /// kInvalidArgument.
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const final;
};

/// For a shared maximum below this, zeros are sent, because the reciprocal of the step would
/// overflow.
inline constexpr float kGridMaximumMin = 0x1p-100f;

/// Lanes are two's complement numbers of grid steps: value = lane * shared_max / levels, rounded at
/// random with noise that is independent between ranks. Values outside +-shared_max are clamped.
class GridLaneCodec : public LaneCodec {
 protected:
  /// The number of grid steps in shared_max. `world` times it fits a lane.
  virtual float Levels(const EncodeContext& context) const = 0;

  void QuantiseBlock(const EncodeContext& context, const kernels::Block& block, size_t at,
                     float* rest, const LaneCodes& codes, kernels::Sums* sums) const final;
  void AddLanes(const EncodeContext& context, const uint8_t* lanes, float scale,
                std::span<float> out) const final;

 private:
  kernels::Grid MakeGrid(const EncodeContext& context) const;
};

/// Lanes count the ranks that voted positive. The sum of all ranks' payloads decodes to (2 * count
/// - world) * shared_max. Finish replaces that by the majority's sign times world * shared_max, or
/// zero for a tie.
class VoteLaneCodec : public LaneCodec {
 public:
  void Finish(const EncodeContext& context, float scale, std::span<float> out) const final;

 protected:
  void AddLanes(const EncodeContext& context, const uint8_t* lanes, float scale,
                std::span<float> out) const final;
  /// shared_max, or 0 when it is not finite.
  static float Magnitude(const EncodeContext& context);
  /// One setting per lane width: 1 bit for one rank, 2 for up to 3 ranks, 4 for up to 15, 8 for up
  /// to 255.
  static std::vector<CodecSetting> VoteSettings(double relative_error_squared);
};

}  // namespace weir
