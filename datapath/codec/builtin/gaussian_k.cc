// Gaussian-k: the threshold of a normal distribution with mean zero and the input's mean square,
// corrected by factors of 0.5 and 1.5, at most five times, while less than 2/3 or more than 4/3 of
// the wanted number pass. Payload: selection (proto/WIRE.md section 3). Source: Shi et al.,
// "Understanding top-k sparsification in distributed deep learning", 2019; deviates: the mean is
// taken as zero, counts come from a sample of the elements where 16384 or more are wanted, and
// the histogram's threshold steps in when fewer than half or more than twice the wanted number pass
// in the end.

#include <algorithm>
#include <cmath>
#include <limits>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

constexpr int kCorrectionsMax = 5;

/// z with P(|Z| > z) = tail for a standard normal Z, by bisection.
double TwoSidedNormalQuantile(double tail) {
  double low = 0, high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = 0.5 * (low + high);
    (std::erfc(middle / std::sqrt(2.0)) > tail ? low : high) = middle;
  }
  return low;
}

class GaussianKCodec : public ThresholdCodec {
 public:
  GaussianKCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  /// Two to seven reading passes and one that selects; O(n).
  Selection Choose(SelectionRequest request, const EncodeContext&,
                   SelectionState& state) const override {
    const size_t n = request.gradient.size();
    const double target = static_cast<double>(SelectionTarget(n, request.ratio));
    const unsigned sampling = SamplingFor(static_cast<size_t>(target));
    const kernels::TailMoments all =
        MomentsAbove(request, std::numeric_limits<float>::min(), sampling);
    const double rms = n == 0 ? 0 : std::sqrt(all.sum_squares / static_cast<double>(n));
    auto threshold = static_cast<float>(
        n == 0 ? 0 : rms * TwoSidedNormalQuantile(target / static_cast<double>(n)));
    for (int i = 0; i < kCorrectionsMax && threshold >= std::numeric_limits<float>::min(); ++i) {
      const auto count = static_cast<double>(MomentsAbove(request, threshold, sampling).count);
      if (count >= target * 2 / 3 && count <= target * 4 / 3) break;
      threshold *= count < target ? 0.5f : 1.5f;
    }
    return SelectAbove(request, threshold, TooFew::kRepair, state);
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits =
        ThresholdTraits("gaussian_k", "threshold from a normal distribution (Shi et al. 2019)");
    traits.count_tolerance = 1.0 / 3;
    return traits;
  }
};

}  // namespace

void RegisterGaussianK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<GaussianKCodec>());
}

}  // namespace weir
