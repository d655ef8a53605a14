#include "datapath/codec/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/base/check.h"

namespace weir {
namespace {

using kernels::Block;
using kernels::kBlockElements;

constexpr float kSmallestNormal = std::numeric_limits<float>::min();
/// Sample the histogram when at least this many elements are to be kept: an eighth of them still
/// places the threshold within a few per cent.
constexpr size_t kSampledTargetMin = 2048;
/// Powers of two between the largest magnitude expected and the largest half-precision lane.
constexpr int kHeadroomExact = 0;
constexpr int kHeadroomStale = 2;

/// 2^exponent as a float, -126 <= exponent <= 127.
float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// The power of two that brings magnitudes up to max_abs below 2^15, `headroom` powers lower.
int HalfExponent(float max_abs, int headroom) {
  int exponent = 0;
  std::frexp(max_abs, &exponent);  // max_abs < 2^exponent
  return std::clamp(15 - headroom - exponent, -113, 120);
}

/// One attempt after another at one selection.
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
    if (!sums_.non_finite()) {
      FixFormat();
      Remember();
    }
    if (request_.statistics != nullptr) *request_.statistics = seen_;
    if (sums_.non_finite()) return {.sums = sums_};
    sums_.energy_lost = std::max(0.0, sums_.energy_in - energy_kept_ + energy_rounded_);
    return {count_, sums_, format_, exponent_};
  }

 private:
  /// One pass with last step's threshold. False when it missed and RunExact must follow.
  bool RunStale() {
    const double wanted = state_.correction * static_cast<double>(target_) / n_;
    threshold_ = state_.histogram.ThresholdForRatio(std::clamp(wanted, 1e-12, 1.0));
    exponent_ = HalfExponent(state_.histogram.max_abs(), kHeadroomStale);
    stale_threshold_ = threshold_;
    counts_histogram_ = true;
    sampled_ = target_ >= kSampledTargetMin;
    if (!Pass(/*truncate=*/false)) {
      Restore();
      return false;
    }
    if (sums_.non_finite()) return true;
    if (count_ >= (target_ + 1) / 2 || threshold_ <= kSmallestNormal) return true;
    Restore();
    return false;
  }

  /// A counting pass, then the selection.
  void RunExact() {
    seen_.Clear();
    for (size_t at = 0; at < n_; at += kBlockElements) {
      kernels::Histogram(BlockAt(at), /*sampled=*/false, 0, 1, seen_.bins().data());
    }
    counts_histogram_ = false;
    sampled_ = false;
    threshold_ =
        n_ == 0 ? kSmallestNormal : seen_.ThresholdForRatio(static_cast<double>(target_) / n_);
    // The top of the highest bin in use bounds the largest magnitude.
    int top = GradientStatistics::kBins - 1;
    while (top > 0 && seen_.bins()[top] == 0) --top;
    const uint32_t bound = std::min((static_cast<uint32_t>(top) + 1) << 19, 0x7F7FFFFFu);
    exponent_ = HalfExponent(std::bit_cast<float>(bound), kHeadroomExact);
    Pass(/*truncate=*/true);
    if (!sums_.non_finite() && count_ < (target_ + 1) / 2 && threshold_ > kSmallestNormal) {
      // Many equal magnitudes just below: start from the edge of their bin, in order of position.
      Restore();
      const uint32_t edge = std::bit_cast<uint32_t>(threshold_) & ~((1u << 19) - 1);
      threshold_ = std::max(kSmallestNormal, std::bit_cast<float>(edge - 1));
      Pass(/*truncate=*/true);
    }
    seen_.Finish(n_, sums_.energy_in, sums_.max_abs(), sums_.non_finite());
  }

  Block BlockAt(size_t at) const {
    return {.gradient = gradient_ + at,
            .residual = residual_ == nullptr ? nullptr : residual_ + at,
            .size = std::min(kBlockElements, n_ - at)};
  }

  /// Goes over all blocks with threshold_. False when more than cap_ elements passed it and
  /// `truncate` is off; then blocks up to processed_ are done.
  bool Pass(bool truncate) {
    sums_ = {};
    count_ = 0;
    energy_kept_ = energy_rounded_ = 0;
    if (counts_histogram_) seen_.Clear();
    float threshold = threshold_;
    for (size_t at = 0; at < n_; at += kBlockElements) {
      const Block block = BlockAt(at);
      float* target = rest_ == nullptr ? nullptr : rest_ + at;
      const size_t found =
          kernels::Select(block, threshold, static_cast<uint32_t>(at), target,
                          state_.indices.get() + count_, state_.values.get() + count_, &sums_);
      const size_t kept = std::min(found, cap_ - count_);
      const bool over = kept < found;
      if (target != nullptr) {
        for (size_t i = count_ + kept; i < count_ + found; ++i) {
          target[state_.indices[i] - at] = state_.values[i];
        }
      }
      if (counts_histogram_) Count(block, at, kept, target);
      FinishBlock(at, kept, target);
      processed_ = at + block.size;
      if (over && !truncate) return false;
      if (over) threshold = std::numeric_limits<float>::infinity();
    }
    if (counts_histogram_) {
      seen_.Finish(n_, sums_.energy_in, sums_.max_abs(), sums_.non_finite());
    }
    return true;
  }

  /// Adds a block to the histogram, after Select: its data are in the cache now. Where the rest has
  /// replaced the input, the selected elements are zeros in it and are counted from their values.
  void Count(const Block& block, size_t at, size_t kept, const float* target) {
    uint32_t* bins = seen_.bins().data();
    const uint32_t weight = sampled_ ? kHistogramSampling : 1;
    const Block source = target == nullptr ? block : Block{.gradient = target, .size = block.size};
    kernels::Histogram(source, sampled_, at / kernels::kSampleGroup, weight, bins);
    if (target == nullptr) return;
    for (size_t i = count_; i < count_ + kept; ++i) {
      if (sampled_ && !kernels::IsSampled(state_.indices[i])) continue;
      bins[0] -= weight;
      bins[(std::bit_cast<uint32_t>(state_.values[i]) & 0x7FFFFFFFu) >> 19] += weight;
    }
  }

  /// Accounts for the `kept` newest entries and corrects `target`, the block's part of the rest.
  void FinishBlock(size_t at, size_t kept, float* target) {
    if (kept == 0) return;
    const uint32_t* indices = state_.indices.get() + count_;
    const float* values = state_.values.get() + count_;
    kernels::Sums kept_sums;
    kernels::Measure({.gradient = values, .size = kept}, nullptr, &kept_sums);
    energy_kept_ += kept_sums.energy_in;
    if (!request_.values_wanted) {
      if (target != nullptr) {
        for (size_t i = 0; i < kept; ++i) target[indices[i] - at] = values[i];
      }
    } else {
      Round(values, kept, state_.halves.get() + count_);
      if (target != nullptr) {
        for (size_t i = 0; i < kept; ++i) target[indices[i] - at] = errors_[i];
      }
    }
    count_ += kept;
  }

  /// Rounds up to a block of values to half precision; the errors go to errors_.
  void Round(const float* values, size_t size, uint16_t* halves) {
    std::memcpy(errors_, values, size * sizeof(float));
    kernels::RoundToHalf(errors_, size, PowerOfTwo(exponent_), halves);
    kernels::Sums error_sums;
    kernels::Measure({.gradient = errors_, .size = size}, nullptr, &error_sums);
    energy_rounded_ += error_sums.energy_in;
  }

  /// Undoes a pass: `rest` becomes e itself, which then stands in for gradient and residual.
  void Restore() {
    if (rest_ == nullptr) return;
    for (size_t i = 0; i < count_; ++i) rest_[state_.indices[i]] = state_.values[i];
    kernels::Sums ignored;
    for (size_t at = processed_; at < n_; at += kBlockElements) {
      kernels::Measure(BlockAt(at), rest_ + at, &ignored);
    }
    gradient_ = rest_;
    residual_ = nullptr;
  }

  /// Chooses the representation of the values; rounds again when the expected scale was wrong.
  void FixFormat() {
    if (!request_.values_wanted || count_ == 0) {
      format_ = request_.values_wanted ? ValueFormat::kHalf : ValueFormat::kNone;
      return;
    }
    // Lanes hold at most 65504 and round to zero below 2^-25; what would round to zero was selected
    // in vain. The smallest value is looked for only when the threshold does not settle the matter.
    const auto fits = [this](int exponent) {
      if (std::ldexp(sums_.max_abs(), exponent) > 65504.0f) return false;
      return std::ldexp(threshold_, exponent) >= 0x1p-24f ||
             std::ldexp(SmallestValue(), exponent) >= 0x1p-24f;
    };
    format_ = ValueFormat::kHalf;
    if (fits(exponent_)) return;
    exponent_ = HalfExponent(sums_.max_abs(), kHeadroomExact);
    if (!fits(exponent_)) format_ = ValueFormat::kFloat;
    energy_rounded_ = 0;
    for (size_t at = 0; at < count_; at += kBlockElements) {
      const size_t size = std::min(kBlockElements, count_ - at);
      if (format_ == ValueFormat::kHalf) {
        Round(state_.values.get() + at, size, state_.halves.get() + at);
      } else {
        std::memset(errors_, 0, size * sizeof(float));
      }
      if (rest_ == nullptr) continue;
      for (size_t i = 0; i < size; ++i) rest_[state_.indices[at + i]] = errors_[i];
    }
  }

  float SmallestValue() const {
    float smallest = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < count_; ++i) smallest = std::min(smallest, std::abs(state_.values[i]));
    return smallest;
  }

  /// Prepares the next step's threshold. The histogram is corrected by how many elements it claims
  /// above this step's threshold against how many there were (sampling), and the wanted count by
  /// how far this step's count was off (drift between steps).
  void Remember() {
    const double claimed = seen_.RatioAbove(stale_threshold_) * static_cast<double>(n_);
    double sampling = 1;
    if (stale_threshold_ > 0) {
      // After a second pass the exact histogram says what the stale threshold would have kept.
      const double real = counts_histogram_ ? static_cast<double>(count_) : claimed;
      const double miss = static_cast<double>(target_) / std::max(1.0, real);
      state_.drift = std::clamp(state_.drift * std::sqrt(miss), 0.0625, 4.0);
      if (claimed >= 16 && real >= 16) sampling = std::clamp(claimed / real, 0.5, 2.0);
    }
    state_.histogram = seen_;
    state_.correction = sampling * state_.drift;
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
  float stale_threshold_ = 0;  // the one that RunStale tried; 0: it did not run
  int exponent_ = 0;
  ValueFormat format_ = ValueFormat::kNone;
  size_t count_ = 0, processed_ = 0;
  double energy_kept_ = 0, energy_rounded_ = 0;
  kernels::Sums sums_;
  GradientStatistics seen_;
  alignas(64) float errors_[kBlockElements];
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

void SelectionState::Reserve(size_t entries) {
  if (room >= entries) return;
  // Left uninitialised: the passes write before they read, and untouched pages cost nothing.
  indices.reset(new uint32_t[entries]);
  values.reset(new float[entries]);
  halves.reset(new uint16_t[entries]);
  room = entries;
}

Selection SelectLargest(const SelectionRequest& request, SelectionState& state) {
  WEIR_CHECK(request.ratio > 0 && request.ratio <= 1);
  return Selector(request, state).Run();
}

}  // namespace weir
