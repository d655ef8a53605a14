// Stochastic quantisation on a grid that all ranks share. With M = the maximum over ranks of max|x|
// and L = floor((2^(bits - 1) - 1) / world), lane = floor(x * L / M + u), u uniform in [0, 1) from
// a hash of (seed, rank, position); the sum of all ranks' lanes then fits the lane without
// wrapping. Payload: n two's complement lanes of `bits` bits (quantised_lanes.h). Source: Alistarh
// et al., "QSGD", NeurIPS 2017; the shared max-norm scale, which makes payloads add, as in Xin et
// al., "Global-QSGD", 2023; deviates: residual instead of none, since few levels are left at large
// world sizes.

#include "datapath/codec/quantised_lanes.h"

namespace weir {
namespace {

class QsgdCodec : public GridLaneCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

 protected:
  float Levels(const EncodeContext& context) const override {
    const int largest = (1 << (LaneBits(context) - 1)) - 1;
    return static_cast<float>(largest / context.world);
  }

 private:
  static CodecSetting Lanes(int bits) {
    const int largest = (1 << (bits - 1)) - 1;
    return {.bits = bits,
            .fixed_bits = static_cast<double>(bits),
            .levels = static_cast<double>(largest),
            .world_max = largest};
  }

  const CodecTraits traits_ = {
      .name = "qsgd",
      .summary = "integer lanes on a shared grid, stochastic rounding (Alistarh et al. 2017)",
      .unbiased = true,
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .settings = {Lanes(8), Lanes(4), Lanes(2), Lanes(16)},
      .error_model = ErrorModel::kMaxScaled,
      .levels_divided_by_world = true,
      .error_divisor = 6,
  };
};

}  // namespace

void RegisterQsgd(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<QsgdCodec>());
}

}  // namespace weir
