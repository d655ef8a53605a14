// SPDX-License-Identifier: Apache-2.0
// Selectors, which determine the threshold above which magnitudes are kept, or a more specific set
// of elements. The bare codec uses the threshold of the first step; the others are its variants,
// selector=NAME. A selector is a rule and a row of the table below.
// Payload: a selection (proto/WIRE.md section 3).

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "datapath/base/check.h"
#include "datapath/base/random.h"
#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

// --- The first step's ----------------------------------------------------------------------------
// The threshold that keeps ratio * n elements in the first step with nonzero elements is used from
// then on, so the kept count follows the gradients as they shrink and grow. The state stores it, in
// checkpoints, too. Source: Strom, "Scalable distributed DNN training using commodity GPU cloud
// computing", Interspeech 2015 (a fixed threshold, whose sign is sent; here values are sent);
// deviates: lambda from data in place of a parameter, and the histogram's threshold where more than
// twice ratio * n pass.

struct HeldThreshold : SelectionState {
  float threshold = 0;  // 0: none yet

  void Scale(double factor) override {
    SelectionState::Scale(factor);
    threshold = static_cast<float>(threshold * factor);
    // No element would pass an infinite threshold, so it is determined again.
    if (!(threshold <= std::numeric_limits<float>::max())) threshold = 0;
  }

 protected:
  void SaveMore(StateWriter& writer) const override { writer.Write(threshold); }
  Status LoadMore(ByteReader& reader) override {
    return ReadWithin(reader, 0.0f, std::numeric_limits<float>::max(), &threshold);
  }
};

std::unique_ptr<CodecState> MakeHeldThreshold() { return std::make_unique<HeldThreshold>(); }

SelectionRule HeldRule(const Tails&, SelectionState& state) {
  const auto* held = dynamic_cast<const HeldThreshold*>(&state);
  if (held != nullptr && held->threshold > 0) {
    return SelectionRule::Above(held->threshold, TooFew::kAccept);
  }
  state.histogram.Clear();
  return {};
}

void HoldThreshold(const Tails& tails, SelectionState& state) {
  auto* held = dynamic_cast<HeldThreshold*>(&state);
  if (held == nullptr || held->threshold > 0 || state.histogram.count() == 0) return;
  const float threshold = state.histogram.ThresholdForRatio(tails.ratio);
  if (threshold > std::numeric_limits<float>::min()) held->threshold = threshold;
}

// --- hard ----------------------------------------------------------------------------------------
// Keeps everything above lambda = 1 / (2 sqrt(k)) with k = ratio * n, which is a constant of the
// run. The kept count follows the scale of the gradients, so this is useful only where losses,
// batches and learning rates keep that scale constant. Source: Sahu et al., "Rethinking gradient
// sparsification as total error minimization", NeurIPS 2021; deviates: when more than twice ratio *
// n pass, the histogram's threshold for ratio * n is used, so that payloads stay bounded.

SelectionRule HardRule(const Tails& tails, SelectionState&) {
  const double target = static_cast<double>(SelectionTarget(tails.n, tails.ratio));
  const float threshold = target == 0 ? 0 : static_cast<float>(1 / (2 * std::sqrt(target)));
  return SelectionRule::Above(threshold, TooFew::kAccept);
}

// --- gaussian_k ----------------------------------------------------------------------------------
// The threshold of a normal distribution with mean zero and the mean square of the input. It is
// corrected by factors of 0.5 and 1.5, at most five times, while less than 2/3 or more than 4/3 of
// the wanted number pass. Source: Shi et al., "Understanding top-k sparsification in distributed
// deep learning", 2019; deviates: the mean is taken as zero, counts come from a sample of the
// elements where 16384 or more are wanted, and the histogram's threshold is used when fewer than
// half or more than twice the wanted number pass in the end.

constexpr int kCorrectionsMax = 5;

/// The z with P(|Z| > z) = tail for a standard normal Z, by bisection.
double TwoSidedNormalQuantile(double tail) {
  double low = 0, high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = 0.5 * (low + high);
    (std::erfc(middle / std::sqrt(2.0)) > tail ? low : high) = middle;
  }
  return low;
}

/// Two to seven passes that only read; O(n).
SelectionRule GaussianRule(const Tails& tails, SelectionState&) {
  const size_t n = tails.n;
  const double target = static_cast<double>(SelectionTarget(n, tails.ratio));
  const unsigned sampling = SamplingFor(static_cast<size_t>(target));
  const kernels::TailMoments all = tails.Above(std::numeric_limits<float>::min(), sampling);
  const double rms = n == 0 ? 0 : std::sqrt(all.sum_squares / static_cast<double>(n));
  auto threshold = static_cast<float>(
      n == 0 ? 0 : rms * TwoSidedNormalQuantile(target / static_cast<double>(n)));
  for (int i = 0; i < kCorrectionsMax && threshold >= std::numeric_limits<float>::min(); ++i) {
    const auto count = static_cast<double>(tails.Above(threshold, sampling).count);
    if (count >= target * 2 / 3 && count <= target * 4 / 3) break;
    threshold *= count < target ? 0.5f : 1.5f;
  }
  return SelectionRule::Above(threshold, TooFew::kRepair);
}

// --- redsync -------------------------------------------------------------------------------------
// Bisects the threshold between the mean and the largest magnitude until k to 2 k elements pass.
// Source: Fang et al., "RedSync: reducing synchronization bandwidth for distributed deep learning
// training system", JPDC 2019; deviates: counts come from a sample of the elements where 16384 or
// more are wanted, and the histogram's threshold is used where 20 halvings find none.

constexpr int kHalvingsMax = 20;

/// Two to 21 passes that only read; O(n).
SelectionRule RedsyncRule(const Tails& tails, SelectionState&) {
  const size_t n = tails.n;
  const size_t target = SelectionTarget(n, tails.ratio);
  const unsigned sampling = SamplingFor(target);
  const kernels::TailMoments all = tails.Above(std::numeric_limits<float>::min(), sampling);
  const double mean = n == 0 ? 0 : all.sum / static_cast<double>(n);
  double low = 0, high = 1;
  auto threshold = static_cast<float>(mean);
  for (int i = 0; i < kHalvingsMax && all.count > target; ++i) {
    const double middle = 0.5 * (low + high);
    threshold = static_cast<float>(mean + middle * (all.largest - mean));
    const uint64_t count = tails.Above(threshold, sampling).count;
    if (count >= target && count <= 2 * target) break;
    (count < target ? high : low) = middle;
  }
  return SelectionRule::Above(threshold, TooFew::kRepair);
}

// --- ms_top_k ------------------------------------------------------------------------------------
// Keeps exactly k elements, with two thresholds. All elements above the upper one are kept. The
// rest comes from a contiguous run of the band between the two, whose place is drawn from the
// shared seed. Source: Shi et al., "Towards scalable distributed training of deep learning on
// public cloud clusters", MLSys 2021; deviates: the two thresholds are the edges of the histogram
// bin with the k-th magnitude, 1/16 of a power of two apart, which one pass finds in place of 25
// bisecting ones; the run is contiguous among the elements of the band.

/// The band of magnitudes that contains the k-th, and the number of elements needed from it.
struct Band {
  float lower = std::numeric_limits<float>::min();  // elements above this are kept as needed,
  float upper = 0;                                  // those of at least this in any case
  uint64_t size = 0, needed = 0;
};

Band FindBand(const GradientStatistics& histogram, size_t target) {
  Band band;
  uint64_t above = 0;
  // Bins below 16 hold zeros and subnormal numbers, those from 4080 NaN and infinity.
  for (uint32_t bin = 4079; bin >= 16; --bin) {
    const uint64_t here = histogram.bins()[bin];
    if (above + here >= target) {
      band.lower = std::bit_cast<float>((bin << 19) - 1);
      band.upper = std::bit_cast<float>((bin + 1) << 19);  // infinity for the last bin
      band.size = here;
      band.needed = target - above;
      return band;
    }
    above += here;
  }
  return band;  // fewer than k elements are nonzero: keep all
}

/// One pass that only reads, O(n).
SelectionRule ExactRule(const Tails& tails, SelectionState&) {
  const Band band = FindBand(tails.histogram(), SelectionTarget(tails.n, tails.ratio));
  SelectionRule rule = SelectionRule::Above(band.lower, TooFew::kAccept);
  if (band.needed < band.size) {
    const uint64_t first = Random(tails.seed).Below(band.size - band.needed + 1);
    rule.band = {.upper = band.upper, .first = first, .needed = band.needed};
  }
  return rule;
}

// --- layer_wise ----------------------------------------------------------------------------------
// Every tensor of the bucket keeps its own largest magnitudes, max(1, floor(ratio * n_l)) of n_l
// elements, so that a layer with small gradients is not left out. Source: the layer-wise form of
// Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; deviates:
// thresholds come from a histogram per tensor. Counts per tensor are within the bounds of
// selection.h.

// --- Table ---------------------------------------------------------------------------------------

struct Selector {
  const char* name;
  const char* summary;
  SelectionRule (*rule)(const Tails&, SelectionState&) = nullptr;  // or `by_tensor`
  bool asks_for_tails = false;
  void (*learn)(const Tails&, SelectionState&) = nullptr;  // after a selection by `rule`
  bool by_tensor = false;
  double count_tolerance = 0;
  bool widths = false;         // whether values of 8 and 4 bits are offered, too
  bool follows_scale = false;  // the kept count follows the gradients' scale; opt-in
  std::unique_ptr<CodecState> (*make_state)() = nullptr;  // null: a SelectionState
};

constexpr Selector kSelectors[] = {
    {.name = "threshold",
     .summary = "magnitudes above the first step's threshold (Strom 2015)",
     .rule = HeldRule,
     .learn = HoldThreshold,
     .follows_scale = true,
     .make_state = MakeHeldThreshold},
    {.name = "threshold:selector=hard",
     .summary = "magnitudes above 1/(2 sqrt(k)) (Sahu et al. 2021)",
     .rule = HardRule,
     .follows_scale = true},
    {.name = "threshold:selector=gaussian_k",
     .summary = "threshold from a normal distribution (Shi et al. 2019)",
     .rule = GaussianRule,
     .asks_for_tails = true,
     .count_tolerance = 1.0 / 3},
    {.name = "threshold:selector=redsync",
     .summary = "threshold bisected between mean and maximum (Fang et al. 2019)",
     .rule = RedsyncRule,
     .asks_for_tails = true,
     .count_tolerance = 1},
    {.name = "threshold:selector=ms_top_k",
     .summary = "exactly k: two thresholds and a run of the band (Shi et al. 2021)",
     .rule = ExactRule,
     .asks_for_tails = true},
    {.name = "threshold:selector=layer_wise",
     .summary = "largest magnitudes of every tensor (Aji and Heafield 2017)",
     .by_tensor = true,
     .widths = true},
};

class SelectorCodec : public ThresholdCodec {
 public:
  explicit SelectorCodec(const Selector& selector)
      : ThresholdCodec(TraitsOf(selector)), selector_(selector) {}

  std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const override {
    return selector_.make_state != nullptr ? selector_.make_state()
                                           : ThresholdCodec::NewState(n, context);
  }

  SelectionRule Rule(const Tails& tails, SelectionState& state) const override {
    WEIR_CHECK(selector_.rule != nullptr);
    return selector_.rule(tails, state);
  }
  bool AsksForTails() const override { return selector_.asks_for_tails; }
  void LearnCount(const Tails& tails, size_t, bool, SelectionState& state) const override {
    if (selector_.learn != nullptr) selector_.learn(tails, state);
  }
  bool ByTensor() const override { return selector_.by_tensor; }

 private:
  static CodecTraits TraitsOf(const Selector& selector) {
    CodecTraits traits = ThresholdTraits(selector.name, selector.summary);
    traits.count_tolerance = selector.count_tolerance;
    if (selector.widths) traits.settings = ThresholdSettings();
    if (selector.follows_scale) {
      traits.error_model = ErrorModel::kUnknown;
      traits.contraction = 0;
      traits.opt_in = true;
    }
    return traits;
  }

  const Selector& selector_;
};

}  // namespace

void RegisterThreshold(Registry<Codec>& registry, uint8_t id) {
  for (const Selector& selector : kSelectors) {
    registry.Add(id, std::make_unique<SelectorCodec>(selector));
  }
}

}  // namespace weir
