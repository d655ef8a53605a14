// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/operation.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "datapath/base/half.h"
#include "datapath/base/json.h"
#include "datapath/base/random.h"
#include "datapath/collective/maximum.h"
#include "datapath/session/passes.h"

namespace weir {
namespace {

std::set<uint32_t> BlockSizes() {
  std::set<uint32_t> sizes;
  for (const Collective* collective : Collectives().All()) {
    if (collective->Traits().blocks.elements > 0)
      sizes.insert(collective->Traits().blocks.elements);
  }
  return sizes;
}

void Deliver(Operation& op) {
  if (op.bucket->dtype == Dtype::kFloat32) return;
  const std::span<uint16_t> out(static_cast<uint16_t*>(op.data), op.gradient.size());
  op.bucket->dtype == Dtype::kFloat16 ? FloatToHalf(op.gradient, out)
                                      : FloatToBrain(op.gradient, out);
}

}  // namespace

OperationStages::OperationStages(Options options, ResidualStore& residuals, const Clock& clock)
    : job_hash_(XXH3_64bits(options.job.data(), options.job.size())),
      block_sizes_(BlockSizes()),
      environment_{
          .residuals = residuals, .clock = clock, .rank = options.rank, .world = options.world} {}

void OperationStages::PrepareGradient(Operation& op) {
  const size_t n = op.bucket->elements;
  if (op.bucket->dtype == Dtype::kFloat32) {
    op.gradient = {static_cast<float*>(op.data), n};
    return;
  }
  op.dense = environment_.pool.Take(n * sizeof(float));
  op.gradient = op.dense.floats(n);
  const std::span<const uint16_t> in(static_cast<const uint16_t*>(op.data), n);
  op.bucket->dtype == Dtype::kFloat16 ? HalfToFloat(in, op.gradient)
                                      : BrainToFloat(in, op.gradient);
}

std::unique_ptr<Exchange> OperationStages::NewExchange(const Operation& op) {
  EncodeContext context;
  context.params = ParamsOf(op.choice);
  context.shape = op.bucket->shape;
  context.world = environment_.world;
  context.rank = environment_.rank;
  context.seed = MixSeed(job_hash_ ^ op.bucket->key, op.step);
  return FormOf(*op.collective)
      .Begin({.codec = *op.codec,
              .collective = *op.collective,
              .bucket = op.bucket->key,
              .step = op.step,
              .gradient = op.gradient,
              .scale = op.scale,
              .context = context,
              .memory = op.bucket->codec_memory,
              .sample = op.sample_statistics},
             environment_);
}

Status OperationStages::Prepare(Operation& op) {
  if (op.bucket->elements == 0) return OkStatus();
  WEIR_RETURN_IF_ERROR(op.exchange == nullptr ? Begin(op) : op.exchange->Prepare());
  op.joins = op.exchange->part() == 0;
  return OkStatus();
}

Status OperationStages::Begin(Operation& op) {
  const TimePoint begin = environment_.clock.Now();
  PrepareGradient(op);
  if (op.sample_statistics && environment_.world > 1) SampleBlocks(op);
  op.exchange = NewExchange(op);
  op.times.encode = environment_.clock.Now() - begin;
  WEIR_RETURN_IF_ERROR(op.exchange->Prepare());
  const std::optional<double>& energy = op.exchange->outcome().gradient_energy;
  if (energy.has_value()) op.bucket->gradient_energy = *energy;
  return OkStatus();
}

void OperationStages::SampleBlocks(Operation& op) const {
  for (const uint32_t block : block_sizes_) {
    op.block_densities.push_back({.bucket = op.bucket->key,
                                  .block_elements = block,
                                  .own = BlockDensityOf(op.gradient, block)});
  }
  op.sums_gradients =
      !op.codec->Traits().lossy && !environment_.residuals.HasResidual(op.bucket->key);
}

Status OperationStages::Move(std::span<Operation* const> ops, Group& group) {
  Operation& first = *ops.front();
  if (first.times.network_begin == TimePoint{}) {
    const TimePoint now = environment_.clock.Now();
    for (Operation* const op : ops) op->times.network_begin = now;
  }
  const Status status = first.joins ? MoveMaxima(ops, group) : first.exchange->Move(group);
  if (status.ok()) {
    for (Operation* const op : ops) {
      op->bytes_sent += group.bytes_sent() / ops.size();
      op->more = op->exchange->more();
    }
    return status;
  }
  return Annotate(status, StrCat("step ", first.step, " bucket ", Hex64(first.bucket->key), " (",
                                 first.choice.codec, ", ", first.choice.collective, ")"));
}

Status OperationStages::MoveMaxima(std::span<Operation* const> ops, Group& group) {
  const TimePoint begin = environment_.clock.Now();
  std::vector<float> all;
  for (const Operation* const op : ops) {
    const std::span<const float> own = op->exchange->maxima();
    all.insert(all.end(), own.begin(), own.end());
  }
  WEIR_RETURN_IF_ERROR(AllReduceMax(group, all));
  const Duration took = (environment_.clock.Now() - begin) / static_cast<int64_t>(ops.size());
  auto from = all.cbegin();
  for (const Operation* const op : ops) {
    const std::span<float> maxima = op->exchange->maxima();
    std::copy_n(from, maxima.size(), maxima.begin());
    from += static_cast<ptrdiff_t>(maxima.size());
    op->exchange->MaximaMoved(took);
  }
  return OkStatus();
}

Status OperationStages::Decode(Operation& op) {
  if (op.exchange == nullptr) return OkStatus();
  if (Status status = op.exchange->Deliver(); !status.ok()) {
    return Annotate(status, StrCat("decoding step ", op.step, " bucket ", Hex64(op.bucket->key),
                                   " (", op.choice.codec, ")"));
  }
  const TimePoint begin = environment_.clock.Now();
  op.outcome = op.exchange->outcome();
  op.outcome.encode += op.times.encode;
  bool& non_finite = op.outcome.non_finite;
  // A sum that the caller's 16 bits cannot hold would arrive as infinity.
  if (!non_finite && !FitsDtype(op.gradient, op.bucket->dtype)) non_finite = true;
  if (non_finite) {
    std::fill(op.gradient.begin(), op.gradient.end(), std::numeric_limits<float>::quiet_NaN());
  } else if (op.sums_gradients) {
    for (BlockDensity& density : op.block_densities) {
      density.combined = BlockDensityOf(op.gradient, density.block_elements);
    }
  }
  Deliver(op);
  op.exchange.reset();
  op.dense.Release();
  op.outcome.decode += environment_.clock.Now() - begin;
  return OkStatus();
}

}  // namespace weir
