// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/quantised_lanes.h"

#include <cstring>
#include <limits>

#include "datapath/base/check.h"
#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"

namespace weir {
namespace {

size_t PackedBytes(size_t lanes, int bits) { return (lanes * static_cast<size_t>(bits) + 7) / 8; }

bool IsFinite(float value) { return value < std::numeric_limits<float>::infinity(); }

}  // namespace

// --- LaneCodec -----------------------------------------------------------------------------------

int LaneCodec::LaneBits(const EncodeContext& context) const {
  const CodecSetting* setting = FindSetting(Traits(), context.params, context.world);
  WEIR_CHECK(setting != nullptr);
  return static_cast<int>(setting->fixed_bits);
}

size_t LaneCodec::MaxEncodedBytes(size_t n, const EncodeContext& context) const {
  return PackedBytes(n, LaneBits(context));
}

StatusOr<EncodeResult> LaneCodec::Pass(const PassOperands& operands, const EncodeContext& context,
                                       std::span<std::byte> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const int bits = LaneBits(context);
  const size_t bytes = PackedBytes(operands.gradient.size(), bits);
  WEIR_RETURN_IF_ERROR(CheckRoom(Traits(), out, bytes));
  WEIR_RETURN_IF_ERROR(CheckSharedMax(Traits(), context));
  auto* const to = reinterpret_cast<uint8_t*>(out.data());
  uint8_t codes8[kernels::kBlockElements];
  int16_t codes16[kernels::kBlockElements];
  kernels::Sums sums = ForEachBlock(
      operands, context.statistics,
      [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
        uint8_t* const lanes = to + PackedBytes(at, bits);  // at is a multiple of eight
        if (bits == 8 || PacksItself()) {
          QuantiseBlock(context, block, at, rest, {lanes, nullptr}, pass_sums);
          return;
        }
        QuantiseBlock(context, block, at, rest, {codes8, codes16}, pass_sums);
        if (bits == 16) {
          std::memcpy(lanes, codes16, block.size * sizeof(int16_t));
        } else {
          kernels::PackBits(codes8, block.size, bits, lanes);
        }
      });
  // The input of some rank was not finite, even if this rank's was.
  if (!context.shared_max.finite()) sums.max_bits = 0x7F800000u;
  return LaneResult(sums, out.first(bytes));
}

Status LaneCodec::DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                            float scale, std::span<float> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const int bits = LaneBits(context);
  WEIR_RETURN_IF_ERROR(CheckLaneBytes(Traits(), payload, PackedBytes(out.size(), bits)));
  const auto* const from = reinterpret_cast<const uint8_t*>(payload.data());
  for (size_t at = 0; at < out.size(); at += kernels::kBlockElements) {
    AddLanes(context, from + PackedBytes(at, bits), scale,
             out.subspan(at, std::min(kernels::kBlockElements, out.size() - at)));
  }
  return OkStatus();
}

size_t LaneCodec::LaneBytes(const EncodeContext& context) const {
  return LaneBits(context) == 16 ? 2 : 1;
}

void LaneCodec::Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                           std::span<const std::byte> addend) const {
  WEIR_CHECK(sum.size() == addend.size());
  kernels::AccumulateLanes(reinterpret_cast<uint8_t*>(sum.data()),
                           reinterpret_cast<const uint8_t*>(addend.data()), sum.size(),
                           LaneBits(context));
}

// --- GridLaneCodec -------------------------------------------------------------------------------

kernels::Grid GridLaneCodec::MakeGrid(const EncodeContext& context) const {
  kernels::Grid grid;
  grid.levels = Levels(context);
  // Noise is independent between ranks, so that it averages out in the sum.
  grid.seed = MixSeed(context.seed, static_cast<uint64_t>(context.rank));
  const float greatest = context.shared_max.one();
  if (greatest >= kGridMaximumMin && IsFinite(greatest)) {
    grid.step = greatest / grid.levels;
    grid.inverse_step = grid.levels / greatest;
  }
  return grid;
}

void GridLaneCodec::QuantiseBlock(const EncodeContext& context, const kernels::Block& block,
                                  size_t at, float* rest, const LaneCodes& codes,
                                  kernels::Sums* sums) const {
  const kernels::Grid grid = MakeGrid(context);
  const auto counter = static_cast<uint32_t>(at);
  if (LaneBits(context) == 16) {
    kernels::EncodeGrid(block, grid, counter, codes.codes16, rest, sums);
  } else {
    kernels::EncodeGrid(block, grid, counter, reinterpret_cast<int8_t*>(codes.codes8), rest, sums);
  }
}

void GridLaneCodec::AddLanes(const EncodeContext& context, const uint8_t* lanes, float scale,
                             std::span<float> out) const {
  const int bits = LaneBits(context);
  const float factor = scale * MakeGrid(context).step;
  if (bits == 16) {
    int16_t codes[kernels::kBlockElements];
    std::memcpy(codes, lanes, out.size() * sizeof(int16_t));
    kernels::DecodeAddGrid(codes, out.size(), factor, out.data());
  } else if (bits == 8) {
    kernels::DecodeAddGrid(reinterpret_cast<const int8_t*>(lanes), out.size(), factor, out.data());
  } else {
    int8_t codes[kernels::kBlockElements];
    kernels::UnpackSigned(lanes, out.size(), bits, codes);
    kernels::DecodeAddGrid(codes, out.size(), factor, out.data());
  }
}

// --- VoteLaneCodec -------------------------------------------------------------------------------

float VoteLaneCodec::Magnitude(const EncodeContext& context) {
  const float greatest = context.shared_max.one();
  return IsFinite(greatest) ? greatest : 0.0f;
}

void VoteLaneCodec::AddLanes(const EncodeContext& context, const uint8_t* lanes, float scale,
                             std::span<float> out) const {
  uint8_t codes[kernels::kBlockElements];
  kernels::UnpackBits(lanes, out.size(), LaneBits(context), codes);
  const float vote = scale * Magnitude(context);
  kernels::DecodeAddAffine(codes, out.size(), -vote * static_cast<float>(context.world), 2 * vote,
                           out.data());
}

void VoteLaneCodec::Finish(const EncodeContext& context, float scale, std::span<float> out) const {
  kernels::SignsTimes(scale * Magnitude(context) * static_cast<float>(context.world), out.data(),
                      out.size());
}

std::vector<CodecSetting> VoteLaneCodec::VoteSettings(double relative_error_squared) {
  std::vector<CodecSetting> settings;
  int world_min = 1;
  for (const int bits : {1, 2, 4, 8}) {
    settings.push_back({.fixed_bits = static_cast<double>(bits),
                        .relative_error_squared = relative_error_squared,
                        .world_min = world_min,
                        .world_max = (1 << bits) - 1});
    world_min = 1 << bits;
  }
  return settings;
}

}  // namespace weir
