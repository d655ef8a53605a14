// The stages of an operation.
//
// Residuals (error feedback). A codec that needs them, or any lossy codec while a residual is left
// over from an earlier one, encodes gradient + residual and writes what it lost to the bucket's
// `next` buffer; the step's end commits or discards. A lossless codec flushes: gradient + residual
// is sent and the residual becomes zero. Momentum inside a codec lives and dies with the residual's
// commits; a step with another codec drops it.
//
// Sums that are encoded again on their way leave a second residual at the rank that encodes them,
// see regions.cc. A step that uses residuals and encodes no sum takes it into the gradient; one
// that flushes takes both.
//
// Where nodes are summed first, that sum takes the residual along, and what is lost when it is
// encoded is the second one's, see node_stages.cc.
//
// Where each rank sends its own selection (own_values), a rank's residual loses only what it sent
// and the ranks kept: what was dropped from a sum stays with all who contributed to it.
//
// EF21. A codec with that trait encodes gradient - memory, and what is delivered is the estimate
// that all ranks' payloads have added up to. Between such codecs the memory is kept; the first of
// them flushes a residual into its gradient, and a step of any other codec drops the memory on all
// ranks alike (the estimate was the gradient's, so nothing is owed).
//
// Non-finite values. Lossy codecs notice them while encoding and say so in the operation's frames,
// so every rank knows when the collective ends. A dense sum needs no pass before: NaN and infinity
// survive addition, all ranks hold the same bits of the sum, and the pass that scales it sees them
// on every rank alike. That pass also catches sums that overflow.

#include "datapath/session/operation.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "datapath/base/half.h"
#include "datapath/base/json.h"
#include "datapath/base/random.h"
#include "datapath/codec/residual/ef21.h"
#include "datapath/codec/select/selection.h"
#include "datapath/collective/maximum.h"
#include "datapath/collective/primitives.h"
#include "datapath/session/passes.h"

namespace weir {

bool SameStateChoice(const Choice& a, const Choice& b) {
  return a.codec == b.codec && ParamsOf(a) == ParamsOf(b);
}

namespace {

// Those values leave the residual.
void AccountFor(std::span<const float> values, Operation& op) {
  double kept = 0;
  for (const float value : values) kept += static_cast<double>(value) * value;
  if (op.energy_in > 0) op.gain = std::min(1.0, kept / op.energy_in);
  op.residual_energy = std::max(0.0, op.residual_energy - kept);
}

std::set<uint32_t> BlockSizes() {
  std::set<uint32_t> sizes;
  for (const Collective* collective : Collectives().All()) {
    if (collective->Traits().blocks.elements > 0)
      sizes.insert(collective->Traits().blocks.elements);
  }
  return sizes;
}

}  // namespace

OperationStages::OperationStages(Options options, ResidualStore& residuals, const Clock& clock)
    : options_(std::move(options)),
      job_hash_(XXH3_64bits(options_.job.data(), options_.job.size())),
      residuals_(residuals),
      clock_(clock),
      loss_probe_(options_.world),
      block_sizes_(BlockSizes()) {}

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
  op.context.params = ParamsOf(op.choice);
  op.context.shape = op.bucket->shape;
  op.context.world = options_.world;
  op.context.rank = options_.rank;
  op.context.seed = MixSeed(job_hash_ ^ op.bucket->key, op.step);
  if (CarriesRegions(op)) {
    PrepareRegions(op);
  } else if (CarriesNodeSums(op)) {
    PrepareNodeParts(op);
  } else {
    op.bucket->region_states = {};
  }
  if (op.sample_statistics && options_.world > 1) SampleBlocks(op);
  WEIR_RETURN_IF_ERROR(TakeResidual(op));
  const bool owes = op.regions.has_value() && op.regions->server.has_value();
  if (op.sample_statistics && (op.residual.has_value() || owes)) {
    op.bucket->gradient_energy = SampledEnergy(op.gradient);
  }
  if (op.regions.has_value()) {
    op.bucket->codec_state = nullptr;
    op.bucket->codec_state_choice = Choice();
    op.bucket->balance = {};
  } else if (!SameStateChoice(op.bucket->codec_state_choice, op.choice)) {
    op.bucket->codec_state = op.codec->NewState(n, op.context);
    op.bucket->codec_state_choice = op.choice;
    op.bucket->balance = {};
  }
  op.context.state = op.bucket->codec_state.get();
  Status status;
  if (CarriesNodeSums(op)) {
    if (op.sample_statistics) Sample(op, GradientStatistics());  // encoded once nodes have summed
  } else if (op.regions.has_value()) {
    status = EncodeRegions(op);
  } else if (HoldsIndicesOnly(traits.form)) {
    status = EncodeShared(op);
  } else {
    status = EncodeLanesOrOpaque(op);
  }
  op.times.encode += clock_.Now() - begin;
  return status;
}

Status OperationStages::TakeResidual(Operation& op) {
  const CodecTraits& traits = op.codec->Traits();
  const uint64_t key = op.bucket->key;
  if (traits.ef21) return TakeEf21(op);
  residuals_.DropEf21(key);
  if (!traits.lossy) return residuals_.Flush(key, op.gradient).status();
  if (CarriesNodeSums(op)) return TakeNodeResidual(op);
  if (!traits.needs_momentum) {
    if (traits.needs_error_feedback || HoldsIndicesOnly(traits.form) ||
        residuals_.HasResidual(key)) {
      WEIR_ASSIGN_OR_RETURN(op.residual, residuals_.BeginEncode(key));
      return TakeServerResidual(op);
    }
    return OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(const ResidualBuffers buffers, residuals_.BeginEncode(key));
  WEIR_ASSIGN_OR_RETURN(op.context.momentum, residuals_.BeginMomentum(key));
  if (traits.needs_error_feedback) {
    op.residual = buffers;
    return TakeServerResidual(op);
  } else {  // momentum alone: what an earlier codec left behind waits for the next one
    std::copy(buffers.current.begin(), buffers.current.end(), buffers.next.begin());
  }
  return OkStatus();
}

Status OperationStages::TakeServerResidual(Operation& op) {
  const uint64_t key = op.bucket->key;
  if (!op.regions.has_value()) return residuals_.FlushServer(key, op.gradient);
  const Region& own = op.regions->regions[options_.rank];
  WEIR_ASSIGN_OR_RETURN(op.regions->server,
                        residuals_.BeginServer(key, {own.begin, own.size}, op.gradient));
  return OkStatus();
}

Status OperationStages::TakeEf21(Operation& op) {
  WEIR_ASSIGN_OR_RETURN(op.ef21, residuals_.BeginEf21(op.bucket->key, op.gradient));
  op.residual = ResidualBuffers{op.ef21->negative, op.ef21->next_negative};
  // The estimate is a plain sum.
  op.estimate_scale = std::exchange(op.scale, 1.0f);
  return OkStatus();
}

Status OperationStages::EncodeLanesOrOpaque(Operation& op) {
  if (IsRawFloat(*op.codec)) {
    op.in_place = true;
    op.payload_bytes = op.gradient.size() * sizeof(float);
    if (op.sample_statistics) Sample(op, GradientStatistics());
    return OkStatus();
  }
  op.payload = pool_.Take(op.codec->MaxEncodedBytes(op.gradient.size(), op.context));
  if (op.codec->Traits().shared_metadata == SharedMetadata::kMax) {
    const std::span<const float> residual =
        op.residual.has_value() ? op.residual->current : std::span<const float>();
    op.context.shared_max = op.codec->LocalMax(op.gradient, residual, op.context);
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
      op.ef21.has_value()
          ? Ef21Encode(*op.codec, op.gradient, *op.ef21, op.context, op.payload.bytes())
      : op.residual.has_value()
          ? op.codec->EncodeWithFeedback(op.gradient, op.residual->current, op.residual->next,
                                         op.context, op.payload.bytes().subspan(op.round_at))
          : op.codec->Encode(op.gradient, op.context, op.payload.bytes().subspan(op.round_at));
  op.context.statistics = nullptr;
  if (!result.ok()) return Annotate(result.status(), StrCat("encoding with ", op.choice.codec));
  op.payload_bytes = op.round_at + result->bytes;
  op.energy_in = result->energy_in;
  if (result->non_finite) op.flags |= kFlagNonFinite;
  if (result->energy_in > 0 && !result->non_finite) {
    op.gain = 1 - result->energy_lost / result->energy_in;
  }
  if (op.residual.has_value()) op.residual_energy = result->energy_lost;
  const bool last = op.context.round + 1 == op.codec->Traits().rounds;
  if (statistics != nullptr && last && !result->non_finite) Sample(op, *statistics);
  return OkStatus();
}

Status OperationStages::EncodeRound(Operation& op, int round) {
  const TimePoint begin = clock_.Now();
  // The collective left the sums of the earlier rounds where this rank's payload was.
  op.round_at = op.payload_bytes;
  op.context.round = round;
  op.context.previous = op.payload.bytes().first(op.round_at);
  const Status status = RunEncoder(op);
  op.times.encode += clock_.Now() - begin;
  return status;
}

Status OperationStages::EncodeShared(Operation& op) {
  // The codec leaves gradient + residual in `next`; zeroed at the indices that will be chosen, that
  // is the new residual, exactly.
  op.payload = pool_.Take(op.codec->MaxEncodedBytes(op.gradient.size(), op.context));
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
  op.codec_losses = loss_probe_.Measure(
      op.gradient, op.residual.has_value() ? op.residual->current : std::span<const float>(),
      op.context.shape, op.context.seed);
}

void OperationStages::SampleBlocks(Operation& op) const {
  for (const uint32_t block : block_sizes_) {
    op.block_densities.push_back({.bucket = op.bucket->key,
                                  .block_elements = block,
                                  .own = BlockDensityOf(op.gradient, block)});
  }
  op.sums_gradients = !op.codec->Traits().lossy && !residuals_.HasResidual(op.bucket->key);
}

void OperationStages::SampleSummedBlocks(Operation& op) const {
  for (BlockDensity& density : op.block_densities) {
    density.combined = BlockDensityOf(op.gradient, density.block_elements);
  }
}

Status OperationStages::RunMetadata(Operation& op, Group& group, const NetworkHooks& hooks) {
  const TimePoint begin = clock_.Now();
  hooks.begin(group, op, 0);
  WEIR_RETURN_IF_ERROR(AllReduceMax(group, op.context.shared_max.values()));
  WEIR_RETURN_IF_ERROR(hooks.finish(group));
  op.bytes_sent += group.bytes_sent();
  const TimePoint agreed = clock_.Now();
  op.times.metadata += agreed - begin;
  op.encode_pending = false;
  if (!op.context.shared_max.finite()) {
    // Every rank knows now: nothing is left to send.
    op.non_finite = true;
    return OkStatus();
  }
  const Status status = RunEncoder(op);
  op.times.encode += clock_.Now() - agreed;
  return status;
}

Status OperationStages::RunCollective(Operation& op, Group& group) {
  weir::Exchange exchange;
  exchange.step = op.step;
  const Codec* codec = op.codec;
  const bool own = op.collective->Traits().own_values;
  switch (op.collective->Traits().form) {
    case PayloadForm::kLanes:
    case PayloadForm::kFloatLanes:
    case PayloadForm::kTableLanes:
      exchange.lanes =
          op.in_place ? std::as_writable_bytes(op.gradient)
                      : op.payload.bytes().subspan(op.round_at, op.payload_bytes - op.round_at);
      exchange.lane_bytes = codec->LaneBytes(op.context);
      exchange.shares = &op.shares;
      exchange.accumulate = [codec, &op](std::span<std::byte> sum,
                                         std::span<const std::byte> addend) {
        codec->Accumulate(op.context, sum, addend);
      };
      break;
    case PayloadForm::kOpaque:
      exchange.payload = op.payload.bytes().first(op.payload_bytes);
      exchange.payload_bytes_max = codec->MaxEncodedBytes(op.gradient.size(), op.context);
      op.gathered = gathered_pool_.Take();
      exchange.gathered = &op.gathered;
      break;
    case PayloadForm::kSharedIndex:
    case PayloadForm::kUnionIndex:
      exchange.select = [&op]() -> StatusOr<std::span<const std::byte>> {
        return std::span<const std::byte>(op.payload.bytes().first(op.payload_bytes));
      };
      exchange.payload_bytes_max = codec->MaxEncodedBytes(op.gradient.size(), op.context);
      exchange.norm_squared = op.selection_energy;
      exchange.open = [this, &op, own](std::span<const std::byte> index_payload) {
        return own ? OpenOwn(op, index_payload) : OpenShared(op, index_payload);
      };
      exchange.open_all = [this, &op](std::span<const std::vector<std::byte>> index_payloads) {
        return OpenUnion(op, index_payloads);
      };
      exchange.values = &op.values;
      exchange.indices = &op.indices;
      exchange.elements = op.gradient.size();
      exchange.kept_target = SelectionTarget(op.gradient.size(), op.context.params.ratio);
      exchange.balance = &op.bucket->balance;
      break;
    case PayloadForm::kRegions:
      return RunRegions(op, group);
    case PayloadForm::kNodeSums:
    case PayloadForm::kNodeShards:
      return RunNodeParts(op, group);
  }
  const StatusOr<CollectiveReport> report = op.collective->Run(group, exchange);
  WEIR_RETURN_IF_ERROR(report.status());
  op.ran_instead = report->ran_instead;
  WEIR_RETURN_IF_ERROR(KeepMissed(op));
  if (own) TakeOwn(op);
  return OkStatus();
}

Status OperationStages::OpenShared(Operation& op, std::span<const std::byte> index_payload) {
  const std::span<float> sum = op.residual->next;
  WEIR_RETURN_IF_ERROR(op.codec->DecodeIndices(index_payload, sum.size(), &op.indices));
  TakeShared(op);
  return OkStatus();
}

Status OperationStages::OpenUnion(Operation& op,
                                  std::span<const std::vector<std::byte>> index_payloads) {
  op.indices.clear();
  std::vector<uint32_t> selected, merged;
  for (size_t rank = 0; rank < index_payloads.size(); ++rank) {
    if (Status status =
            op.codec->DecodeIndices(index_payloads[rank], op.residual->next.size(), &selected);
        !status.ok()) {
      return Annotate(status, StrCat("indices of rank ", rank));
    }
    merged.clear();
    merged.reserve(op.indices.size() + selected.size());
    std::set_union(op.indices.begin(), op.indices.end(), selected.begin(), selected.end(),
                   std::back_inserter(merged));
    op.indices.swap(merged);
  }
  TakeShared(op);
  return OkStatus();
}

void OperationStages::FillShared(Operation& op) {
  op.values.resize(op.indices.size());
  for (size_t i = 0; i < op.indices.size(); ++i) {
    op.values[i] = op.residual->next[op.indices[i]];
  }
}

void OperationStages::TakeShared(Operation& op) {
  FillShared(op);
  AccountFor(op.values, op);
  op.codec->LearnSelection(op.context, op.indices.size(), op.residual->next.size());
}

Status OperationStages::OpenOwn(Operation& op, std::span<const std::byte> index_payload) {
  WEIR_RETURN_IF_ERROR(
      op.codec->DecodeIndices(index_payload, op.residual->next.size(), &op.indices));
  op.own_indices = op.indices;
  FillShared(op);
  return OkStatus();
}

void OperationStages::TakeOwn(Operation& op) {
  std::vector<uint32_t> taken;
  std::set_intersection(op.own_indices.begin(), op.own_indices.end(), op.indices.begin(),
                        op.indices.end(), std::back_inserter(taken));
  std::vector<float> values;
  for (const uint32_t index : taken) values.push_back(op.residual->next[index]);
  AccountFor(values, op);
  op.own_indices = std::move(taken);
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
  const int rounds = op.codec->Traits().rounds;
  // All ranks know at the end of a round when one of them met NaN, so all stop there.
  for (int round = 0; round < rounds && !op.non_finite; ++round) {
    if (round > 0) WEIR_RETURN_IF_ERROR(annotate(EncodeRound(op, round)));
    WEIR_RETURN_IF_ERROR(annotate(
        RunSubOperation(op, group, hooks, 1 + round, [&] { return RunCollective(op, group); })));
  }
  if (HoldsIndicesOnly(op.codec->Traits().form) && op.values.empty()) {
    // An empty selection moves no values: flags and control word need frames of their own. All
    // ranks see the same selection, so all take part.
    WEIR_RETURN_IF_ERROR(
        annotate(RunSubOperation(op, group, hooks, 1 + rounds, [&] { return Barrier(group); })));
  }
  return OkStatus();
}

Status OperationStages::RunSubOperation(Operation& op, Group& group, const NetworkHooks& hooks,
                                        int number, const std::function<Status()>& run) {
  const TimePoint begin = clock_.Now();
  hooks.begin(group, op, number);
  WEIR_RETURN_IF_ERROR(run());
  WEIR_RETURN_IF_ERROR(hooks.finish(group));
  op.bytes_sent += group.bytes_sent();
  if (group.flags() & kFlagNonFinite) op.non_finite = true;
  op.times.network += clock_.Now() - begin;
  return OkStatus();
}

Status OperationStages::Decode(Operation& op) {
  if (op.bucket->elements == 0) return OkStatus();
  const TimePoint begin = clock_.Now();
  if (!op.non_finite) {
    Status status;
    if (HoldsIndicesOnly(op.codec->Traits().form)) {
      status = DecodeShared(op);
    } else if (CarriesNodeSums(op)) {
      status = DeliverNodeSums(op);
    } else if (op.regions.has_value()) {
      status = DecodeRegions(op);
    } else {
      status = DecodeDense(op);
    }
    if (status.ok() && op.ef21.has_value() && !op.non_finite) {
      Ef21Deliver(*op.ef21, op.estimate_scale, op.gradient);
      op.non_finite = !ScaleFinite(op.gradient, 1);
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
  } else if (op.sums_gradients) {
    SampleSummedBlocks(op);
  }
  Deliver(op);
  op.payload.Release();
  op.dense.Release();
  gathered_pool_.Return(op.gathered);
  op.regions.reset();
  op.times.decode += clock_.Now() - begin;
  return OkStatus();
}

Status OperationStages::DecodeDense(Operation& op) {
  if (op.in_place) {
    op.non_finite = !ScaleFinite(op.gradient, op.scale);
    return OkStatus();
  }
  if (op.shares.run_bytes == 0 && op.codec->Traits().form != PayloadForm::kLanes) {
    // In rank order: the same bits everywhere.
    bool finite = true;
    WEIR_RETURN_IF_ERROR(op.codec->DecodeSum(
        op.gathered, op.context, op.scale, op.gradient,
        [&finite](std::span<float> part) { finite = ScaleFinite(part, 1) && finite; }));
    op.non_finite = !finite;
    return OkStatus();
  }
  std::fill(op.gradient.begin(), op.gradient.end(), 0.0f);
  if (op.shares.run_bytes > 0) {
    WEIR_RETURN_IF_ERROR(DecodeShares(op));
  } else {
    WEIR_RETURN_IF_ERROR(op.codec->DecodeAdd(op.payload.bytes().first(op.payload_bytes), op.context,
                                             op.scale, op.gradient));
  }
  op.codec->Finish(op.context, op.scale, op.gradient);
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
  }
  const bool own = op.collective->Traits().own_values;
  for (const uint32_t index : own ? op.own_indices : op.indices) op.residual->next[index] = 0;
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
