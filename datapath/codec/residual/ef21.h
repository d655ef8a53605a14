#pragma once
// EF21: ranks send what changed in their gradients, not the gradients. Each rank keeps a memory h
// of what it has sent; in every step it sends c = C(g - h) and adds c to h, and all ranks add the
// sum of the c to an estimate, which the optimiser sees in place of the mean gradient. With a
// contraction C the error of the estimate shrinks geometrically while gradients stand still, and
// nothing is ever owed: there is no residual. All ranks start at zero together. Two floats an
// element, double-buffered.
// Source: Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and
// practically faster error feedback", NeurIPS 2021, algorithm 2 (distributed form).

#include <span>
#include <string>

#include "datapath/codec/codec.h"
#include "datapath/codec/residual/error_feedback.h"

namespace weir {

/// Encodes gradient - h into `out` and fills next_negative: h moves by what is sent. `codec` has
/// one round and payloads that hold values. A non-finite gradient leaves next_negative unspecified.
/// Codecs with a shared maximum take LocalMax(gradient, negative). Errors are the codec's. O(n) and
/// the codec's encoding and decoding.
StatusOr<EncodeResult> Ef21Encode(const Codec& codec, std::span<const float> gradient,
                                  const Ef21Buffers& buffers, const EncodeContext& context,
                                  std::span<std::byte> out);

/// `sum` holds the decoded sum of what all ranks sent. Fills next_estimate and replaces `sum` by
/// scale * next_estimate. O(n).
void Ef21Deliver(const Ef21Buffers& buffers, float scale, std::span<float> sum);

/// The traits of a codec's variant with this memory in place of a residual, named by the codec's
/// name and ":memory=ef21". The codec is as Ef21Encode wants it, counts no votes and keeps no
/// momentum; its code is the same under both memories.
CodecTraits WithEf21(CodecTraits traits, std::string summary);

}  // namespace weir
