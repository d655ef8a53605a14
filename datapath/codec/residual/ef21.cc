// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/residual/ef21.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir {
StatusOr<EncodeResult> Ef21Encode(const Codec& codec, std::span<const float> gradient,
                                  const Ef21Buffers& buffers, const EncodeContext& context,
                                  std::span<std::byte> out) {
  // The loss goes to next_negative, because the call needs a place for it; it is not used.
  WEIR_ASSIGN_OR_RETURN(
      const EncodeResult result,
      codec.EncodeWithFeedback(gradient, buffers.negative, buffers.next_negative, context, out));
  if (result.non_finite) return result;
  // h moves by the decoded payload, as the estimate does, so both are rounded alike. The state is
  // not passed, because it must learn only from the sum of all ranks.
  std::copy(buffers.negative.begin(), buffers.negative.end(), buffers.next_negative.begin());
  EncodeContext own = context;
  own.state = nullptr;
  WEIR_RETURN_IF_ERROR(codec.DecodeAdd(out.first(result.bytes), own, -1.0f, buffers.next_negative));
  return result;
}

StatusOr<EncodeResult> Ef21Encode(const Codec& codec, DeviceBucket& gradient,
                                  const Ef21Buffers& buffers, const EncodeContext& context,
                                  std::span<std::byte> out) {
  WEIR_ASSIGN_OR_RETURN(
      const EncodeResult result,
      gradient.Encode(codec, buffers.negative, buffers.next_negative, context, out));
  if (result.non_finite) return result;
  EncodeContext own = context;
  own.state = nullptr;
  WEIR_RETURN_IF_ERROR(gradient.Subtract(codec, out.first(result.bytes), own, buffers.negative,
                                         buffers.next_negative));
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

CodecTraits WithEf21(CodecTraits traits, std::string summary) {
  WEIR_CHECK(traits.rounds == 1 && !HoldsIndicesOnly(traits.form) && traits.lossy &&
             !traits.lanes_are_votes && !traits.needs_momentum);
  traits.name += ":memory=ef21";
  traits.summary = std::move(summary);
  traits.unbiased = false;
  traits.ef21 = true;
  // The optimiser gets a running estimate in place of the gradient.
  traits.opt_in = true;
  return traits;
}

}  // namespace weir
