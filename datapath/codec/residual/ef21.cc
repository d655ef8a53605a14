#include "datapath/codec/residual/ef21.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir {
namespace {

class Ef21Codec : public Codec {
 public:
  Ef21Codec(const Codec& inner, CodecTraits traits) : inner_(inner), traits_(std::move(traits)) {}

  const CodecTraits& Traits() const override { return traits_; }
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override {
    return inner_.MaxEncodedBytes(n, context);
  }
  std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const override {
    return inner_.NewState(n, context);
  }
  SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                     const EncodeContext& context) const override {
    return inner_.LocalMax(gradient, residual, context);
  }
  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const override {
    return inner_.Encode(x, context, out);
  }
  StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                            std::span<const float> residual,
                                            std::span<float> residual_out,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const override {
    return inner_.EncodeWithFeedback(gradient, residual, residual_out, context, out);
  }
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    return inner_.DecodeAdd(payload, context, scale, out);
  }
  size_t LaneBytes(const EncodeContext& context) const override {
    return inner_.LaneBytes(context);
  }
  void Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const override {
    inner_.Accumulate(context, sum, addend);
  }
  Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                       std::vector<uint32_t>* indices) const override {
    return inner_.DecodeIndices(payload, n, indices);
  }
  void LearnSelection(const EncodeContext& context, size_t kept, size_t n) const override {
    inner_.LearnSelection(context, kept, n);
  }

 private:
  const Codec& inner_;
  const CodecTraits traits_;
};

}  // namespace

StatusOr<EncodeResult> Ef21Encode(const Codec& codec, std::span<const float> gradient,
                                  const Ef21Buffers& buffers, const EncodeContext& context,
                                  std::span<std::byte> out) {
  // What is lost lands in next_negative for want of another place; it is not kept.
  WEIR_ASSIGN_OR_RETURN(
      const EncodeResult result,
      codec.EncodeWithFeedback(gradient, buffers.negative, buffers.next_negative, context, out));
  if (result.non_finite) return result;
  // h moves by what the payload says, as the estimate does: both round alike. The state is to learn
  // from what all ranks sent only.
  std::copy(buffers.negative.begin(), buffers.negative.end(), buffers.next_negative.begin());
  EncodeContext own = context;
  own.state = nullptr;
  WEIR_RETURN_IF_ERROR(codec.DecodeAdd(out.first(result.bytes), own, -1.0f, buffers.next_negative));
  return result;
}

void Ef21Deliver(const Ef21Buffers& buffers, float scale, std::span<float> sum) {
  WEIR_CHECK(buffers.estimate.size() == sum.size() && buffers.next_estimate.size() == sum.size());
  for (size_t i = 0; i < sum.size(); ++i) {
    const float estimate = buffers.estimate[i] + sum[i];
    buffers.next_estimate[i] = estimate;
    sum[i] = scale * estimate;
  }
}

std::unique_ptr<Codec> MakeEf21Codec(const Codec& inner, std::string name, std::string summary) {
  CodecTraits traits = inner.Traits();
  WEIR_CHECK(traits.rounds == 1 && !HoldsIndicesOnly(traits.form) && traits.lossy &&
             !traits.lanes_are_votes && !traits.needs_momentum);
  traits.name = std::move(name);
  traits.summary = std::move(summary);
  traits.unbiased = false;
  traits.ef21 = true;
  // The optimiser sees a running estimate.
  traits.opt_in = true;
  return std::make_unique<Ef21Codec>(inner, std::move(traits));
}

}  // namespace weir
