// SPDX-License-Identifier: Apache-2.0
// Nominated top-k: every rank nominates its largest elements, and all ranks keep the union of the
// nominations and sum the values there. Where ranks have different large elements, that keeps more
// of the mean's energy than one rank's choice (shared_top_k). Without a state a rank nominates all
// of ratio * n. With one, its share of ratio * n starts at 2 / world and follows the size of the
// union, which is the same for all ranks, so that the union becomes about ratio * n. The codec is
// meant for a collective that gathers selections (ar_topk_union). With one that uses a single
// rank's selection, the share grows to the whole, and the codec is the same as shared_top_k.
// Payload: positions only, as for shared_top_k.
// Source: Tyagi and Swany, "Flexible communication for optimal distributed learning over
// unpredictable networks", arXiv 2312.02493 (AR-Topk); the union is ours.

#include <algorithm>
#include <cmath>

#include "datapath/codec/codec.h"
#include "datapath/codec/select/selection.h"
#include "datapath/codec/select/threshold_codec.h"

namespace weir {
namespace {

/// Nominations over kept positions at the start, because ranks nominate some positions in common.
constexpr double kStartFactor = 2;
constexpr double kShareMin = 1e-9;

class NominationState : public SelectionState {
 public:
  explicit NominationState(double start) : share(start) {}
  double share;  // fraction of ratio * n, 1 / world .. 1

 protected:
  void SaveMore(StateWriter& writer) const override { writer.Write(share); }
  Status LoadMore(ByteReader& reader) override {
    // The bound is wide enough for every world; a share from a world of another size is then
    // adjusted.
    return ReadWithin(reader, kShareMin, 1.0, &share);
  }
};

class NominatedTopKCodec : public ThresholdCodec {
 public:
  NominatedTopKCodec() : ThresholdCodec(MakeTraits()) {}

  std::unique_ptr<CodecState> NewState(size_t, const EncodeContext& context) const override {
    return std::make_unique<NominationState>(std::min(1.0, kStartFactor / context.world));
  }

  /// kUnimplemented: values are exchanged separately from the payload.
  Status DecodeAdd(std::span<const std::byte>, const EncodeContext&, float,
                   std::span<float>) const override {
    return Unimplemented("nominated_top_k payloads hold positions only; use DecodeIndices");
  }

  /// Moves the share towards the target by the square root of the miss, at most by a factor of two,
  /// because the union grows more slowly than the nominations.
  void LearnSelection(const EncodeContext& context, size_t kept, size_t n) const override {
    auto* state = dynamic_cast<NominationState*>(context.state);
    if (state == nullptr || kept == 0) return;
    const auto target = static_cast<double>(SelectionTarget(n, context.params.ratio));
    const double miss = std::sqrt(target / static_cast<double>(kept));
    state->share = std::clamp(state->share * std::clamp(miss, 0.5, 2.0), 1.0 / context.world, 1.0);
  }

 protected:
  ValueFormat Format(const EncodeContext&) const override { return ValueFormat::kNone; }

  /// Selects the rank's own nominations. One pass with a warm state, or else two; O(n).
  Selection Choose(SelectionRequest request, const EncodeContext&,
                   SelectionState& state) const override {
    const auto* kept = dynamic_cast<const NominationState*>(&state);
    if (kept != nullptr) request.ratio *= kept->share;
    return SelectLargest(request, state);
  }

 private:
  static CodecTraits MakeTraits() {
    CodecTraits traits = ThresholdTraits(
        "nominated_top_k", "union of all ranks' largest magnitudes, values added (after AR-Topk)");
    traits.form = PayloadForm::kUnionIndex;
    traits.settings = {{.kept_bits = 32}};
    return traits;
  }
};

}  // namespace

void RegisterNominatedTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<NominatedTopKCodec>());
}

}  // namespace weir
