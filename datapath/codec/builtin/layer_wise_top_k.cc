// Layer-wise top-k: every tensor of the bucket keeps its own largest magnitudes, max(1, floor(ratio
// * n_l)) of n_l elements, so that no layer starves beside a louder one. One payload: selection
// (proto/WIRE.md section 3). Source: the layer-wise form of Aji and Heafield, "Sparse communication
// for distributed gradient descent", EMNLP 2017; deviates: thresholds from a histogram per tensor.
// Counts per tensor lie within the bounds of selection.h.

#include <algorithm>
#include <cstring>

#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

class LayerWiseTopKCodec : public ThresholdCodec {
 public:
  LayerWiseTopKCodec() : ThresholdCodec(MakeTraits()) {}

 protected:
  size_t Cap(size_t n, const EncodeContext& context) const override {
    if (!Fits(n, context.shape)) return SelectionCap(n, context.params.ratio);
    size_t cap = 0;
    for (const TensorShape& tensor : context.shape) {
      cap += SelectionCap(tensor.elements(), context.params.ratio);
    }
    return std::min(n, cap);
  }

  /// Two passes, tensor by tensor; O(n). The state is scratch.
  Selection Choose(SelectionRequest request, const EncodeContext& context,
                   SelectionState& state) const override {
    const size_t n = request.gradient.size();
    const TensorShape whole{1, n};
    const std::span<const TensorShape> tensors =
        Fits(n, context.shape) ? context.shape : std::span(&whole, 1);
    state.Reserve(Cap(n, context) + kernels::kBlockElements + kernels::kSelectSlack);
    GradientStatistics* const statistics = request.statistics;
    if (statistics != nullptr) statistics->Clear();
    SelectionState scratch;
    Selection all;
    all.format = ValueFormat::kFloat;
    size_t at = 0;
    for (const TensorShape& tensor : tensors) {
      const size_t size = tensor.elements();
      Append(Part(request, at, size), at, scratch, statistics, state, &all);
      at += size;
    }
    if (all.sums.non_finite()) return {.sums = all.sums};
    RepresentValues(request.format, request.rest, state, &all);
    return all;
  }

 private:
  static bool Fits(size_t n, std::span<const TensorShape> shape) {
    uint64_t elements = 0;
    for (const TensorShape& tensor : shape) elements += tensor.elements();
    return !shape.empty() && elements == n;
  }

  static SelectionRequest Part(const SelectionRequest& whole, size_t at, size_t size) {
    SelectionRequest part{.gradient = whole.gradient.subspan(at, size), .ratio = whole.ratio};
    if (!whole.residual.empty()) part.residual = whole.residual.subspan(at, size);
    if (!whole.rest.empty()) part.rest = whole.rest.subspan(at, size);
    part.format = ValueFormat::kFloat;
    return part;
  }

  /// Selects from one tensor and puts the outcome behind what `all` holds in `state`.
  static void Append(SelectionRequest part, size_t at, SelectionState& scratch,
                     GradientStatistics* statistics, SelectionState& state, Selection* all) {
    GradientStatistics seen;
    if (statistics != nullptr) part.statistics = &seen;
    scratch.histogram.Clear();  // no steering: every tensor is met for the first time
    const Selection one = SelectLargest(part, scratch);
    if (statistics != nullptr) statistics->Merge(seen);
    all->sums.energy_in += one.sums.energy_in;
    all->sums.energy_lost += one.sums.energy_lost;
    all->sums.max_bits = std::max(all->sums.max_bits, one.sums.max_bits);
    for (size_t i = 0; i < one.count; ++i) {
      state.indices[all->count + i] = static_cast<uint32_t>(scratch.indices[i] + at);
    }
    std::memcpy(state.values.get() + all->count, scratch.values.get(), one.count * sizeof(float));
    all->count += one.count;
  }

  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "layer_wise_top_k", "largest magnitudes of every tensor (Aji and Heafield 2017)");
    traits.settings = ThresholdSettings();
    return traits;
  }
};

}  // namespace

void RegisterLayerWiseTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<LayerWiseTopKCodec>());
}

}  // namespace weir
