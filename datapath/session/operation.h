#pragma once
// One all-reduce of one bucket on its way through the session: the stages that encode it, move it
// and decode it, each run by the pipeline thread of that name. What happens in between is its
// exchange's, which follows from the form of the choice's collective.

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

/// When things happened to an operation.
struct OperationTimes {
  TimePoint submitted{}, network_begin{}, delivered{};
  Duration encode{0};  // before the exchange began: conversion to float32 and the like
};

/// Created by the session, handed from stage to stage; one stage touches it at a time.
struct Operation {
  // What was asked for.
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
  bool hashed = false;  // the step's replicas are compared, see replicas.h
  std::function<void(const Status&)> done;
  // In place of a bucket: exchanges this on the network thread, and that is all.
  std::function<Status(Group&)> control;

  // Between the stages.
  ScratchBuffer dense;                 // float32 copy of a 16-bit bucket
  std::span<float> gradient;           // the caller's buffer or `dense`
  std::unique_ptr<Exchange> exchange;  // null: nothing to exchange
  bool moves = false;                  // a part of it is ready for the network

  // Outcome.
  Status status;
  OperationTimes times;
  ExchangeOutcome outcome;
  uint64_t bytes_sent = 0;
  std::vector<BlockDensity> block_densities;
  uint64_t hash = 0;            // hashed: of what was delivered
  bool sums_gradients = false;  // the sum is exact, and of what the gradients hold alone
};

/// What the stages share. Thread-safe as each operation is in one stage at a time and no two
/// operations of one step name the same bucket.
class OperationStages {
 public:
  struct Options {
    std::string job;
    int rank = 0;
    int world = 1;
  };
  OperationStages(Options options, ResidualStore& residuals, const Clock& clock);

  /// Which ranks share a node, as Group::SetNodes; before the first operation.
  void SetNodes(std::vector<int> nodes) { environment_.nodes = std::move(nodes); }

  /// Encode threads: converts to float32 and prepares the exchange's first part. Errors are the
  /// codec's.
  Status Encode(Operation& op);

  /// Network thread, operations in order: the parts of the exchange, one after the other. `begin`
  /// starts part n of this operation on the group; `finish` hears of each part that succeeded.
  /// Errors are the collective's, annotated with bucket, codec, collective.
  struct NetworkHooks {
    std::function<void(Group&, const Operation&, int part)> begin;
    std::function<Status(Group&)> finish;
  };
  Status Move(Operation& op, Group& group, const NetworkHooks& hooks);

  /// Decode thread: writes scale times the sum into the caller's buffer, or NaN everywhere when
  /// some rank met NaN or infinity or the sum overflowed.
  Status Decode(Operation& op);

 private:
  void PrepareGradient(Operation& op);
  std::unique_ptr<Exchange> NewExchange(const Operation& op);
  /// Before a residual is added.
  void SampleBlocks(Operation& op) const;
  Status MoveParts(Operation& op, Group& group, const NetworkHooks& hooks);

  const uint64_t job_hash_;
  const std::set<uint32_t> block_sizes_;  // that some collective leaves out
  ExchangeEnvironment environment_;
};

}  // namespace weir
