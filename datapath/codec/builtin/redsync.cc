// RedSync: bisects the threshold between the mean and the largest magnitude until k to 2 k elements
// pass. Payload: selection (proto/WIRE.md section 3). Source: Fang et al., "RedSync: reducing
// synchronization bandwidth for distributed deep learning training system", JPDC 2019; deviates:
// counts come from a sample of the elements where 16384 or more are wanted, and the histogram's
// threshold steps in where 20 halvings find none.

#include <limits>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

constexpr int kHalvingsMax = 20;

class RedsyncCodec : public ThresholdCodec {
 public:
  RedsyncCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  /// Two to 21 reading passes and one that selects; O(n).
  Selection Choose(SelectionRequest request, const EncodeContext&,
                   SelectionState& state) const override {
    const size_t n = request.gradient.size();
    const size_t target = SelectionTarget(n, request.ratio);
    const unsigned sampling = SamplingFor(target);
    const kernels::TailMoments all =
        MomentsAbove(request, std::numeric_limits<float>::min(), sampling);
    const double mean = n == 0 ? 0 : all.sum / static_cast<double>(n);
    double low = 0, high = 1;
    auto threshold = static_cast<float>(mean);
    for (int i = 0; i < kHalvingsMax && all.count > target; ++i) {
      const double middle = 0.5 * (low + high);
      threshold = static_cast<float>(mean + middle * (all.largest - mean));
      const uint64_t count = MomentsAbove(request, threshold, sampling).count;
      if (count >= target && count <= 2 * target) break;
      (count < target ? high : low) = middle;
    }
    return SelectAbove(request, threshold, TooFew::kRepair, state);
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "redsync", "threshold bisected between mean and maximum (Fang et al. 2019)");
    traits.count_tolerance = 1;
    return traits;
  }
};

}  // namespace

void RegisterRedsync(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<RedsyncCodec>());
}

}  // namespace weir
