// SPDX-License-Identifier: Apache-2.0
#pragma once
// Base classes for code that most codecs share: one function behind both ways to encode, and lanes
// of plain float32.

#include <cstddef>
#include <span>

#include "datapath/codec/codec.h"

namespace weir {

struct PassOperands;  // block_pass.h

/// A codec that encodes with and without error feedback in the same function.
class FusedCodec : public Codec {
 public:
  StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                std::span<std::byte> out) const final;
  StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                            std::span<const float> residual,
                                            std::span<float> residual_out,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const final;

 protected:
  /// Does EncodeWithFeedback, or Encode where the operands have neither residual nor rest.
  virtual StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                                      std::span<std::byte> out) const = 0;
};

/// sum += addend over float32 lanes at any address; the buffers have equal sizes. O(lanes).
void AccumulateFloatLanes(std::span<std::byte> sum, std::span<const std::byte> addend);

/// Adds float32 lanes to Base, which is Codec or derives from it.
template <class Base>
class WithFloatLanes : public Base {
 public:
  size_t LaneBytes(const EncodeContext&) const final { return sizeof(float); }
  void Accumulate(const EncodeContext&, std::span<std::byte> sum,
                  std::span<const std::byte> addend) const final {
    AccumulateFloatLanes(sum, addend);
  }
};

}  // namespace weir
