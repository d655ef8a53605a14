// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/operation.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "datapath/base/half.h"
#include "datapath/base/json.h"
#include "datapath/base/random.h"
#include "datapath/codec/measure/codec_timing.h"
#include "datapath/collective/maximum.h"
#include "datapath/session/passes.h"
#include "datapath/session/replicas.h"

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

void Deliver(Operation& op, void* data) {
  if (op.bucket->dtype == Dtype::kFloat32) return;
  const std::span<uint16_t> out(static_cast<uint16_t*>(data), op.gradient.size());
  op.bucket->dtype == Dtype::kFloat16 ? FloatToHalf(op.gradient, out)
                                      : FloatToBrain(op.gradient, out);
}

}  // namespace

OperationStages::OperationStages(Options options, ResidualStore& residuals, const Clock& clock)
    : options_(std::move(options)),
      job_hash_(XXH3_64bits(options_.job.data(), options_.job.size())),
      block_sizes_(BlockSizes()),
      environment_{
          .residuals = residuals, .clock = clock, .rank = options_.rank, .world = options_.world} {}

void OperationStages::PrepareGradient(Operation& op, void* data) {
  const size_t n = op.bucket->elements;
  if (op.bucket->dtype == Dtype::kFloat32) {
    op.gradient = {static_cast<float*>(data), n};
    return;
  }
  op.dense = environment_.pool.Take(n * sizeof(float));
  op.gradient = op.dense.floats(n);
  const std::span<const uint16_t> in(static_cast<const uint16_t*>(data), n);
  op.bucket->dtype == Dtype::kFloat16 ? HalfToFloat(in, op.gradient)
                                      : BrainToFloat(in, op.gradient);
}

bool OperationStages::EncodesOnDevice(const Operation& op) const {
  const ExchangeTraits& form = FormOf(*op.collective).Traits();
  const bool encodes_nodes =
      form.encoded_sums == EncodedSums::kNodes || form.encoded_sums == EncodedSums::kNodeShards;
  // An aggregator may return lanes to the residual. Only sums of nodes add an aggregate residual to
  // a gradient on a device.
  return EncodesOn(op.device->device(), *op.codec) && form.on_devices &&
         op.collective->Traits().lease_mode.empty() &&
         (encodes_nodes || !environment_.residuals.HasAggregate(op.bucket->key));
}

// Polls, because a stream that waits for a lost peer never ends, and no wait for an event has a
// deadline.
Status OperationStages::AwaitDevice(Operation& op) const {
  constexpr Duration kPauseMin = std::chrono::microseconds(20), kPauseMax = kPauseMin * 16;
  const TimePoint deadline = environment_.clock.Now() + options_.device_timeout;
  for (Duration pause = kPauseMin;; pause = std::min(pause * 2, kPauseMax)) {
    WEIR_ASSIGN_OR_RETURN(const bool ready, op.device->IsReady());
    if (ready) break;
    if (options_.given_up && options_.given_up()) return Aborted("the session has failed");
    if (environment_.clock.Now() > deadline) {
      return DeadlineExceeded(StrCat("the gradient of bucket ", Hex64(op.bucket->key), " on ",
                                     op.device->device().name(), " of rank ", options_.rank,
                                     " was not complete after ", ToSeconds(options_.device_timeout),
                                     " s"));
    }
    std::this_thread::sleep_for(pause);
  }
  op.times.submitted = environment_.clock.Now();
  return OkStatus();
}

Status OperationStages::PrepareOnDevice(Operation& op) {
  op.on_device = EncodesOnDevice(op);
  if (!op.on_device) {
    op.staged =
        op.device->device().pinned().Take(op.bucket->elements * DtypeBytes(op.bucket->dtype));
    WEIR_RETURN_IF_ERROR(op.device->CopyToHost(op.staged.bytes()));
    PrepareGradient(op, op.staged.bytes().data());
    return OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(op.gradient, op.device->Floats());
  if (!op.sample_statistics) return OkStatus();
  op.dense = environment_.pool.Take(op.gradient.size_bytes());
  return op.device->device().ReadFloats(op.dense.floats(op.gradient.size()).data(),
                                        op.gradient.data(), op.gradient.size());
}

std::unique_ptr<Exchange> OperationStages::NewExchange(Operation& op) {
  EncodeContext context;
  context.params = ParamsOf(op.choice);
  context.shape = op.bucket->shape;
  context.world = environment_.world;
  context.rank = environment_.rank;
  context.seed = MixSeed(job_hash_ ^ op.bucket->key, op.step);
  std::span<const float> host_gradient;
  if (op.on_device && op.sample_statistics) host_gradient = op.host_gradient();
  return FormOf(*op.collective)
      .Begin({.codec = *op.codec,
              .collective = *op.collective,
              .bucket = op.bucket->key,
              .step = op.step,
              .gradient = op.gradient,
              .scale = op.scale,
              .context = context,
              .memory = op.bucket->codec_memory,
              .sample = op.sample_statistics,
              .device = op.on_device ? op.device.get() : nullptr,
              .host_gradient = host_gradient},
             environment_);
}

Status OperationStages::PrepareForCaller(Operation& op, void* data) {
  const TimePoint begin = environment_.clock.Now();
  const uint64_t key = op.bucket->key;
  const bool owed = environment_.residuals.HasResidual(key);
  if (data == nullptr || op.bucket->elements == 0) {
    if (owed || op.sample_statistics) {
      return InvalidArgument(StrCat("data: is null, but bucket ", Hex64(key), " has a residual"));
    }
    environment_.residuals.DropEf21(key);
    WEIR_RETURN_IF_ERROR(environment_.residuals.Flush(key, {}).status());
    op.bucket->codec_memory = {};
  } else {
    PrepareGradient(op, data);
    if (op.sample_statistics && environment_.world > 1) SampleBlocks(op);
    op.exchange = NewExchange(op);
    WEIR_RETURN_IF_ERROR(op.exchange->Prepare());
    op.outcome = op.exchange->outcome();
    op.exchange.reset();
    if (owed) Deliver(op, data);
    op.dense.Release();
    if (op.outcome.gradient_energy.has_value()) {
      op.bucket->gradient_energy = *op.outcome.gradient_energy;
    }
  }
  op.outcome.payload_bytes = op.bucket->elements * DtypeBytes(op.bucket->dtype);
  op.outcome.encode = environment_.clock.Now() - begin;
  return OkStatus();
}

Status OperationStages::Prepare(Operation& op) {
  if (op.bucket->elements == 0) return OkStatus();
  WEIR_RETURN_IF_ERROR(op.exchange == nullptr ? Begin(op) : op.exchange->Prepare());
  op.joins = op.exchange->part() == 0;
  return OkStatus();
}

Status OperationStages::Begin(Operation& op) {
  if (op.device != nullptr) WEIR_RETURN_IF_ERROR(AwaitDevice(op));
  const TimePoint begin = environment_.clock.Now();
  if (op.device != nullptr) {
    WEIR_RETURN_IF_ERROR(PrepareOnDevice(op));
  } else {
    PrepareGradient(op, op.data);
  }
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
                                  .own = BlockDensityOf(op.host_gradient(), block)});
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
    first.device_bytes += group.device_bytes();
    first.device_time += group.device_time();
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
  if (op.on_device) return DeliverToDevice(op);
  // A sum that the caller's 16 bits cannot hold would arrive as infinity.
  if (!non_finite && !FitsDtype(op.gradient, op.bucket->dtype)) non_finite = true;
  if (non_finite) {
    std::fill(op.gradient.begin(), op.gradient.end(), std::numeric_limits<float>::quiet_NaN());
  } else if (op.sums_gradients) {
    for (BlockDensity& density : op.block_densities) {
      density.combined = BlockDensityOf(op.gradient, density.block_elements);
    }
  }
  Deliver(op, op.device == nullptr ? op.data : op.staged.bytes().data());
  if (op.device != nullptr) WEIR_RETURN_IF_ERROR(op.device->CopyFromHost(op.staged.bytes()));
  op.exchange.reset();
  op.dense.Release();
  op.outcome.decode += environment_.clock.Now() - begin;
  return OkStatus();
}

Status OperationStages::DeliverToDevice(Operation& op) {
  const TimePoint begin = environment_.clock.Now();
  bool& non_finite = op.outcome.non_finite;
  if (!non_finite) {
    WEIR_ASSIGN_OR_RETURN(const bool fits, op.device->Deliver());
    non_finite = !fits;
  }
  if (non_finite) WEIR_RETURN_IF_ERROR(op.device->FillNan());
  op.exchange.reset();
  op.dense.Release();
  op.outcome.decode += environment_.clock.Now() - begin;
  return OkStatus();
}

Status OperationStages::Hash(Operation& op) {
  const size_t bytes = op.bucket->elements * DtypeBytes(op.bucket->dtype);
  if (op.device == nullptr) {
    op.hash = HashBytes({static_cast<const std::byte*>(op.data), bytes});
    return OkStatus();
  }
  if (op.staged.empty()) {
    op.staged = op.device->device().pinned().Take(bytes);
    WEIR_RETURN_IF_ERROR(op.device->CopyToHost(op.staged.bytes()));
  }
  op.hash = HashBytes(op.staged.bytes());
  return OkStatus();
}

}  // namespace weir
