// Linear Global-QSGD: int8 lanes on a grid of the maximum over all ranks, divided among them so
// that the sum of all ranks fits. lane = floor(x * L / M + u), L = floor(127 / world), u uniform in
// [0, 1) from a hash of (seed, rank, position). Payload: n int8. The arithmetic of qsgd at 8 bits,
// without a residual as the paper has it. Source: Xin et al., "Global-QSGD: practical floatless
// quantization for distributed learning with theoretical guarantees", 2023 (standard dithering);
// deviates: 127 / world is rounded down, else rounding up on every rank would overflow a lane.

#include "datapath/codec/quantised_lanes.h"

namespace weir {
namespace {

constexpr int kLevels = 127;

class GlobalQsgdCodec : public GridLaneCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  float Levels(const EncodeContext& context) const override {
    return static_cast<float>(kLevels / context.world);
  }

 private:
  const CodecTraits traits_ = {
      .name = "global_qsgd",
      .summary = "int8 lanes on a shared grid without a residual (Xin et al. 2023)",
      .unbiased = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .settings = {{.fixed_bits = 8, .levels = kLevels, .world_max = kLevels}},
      .error_model = ErrorModel::kMaxScaled,
      .levels_divided_by_world = true,
      .error_divisor = 6,
  };
};

}  // namespace

void RegisterGlobalQsgd(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<GlobalQsgdCodec>());
}

}  // namespace weir
