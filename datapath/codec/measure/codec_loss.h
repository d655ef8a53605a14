// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures the losses of codecs on the job's own gradients. It covers the codecs whose traits can
// only state a loss for normally distributed input, so that the controller compares all codecs
// without trying each.

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "datapath/codec/codec.h"

namespace weir {

/// The energy lost over the energy in, for one setting of one codec, on a slice of gradient +
/// residual. For codecs that select, it is the loss of what they keep. For those that keep blocks,
/// rows or ranks, it is measured at a ratio of 0.05 and divided by the loss of a random choice.
struct CodecLoss {
  std::string codec;
  uint32_t bits = 0;
  double relative_loss = 0;
};

/// Measures in turn, a few on every call: the settings with ErrorModel::kRelative, those with
/// kSelection whose values are coarse, and those with kUniformSelection that keep blocks, rows or
/// ranks. Settings that `world` ranks cannot use and opt-in codecs are left out.
class CodecLossProbe {
 public:
  /// The number of elements of one measurement, and of settings per call, of which at most one
  /// keeps blocks, rows or ranks. A call takes about 0.3 ms.
  static constexpr size_t kSliceElements = 16384;
  static constexpr size_t kSettingsPerCall = 4;

  explicit CodecLossProbe(int world);

  /// Measures losses on a slice that `seed` selects. Returns nothing when there are fewer than 1024
  /// elements or the slice is zero or not finite. `residual` is empty or as long as `gradient`;
  /// `shape` is empty or has as many elements. Settings that keep rows or ranks are measured after
  /// two steps of warm-up, on up to 128 rows by 128 columns spread over a matrix of the bucket, if
  /// it has one of at least 64 rows and columns. The gradient of one rank stands for the sum.
  /// Thread-safe. O(slice).
  std::vector<CodecLoss> Measure(std::span<const float> gradient, std::span<const float> residual,
                                 std::span<const TensorShape> shape, uint64_t seed) const;

  size_t settings() const { return flat_.size() + blocked_.size(); }

 private:
  struct Setting {
    const Codec* codec;
    int bits;
  };
  struct Slice;
  void MeasureFlat(const Slice& slice, uint64_t seed, std::vector<CodecLoss>* losses) const;
  void MeasureBlocked(const Slice& flat, const Slice& matrix, uint64_t seed,
                      std::vector<CodecLoss>* losses) const;
  /// The energy lost over the energy in, or a negative number if it is not known.
  double LossOf(const Setting& setting, double ratio, const Slice& slice, uint64_t seed) const;

  const int world_;
  std::vector<Setting> flat_, blocked_;
  mutable std::atomic<uint64_t> flat_turn_{0}, blocked_turn_{0};
};

}  // namespace weir
