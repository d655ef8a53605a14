// Fixed threshold: the threshold that keeps ratio * n elements in the first step with any is held
// from then on, so that the kept count follows the gradients as they shrink and grow. The state
// holds it, through checkpoints as well. Payload: selection (proto/WIRE.md section 3). Source:
// Strom, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015
// (a fixed threshold; values are sent instead of its sign); deviates: lambda from data in place of
// a parameter, and the histogram's threshold where more than twice ratio * n pass.

#include <limits>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

struct HeldThreshold : SelectionState {
  float threshold = 0;  // 0: none yet

  void Scale(double factor) override {
    SelectionState::Scale(factor);
    threshold = static_cast<float>(threshold * factor);
    // Beyond single precision it would never let anything pass: it is taken anew.
    if (!(threshold <= std::numeric_limits<float>::max())) threshold = 0;
  }

 protected:
  void SaveMore(StateWriter& writer) const override { writer.Write(threshold); }
  Status LoadMore(ByteReader& reader) override {
    return ReadWithin(reader, 0.0f, std::numeric_limits<float>::max(), &threshold);
  }
};

class ThresholdKeepingCodec : public ThresholdCodec {
 public:
  ThresholdKeepingCodec() : ThresholdCodec(MakeTraits()) {}

  std::unique_ptr<CodecState> NewState(size_t, const EncodeContext&) const override {
    return std::make_unique<HeldThreshold>();
  }

 protected:
  /// One pass, two in the first step; O(n).
  Selection Choose(SelectionRequest request, const EncodeContext&,
                   SelectionState& state) const override {
    auto* held = dynamic_cast<HeldThreshold*>(&state);
    if (held != nullptr && held->threshold > 0) {
      return SelectAbove(request, held->threshold, TooFew::kAccept, state);
    }
    state.histogram.Clear();
    const Selection selection = SelectLargest(request, state);
    if (held != nullptr && !selection.sums.non_finite() && state.histogram.count() > 0) {
      const float threshold = state.histogram.ThresholdForRatio(request.ratio);
      if (threshold > std::numeric_limits<float>::min()) held->threshold = threshold;
    }
    return selection;
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits =
        ThresholdTraits("threshold", "magnitudes above the first step's threshold (Strom 2015)");
    traits.error_model = ErrorModel::kUnknown;
    traits.contraction = 0;
    traits.opt_in = true;
    return traits;
  }
};

}  // namespace

void RegisterThreshold(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<ThresholdKeepingCodec>());
}

}  // namespace weir
