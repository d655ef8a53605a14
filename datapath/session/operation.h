// SPDX-License-Identifier: Apache-2.0
#pragma once
// One all-reduce of one bucket, and the stages that the pipeline calls for it: they prepare its
// parts, move them and decode what arrived. The operation's exchange, which the form of the chosen
// collective selects, decides what a part holds.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/base/clock.h"
#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/exchange/exchange.h"
#include "datapath/plan/plan.h"
#include "datapath/session/bucket_table.h"

namespace weir {

/// When an operation reached each stage.
struct OperationTimes {
  TimePoint submitted{};  // or, on a device, when the gradient was found to be complete
  TimePoint network_begin{}, delivered{};
  Duration encode{0};  // before the exchange began: conversion to float32 and the like
};

/// The state of an operation's next part. Only the pipeline uses it, under its lock.
enum class PartState : uint8_t {
  kMoved,  // the last part was moved, or none was prepared yet
  kPreparing,
  kPrepared,
};

/// How many of the operations that follow the open ones are prepared on each of the ranks from
/// which a part's frames arrived. `everywhere`: these are all ranks.
struct ReadyCount {
  int count = 0;
  bool everywhere = false;
};

/// The session creates it and the pipeline's threads pass it on; one thread uses it at a time.
struct Operation {
  // The request.
  Bucket* bucket = nullptr;
  void* data = nullptr;
  float scale = 1;
  uint64_t step = 0;
  uint64_t index = 0;  // position within the step
  std::shared_ptr<const Plan> plan;
  Choice choice;
  const Codec* codec = nullptr;
  const Collective* collective = nullptr;
  bool sample_statistics = false;
  bool hashed = false;          // the step's replicas are compared, see replicas.h
  Duration lateness_allowed{};  // by which other ranks may come later than the deadline says
  std::function<void(const Status&)> done;
  bool by_caller = false;  // the caller sums it, and it does not pass through the pipeline
  // If set, the operation has no bucket, but one part, which runs this on the network thread.
  std::function<Status(Group&)> control;
  // If set, `data` is in the memory of a device.
  std::unique_ptr<DeviceBucket> device;

  // Between the stages.
  bool on_device = false;     // the codec runs on the device
  ScratchBuffer staged;       // otherwise: the copy of `data` in the host's memory
  ScratchBuffer dense;        // float32 copy of a 16-bit bucket, or of one on a device to measure
  std::span<float> gradient;  // the caller's buffer, `staged` or `dense`, or on the device
  std::unique_ptr<Exchange> exchange;  // null: nothing to exchange
  PartState part_state = PartState::kMoved;
  bool joins = false;  // the prepared part is maxima, which can travel with those of others
  bool more = false;   // another part follows the one that moved
  // After a part in which not all ranks were heard: the ready count that was heard, and how many
  // operations had been opened until then. Only the pipeline uses them.
  std::optional<int> heard_ready;
  uint64_t heard_when = 0;

  /// The gradient, or its copy, in the host's memory.
  std::span<const float> host_gradient() {
    if (!on_device) return gradient;
    return dense.floats(gradient.size());
  }

  // Outcome.
  Status status;
  OperationTimes times;
  ExchangeOutcome outcome;
  uint64_t bytes_sent = 0;
  uint64_t device_bytes = 0;  // see Group::CountDevices
  Duration device_time{0};
  std::vector<BlockDensity> block_densities;
  uint64_t hash = 0;            // of what was delivered, if hashed
  bool sums_gradients = false;  // the sum is exact and has no residuals in it
};

/// Functions of the pipeline's stages, and their common options. Thread-safe because one thread at
/// a time uses an operation, and no two operations of one step have the same bucket.
class OperationStages {
 public:
  struct Options {
    std::string job;
    int rank = 0;
    int world = 1;
    // For gradients on devices: how long they may take to be complete, and whether to give up.
    Duration device_timeout = std::chrono::seconds(60);
    std::function<bool()> given_up = {};
  };
  OperationStages(Options options, ResidualStore& residuals, const Clock& clock);

  /// Which ranks share a node, as Group::SetNodes; before the first operation.
  void SetNodes(std::vector<int> nodes) { environment_.nodes = std::move(nodes); }

  /// For a bucket that the caller sums: adds its residual to `data`, as a dense operation does, and
  /// measures it if the operation samples. `data` is in the host's memory; null where there is
  /// neither a residual nor a sample. kInvalidArgument: it is null nevertheless.
  Status PrepareForCaller(Operation& op, void* data);

  /// Prepares the exchange's next part. The first call begins the exchange, with the bucket
  /// converted to float32. Errors are the codec's.
  Status Prepare(Operation& op);

  /// Moves the prepared part of one operation, or of several that join, after Begin on `group`.
  /// Called on the network thread. Errors are the collective's, annotated with the step, bucket,
  /// codec and collective of the first operation.
  Status Move(std::span<Operation* const> ops, Group& group);

  /// After the last part: writes scale times the sum into the caller's buffer, or NaN everywhere
  /// when some rank met NaN or infinity or the sum overflowed.
  Status Decode(Operation& op);
  /// The hash of what was delivered.
  Status Hash(Operation& op);

 private:
  /// Makes `gradient` of data in the host's memory.
  void PrepareGradient(Operation& op, void* data);
  Status PrepareOnDevice(Operation& op);
  Status AwaitDevice(Operation& op) const;
  bool EncodesOnDevice(const Operation& op) const;
  Status DeliverToDevice(Operation& op);
  std::unique_ptr<Exchange> NewExchange(Operation& op);
  /// Measures block densities of the gradient, before a residual is added to it.
  void SampleBlocks(Operation& op) const;
  Status Begin(Operation& op);
  Status MoveMaxima(std::span<Operation* const> ops, Group& group);

  const Options options_;
  const uint64_t job_hash_;
  const std::set<uint32_t> block_sizes_;  // blocks of these sizes that are zero are not sent
  ExchangeEnvironment environment_;
};

}  // namespace weir
