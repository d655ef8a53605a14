// Top-k: the largest magnitudes of gradient + residual, by threshold. A threshold taken from the
// last step's histogram makes it one pass over memory; the kept count follows the ratio closely but
// is not exactly k (see selection.h for its bounds), which no receiver needs. Payload: selection
// header, coded positions, half- or single-precision values (proto/WIRE.md section 3). Source: Aji
// and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017; deviates:
// threshold from a 4096-bin histogram, values rounded with the error kept as residual.

#include "datapath/codec/block_pass.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/selection.h"
#include "datapath/codec/selection_payload.h"

namespace weir {
namespace {

class TopKCodec : public Codec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const CodecParams& params) const override {
    return MaxSelectionBytes(n, params.ratio, /*with_values=*/true);
  }

  std::unique_ptr<CodecState> NewState(size_t, const CodecParams&) const override {
    return std::make_unique<SelectionState>();
  }

  /// One pass with a warm state, else two; O(n).
  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const override {
    return Select({.gradient = x}, context, out);
  }

  StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                            std::span<const float> residual,
                                            std::span<float> residual_out,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const override {
    return Select({gradient, residual, residual_out}, context, out);
  }

  /// O(kept).
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext&, float scale,
                   std::span<float> out) const override {
    return AddSelection(payload, scale, out);
  }

  Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                       std::vector<uint32_t>* indices) const override {
    return ReadSelectionIndices(payload, n, indices);
  }

 private:
  StatusOr<EncodeResult> Select(SelectionRequest request, const EncodeContext& context,
                                std::span<std::byte> out) const {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t n = request.gradient.size();
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, MaxEncodedBytes(n, context.params)));
    request.ratio = context.params.ratio;
    request.statistics = context.statistics;
    SelectionState transient;
    auto* kept = dynamic_cast<SelectionState*>(context.state);
    SelectionState& state = kept != nullptr ? *kept : transient;
    const Selection selection = SelectLargest(request, state);
    EncodeResult result{.bytes = WriteSelection(selection, state, n, out),
                        .non_finite = selection.sums.non_finite()};
    if (!result.non_finite) {
      result.energy_in = selection.sums.energy_in;
      result.energy_lost = selection.sums.energy_lost;
    }
    return result;
  }

  const CodecTraits traits_ = {
      .name = "top_k",
      .summary = "largest magnitudes with coded positions (Aji and Heafield 2017)",
      .needs_error_feedback = true,
      .form = PayloadForm::kOpaque,
      .kept_bits = 16,
      .indices_coded = true,
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      .error_model = ErrorModel::kSelection,
  };
};

}  // namespace

void RegisterTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<TopKCodec>());
}

}  // namespace weir
