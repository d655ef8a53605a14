// SPDX-License-Identifier: Apache-2.0
#pragma once
// EF21: ranks send the changes of their gradients instead of the gradients. Each rank keeps a
// memory h of what it has sent. In every step it sends c = C(g - h) and adds c to h, and all ranks
// add the sum of the c to an estimate, which the optimiser uses in place of the mean gradient. With
// a contraction C, the error of the estimate shrinks geometrically while gradients do not change,
// and there is no residual. All ranks begin at zero together. Memory: two floats per element,
// double-buffered.
// Source: Richtarik, Sokolov, Fatkhullin, "EF21: a new, simpler, theoretically better, and
// practically faster error feedback", NeurIPS 2021, algorithm 2 (distributed form).

#include <span>
#include <string>

#include "datapath/codec/codec.h"
#include "datapath/codec/device.h"
#include "datapath/codec/residual/error_feedback.h"

namespace weir {

/// Encodes gradient - h into `out` and fills next_negative, in which h has moved by what is sent.
/// `codec` has one round and payloads with values. A non-finite gradient leaves the content of
/// next_negative unspecified. Codecs with a shared maximum use LocalMax(gradient, negative). Errors
/// are those of the codec. O(n) plus the codec's encoding and decoding.
StatusOr<EncodeResult> Ef21Encode(const Codec& codec, std::span<const float> gradient,
                                  const Ef21Buffers& buffers, const EncodeContext& context,
                                  std::span<std::byte> out);

/// The same for a gradient in the memory of a device, as all buffers are; `out` is in the host's.
/// Errors are also those of the device.
StatusOr<EncodeResult> Ef21Encode(const Codec& codec, DeviceBucket& gradient,
                                  const Ef21Buffers& buffers, const EncodeContext& context,
                                  std::span<std::byte> out);

/// Delivers a step: `sum` is the decoded sum of what all ranks sent. Fills next_estimate and
/// replaces `sum` by scale * next_estimate. O(n).
void Ef21Deliver(const Ef21Buffers& buffers, float scale, std::span<float> sum);

/// The traits of a codec's variant that uses this memory in place of a residual. Its name is the
/// codec's name and ":memory=ef21". The codec meets the conditions of Ef21Encode, counts no votes
/// and keeps no momentum; its code is the same with both memories.
CodecTraits WithEf21(CodecTraits traits, std::string summary);

}  // namespace weir
