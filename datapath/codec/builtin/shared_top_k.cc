// Shared top-k: one rank's selection serves all ranks, whose float32 values at it are then added.
// The payload holds positions only (selection header with value format 0, proto/WIRE.md section 3).
// Source: Tyagi and Swany, "Flexible communication for optimal distributed learning over
// unpredictable networks" (AR-Topk), 2023; deviates: threshold selection, coded positions.

#include "datapath/codec/block_pass.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/selection.h"
#include "datapath/codec/selection_payload.h"

namespace weir {
namespace {

class SharedTopKCodec : public Codec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const CodecParams& params) const override {
    return MaxSelectionBytes(n, params.ratio, /*with_values=*/false);
  }

  std::unique_ptr<CodecState> NewState(size_t, const CodecParams&) const override {
    return std::make_unique<SelectionState>();
  }

  /// One pass with a warm state, else two; O(n). energy_lost is what this rank's own selection
  /// leaves.
  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const override {
    return Select({.gradient = x}, context, out);
  }

  /// residual_out becomes gradient + residual, selected elements included: which of them leave is
  /// known only when the ranks have agreed on a selection, so the caller zeroes them after the
  /// exchange.
  StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                            std::span<const float> residual,
                                            std::span<float> residual_out,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const override {
    return Select({gradient, residual, residual_out}, context, out);
  }

  /// kUnimplemented: the values travel beside the payload.
  Status DecodeAdd(std::span<const std::byte>, const EncodeContext&, float,
                   std::span<float>) const override {
    return Unimplemented("shared_top_k payloads hold positions only; use DecodeIndices");
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
    request.values_wanted = false;
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
      .name = "shared_top_k",
      .summary =
          "one rank's largest magnitudes for all, values added (AR-Topk, Tyagi and Swany 2023)",
      .needs_error_feedback = true,
      .form = PayloadForm::kSharedIndex,
      .kept_bits = 32,
      .indices_coded = true,
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      .error_model = ErrorModel::kSelection,
  };
};

}  // namespace

void RegisterSharedTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<SharedTopKCodec>());
}

}  // namespace weir
