// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/rotated_lanes.h"

#include <cmath>
#include <limits>

#include "datapath/base/random.h"
#include "datapath/codec/kernels/quantise.h"
#include "datapath/codec/rotation.h"

namespace weir {
namespace {

/// Quantises rotated blocks into a payload and loads them from one.
struct Lanes {
  int bits;
  const RotatedLevels& levels;
  const SharedMax& norms;
  uint64_t seed;  // of the noise

  /// Coordinates have the standard deviation norm / sqrt(size). Returns 0 when the norm is
  /// unusable.
  float Step(const RotatedBlock& block) const {
    const float norm = norms.Of(block.index);
    if (!(norm >= kNormMin && norm <= kNormMax)) return 0;
    return norm * levels.range /
           (std::sqrt(static_cast<float>(block.size)) * static_cast<float>(levels.centre));
  }

  template <typename Lane>
  void Quantise(const RotatedBlock& block, Lane* lanes) const {
    const float step = Step(block);
    const float inverse_step = step > 0 ? 1.0f / step : 0.0f;
    const auto counter = static_cast<uint32_t>(block.at);
    if (levels.cells.empty()) {
      const kernels::RotatedGrid grid{.step = step,
                                      .inverse_step = inverse_step,
                                      .levels = static_cast<float>(levels.centre),
                                      .seed = seed};
      if constexpr (sizeof(Lane) == 1) {
        kernels::QuantiseRotated8(grid, counter, block.size, block.y, lanes, block.lost);
      } else {
        kernels::QuantiseRotated16(grid, counter, block.size, block.y, lanes, block.lost);
      }
      return;
    }
    const kernels::SparseGrid grid{.step = step,
                                   .inverse_step = inverse_step,
                                   .centre = levels.centre,
                                   .cells = levels.cells.data(),
                                   .seed = seed};
    if constexpr (sizeof(Lane) == 1) {
      kernels::QuantiseSparse8(grid, counter, block.size, block.y, lanes, block.lost);
    } else {
      kernels::QuantiseSparse16(grid, counter, block.size, block.y, lanes, block.lost);
    }
  }

  void Encode(const RotatedBlock& block, std::byte* payload) const {
    std::byte* to = payload + block.at * bits / 8;
    if (bits == 16) {
      alignas(64) int16_t lanes[kernels::kRotationElements];
      Quantise(block, lanes);
      std::memcpy(to, lanes, block.size * sizeof(int16_t));
      return;
    }
    if (bits == 8) return Quantise(block, reinterpret_cast<int8_t*>(to));
    alignas(64) int8_t lanes[kernels::kRotationElements];
    Quantise(block, lanes);
    kernels::PackNibbles(lanes, block.size, reinterpret_cast<uint8_t*>(to));
  }

  void Load(const RotatedBlock& block, const std::byte* payload) const {
    const std::byte* from = payload + block.at * bits / 8;
    const float step = Step(block);
    if (bits == 16) {
      kernels::LoadRotated16(from, block.size, step, block.y);
    } else if (bits == 8) {
      kernels::LoadRotated8(reinterpret_cast<const int8_t*>(from), block.size, step, block.y);
    } else {
      alignas(64) int8_t lanes[kernels::kRotationElements];
      kernels::UnpackNibbles(reinterpret_cast<const uint8_t*>(from), block.size, lanes);
      kernels::LoadRotated8(lanes, block.size, step, block.y);
    }
  }
};

}  // namespace

/// The setting in use with its levels.
struct RotatedLaneCodec::Choice {
  const CodecSetting& setting;
  const RotatedLevels& levels;

  size_t Bytes(size_t n) const { return RotatedElements(n) * setting.bits / 8; }
  Lanes MakeLanes(const EncodeContext& context) const {
    // Noise is independent between ranks, so that it averages out in the sum.
    return {.bits = setting.bits,
            .levels = levels,
            .norms = context.shared_max,
            .seed = MixSeed(context.seed, static_cast<uint64_t>(context.rank))};
  }
};

RotatedLaneCodec::RotatedLaneCodec(CodecTraits traits, std::vector<RotatedLevels> levels)
    : traits_(std::move(traits)), levels_(std::move(levels)) {
  WEIR_CHECK(levels_.size() == traits_.settings.size());
  for (size_t i = 0; i < levels_.size(); ++i) {
    const CodecSetting& setting = traits_.settings[i];
    WEIR_CHECK(setting.bits == 4 || setting.bits == 8 || setting.bits == 16);
    WEIR_CHECK(int64_t{levels_[i].centre} * setting.world_max < int64_t{1} << (setting.bits - 1));
    WEIR_CHECK(levels_[i].cells.empty() ||
               levels_[i].cells.size() == static_cast<size_t>(2 * levels_[i].centre));
  }
}

RotatedLaneCodec::Choice RotatedLaneCodec::Choose(const EncodeContext& context) const {
  const CodecSetting* setting = FindSetting(traits_, context.params, context.world);
  WEIR_CHECK(setting != nullptr);
  return {*setting, levels_[setting - traits_.settings.data()]};
}

const CodecSetting& RotatedLaneCodec::SettingOf(const EncodeContext& context) const {
  return Choose(context).setting;
}
const RotatedLevels& RotatedLaneCodec::LevelsOf(const EncodeContext& context) const {
  return Choose(context).levels;
}

size_t RotatedLaneCodec::MaxEncodedBytes(size_t n, const EncodeContext& context) const {
  return Choose(context).Bytes(n);
}

SharedMax RotatedLaneCodec::LocalMax(std::span<const float> gradient,
                                     std::span<const float> residual, const EncodeContext&) const {
  constexpr size_t kSize = kernels::kRotationElements;
  std::vector<float> norms;
  norms.reserve(gradient.size() / kSize + 1);
  for (size_t at = 0; at < gradient.size(); at += kSize) {
    const size_t count = std::min(kSize, gradient.size() - at);
    kernels::Sums sums;
    kernels::Measure({.gradient = gradient.data() + at,
                      .residual = residual.empty() ? nullptr : residual.data() + at,
                      .size = count},
                     nullptr, &sums);
    norms.push_back(sums.non_finite()
                        ? std::numeric_limits<float>::infinity()
                        : static_cast<float>(std::sqrt(
                              sums.energy_in / static_cast<double>(RotatedElements(count)))));
  }
  return SharedMax(std::move(norms));
}

StatusOr<EncodeResult> RotatedLaneCodec::Pass(const PassOperands& operands,
                                              const EncodeContext& context,
                                              std::span<std::byte> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const Choice choice = Choose(context);
  const size_t bytes = choice.Bytes(operands.gradient.size());
  WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
  WEIR_RETURN_IF_ERROR(CheckSharedMax(traits_, context));
  const Lanes lanes = choice.MakeLanes(context);
  kernels::Sums sums =
      Rotation(context.seed).Encode(operands, context.statistics, [&](const RotatedBlock& block) {
        lanes.Encode(block, out.data());
      });
  // The input of some rank was not finite, even if this rank's was.
  if (!context.shared_max.finite()) sums.max_bits = 0x7F800000u;
  return LaneResult(sums, out.first(bytes));
}

Status RotatedLaneCodec::DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                                   float scale, std::span<float> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const Choice choice = Choose(context);
  WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, choice.Bytes(out.size())));
  const Lanes lanes = choice.MakeLanes(context);
  return Rotation(context.seed).DecodeAdd(scale, out, [&](const RotatedBlock& block) {
    lanes.Load(block, payload.data());
    return OkStatus();
  });
}

size_t RotatedLaneCodec::LaneBytes(const EncodeContext& context) const {
  return Choose(context).setting.bits == 16 ? 2 : 1;
}

void RotatedLaneCodec::Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                                  std::span<const std::byte> addend) const {
  WEIR_CHECK(sum.size() == addend.size() && sum.size() % LaneBytes(context) == 0);
  kernels::AccumulateLanes(reinterpret_cast<uint8_t*>(sum.data()),
                           reinterpret_cast<const uint8_t*>(addend.data()), sum.size(),
                           Choose(context).setting.bits);
}

}  // namespace weir
