// SPDX-License-Identifier: Apache-2.0
#pragma once
// Magnitudes on which the ranks agree before any of them encodes.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace weir {

/// Magnitudes, at least 0, of one rank or the greatest of all ranks. There is one for the bucket or
/// one for each of its blocks (CodecTraits::shared_block).
class SharedMax {
 public:
  SharedMax() = default;
  SharedMax(float of_the_bucket) : values_{of_the_bucket} {}  // implicit
  explicit SharedMax(std::vector<float> of_blocks) : values_(std::move(of_blocks)) {}

  /// The magnitude of the bucket, or 0 when there is none.
  float one() const { return values_.empty() ? 0.0f : values_.front(); }
  /// The magnitude of block `i`: that of the bucket where there is only one, and 0 after the end.
  /// O(1).
  float Of(size_t i) const {
    if (values_.size() <= 1) return one();
    return i < values_.size() ? values_[i] : 0.0f;
  }
  std::span<float> values() { return values_; }
  std::span<const float> values() const { return values_; }

  /// Returns true if no magnitude is infinite or NaN. O(blocks).
  bool finite() const {
    return std::all_of(values_.begin(), values_.end(), [](float x) { return std::isfinite(x); });
  }
  /// Takes the greater magnitude of each block; missing ones count as 0. O(blocks).
  void Merge(const SharedMax& other) {
    values_.resize(std::max(values_.size(), other.values_.size()));
    for (size_t i = 0; i < other.values_.size(); ++i) {
      values_[i] = std::max(values_[i], other.values_[i]);
    }
  }

 private:
  std::vector<float> values_;
};

}  // namespace weir
