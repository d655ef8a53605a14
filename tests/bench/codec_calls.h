// SPDX-License-Identifier: Apache-2.0
#pragma once
// The calls of a codec for one bucket in one step of one rank, as a session makes them, for
// benchmarks that time them.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "datapath/codec/codec.h"
#include "tests/bench/normal_numbers.h"

namespace weir::bench {

/// The calls of one rank. The payloads that arrive are made once, from other gradients, and stay
/// the same. Its owner keeps the residual and calls Encode and Decode in turn. Not thread-safe.
class CodecCalls {
 public:
  /// `shape`: the bucket's tensors, which must outlive the calls; empty: one vector. `params` must
  /// be valid for the world. O(world * elements).
  CodecCalls(const Codec& codec, const CodecParams& params, int rank, int world, size_t elements,
             std::span<const TensorShape> shape)
      : codec_(codec), traits_(codec.Traits()), elements_(elements) {
    context_.params = params;
    context_.world = world;
    context_.shape = shape;
    room_.resize(codec_.MaxEncodedBytes(elements, context_));
    MakePayloads(rank);
    context_.rank = rank;
    if (traits_.needs_momentum) {
      momentum_.assign(elements, 0.0f);
      next_momentum_.assign(elements, 0.0f);
    }
  }

  /// Encodes without residual, state and momentum, as a first step; the payload does not arrive
  /// anywhere.
  StatusOr<EncodeResult> EncodeAlone(std::span<const float> gradient) {
    BeginStep(gradient, {});
    context_.state = nullptr;
    context_.momentum = {};
    return Rounds(gradient, {}, {});
  }

  /// The shared maximum of a step, where the codec has one. Spans as in EncodeWithFeedback; both
  /// residuals are empty where the codec needs none.
  void BeginStep(std::span<const float> gradient, std::span<const float> residual) {
    ++context_.seed;
    if (traits_.shared_metadata == SharedMetadata::kMax) {
      context_.shared_max = codec_.LocalMax(gradient, residual, context_);
    }
  }

  /// Encodes in all rounds, with residual, state and momentum.
  StatusOr<EncodeResult> Encode(std::span<const float> gradient, std::span<const float> residual,
                                std::span<float> next) {
    if (state_ == nullptr) state_ = codec_.NewState(elements_, context_);
    context_.state = state_.get();
    if (traits_.needs_momentum) context_.momentum = {momentum_, next_momentum_};
    auto result = Rounds(gradient, residual, next);
    momentum_.swap(next_momentum_);
    return result;
  }

  /// Decodes what arrives in a step: the payloads of all ranks; or, where payloads are summed on
  /// the way, this rank's additions and the sum; or the indices and the values there. `out` is
  /// overwritten.
  Status Decode(std::span<float> out, const std::function<void(std::span<float>)>& done) {
    const float scale = 1.0f / static_cast<float>(context_.world);
    if (traits_.form == PayloadForm::kOpaque)
      return codec_.DecodeSum(payloads_, context_, scale, out, done);
    std::fill(out.begin(), out.end(), 0.0f);
    WEIR_RETURN_IF_ERROR(traits_.form == PayloadForm::kLanes ? DecodeLanes(scale, out)
                                                             : DecodeIndices(scale, out));
    done(out);
    return OkStatus();
  }

  /// Adds this rank's payload to `out`, and nothing else. kUnimplemented where a single payload
  /// does not decode.
  Status DecodeOne(std::span<float> out) {
    if (HoldsIndicesOnly(traits_.form)) return Unimplemented("indices alone do not decode");
    return codec_.DecodeAdd(payload(), context_, 1.0f / static_cast<float>(context_.world), out);
  }

  size_t payload_bytes() const { return bytes_; }

 private:
  std::span<const std::byte> payload() const {
    return std::span<const std::byte>(room_).first(bytes_);
  }

  void MakePayloads(int own) {
    payloads_.resize(static_cast<size_t>(context_.world));
    for (int rank = 0; rank < context_.world; ++rank) {
      // Lanes are summed on the way, so that one other payload does for the additions.
      if (traits_.form != PayloadForm::kOpaque && rank != (own + 1) % context_.world) continue;
      std::vector<float> x(elements_);
      FillNormal(x, 1000 + static_cast<uint64_t>(rank));
      context_.rank = rank;
      if (!EncodeAlone(x).ok()) continue;  // the first call for the own gradient says why
      payloads_[static_cast<size_t>(rank)].assign(room_.begin(), room_.begin() + bytes_);
    }
    other_ = static_cast<size_t>((own + 1) % context_.world);
  }

  StatusOr<EncodeResult> Rounds(std::span<const float> gradient, std::span<const float> residual,
                                std::span<float> next) {
    bytes_ = 0;
    EncodeResult last;
    for (context_.round = 0; context_.round < traits_.rounds; ++context_.round) {
      const std::span<std::byte> room(room_);
      context_.previous = room.first(bytes_);
      WEIR_ASSIGN_OR_RETURN(last, next.empty()
                                      ? codec_.Encode(gradient, context_, room.subspan(bytes_))
                                      : codec_.EncodeWithFeedback(gradient, residual, next,
                                                                  context_, room.subspan(bytes_)));
      bytes_ += last.bytes;
    }
    return last;
  }

  // In a ring every rank adds all pieces of the payload but one.
  Status DecodeLanes(float scale, std::span<float> out) {
    const size_t lane = codec_.LaneBytes(context_);
    const std::vector<std::byte>& addend = payloads_[other_];
    const size_t world = payloads_.size();
    const size_t bytes = std::min(bytes_, addend.size()) * (world - 1) / world / lane * lane;
    codec_.Accumulate(context_, std::span(room_).first(bytes), std::span(addend).first(bytes));
    WEIR_RETURN_IF_ERROR(codec_.DecodeAdd(payload(), context_, scale, out));
    codec_.Finish(context_, scale, out);
    return OkStatus();
  }

  Status DecodeIndices(float scale, std::span<float> out) {
    WEIR_RETURN_IF_ERROR(codec_.DecodeIndices(payload(), elements_, &indices_));
    for (const uint32_t i : indices_) out[i] = scale;
    return OkStatus();
  }

  const Codec& codec_;
  const CodecTraits& traits_;
  const size_t elements_;
  EncodeContext context_;
  std::unique_ptr<CodecState> state_;
  std::vector<std::byte> room_;                   // for the own payload
  std::vector<std::vector<std::byte>> payloads_;  // by rank; those that are needed
  std::vector<float> momentum_, next_momentum_;
  std::vector<uint32_t> indices_;
  size_t other_ = 0;
  size_t bytes_ = 0;
};

}  // namespace weir::bench
