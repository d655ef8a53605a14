// SPDX-License-Identifier: Apache-2.0
// Deep gradient compression, which has momentum inside: u = 0.9 u + g and v = residual + u. The
// elements of v above a threshold are sent, and u and v become zero there. The optimiser's own
// momentum must be off. With a state, the first steps send more: 25 %, 6.3 %, 1.5 % and 0.4 %, each
// for kWarmUpSteps steps with finite input and only if above the ratio. The threshold is the k-th
// magnitude of a strided sample of at least 1 %. It is then corrected by factors of 1.3 and 0.7, at
// most ten times, until 0.7 k to 1.3 k elements pass.
// Payload: a selection (proto/WIRE.md section 3).
// Source: Lin et al., "Deep gradient compression", ICLR 2018; deviates: no gradient clipping; once
// corrections have gone both ways they halve the bracket instead of swinging; counts come from one
// run of elements in eight where 16384 or more are wanted; the histogram's threshold is used when
// fewer than half or more than twice the wanted number pass in the end; warm-up counts steps, not
// epochs; values are rounded to half precision, with the error kept in v.
// Memory: the sample, n / 97 floats.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

constexpr size_t kSampleStride = 97;                  // 1 modulo 32, just above 1 %
constexpr size_t kSampledMin = kSampleStride * 1024;  // shorter buckets are sampled in full
constexpr int kDgcCorrectionsMax = 10;
constexpr float kRaise = 1.3f, kLower = 0.7f;
constexpr double kCountLow = 0.7, kCountHigh = 1.3;
constexpr std::array kWarmUpRatios = {0.25, 0.063, 0.015, 0.004};
constexpr uint32_t kWarmUpSteps = 64;

constexpr uint32_t kWarmUpEnd = kWarmUpRatios.size() * kWarmUpSteps;

struct WarmUpState : SelectionState {
  uint32_t steps = 0;

 protected:
  void SaveMore(StateWriter& writer) const override { writer.Write(steps); }
  Status LoadMore(ByteReader& reader) override {
    return ReadWithin<uint32_t>(reader, 0, kWarmUpEnd, &steps);
  }
};

class DgcCodec : public ThresholdCodec {
 public:
  DgcCodec() : ThresholdCodec(MakeTraits()) {}

  std::unique_ptr<CodecState> NewState(size_t, const EncodeContext&) const override {
    return std::make_unique<WarmUpState>();
  }

  double RatioOf(const EncodeContext& context, const SelectionState& state) const override {
    const auto* warm_up = dynamic_cast<const WarmUpState*>(&state);
    if (warm_up == nullptr) return context.params.ratio;
    const size_t stage = warm_up->steps / kWarmUpSteps;
    return stage < kWarmUpRatios.size() ? std::max(context.params.ratio, kWarmUpRatios[stage])
                                        : context.params.ratio;
  }

  /// Two or more passes that only read (mostly sampled).
  SelectionRule Rule(const Tails& tails, SelectionState&) const override {
    return SelectionRule::Above(SampledThreshold(tails), TooFew::kRepair);
  }
  bool AsksForTails() const override { return true; }
  void LearnCount(const Tails&, size_t, bool, SelectionState& state) const override {
    auto* warm_up = dynamic_cast<WarmUpState*>(&state);
    if (warm_up != nullptr) warm_up->steps = std::min(warm_up->steps + 1, kWarmUpEnd);
  }
  size_t Cap(size_t n, const EncodeContext& context) const override {
    return SelectionCap(n, std::max(context.params.ratio, kWarmUpRatios[0]));
  }

 private:
  static float SampledThreshold(const Tails& tails) {
    if (tails.n == 0) return 0;
    std::vector<float> sample = tails.magnitudes(tails.n < kSampledMin ? 1 : kSampleStride);
    if (sample.empty()) return 0;  // reading a device failed
    const double wanted = tails.ratio * static_cast<double>(sample.size());
    const size_t kth = std::clamp<size_t>(static_cast<size_t>(wanted), 1, sample.size()) - 1;
    std::nth_element(sample.begin(), sample.begin() + static_cast<ptrdiff_t>(kth), sample.end(),
                     std::greater<>());
    return Corrected(tails, sample[kth]);
  }

  static float Corrected(const Tails& tails, float threshold) {
    const size_t target = SelectionTarget(tails.n, tails.ratio);
    const unsigned sampling = SamplingFor(target);
    float low = 0, high = 0;  // thresholds with too many and too few elements; 0: none yet
    for (int i = 0; i < kDgcCorrectionsMax; ++i) {
      if (!(threshold >= std::numeric_limits<float>::min())) break;
      const auto count = static_cast<double>(tails.Above(threshold, sampling).count);
      if (count > kCountHigh * static_cast<double>(target)) {
        low = threshold;
      } else if (count < kCountLow * static_cast<double>(target)) {
        high = threshold;
      } else {
        break;
      }
      if (low > 0 && high > 0) {
        threshold = std::sqrt(low) * std::sqrt(high);
      } else {
        threshold *= low > 0 ? kRaise : kLower;
      }
    }
    return threshold;
  }

  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "dgc", "sampled threshold with momentum correction and warm-up (Lin et al. 2018)");
    traits.needs_momentum = true;
    traits.opt_in = true;
    traits.settings = ThresholdSettings();
    traits.count_tolerance = kCountHigh - 1;
    return traits;
  }
};

}  // namespace

void RegisterDgc(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<DgcCodec>());
}

}  // namespace weir
