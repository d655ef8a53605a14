// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "datapath/base/check.h"
#include "datapath/codec/block_pass.h"

namespace weir {
namespace {

using kernels::Block;
using kernels::kBlockElements;

/// The number of elements that the kernels of a pass visit in turn. It is half a block, because the
/// first-level cache also holds the next elements, which are being prefetched.
constexpr size_t kStep = kBlockElements / 2;
static_assert(kStep % kernels::kSampleGroup == 0);
/// The histogram is sampled when at least this many elements are to be kept: an eighth of them
/// still determines the threshold within a few per cent.
constexpr size_t kSampledTargetMin = 2048;
/// Powers of two between the largest expected magnitude and the largest half-precision lane.
constexpr int kHeadroomExact = 0;
constexpr int kHeadroomStale = 2;
/// The same between a threshold and the largest lane: magnitudes up to 2^18 times the threshold
/// fit.
constexpr int kHeadroomAboveThreshold = 17;
/// Bounds of the correction of the wanted count.
constexpr double kDriftMin = 0.0625, kDriftMax = 4;

float SmallestValue(const SelectionState& state, size_t count) {
  float smallest = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i) smallest = std::min(smallest, std::abs(state.values[i]));
  return smallest;
}

/// The sum of squares of the first `count` floats.
double EnergyOf(const float* values, size_t count) {
  kernels::Sums sums;
  for (size_t at = 0; at < count; at += kBlockElements) {
    kernels::Measure({.gradient = values + at, .size = std::min(kBlockElements, count - at)},
                     nullptr, &sums);
  }
  return sums.energy_in;
}

/// Makes one selection, in one or more attempts.
class Selector {
 public:
  Selector(const SelectionRequest& request, SelectionState& state)
      : request_(request),
        state_(state),
        n_(request.gradient.size()),
        target_(SelectionTarget(n_, request.ratio)),
        cap_(SelectionCap(n_, request.ratio)),
        gradient_(request.gradient.data()),
        residual_(request.residual.empty() ? nullptr : request.residual.data()),
        rest_(request.rest.empty() ? nullptr : request.rest.data()) {
    state_.Reserve(cap_ + kBlockElements + kernels::kSelectSlack);
  }

  Selection Run() {
    const bool warm = state_.histogram.count() > 0;
    if (!(warm && RunStale())) RunExact();
    if (!sums_.non_finite()) Remember();
    return Finish();
  }

  Selection RunGiven(float threshold, TooFew too_few) {
    Adopt(GivenPass(threshold, n_));
    counts_histogram_ = request_.statistics != nullptr;
    asks_keep_ = static_cast<bool>(request_.keep);
    overflowed_ = !Pass(/*truncate=*/false);
    asks_keep_ = false;
    const bool repair = too_few == TooFew::kRepair && !sums_.non_finite() &&
                        KeepsTooFew(count_, target_, threshold_);
    if (overflowed_ || repair) {
      Restore();
      RunExact();
    }
    return Finish();
  }

 private:
  Selection Finish() {
    if (request_.statistics != nullptr) *request_.statistics = seen_;
    if (sums_.non_finite()) return {.sums = sums_};
    sums_.energy_lost = std::max(0.0, sums_.energy_in - energy_kept_);
    Selection selection{.count = count_,
                        .sums = sums_,
                        .format = request_.format,
                        .exponent = exponent_,
                        .overflowed = overflowed_};
    if (request_.format == ValueFormat::kHalf && (count_ == 0 || RoundedRight())) {
      selection.sums.energy_lost += energy_rounded_;
    } else if (request_.format != ValueFormat::kNone) {
      RepresentValues(request_.format, request_.rest, state_, &selection);
    }
    return selection;
  }

  /// Returns whether the exponent used in the passes suits all values. The smallest value is
  /// searched only when the threshold does not decide it.
  bool RoundedRight() const {
    return FitsHalf(threshold_, sums_.max_abs(), exponent_) ||
           FitsHalf(SmallestValue(state_, count_), sums_.max_abs(), exponent_);
  }

  /// Makes one pass with the last step's threshold. Returns false when it missed, so that RunExact
  /// must follow.
  bool RunStale() {
    Adopt(state_.StalePass(target_, n_));
    stale_threshold_ = threshold_;
    counts_histogram_ = true;
    if (!Pass(/*truncate=*/false)) {
      Restore();
      return false;
    }
    if (sums_.non_finite() || !KeepsTooFew(count_, target_, threshold_)) return true;
    Restore();
    return false;
  }

  /// Makes a counting pass, then the selection.
  void RunExact() {
    seen_.Clear();
    for (size_t at = 0; at < n_; at += kStep) {
      kernels::Histogram(BlockAt(at), /*sampled=*/false, 0, 1, seen_.bins().data());
    }
    counts_histogram_ = false;
    Adopt(ExactPass(seen_, target_, n_));
    Pass(/*truncate=*/true);
    if (!sums_.non_finite() && KeepsTooFew(count_, target_, threshold_)) {
      // There are many equal magnitudes just below; take them in the order of their positions.
      Restore();
      threshold_ = EdgeBelow(threshold_);
      Pass(/*truncate=*/true);
    }
    seen_.Finish(n_, sums_.energy_in, sums_.max_abs(), sums_.non_finite());
  }

  void Adopt(const SelectionPass& pass) {
    threshold_ = pass.threshold;
    exponent_ = pass.exponent;
    sampled_ = pass.sampled;
  }

  Block BlockAt(size_t at) const {
    return {.gradient = gradient_ + at,
            .residual = residual_ == nullptr ? nullptr : residual_ + at,
            .size = std::min(kStep, n_ - at)};
  }

  /// How the passes store the rest. What happens to selected elements is decided while they are in
  /// registers, as far as it is known by then.
  kernels::SelectRest RestFormat() const {
    using Kept = kernels::SelectRest::Kept;
    kernels::SelectRest format{.scale = PowerOfTwo(exponent_)};
    if (request_.format == ValueFormat::kNone) format.kept = Kept::kWhole;
    if (request_.format == ValueFormat::kHalf) format.kept = Kept::kHalfError;
    // The rest is read next in the following step, so it need not pass through the caches.
    format.streamed = rest_ != nullptr && rest_ != residual_ && rest_ != gradient_ &&
                      n_ >= kStreamedElementsMin && reinterpret_cast<uintptr_t>(rest_) % 64 == 0;
    return format;
  }

  /// Visits all blocks with threshold_. Returns false when more than cap_ elements passed it and
  /// `truncate` is off; then the blocks up to processed_ are done.
  bool Pass(bool truncate) {
    sums_ = {};
    count_ = 0;
    energy_kept_ = energy_rounded_ = 0;
    if (counts_histogram_) seen_.Clear();
    float threshold = threshold_;
    kernels::SelectRest rest = RestFormat();
    bool stopped = false;
    for (size_t at = 0; at < n_ && !stopped; at += kStep) {
      const Block block = BlockAt(at);
      rest.rest = rest_ == nullptr ? nullptr : rest_ + at;
      // The histogram comes first, because the rest may replace the residual.
      if (counts_histogram_) {
        kernels::Histogram(block, sampled_, at / kernels::kSampleGroup,
                           sampled_ ? kHistogramSampling : 1, seen_.bins().data());
      }
      const size_t found =
          kernels::Select(block, threshold, static_cast<uint32_t>(at), rest,
                          state_.indices.get() + count_, state_.values.get() + count_, &sums_);
      const size_t wanted = asks_keep_ ? Ask(found) : found;
      const size_t kept = std::min(wanted, cap_ - count_);
      GiveBack(count_ + kept, count_ + wanted);
      count_ += kept;
      processed_ = at + block.size;
      if (kept < wanted) threshold = std::numeric_limits<float>::infinity();
      stopped = kept < wanted && !truncate;
    }
    if (rest.streamed) kernels::FlushStreams();
    if (stopped) return false;
    if (!sums_.non_finite()) Account();
    if (counts_histogram_) {
      seen_.Finish(n_, sums_.energy_in, sums_.max_abs(), sums_.non_finite());
    }
    return true;
  }

  /// Drops those of the `found` newest entries that the request does not keep, and returns the
  /// number of the others.
  size_t Ask(size_t found) {
    uint32_t* indices = state_.indices.get() + count_;
    float* values = state_.values.get() + count_;
    size_t kept = 0;
    for (size_t i = 0; i < found; ++i) {
      if (request_.keep(values[i])) {
        indices[kept] = indices[i];
        values[kept++] = values[i];
      } else if (rest_ != nullptr) {
        rest_[indices[i]] = values[i];
      }
    }
    return kept;
  }

  /// Returns the entries from..to to the rest, because they are not kept after all.
  void GiveBack(size_t from, size_t to) {
    if (rest_ == nullptr) return;
    for (size_t i = from; i < to; ++i) rest_[state_.indices[i]] = state_.values[i];
  }

  /// Measures the kept values, and rounds them to half precision if requested. Other formats are
  /// converted later.
  void Account() {
    if (request_.format != ValueFormat::kHalf) {
      energy_kept_ = EnergyOf(state_.values.get(), count_);
      return;
    }
    for (size_t at = 0; at < count_; at += kStep) {
      const kernels::RoundingEnergy energy =
          kernels::RoundToHalf(state_.values.get() + at, std::min(kStep, count_ - at),
                               PowerOfTwo(exponent_), state_.halves.get() + at, errors_);
      energy_kept_ += energy.values;
      energy_rounded_ += energy.errors;
    }
  }

  /// Undoes a pass: `rest` becomes e itself, and replaces gradient and residual from then on.
  void Restore() {
    if (rest_ == nullptr) return;
    for (size_t i = 0; i < count_; ++i) rest_[state_.indices[i]] = state_.values[i];
    kernels::Sums ignored;
    for (size_t at = processed_; at < n_; at += kStep) {
      kernels::Measure(BlockAt(at), rest_ + at, &ignored);
    }
    gradient_ = rest_;
    residual_ = nullptr;
  }

  void Remember() {
    state_.Learn(seen_, {.target = target_,
                         .n = n_,
                         .count = count_,
                         .stale_threshold = stale_threshold_,
                         .stale = counts_histogram_});
  }

  const SelectionRequest& request_;
  SelectionState& state_;
  const size_t n_, target_, cap_;
  const float* gradient_;
  const float* residual_;
  float* rest_;
  bool counts_histogram_ = false;
  bool sampled_ = false;
  float threshold_ = kSmallestNormal;
  float stale_threshold_ = 0;  // as tried by RunStale; 0: it did not run
  int exponent_ = 0;
  bool asks_keep_ = false;
  bool overflowed_ = false;
  size_t count_ = 0, processed_ = 0;
  double energy_kept_ = 0, energy_rounded_ = 0;
  kernels::Sums sums_;
  GradientStatistics seen_;
  alignas(64) float errors_[kStep];
};

}  // namespace

size_t SelectionTarget(size_t n, double ratio) {
  if (n == 0) return 0;
  const double wanted = std::floor(ratio * static_cast<double>(n));
  return std::clamp<size_t>(static_cast<size_t>(wanted), 1, n);
}

size_t SelectionCap(size_t n, double ratio) {
  const double cap = std::ceil(2 * ratio * static_cast<double>(n)) + 64;
  return std::min(n, static_cast<size_t>(cap));
}

/// Returns whether values of these magnitudes can be represented in half precision times
/// 2^exponent. Lanes hold at most 65504, and a value that is rounded to zero, below 2^-25, would be
/// selected in vain.
bool FitsHalf(float smallest, float largest, int exponent) {
  return std::ldexp(largest, exponent) <= 65504.0f && std::ldexp(smallest, exponent) >= 0x1p-24f;
}

SelectionPass ExactPass(const GradientStatistics& histogram, size_t target, size_t n) {
  SelectionPass pass;
  if (n > 0) pass.threshold = histogram.ThresholdForRatio(static_cast<double>(target) / n);
  // The upper edge of the highest bin in use bounds the largest magnitude.
  int top = GradientStatistics::kBins - 1;
  while (top > 0 && histogram.bins()[top] == 0) --top;
  const uint32_t bound = std::min((static_cast<uint32_t>(top) + 1) << 19, 0x7F7FFFFFu);
  pass.exponent = HalfExponent(std::bit_cast<float>(bound), kHeadroomExact);
  return pass;
}

SelectionPass GivenPass(float threshold, size_t n) {
  const float raised = threshold >= kSmallestNormal ? threshold : kSmallestNormal;
  return {.threshold = raised,
          .exponent = HalfExponent(raised, kHeadroomAboveThreshold),
          .sampled = n >= kSampledElementsMin};
}

float EdgeBelow(float threshold) {
  const uint32_t edge = std::bit_cast<uint32_t>(threshold) & ~((1u << 19) - 1);
  return std::max(kSmallestNormal, std::bit_cast<float>(edge - 1));
}

SelectionPass SelectionMemory::StalePass(size_t target, size_t n) const {
  const double wanted = correction * static_cast<double>(target) / n;
  return {.threshold = histogram.ThresholdForRatio(std::clamp(wanted, 1e-12, 1.0)),
          .exponent = HalfExponent(histogram.max_abs(), kHeadroomStale),
          .sampled = target >= kSampledTargetMin};
}

void SelectionMemory::Learn(const GradientStatistics& seen, const SelectionOutcome& outcome) {
  const double claimed = seen.RatioAbove(outcome.stale_threshold) * static_cast<double>(outcome.n);
  double sampling = 1;
  if (outcome.stale_threshold > 0) {
    // After a second pass the exact histogram gives the count that the stale threshold would have
    // kept.
    const double real = outcome.stale ? static_cast<double>(outcome.count) : claimed;
    const double miss = static_cast<double>(outcome.target) / std::max(1.0, real);
    drift = std::clamp(drift * std::sqrt(miss), kDriftMin, kDriftMax);
    if (claimed >= 16 && real >= 16) sampling = std::clamp(claimed / real, 0.5, 2.0);
  }
  histogram = seen;
  correction = sampling * drift;
}

void SelectionState::Reserve(size_t entries) {
  if (room >= entries) return;
  // Left uninitialised: the passes write before they read, and untouched pages cost nothing.
  indices.reset(new uint32_t[entries]);
  values.reset(new float[entries]);
  halves.reset(new uint16_t[entries]);
  room = entries;
}

std::vector<std::byte> SelectionState::Save() const {
  StateWriter writer;
  writer.Write(correction);
  writer.Write(drift);
  writer.Write(histogram.count());
  writer.Write(histogram.sum_squares());
  writer.Write(histogram.max_abs());
  const auto& bins = histogram.bins();
  const auto used = static_cast<uint16_t>(
      std::count_if(bins.begin(), bins.end(), [](uint32_t count) { return count != 0; }));
  writer.Write(used);
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    if (bins[bin] == 0) continue;
    writer.Write(static_cast<uint16_t>(bin));
    writer.Write(bins[bin]);
  }
  SaveMore(writer);
  return writer.Take();
}

Status SelectionState::Load(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  WEIR_RETURN_IF_ERROR(ReadStateVersion(reader));
  WEIR_RETURN_IF_ERROR(ReadWithin(reader, kDriftMin / 2, kDriftMax * 2, &correction));
  WEIR_RETURN_IF_ERROR(ReadWithin(reader, kDriftMin, kDriftMax, &drift));
  uint64_t count = 0;
  double sum_squares = 0;
  float max_abs = 0;
  uint16_t used = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&count));
  WEIR_RETURN_IF_ERROR(ReadWithin(reader, 0.0, std::numeric_limits<double>::max(), &sum_squares));
  WEIR_RETURN_IF_ERROR(ReadWithin(reader, 0.0f, std::numeric_limits<float>::max(), &max_abs));
  // A count without bins would be inconsistent, because thresholds are looked up in the bins.
  WEIR_RETURN_IF_ERROR(ReadWithin<uint16_t>(reader, count > 0 ? 1 : 0,
                                            count > 0 ? uint16_t{kFirstNonFiniteBin} : 0, &used));
  histogram.Clear();
  uint16_t least = 0;
  for (uint16_t i = 0; i < used; ++i) {
    uint16_t bin = 0;
    uint32_t elements = 0;
    WEIR_RETURN_IF_ERROR(ReadWithin<uint16_t>(reader, least, kFirstNonFiniteBin - 1, &bin));
    WEIR_RETURN_IF_ERROR(ReadWithin<uint32_t>(reader, 1, UINT32_MAX, &elements));
    histogram.bins()[bin] = elements;
    least = bin + 1;
  }
  histogram.Finish(count, sum_squares, max_abs, false);
  WEIR_RETURN_IF_ERROR(LoadMore(reader));
  return CheckStateEnd(reader);
}

void SelectionState::Scale(double) {
  histogram.Clear();
  correction = drift = 1;
}

void SelectionState::SaveMore(StateWriter&) const {}

Status SelectionState::LoadMore(ByteReader&) { return OkStatus(); }

Selection SelectLargest(const SelectionRequest& request, SelectionState& state) {
  WEIR_CHECK(request.ratio > 0 && request.ratio <= 1);
  return Selector(request, state).Run();
}

Selection SelectAbove(const SelectionRequest& request, float threshold, TooFew too_few,
                      SelectionState& state) {
  WEIR_CHECK(request.ratio > 0 && request.ratio <= 1);
  return Selector(request, state).RunGiven(threshold, too_few);
}

void RepresentValues(ValueFormat format, std::span<float> rest, SelectionState& state,
                     Selection* selection) {
  const size_t count = selection->count;
  const float largest = selection->sums.max_abs();
  selection->format = format;
  if (format == ValueFormat::kHalf && count > 0) {
    selection->exponent = HalfExponent(largest, kHeadroomExact);
    if (!FitsHalf(SmallestValue(state, count), largest, selection->exponent)) {
      selection->format = ValueFormat::kFloat;
    }
  }
  float* errors = state.values.get();
  switch (selection->format) {
    case ValueFormat::kNone:
      return;
    case ValueFormat::kFloat:
      // The values stay as they are; an earlier rounding may have left errors in the rest.
      for (size_t i = 0; i < count && !rest.empty(); ++i) rest[state.indices[i]] = 0;
      return;
    case ValueFormat::kHalf:
      selection->sums.energy_lost +=
          kernels::RoundToHalf(errors, count, PowerOfTwo(selection->exponent), state.halves.get(),
                               errors)
              .errors;
      break;
    case ValueFormat::kInt8:
    case ValueFormat::kInt4:
    case ValueFormat::kTwoMeans:
    case ValueFormat::kQuantiles8:
    case ValueFormat::kQuantiles6:
      EncodeValues(format, {errors, count}, state.bytes());
      selection->sums.energy_lost += EnergyOf(errors, count);
      break;
  }
  for (size_t i = 0; i < count && !rest.empty(); ++i) rest[state.indices[i]] = errors[i];
}

}  // namespace weir
