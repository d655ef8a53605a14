#pragma once
// Measures on the job's own gradients what the codecs lose whose traits can only give a figure for
// normally distributed input, so that the controller compares all of them without trying each.

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "datapath/codec/codec.h"

namespace weir {

/// Energy lost over energy in, of one setting of one codec on a slice of gradient + residual; for
/// codecs that select, of what they keep; for those that keep blocks, rows or ranks, at a ratio of
/// 0.05 and over what a random choice would lose.
struct CodecLoss {
  std::string codec;
  uint32_t bits = 0;
  double relative_loss = 0;
};

/// Goes through the settings with ErrorModel::kRelative, those with kSelection whose values are
/// coarse, and those with kUniformSelection that keep blocks, rows or ranks, as far as `world`
/// ranks can use them; a few on every call. Opt-in codecs are left out.
class CodecLossProbe {
 public:
  /// Elements that one measurement looks at, and settings measured by one call, of one of which it
  /// may be that it keeps blocks, rows or ranks: about 0.3 ms.
  static constexpr size_t kSliceElements = 16384;
  static constexpr size_t kSettingsPerCall = 4;

  explicit CodecLossProbe(int world);

  /// Losses on a slice chosen by `seed`; empty when there are fewer than 1024 elements, or the
  /// slice is zero or not finite. `residual` is empty or as long as `gradient`, `shape` empty or of
  /// as many elements. Rows and ranks are measured on up to 128 columns of 128 rows spread over a
  /// matrix of the bucket, after two steps of warm-up, if there is a matrix of 64 rows and columns.
  /// One rank's gradient stands in for the sum. Thread-safe. O(slice).
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
  /// Energy lost over energy in; negative when that cannot be told.
  double LossOf(const Setting& setting, double ratio, const Slice& slice, uint64_t seed) const;

  const int world_;
  std::vector<Setting> flat_, blocked_;
  mutable std::atomic<uint64_t> flat_turn_{0}, blocked_turn_{0};
};

}  // namespace weir
