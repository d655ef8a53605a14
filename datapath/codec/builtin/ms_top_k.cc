// Multi-sampling top-k: exactly k elements, from a threshold below and one above. All elements
// above the upper one are kept, and of the band between the two a contiguous run that makes up for
// the rest, its place drawn from the shared seed. Payload: selection (proto/WIRE.md section 3).
// Source: Shi et al., "Towards scalable distributed training of deep learning on public cloud
// clusters", MLSys 2021; deviates: the two thresholds are the edges of the histogram bin that holds
// the k-th magnitude, 1/16 of a power of two apart, found in one pass in place of 25 bisecting
// ones; the run is contiguous among the elements of the band.

#include <bit>
#include <cmath>
#include <limits>

#include "datapath/base/random.h"
#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

/// The band of magnitudes in which the k-th lies, and how many of it are needed.
struct Band {
  float lower = std::numeric_limits<float>::min();  // kept when above this,
  float upper = 0;                                  // surely when at least this
  uint64_t size = 0, needed = 0;
};

Band FindBand(const SelectionRequest& request, size_t target) {
  GradientStatistics histogram;
  const size_t n = request.gradient.size();
  for (size_t at = 0; at < n; at += kernels::kBlockElements) {
    const kernels::Block block{
        .gradient = request.gradient.data() + at,
        .residual = request.residual.empty() ? nullptr : request.residual.data() + at,
        .size = std::min(kernels::kBlockElements, n - at)};
    kernels::Histogram(block, /*sampled=*/false, 0, 1, histogram.bins().data());
  }
  Band band;
  uint64_t above = 0;
  // Bins below 16 hold zeros and subnormal numbers, those from 4080 NaN and infinity.
  for (uint32_t bin = 4079; bin >= 16; --bin) {
    const uint64_t here = histogram.bins()[bin];
    if (above + here >= target) {
      band.lower = std::bit_cast<float>((bin << 19) - 1);
      band.upper = std::bit_cast<float>((bin + 1) << 19);  // infinity above the last bin
      band.size = here;
      band.needed = target - above;
      return band;
    }
    above += here;
  }
  return band;  // fewer than k are not zero: all of them
}

class MsTopKCodec : public ThresholdCodec {
 public:
  MsTopKCodec()
      : ThresholdCodec(ThresholdTraits(
            "ms_top_k", "exactly k: two thresholds and a run of the band (Shi et al. 2021)")) {}

 protected:
  /// One counting pass and one that selects, O(n).
  Selection Choose(SelectionRequest request, const EncodeContext& context,
                   SelectionState& state) const override {
    const Band band = FindBand(request, SelectionTarget(request.gradient.size(), request.ratio));
    if (band.needed < band.size) {
      const uint64_t first = Random(context.seed).Below(band.size - band.needed + 1);
      request.keep = [band, first, seen = uint64_t{0}](float value) mutable {
        if (std::abs(value) >= band.upper) return true;
        const uint64_t position = seen++;
        return position >= first && position < first + band.needed;
      };
    }
    return SelectAbove(request, band.lower, TooFew::kAccept, state);
  }
};

}  // namespace

void RegisterMsTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<MsTopKCodec>());
}

}  // namespace weir
