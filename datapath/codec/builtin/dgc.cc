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
#include <limits>
#include <vector>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

constexpr float kMomentumFactor = 0.9f;
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

 protected:
  size_t Cap(size_t n, const EncodeContext& context) const override {
    return SelectionCap(n, std::max(context.params.ratio, kWarmUpRatios[0]));
  }

  /// One pass for the momentum, two or more that only read (mostly sampled), and one that selects;
  /// O(n).
  Selection Choose(SelectionRequest request, const EncodeContext& context,
                   SelectionState& state) const override {
    auto* warm_up = dynamic_cast<WarmUpState*>(&state);
    if (warm_up != nullptr) {
      const size_t stage = warm_up->steps / kWarmUpSteps;
      if (stage < kWarmUpRatios.size()) {
        request.ratio = std::max(request.ratio, kWarmUpRatios[stage]);
      }
    }
    const std::span<float> momentum = context.momentum.next;
    if (!momentum.empty()) {
      kernels::AddMomentum(request.gradient.data(), context.momentum.current.data(),
                           momentum.size(), kMomentumFactor, momentum.data());
      request.gradient = momentum;
    }
    const Selection selection =
        SelectAbove(request, SampledThreshold(request), TooFew::kRepair, state);
    if (selection.sums.non_finite()) return selection;
    for (size_t i = 0; i < selection.count && !momentum.empty(); ++i) {
      momentum[state.indices[i]] = 0;
    }
    if (warm_up != nullptr) warm_up->steps = std::min(warm_up->steps + 1, kWarmUpEnd);
    return selection;
  }

 private:
  static float SampledThreshold(const SelectionRequest& request) {
    const size_t n = request.gradient.size();
    if (n == 0) return 0;
    const size_t stride = n < kSampledMin ? 1 : kSampleStride;
    std::vector<float> sample;
    sample.reserve(n / stride + 1);
    for (size_t i = 0; i < n; i += stride) {
      const float residual = request.residual.empty() ? 0 : request.residual[i];
      const float magnitude = std::abs(request.gradient[i] + residual);
      // NaN has no place in an order; the selecting pass detects it.
      sample.push_back(magnitude <= std::numeric_limits<float>::max() ? magnitude : 0);
    }
    const double wanted = request.ratio * static_cast<double>(sample.size());
    const size_t kth = std::clamp<size_t>(static_cast<size_t>(wanted), 1, sample.size()) - 1;
    std::nth_element(sample.begin(), sample.begin() + static_cast<ptrdiff_t>(kth), sample.end(),
                     std::greater<>());
    return Corrected(request, sample[kth]);
  }

  static float Corrected(const SelectionRequest& request, float threshold) {
    const size_t target = SelectionTarget(request.gradient.size(), request.ratio);
    const unsigned sampling = SamplingFor(target);
    const Tails tails = TailsOf(request);
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
