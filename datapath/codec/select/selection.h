// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects the largest magnitudes of gradient + residual by a threshold, for the codecs that send
// part of a bucket. It takes one pass when a state remembers the last step, and two passes
// otherwise.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "datapath/codec/codec.h"
#include "datapath/codec/kernels/kernels.h"
#include "datapath/codec/select/value_coding.h"
#include "datapath/codec/state_bytes.h"

namespace weir {

/// The number of elements for `ratio`: max(1, floor(ratio * n)), or 0 for n = 0.
size_t SelectionTarget(size_t n, double ratio);
/// The most elements that a selection keeps: min(n, ceil(2 * ratio * n) + 64).
size_t SelectionCap(size_t n, double ratio);

/// How a pass selects.
struct SelectionPass {
  float threshold = kSmallestNormal;
  int exponent = 0;      // of half-precision values
  bool sampled = false;  // whether its histogram is sampled
};
/// The pass of SelectAbove for a threshold that the caller has found among n elements. O(1).
SelectionPass GivenPass(float threshold, size_t n);
/// Returns whether a threshold missed so many of the `target` elements that it must be replaced.
inline bool KeepsTooFew(size_t count, size_t target, float threshold) {
  return count < (target + 1) / 2 && threshold > kSmallestNormal;
}
/// The pass for `target` of n elements from a full histogram of them. O(bins).
SelectionPass ExactPass(const GradientStatistics& histogram, size_t target, size_t n);
/// The threshold for many equal magnitudes just below `threshold`: the edge of their bin.
float EdgeBelow(float threshold);
/// Returns whether values of these magnitudes can be represented in half precision times
/// 2^exponent. Lanes hold at most 65504, and a value that is rounded to zero, below 2^-25, would be
/// selected in vain.
bool FitsHalf(float smallest, float largest, int exponent);

/// The outcome of a step for SelectionMemory.
struct SelectionOutcome {
  size_t target = 0;
  size_t n = 0;
  size_t count = 0;           // kept by the last pass
  float stale_threshold = 0;  // that of StalePass, if it was tried; or 0
  bool stale = false;         // the last pass was that of StalePass
};

/// A selector's memory of a bucket: the last step's histogram, and how far its thresholds missed.
struct SelectionMemory {
  GradientStatistics histogram;  // of the last finite step; count() == 0: none yet
  double correction = 1;         // factor on the wanted count in the next lookup of a threshold
  double drift = 1;              // the part of it that follows changes between steps

  /// The pass with the last step's threshold; there must be a histogram. O(bins).
  SelectionPass StalePass(size_t target, size_t n) const;
  /// Prepares the next step's threshold. Two corrections are made: for sampling, by comparing the
  /// number of elements that `seen`, this step's histogram, claims above this step's threshold with
  /// the true number, and for drift between steps, by how far this step's count missed the target.
  void Learn(const GradientStatistics& seen, const SelectionOutcome& outcome);
};

/// The memory of a selector, and the scratch memory of its passes: 10 bytes per element that may be
/// kept.
class SelectionState : public CodecState, public SelectionMemory {
 public:
  size_t room = 0;  // number of entries that fit the buffers below
  std::unique_ptr<uint32_t[]> indices;
  std::unique_ptr<float[]> values;
  std::unique_ptr<uint16_t[]> halves;  // or the bytes of another value format

  std::byte* bytes() const { return reinterpret_cast<std::byte*>(halves.get()); }
  void Reserve(size_t entries);

  /// Saves the histogram, the correction and what SaveMore adds, without the scratch memory.
  std::vector<std::byte> Save() const final;
  Status Load(std::span<const std::byte> bytes) final;
  /// Drops the histogram, because its thresholds have another scale.
  void Scale(double factor) override;

 protected:
  /// Save and load the additional part of a derived state, after the common part.
  virtual void SaveMore(StateWriter& writer) const;
  virtual Status LoadMore(ByteReader& reader);
};

struct SelectionRequest {
  std::span<const float> gradient;
  std::span<const float> residual = {};  // empty, or as long as gradient
  std::span<float> rest = {};            // empty, or as long; may equal residual
  double ratio = 1;
  // kNone: positions only, and `rest` keeps the selected elements. kFloat: exact values. kHalf may
  // become kFloat.
  ValueFormat format = ValueFormat::kHalf;
  GradientStatistics* statistics = nullptr;
  // SelectAbove: called for the elements above the threshold in order; returning false drops one.
  // Not called when the engine chooses the threshold itself.
  std::function<bool(float)> keep = {};
};

/// A selection, whose arrays are in the state.
struct Selection {
  size_t count = 0;
  kernels::Sums sums;  // energy_lost: of rounding and unselected elements
  ValueFormat format = ValueFormat::kNone;
  int exponent = 0;         // kHalf: halves[i] = fp16(value * 2^exponent)
  bool overflowed = false;  // SelectAbove: the threshold would have exceeded SelectionCap
};

/// Selects the elements with |e| > threshold, where e = gradient + residual, such that about ratio
/// * n are kept: between half and twice that number, never more than SelectionCap, and fewer only
/// when fewer are nonzero. Exact zeros and subnormal numbers are never selected. Elements of equal
/// magnitude at the limit are taken in the order of their positions. `rest` receives e minus the
/// values of the payload, so that payload + rest = e. When sums.non_finite(), nothing is selected,
/// `rest` is unspecified and the state is unchanged. With a state that has seen a step, it takes
/// one pass over memory and steers the kept count towards ratio * n; otherwise it takes two passes.
/// Deterministic for a given state.
Selection SelectLargest(const SelectionRequest& request, SelectionState& state);

/// The behaviour of SelectAbove when a threshold keeps less than half of ratio * n.
enum class TooFew { kAccept, kRepair };

/// Selects the elements with |e| > threshold for a threshold that the caller has found; otherwise
/// as SelectLargest, and the state is only scratch memory. A threshold that would keep more than
/// SelectionCap elements (or, with kRepair, fewer than half of ratio * n) is replaced by that of a
/// full histogram for ratio * n, at the cost of two more passes, because stopping at the cap would
/// favour low positions. A threshold that is NaN or below the smallest normal number is raised to
/// that number. One pass, O(n).
Selection SelectAbove(const SelectionRequest& request, float threshold, TooFew too_few,
                      SelectionState& state);

/// Converts a selection with format kFloat to `format`: rounds its values in the state and adds the
/// rounding errors to `rest` (empty: not kept) and to sums.energy_lost. kHalf becomes kFloat when
/// the values span too many powers of two. O(kept).
void RepresentValues(ValueFormat format, std::span<float> rest, SelectionState& state,
                     Selection* selection);

}  // namespace weir
