// 8-bit stochastic quantisation on a grid that all ranks share. With M = the maximum over ranks of
// max|x| and L = floor(127 / world), lane = floor(x * L / M + u), u uniform in [0, 1) from a hash
// of (seed, rank, position); the sum of all ranks' lanes then fits int8 without wrapping. Payload:
// n int8. Source: Alistarh et al., "QSGD", NeurIPS 2017; the shared max-norm scale, which makes
// payloads add, as in Xin et al., "Global-QSGD", 2023; deviates: residual instead of none, since
// few levels are left at large world sizes.

#include <limits>

#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/codec.h"

namespace weir {
namespace {

constexpr int kLevels = 127;
/// A shared maximum below this sends zeros: the reciprocal of the step would overflow.
constexpr float kMaxAbsMin = 0x1p-100f;

class Qsgd8Codec : public Codec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const CodecParams&) const override { return n; }

  /// One pass, O(n). Values beyond context.shared_max_abs are clamped to it. A shared_max_abs that
  /// is not finite gives a non-finite result; a negative one kInvalidArgument.
  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const override {
    return Pass({.gradient = x}, context, out);
  }

  StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                            std::span<const float> residual,
                                            std::span<float> residual_out,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const override {
    return Pass({gradient, residual, residual_out}, context, out);
  }

  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, out.size()));
    const kernels::Grid grid = MakeGrid(context);
    kernels::DecodeAddGrid(reinterpret_cast<const int8_t*>(payload.data()), out.size(),
                           scale * grid.step, out.data());
    return OkStatus();
  }

  size_t LaneBytes() const override { return 1; }
  void Accumulate(std::span<std::byte> sum, std::span<const std::byte> addend) const override {
    WEIR_CHECK(sum.size() == addend.size());
    kernels::AccumulateGrid(reinterpret_cast<int8_t*>(sum.data()),
                            reinterpret_cast<const int8_t*>(addend.data()), sum.size());
  }

 private:
  static kernels::Grid MakeGrid(const EncodeContext& context) {
    kernels::Grid grid;
    grid.levels = static_cast<float>(kLevels / context.world);
    // Independent noise on every rank: it averages out in the sum.
    grid.seed = MixSeed(context.seed, static_cast<uint64_t>(context.rank));
    const bool usable = context.shared_max_abs >= kMaxAbsMin &&
                        context.shared_max_abs < std::numeric_limits<float>::infinity();
    if (usable) {
      grid.step = context.shared_max_abs / grid.levels;
      grid.inverse_step = grid.levels / context.shared_max_abs;
    }
    return grid;
  }

  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t bytes = operands.gradient.size();
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
    if (context.shared_max_abs < 0) {
      return InvalidArgument(
          StrCat("qsgd8: shared maximum ", context.shared_max_abs, ", expected at least 0"));
    }
    const kernels::Grid grid = MakeGrid(context);
    auto* lanes = reinterpret_cast<int8_t*>(out.data());
    kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* pass_sums) {
          kernels::EncodeGrid(block, grid, static_cast<uint32_t>(at), lanes + at, rest, pass_sums);
        });
    // Some rank's input was not finite, even if this one's was.
    if (!(context.shared_max_abs < std::numeric_limits<float>::infinity())) {
      sums.max_bits = 0x7F800000u;
    }
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "qsgd8",
      .summary = "int8 lanes on a shared grid, stochastic rounding (Alistarh et al. 2017)",
      .unbiased = true,
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMaxAbs,
      .fixed_bits = 8,
      .error_model = ErrorModel::kMaxScaled,
      .levels = kLevels,
      .levels_divided_by_world = true,
      .error_divisor = 6,
      .world_max = kLevels,
  };
};

}  // namespace

void RegisterQsgd8(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<Qsgd8Codec>());
}

}  // namespace weir
