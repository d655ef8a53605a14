#pragma once
// Selecting the largest magnitudes of gradient + residual by a threshold: the engine of the codecs
// that send part of a bucket. One pass when a state remembers the last step, two passes otherwise.

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

/// The number of elements that `ratio` asks for: max(1, floor(ratio * n)), 0 for n = 0.
size_t SelectionTarget(size_t n, double ratio);
/// The number that a selection may keep at most: min(n, ceil(2 * ratio * n) + 64).
size_t SelectionCap(size_t n, double ratio);

/// What a selector remembers of one bucket: the last step's histogram and how its thresholds fared.
/// Holds the scratch memory of the passes as well: 10 bytes per element that may be kept.
class SelectionState : public CodecState {
 public:
  GradientStatistics histogram;  // of the last finite step; count() == 0: none yet
  double correction = 1;         // factor on the wanted count when the next threshold is looked up
  double drift = 1;              // the part of it that follows change from step to step
  size_t room = 0;               // entries that fit the buffers below
  std::unique_ptr<uint32_t[]> indices;
  std::unique_ptr<float[]> values;
  std::unique_ptr<uint16_t[]> halves;  // or the bytes of another value format

  std::byte* bytes() const { return reinterpret_cast<std::byte*>(halves.get()); }
  void Reserve(size_t entries);

  /// The histogram, the correction and what SaveMore adds; the scratch memory is left out.
  std::vector<std::byte> Save() const final;
  Status Load(std::span<const std::byte> bytes) final;
  /// Forgets the histogram: its thresholds are of another scale.
  void Scale(double factor) override;

 protected:
  /// What a derived state keeps besides, written and read after the common part.
  virtual void SaveMore(StateWriter& writer) const;
  virtual Status LoadMore(ByteReader& reader);
};

struct SelectionRequest {
  std::span<const float> gradient;
  std::span<const float> residual = {};  // empty, or as long as gradient
  std::span<float> rest = {};            // empty, or as long; may equal residual
  double ratio = 1;
  // kNone: positions only, and `rest` keeps the selected elements. kFloat: exact values. kHalf may
  // turn into kFloat.
  ValueFormat format = ValueFormat::kHalf;
  GradientStatistics* statistics = nullptr;
  // SelectAbove: called for the elements above the threshold in order; false drops one. Not asked
  // when the engine chooses the threshold itself.
  std::function<bool(float)> keep = {};
};

/// A selection; the arrays live in the state.
struct Selection {
  size_t count = 0;
  kernels::Sums sums;  // energy_lost: what is not selected, and rounding
  ValueFormat format = ValueFormat::kNone;
  int exponent = 0;         // kHalf: halves[i] = fp16(value * 2^exponent)
  bool overflowed = false;  // SelectAbove: the threshold would have kept more than SelectionCap
};

/// Selects elements with |e| > threshold, e = gradient + residual, such that about ratio * n are
/// kept: between half and twice of it, never more than SelectionCap; fewer only when fewer are
/// nonzero. Exact zeros and subnormal numbers are never selected. Elements of equal magnitude at
/// the limit are taken in the order of their positions. `rest` receives e without what the payload
/// will hold, so that payload + rest = e. When sums.non_finite(), nothing is selected, `rest` is
/// unspecified and the state is as before. With a state that saw a step: one pass over memory, and
/// the kept count is steered to ratio * n; else two passes. Deterministic given the state.
Selection SelectLargest(const SelectionRequest& request, SelectionState& state);

/// What SelectAbove does about a threshold that keeps less than half of ratio * n.
enum class TooFew { kAccept, kRepair };

/// Selects elements with |e| > threshold, a threshold that the caller found; otherwise as
/// SelectLargest, and the state is only scratch. A threshold that would keep more than SelectionCap
/// elements (or, with kRepair, fewer than half of ratio * n) is replaced by the one of a full
/// histogram for ratio * n, at the price of two more passes: cutting off at the cap would favour
/// low positions. NaN or less than the smallest normal number counts as the latter. One pass, O(n).
Selection SelectAbove(const SelectionRequest& request, float threshold, TooFew too_few,
                      SelectionState& state);

/// Turns a selection made with format kFloat into `format`, rounding its values in the state and
/// adding what is lost to `rest` (empty: not kept) and to sums.energy_lost. kHalf becomes kFloat
/// when the values span too many powers of two. O(kept).
void RepresentValues(ValueFormat format, std::span<float> rest, SelectionState& state,
                     Selection* selection);

}  // namespace weir
