// SPDX-License-Identifier: Apache-2.0
#include "tests/support/codec_world.h"

#include <algorithm>

#include "datapath/base/clock.h"
#include "datapath/base/random.h"

namespace weir::testing {

StatusOr<std::unique_ptr<CodecWorld>> CodecWorld::Make(Options options) {
  WEIR_CHECK(options.codec != nullptr);
  WEIR_RETURN_IF_ERROR(options.codec->Validate(options.params, options.world));
  return std::unique_ptr<CodecWorld>(new CodecWorld(std::move(options)));
}

CodecWorld::CodecWorld(Options options)
    : options_(std::move(options)), traits_(options_.codec->Traits()), ranks_(options_.world) {
  const bool feedback = options_.feedback.value_or(traits_.needs_error_feedback) || traits_.ef21 ||
                        HoldsIndicesOnly(traits_.form);
  for (int rank = 0; rank < options_.world; ++rank) {
    Rank& each = ranks_[rank];
    each.context.params = options_.params;
    each.context.world = options_.world;
    each.context.rank = rank;
    each.context.shape = options_.shape;
    each.state = options_.codec->NewState(options_.elements, each.context);
    each.context.state = each.state.get();
    if (feedback) {
      each.residual.resize(options_.elements);
      each.next.resize(options_.elements);
    }
    if (traits_.needs_momentum) {
      each.momentum.resize(options_.elements);
      each.momentum_next.resize(options_.elements);
    }
  }
}

StatusOr<CodecWorld::Step> CodecWorld::Exchange(Gradients gradients, std::span<float> mean) {
  WEIR_CHECK(gradients.size() == ranks_.size() && mean.size() == options_.elements);
  Step step;
  BeginStep(gradients, &step);
  for (int round = 0; round < traits_.rounds && !step.non_finite; ++round) {
    WEIR_RETURN_IF_ERROR(EncodeRound(gradients, round, &step));
  }
  step.payload_bytes = ranks_[0].payload.size();
  std::fill(mean.begin(), mean.end(), 0.0f);
  if (step.non_finite) return step;
  const bool shared = HoldsIndicesOnly(traits_.form);
  WEIR_RETURN_IF_ERROR(shared ? DecodeShared(mean, &step) : Decode(mean, &step));
  if (traits_.ef21) {
    estimate_.resize(mean.size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = estimate_[i] += mean[i];
  }
  Commit();
  return step;
}

void CodecWorld::BeginStep(Gradients gradients, Step* step) {
  SharedMax shared_max;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Rank& each = ranks_[rank];
    each.context.seed = MixSeed(options_.seed, step_);
    each.context.previous = {};
    each.context.momentum = {each.momentum, each.momentum_next};
    each.payload.clear();
    if (traits_.shared_metadata != SharedMetadata::kMax) continue;
    const TimePoint begin = RealClock().Now();
    shared_max.Merge(options_.codec->LocalMax(gradients[rank], each.residual, each.context));
    if (rank == 0) step->encode_s += ToSeconds(RealClock().Now() - begin);
  }
  for (Rank& each : ranks_) each.context.shared_max = shared_max;
  ++step_;
}

Status CodecWorld::EncodeRound(Gradients gradients, int round, Step* step) {
  const size_t at = ranks_[0].payload.size();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Rank& each = ranks_[rank];
    each.payload.resize(options_.codec->MaxEncodedBytes(options_.elements, each.context));
    const std::span<std::byte> payload(each.payload);
    each.context.round = round;
    each.context.previous = payload.first(at);
    const TimePoint begin = RealClock().Now();
    const auto result =
        each.residual.empty()
            ? options_.codec->Encode(gradients[rank], each.context, payload.subspan(at))
            : options_.codec->EncodeWithFeedback(gradients[rank], each.residual, each.next,
                                                 each.context, payload.subspan(at));
    if (!result.ok()) return result.status();
    if (traits_.ef21 && !result->non_finite) {
      each.next = each.residual;
      EncodeContext own = each.context;
      own.state = nullptr;
      WEIR_RETURN_IF_ERROR(
          options_.codec->DecodeAdd(payload.subspan(at, result->bytes), own, -1.0f, each.next));
    }
    if (rank == 0) {
      step->encode_s += ToSeconds(RealClock().Now() - begin);
      step->energy_in = result->energy_in;
      step->energy_lost = result->energy_lost;
    }
    step->non_finite = step->non_finite || result->non_finite;
    each.payload.resize(at + result->bytes);
  }
  if (traits_.form == PayloadForm::kLanes) SumLanes(at);
  return OkStatus();
}

void CodecWorld::SumLanes(size_t at) {
  const auto sum = std::span(ranks_[0].payload).subspan(at);
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    options_.codec->Accumulate(ranks_[0].context, sum, std::span(ranks_[rank].payload).subspan(at));
  }
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    std::copy(sum.begin(), sum.end(), ranks_[rank].payload.begin() + static_cast<ptrdiff_t>(at));
  }
}

Status CodecWorld::DecodeAll(Rank& rank, std::span<float> out) {
  const float scale = 1.0f / static_cast<float>(options_.world);
  if (traits_.form == PayloadForm::kLanes) {
    WEIR_RETURN_IF_ERROR(options_.codec->DecodeAdd(rank.payload, rank.context, scale, out));
  } else {
    EncodeContext sender = rank.context;  // the decoder's state with the sender's rank
    for (size_t from = 0; from < ranks_.size(); ++from) {
      sender.rank = static_cast<int>(from);
      WEIR_RETURN_IF_ERROR(options_.codec->DecodeAdd(ranks_[from].payload, sender, scale, out));
    }
  }
  options_.codec->Finish(rank.context, scale, out);
  return OkStatus();
}

Status CodecWorld::Decode(std::span<float> mean, Step* step) {
  const TimePoint begin = RealClock().Now();
  WEIR_RETURN_IF_ERROR(DecodeAll(ranks_[0], mean));
  step->decode_s = ToSeconds(RealClock().Now() - begin);
  if (ranks_[0].state == nullptr) return OkStatus();
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {  // so that every rank's state learns
    scratch_.assign(mean.size(), 0.0f);
    WEIR_RETURN_IF_ERROR(DecodeAll(ranks_[rank], scratch_));
  }
  return OkStatus();
}

Status CodecWorld::DecodeShared(std::span<float> mean, Step* step) {
  const TimePoint begin = RealClock().Now();
  const Rank& chosen = ranks_[step_ % ranks_.size()];
  std::vector<uint32_t> indices;
  WEIR_RETURN_IF_ERROR(options_.codec->DecodeIndices(chosen.payload, mean.size(), &indices));
  const float scale = 1.0f / static_cast<float>(options_.world);
  for (const uint32_t i : indices) {
    for (Rank& each : ranks_) {
      mean[i] += scale * each.next[i];
      each.next[i] = 0;
    }
  }
  step->decode_s = ToSeconds(RealClock().Now() - begin);
  step->payload_bytes += indices.size() * sizeof(float);
  return OkStatus();
}

void CodecWorld::Commit() {
  for (Rank& each : ranks_) {
    each.residual.swap(each.next);
    each.momentum.swap(each.momentum_next);
  }
}

}  // namespace weir::testing
