// SPDX-License-Identifier: Apache-2.0
#pragma once
// The loop that all one-pass codecs share: it visits gradient + residual block by block and fills
// the statistics on the way.

#include <algorithm>
#include <span>

#include "datapath/base/check.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/kernels/kernels.h"

namespace weir {

/// From this number of elements on, statistics are sampled instead of counted in full.
inline constexpr size_t kSampledElementsMin = size_t{1} << 16;
/// From this number of elements on, a rest that is not stored in the residual's memory, and a
/// decoded sum, are written with non-temporal stores. With all the other buckets of a model they
/// would not stay in the caches until they are read.
inline constexpr size_t kStreamedElementsMin = size_t{1} << 19;

/// The operands of Encode (residual and rest are empty) or EncodeWithFeedback.
struct PassOperands {
  std::span<const float> gradient;
  std::span<const float> residual = {};
  std::span<float> rest = {};
};

/// Calls visit(block, at, rest, sums) for every block. `at` is its first element, and `rest` its
/// part of operands.rest (null when that is empty). `statistics`, when set, is replaced by the
/// statistics of this pass.
template <typename Visit>
kernels::Sums ForEachBlock(const PassOperands& operands, GradientStatistics* statistics,
                           Visit&& visit) {
  const size_t n = operands.gradient.size();
  WEIR_CHECK(operands.residual.empty() || operands.residual.size() == n);
  WEIR_CHECK(operands.rest.empty() || operands.rest.size() == n);
  const bool sampled = n >= kSampledElementsMin;
  if (statistics != nullptr) statistics->Clear();
  kernels::Sums sums;
  for (size_t at = 0; at < n; at += kernels::kBlockElements) {
    const kernels::Block block{
        .gradient = operands.gradient.data() + at,
        .residual = operands.residual.empty() ? nullptr : operands.residual.data() + at,
        .size = std::min(kernels::kBlockElements, n - at)};
    if (statistics != nullptr) {
      kernels::Histogram(block, sampled, at / kernels::kSampleGroup,
                         sampled ? kHistogramSampling : 1, statistics->bins().data());
    }
    visit(block, at, operands.rest.empty() ? nullptr : operands.rest.data() + at, &sums);
  }
  if (statistics != nullptr) {
    statistics->Finish(n, sums.energy_in, sums.max_abs(), sums.non_finite());
  }
  return sums;
}

/// kInternal when `out` has fewer than `needed` bytes.
inline Status CheckRoom(const CodecTraits& traits, std::span<const std::byte> out, size_t needed) {
  if (out.size() >= needed) return OkStatus();
  return Internal(StrCat(traits.name, ": output of ", out.size(), " bytes, needed ", needed));
}

/// kDataLoss when a payload of lanes does not have exactly `expected` bytes.
inline Status CheckLaneBytes(const CodecTraits& traits, std::span<const std::byte> payload,
                             size_t expected) {
  if (payload.size() == expected) return OkStatus();
  return DataLoss(StrCat(traits.name, " payload: expected ", expected, " bytes, found ",
                         payload.size(), " (offset ", std::min(payload.size(), expected), ")"));
}

/// kInvalidArgument when a magnitude that the ranks share is negative.
inline Status CheckSharedMax(const CodecTraits& traits, const EncodeContext& context) {
  for (const float greatest : context.shared_max.values()) {
    if (greatest < 0) {
      return InvalidArgument(
          StrCat(traits.name, ": shared maximum ", greatest, ", expected at least 0"));
    }
  }
  return OkStatus();
}

/// The result of a lane codec's pass. For a non-finite input it sets the payload to zeros.
inline EncodeResult LaneResult(const kernels::Sums& sums, std::span<std::byte> payload) {
  EncodeResult result{.bytes = payload.size(), .non_finite = sums.non_finite()};
  if (result.non_finite) {
    std::fill(payload.begin(), payload.end(), std::byte{0});
  } else {
    result.energy_in = sums.energy_in;
    result.energy_lost = sums.energy_lost;
  }
  return result;
}

}  // namespace weir
