#pragma once
// One all-reduce of one bucket on its way through the session: what prepares its parts, moves them
// and decodes what arrived, each called by the pipeline. What a part holds is its exchange's, which
// follows from the form of the choice's collective.

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

/// Where the next part of an operation is. The pipeline's, under its lock.
enum class PartState : uint8_t {
  kMoved,  // or none was prepared yet
  kPreparing,
  kPrepared,
};

/// How many of the operations that follow the open ones are prepared: at least on the ranks that a
/// part was heard from, which are all of them or not.
struct ReadyCount {
  int count = 0;
  bool everywhere = false;
};

/// Created by the session, handed from thread to thread; one of them touches it at a time.
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
  // In place of a bucket: one part, which runs this on the network thread.
  std::function<Status(Group&)> control;

  // Between the stages.
  ScratchBuffer dense;                 // float32 copy of a 16-bit bucket
  std::span<float> gradient;           // the caller's buffer or `dense`
  std::unique_ptr<Exchange> exchange;  // null: nothing to exchange
  PartState part_state = PartState::kMoved;
  bool joins = false;  // the prepared part is maxima, which can travel with those of others
  bool more = false;   // after the part that moved comes another one
  // Of a part that moved and did not reach all ranks: what was heard, and how many operations had
  // been opened until then. The pipeline's.
  std::optional<int> heard_ready;
  uint64_t heard_when = 0;

  // Outcome.
  Status status;
  OperationTimes times;
  ExchangeOutcome outcome;
  uint64_t bytes_sent = 0;
  std::vector<BlockDensity> block_densities;
  uint64_t hash = 0;            // hashed: of what was delivered
  bool sums_gradients = false;  // the sum is exact, and of what the gradients hold alone
};

/// What the stages share. Thread-safe as each operation is touched by one thread at a time and no
/// two operations of one step name the same bucket.
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

  /// Prepares the exchange's next part, the first time from the bucket converted to float32. Errors
  /// are the codec's.
  Status Prepare(Operation& op);

  /// Network thread: moves the part that was prepared, of one operation or of several that join, on
  /// a group that has begun for it. Errors are the collective's, annotated with bucket, codec,
  /// collective of the first.
  Status Move(std::span<Operation* const> ops, Group& group);

  /// After the last part: writes scale times the sum into the caller's buffer, or NaN everywhere
  /// when some rank met NaN or infinity or the sum overflowed.
  Status Decode(Operation& op);

 private:
  void PrepareGradient(Operation& op);
  std::unique_ptr<Exchange> NewExchange(const Operation& op);
  /// Before a residual is added.
  void SampleBlocks(Operation& op) const;
  Status Begin(Operation& op);
  Status MoveMaxima(std::span<Operation* const> ops, Group& group);

  const uint64_t job_hash_;
  const std::set<uint32_t> block_sizes_;  // that some collective leaves out
  ExchangeEnvironment environment_;
};

}  // namespace weir
