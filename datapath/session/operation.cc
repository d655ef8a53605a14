// The stages of an operation.
//
// Residuals (error feedback). A codec that needs them, or any lossy codec while a residual is left
// over from an earlier one, encodes gradient + residual and writes what it lost to the bucket's
// `next` buffer; the step's end commits or discards. A lossless codec flushes: gradient + residual
// is sent and the residual becomes zero.
//
// Non-finite values. Lossy codecs notice them while encoding and say so in the operation's frames,
// so every rank knows when the collective ends. A dense sum needs no pass before: NaN and infinity
// survive addition, all ranks hold the same bits of the sum, and the pass that scales it sees them
// on every rank alike. That pass also catches sums that overflow.

#include "datapath/session/operation.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/base/random.h"
#include "datapath/collective/primitives.h"
#include "datapath/session/half.h"
#include "datapath/session/json.h"

namespace weir {
namespace {

// Statistics of a codec that makes none look at one block in eight: below 1 % of a step.
constexpr size_t kSampleBlock = 4096;
constexpr size_t kSampleEvery = 8;

constexpr uint32_t kExponentMask = 0x7F800000;

// x *= scale; false when an element is NaN or infinite, before or after.
bool ScaleFinite(std::span<float> x, float scale) {
  uint32_t bad = 0;
  if (scale == 1) {
    for (const float value : x) {
      bad |= (std::bit_cast<uint32_t>(value) & kExponentMask) == kExponentMask;
    }
  } else {
    for (float& value : x) {
      value *= scale;
      bad |= (std::bit_cast<uint32_t>(value) & kExponentMask) == kExponentMask;
    }
  }
  return bad == 0;
}

// Whether every element stays finite when rounded to `dtype`.
bool FitsDtype(std::span<const float> x, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return true;
  // The smallest magnitudes that round to infinity.
  const float limit = dtype == Dtype::kFloat16 ? 65520.0f : 0x1.FFp127f;
  bool fits = true;
  for (const float value : x) fits &= std::fabs(value) < limit;
  return fits;
}

double SampledEnergy(std::span<const float> x) {
  double energy = 0;
  size_t seen = 0;
  for (size_t at = 0; at < x.size(); at += kSampleBlock * kSampleEvery) {
    const auto block = x.subspan(at, std::min(kSampleBlock, x.size() - at));
    float sum = 0;
    for (const float value : block) sum += value * value;
    energy += sum;
    seen += block.size();
  }
  return seen == 0 ? 0 : energy * static_cast<double>(x.size()) / static_cast<double>(seen);
}

bool SameStateChoice(const Choice& a, const Choice& b) {
  return a.codec == b.codec && a.ratio == b.ratio;
}

// The lanes of a payload are the floats themselves, so the caller's buffer can be the payload.
bool IsRawFloat(const Codec& codec) {
  const CodecTraits& traits = codec.Traits();
  return !traits.lossy && traits.form == PayloadForm::kLanes &&
         codec.LaneBytes() == sizeof(float) && traits.fixed_bits == 32;
}

}  // namespace

OperationStages::OperationStages(Options options, ResidualStore& residuals, const Clock& clock)
    : options_(std::move(options)),
      job_hash_(XXH3_64bits(options_.job.data(), options_.job.size())),
      residuals_(residuals),
      clock_(clock) {}

Status OperationStages::PrepareGradient(Operation& op) {
  const size_t n = op.bucket->elements;
  if (op.bucket->dtype == Dtype::kFloat32) {
    op.gradient = {static_cast<float*>(op.data), n};
    return OkStatus();
  }
  op.dense = pool_.Take(n * sizeof(float));
  op.gradient = op.dense.floats(n);
  const std::span<const uint16_t> in(static_cast<const uint16_t*>(op.data), n);
  op.bucket->dtype == Dtype::kFloat16 ? HalfToFloat(in, op.gradient)
                                      : BrainToFloat(in, op.gradient);
  return OkStatus();
}

Status OperationStages::Encode(Operation& op) {
  const TimePoint begin = clock_.Now();
  const size_t n = op.bucket->elements;
  if (n == 0) return OkStatus();
  WEIR_RETURN_IF_ERROR(PrepareGradient(op));
  const CodecTraits& traits = op.codec->Traits();
  op.context.params.ratio = op.choice.ratio;
  op.context.world = options_.world;
  op.context.rank = options_.rank;
  op.context.seed = MixSeed(job_hash_ ^ op.bucket->key, op.step);
  if (!traits.lossy) {
    WEIR_RETURN_IF_ERROR(residuals_.Flush(op.bucket->key, op.gradient).status());
  } else if (traits.needs_error_feedback || traits.form == PayloadForm::kSharedIndex ||
             residuals_.HasResidual(op.bucket->key)) {
    WEIR_ASSIGN_OR_RETURN(op.residual, residuals_.BeginEncode(op.bucket->key));
  }
  if (op.sample_statistics && op.residual.has_value()) {
    op.bucket->gradient_energy = SampledEnergy(op.gradient);
  }
  if (!SameStateChoice(op.bucket->codec_state_choice, op.choice)) {
    op.bucket->codec_state = op.codec->NewState(n, op.context.params);
    op.bucket->codec_state_choice = op.choice;
  }
  op.context.state = op.bucket->codec_state.get();
  Status status;
  if (traits.form == PayloadForm::kSharedIndex) {
    status = EncodeShared(op);
  } else {
    status = EncodeLanesOrOpaque(op);
  }
  op.times.encode += clock_.Now() - begin;
  return status;
}

Status OperationStages::EncodeLanesOrOpaque(Operation& op) {
  if (IsRawFloat(*op.codec)) {
    op.in_place = true;
    op.payload_bytes = op.gradient.size() * sizeof(float);
    if (op.sample_statistics) Sample(op, GradientStatistics());
    return OkStatus();
  }
  op.payload = pool_.Take(op.codec->MaxEncodedBytes(op.gradient.size(), op.context.params));
  if (op.codec->Traits().shared_metadata == SharedMetadata::kMaxAbs) {
    const std::span<const float> residual =
        op.residual.has_value() ? op.residual->current : std::span<const float>();
    op.local_max_abs = MaxAbs(op.gradient, residual);
    op.encode_pending = true;
    return OkStatus();
  }
  return RunEncoder(op);
}

Status OperationStages::RunEncoder(Operation& op) {
  std::unique_ptr<GradientStatistics> statistics;
  if (op.sample_statistics) {
    statistics = std::make_unique<GradientStatistics>();
    op.context.statistics = statistics.get();
  }
  StatusOr<EncodeResult> result =
      op.residual.has_value()
          ? op.codec->EncodeWithFeedback(op.gradient, op.residual->current, op.residual->next,
                                         op.context, op.payload.bytes())
          : op.codec->Encode(op.gradient, op.context, op.payload.bytes());
  op.context.statistics = nullptr;
  if (!result.ok()) return Annotate(result.status(), StrCat("encoding with ", op.choice.codec));
  op.payload_bytes = result->bytes;
  op.energy_in = result->energy_in;
  if (result->non_finite) op.flags |= kFlagNonFinite;
  if (result->energy_in > 0 && !result->non_finite) {
    op.gain = 1 - result->energy_lost / result->energy_in;
  }
  if (op.residual.has_value()) op.residual_energy = result->energy_lost;
  if (statistics != nullptr && !result->non_finite) Sample(op, *statistics);
  return OkStatus();
}

Status OperationStages::EncodeShared(Operation& op) {
  // The codec leaves gradient + residual in `next`; zeroed at the indices that will be chosen, that
  // is the new residual, exactly.
  op.payload = pool_.Take(op.codec->MaxEncodedBytes(op.gradient.size(), op.context.params));
  WEIR_RETURN_IF_ERROR(RunEncoder(op));
  op.selection_energy = op.energy_in - op.residual_energy;
  op.residual_energy = op.energy_in;  // less what the chosen indices take, see OpenShared
  return OkStatus();
}

void OperationStages::Sample(Operation& op, const GradientStatistics& fused) {
  std::unique_ptr<GradientStatistics> sampled;
  const GradientStatistics* statistics = &fused;
  if (fused.count() == 0) {
    sampled = std::make_unique<GradientStatistics>();
    std::vector<float> block;
    for (size_t at = 0; at < op.gradient.size(); at += kSampleBlock * kSampleEvery) {
      const size_t size = std::min(kSampleBlock, op.gradient.size() - at);
      if (!op.residual.has_value()) {
        sampled->Add(op.gradient.subspan(at, size));
        continue;
      }
      block.assign(op.gradient.begin() + at, op.gradient.begin() + at + size);
      for (size_t i = 0; i < size; ++i) block[i] += op.residual->current[at + i];
      sampled->Add(block);
    }
    statistics = sampled.get();
  }
  if (statistics->count() == 0 || statistics->non_finite()) return;
  GainCurve curve;
  curve.bucket = op.bucket->key;
  curve.ratios.assign(kGainCurveRatios.begin(), kGainCurveRatios.end());
  const auto gains = statistics->GainCurve();
  curve.gains.assign(gains.begin(), gains.end());
  const double mean_square = statistics->sum_squares() / static_cast<double>(statistics->count());
  if (mean_square > 0) curve.peak_over_rms = statistics->max_abs() / std::sqrt(mean_square);
  op.gain_curve = std::move(curve);
}

Status OperationStages::RunMetadata(Operation& op, Group& group, const NetworkHooks& hooks) {
  const TimePoint begin = clock_.Now();
  hooks.begin(group, op, 0);
  float max_abs = op.local_max_abs;
  WEIR_RETURN_IF_ERROR(AllReduceMax(group, &max_abs));
  WEIR_RETURN_IF_ERROR(hooks.finish(group));
  op.bytes_sent += group.bytes_sent();
  const TimePoint agreed = clock_.Now();
  op.times.metadata += agreed - begin;
  op.encode_pending = false;
  if (!std::isfinite(max_abs)) {
    // Every rank knows now: nothing is left to send.
    op.non_finite = true;
    return OkStatus();
  }
  op.context.shared_max_abs = max_abs;
  const Status status = RunEncoder(op);
  op.times.encode += clock_.Now() - agreed;
  return status;
}

Status OperationStages::RunCollective(Operation& op, Group& group) {
  weir::Exchange exchange;
  exchange.step = op.step;
  const Codec* codec = op.codec;
  switch (codec->Traits().form) {
    case PayloadForm::kLanes:
      exchange.lanes = op.in_place ? std::as_writable_bytes(op.gradient)
                                   : op.payload.bytes().first(op.payload_bytes);
      exchange.lane_bytes = codec->LaneBytes();
      exchange.accumulate = [codec](std::span<std::byte> sum, std::span<const std::byte> addend) {
        codec->Accumulate(sum, addend);
      };
      break;
    case PayloadForm::kOpaque:
      exchange.payload = op.payload.bytes().first(op.payload_bytes);
      exchange.payload_bytes_max = codec->MaxEncodedBytes(op.gradient.size(), op.context.params);
      exchange.gathered = &op.gathered;
      break;
    case PayloadForm::kSharedIndex:
      exchange.select = [&op]() -> StatusOr<std::span<const std::byte>> {
        return std::span<const std::byte>(op.payload.bytes().first(op.payload_bytes));
      };
      exchange.payload_bytes_max = codec->MaxEncodedBytes(op.gradient.size(), op.context.params);
      exchange.norm_squared = op.selection_energy;
      exchange.open = [this, &op](std::span<const std::byte> index_payload) {
        return OpenShared(op, index_payload);
      };
      exchange.values = &op.values;
      break;
  }
  return op.collective->Run(group, exchange).status();
}

Status OperationStages::OpenShared(Operation& op, std::span<const std::byte> index_payload) {
  const std::span<float> sum = op.residual->next;
  WEIR_RETURN_IF_ERROR(op.codec->DecodeIndices(index_payload, sum.size(), &op.indices));
  op.values.resize(op.indices.size());
  double kept = 0;
  for (size_t i = 0; i < op.indices.size(); ++i) {
    op.values[i] = sum[op.indices[i]];
    kept += static_cast<double>(op.values[i]) * op.values[i];
  }
  if (op.energy_in > 0) op.gain = std::min(1.0, kept / op.energy_in);
  op.residual_energy = std::max(0.0, op.residual_energy - kept);
  return OkStatus();
}

Status OperationStages::Exchange(Operation& op, Group& group, const NetworkHooks& hooks) {
  if (op.bucket->elements == 0) return OkStatus();
  op.times.network_begin = clock_.Now();
  const auto annotate = [&](const Status& status) {
    if (status.ok()) return status;
    return Annotate(status, StrCat("step ", op.step, " bucket ", Hex64(op.bucket->key), " (",
                                   op.choice.codec, ", ", op.choice.collective, ")"));
  };
  if (op.encode_pending) {
    WEIR_RETURN_IF_ERROR(annotate(RunMetadata(op, group, hooks)));
    if (op.non_finite) return OkStatus();
  }
  const TimePoint begin = clock_.Now();
  hooks.begin(group, op, 1);
  WEIR_RETURN_IF_ERROR(annotate(RunCollective(op, group)));
  WEIR_RETURN_IF_ERROR(annotate(hooks.finish(group)));
  op.bytes_sent += group.bytes_sent();
  if (group.flags() & kFlagNonFinite) op.non_finite = true;
  if (op.codec->Traits().form == PayloadForm::kSharedIndex && op.values.empty()) {
    // An empty selection moves no values: flags and control word need frames of their own. All
    // ranks see the same selection, so all take part.
    hooks.begin(group, op, 2);
    WEIR_RETURN_IF_ERROR(annotate(Barrier(group)));
    WEIR_RETURN_IF_ERROR(annotate(hooks.finish(group)));
    op.bytes_sent += group.bytes_sent();
    if (group.flags() & kFlagNonFinite) op.non_finite = true;
  }
  op.times.network += clock_.Now() - begin;
  return OkStatus();
}

Status OperationStages::Decode(Operation& op) {
  if (op.bucket->elements == 0) return OkStatus();
  const TimePoint begin = clock_.Now();
  if (!op.non_finite) {
    Status status;
    if (op.codec->Traits().form == PayloadForm::kSharedIndex) {
      status = DecodeShared(op);
    } else {
      status = DecodeDense(op);
    }
    if (!status.ok()) {
      return Annotate(status, StrCat("decoding step ", op.step, " bucket ", Hex64(op.bucket->key),
                                     " (", op.choice.codec, ")"));
    }
  }
  // A sum that the caller's 16 bits cannot hold would arrive as infinity.
  if (!op.non_finite && !FitsDtype(op.gradient, op.bucket->dtype)) op.non_finite = true;
  if (op.non_finite) {
    std::fill(op.gradient.begin(), op.gradient.end(), std::numeric_limits<float>::quiet_NaN());
  }
  Deliver(op);
  op.payload.Release();
  op.dense.Release();
  op.gathered.clear();
  op.times.decode += clock_.Now() - begin;
  return OkStatus();
}

Status OperationStages::DecodeDense(Operation& op) {
  if (op.in_place) {
    op.non_finite = !ScaleFinite(op.gradient, op.scale);
    return OkStatus();
  }
  std::fill(op.gradient.begin(), op.gradient.end(), 0.0f);
  op.context.state = nullptr;
  if (op.codec->Traits().form == PayloadForm::kLanes) {
    WEIR_RETURN_IF_ERROR(op.codec->DecodeAdd(op.payload.bytes().first(op.payload_bytes), op.context,
                                             op.scale, op.gradient));
  } else {
    for (size_t rank = 0; rank < op.gathered.size();
         ++rank) {  // rank order: the same bits everywhere
      const Status status =
          op.codec->DecodeAdd(op.gathered[rank], op.context, op.scale, op.gradient);
      if (!status.ok()) return Annotate(status, StrCat("payload of rank ", rank));
    }
  }
  op.non_finite = !ScaleFinite(op.gradient, 1);
  return OkStatus();
}

Status OperationStages::DecodeShared(Operation& op) {
  if (op.values.size() != op.indices.size()) {
    return Internal(
        StrCat("expected ", op.indices.size(), " summed values, found ", op.values.size()));
  }
  std::fill(op.gradient.begin(), op.gradient.end(), 0.0f);
  bool finite = true;
  for (size_t i = 0; i < op.indices.size(); ++i) {
    const float value = op.values[i] * op.scale;
    finite = finite && std::isfinite(value);
    op.gradient[op.indices[i]] = value;
    op.residual->next[op.indices[i]] = 0;
  }
  op.non_finite = !finite;
  return OkStatus();
}

void OperationStages::Deliver(Operation& op) {
  if (op.bucket->dtype == Dtype::kFloat32) return;
  const std::span<uint16_t> out(static_cast<uint16_t*>(op.data), op.gradient.size());
  op.bucket->dtype == Dtype::kFloat16 ? FloatToHalf(op.gradient, out)
                                      : FloatToBrain(op.gradient, out);
}

}  // namespace weir
