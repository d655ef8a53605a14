// SPDX-License-Identifier: Apache-2.0
#pragma once
// An all-reduce of sparse floats with OmniReduce: only blocks that some worker has are sent. There
// are two protocols, one for networks that lose packets and one for streams that do not.

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/aggregation/block_columns.h"
#include "datapath/aggregation/slot_pool.h"
#include "datapath/aggregation/worker.h"

namespace weir::aggregation {

/// Recovers from loss: in every round of a slot every worker sends a packet, which is small where
/// the worker has no block. Not thread-safe; see Worker for the loop. The aggregator is a SlotPool
/// of mode kSparse. Source: Fei et al., SIGCOMM 2021, algorithm 2; deviates: blocks are integers
/// with one scale for the whole tensor, so that sums do not depend on the order; an acknowledgement
/// has no block, where the released code sends zeros; the columns of a slot advance together.
class SparseWorker : public Worker {
 public:
  SparseWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
      : Worker(lease, limits, rank), columns_(lease) {}

  /// Starts to replace `data` by the sum over all workers; it must outlive the operation. code: the
  /// greatest ExponentCode of all workers' data, which a MaxWorker finds. Errors: as Worker::Start
  /// and BlockColumns::Begin.
  Status Begin(std::span<float> data, uint16_t code, uint32_t operation, TimePoint deadline);

  /// The same, but leaves `data` unchanged; see BlockColumns::Begin.
  Status Begin(std::span<const float> data, const BlockSurvey& survey, uint16_t code,
               BlockSums* sums, uint32_t operation, TimePoint deadline);

  uint64_t blocks_sent() const { return columns_.blocks_sent(); }

 protected:
  void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) override;
  Status Accept(uint64_t index, const Packet& packet) override;

 private:
  void LaunchAll();

  BlockColumns columns_;
};

/// For a stream that keeps the order and loses nothing: only workers with a block send. Not
/// thread-safe. Source: Fei et al. 2021, algorithm 1; deviates as above, and in that the first
/// packet of a stream has no block when the block is zero.
class SparseStreamWorker {
 public:
  SparseStreamWorker(const Lease& lease, int rank);

  /// As SparseWorker::Begin.
  Status Begin(std::span<float> data, uint16_t code, uint32_t operation);

  bool done() const { return !status_.ok() || active_ == 0; }
  const Status& status() const { return status_; }

  /// The next message to send, or empty if there is none now. Valid until the next call.
  std::span<const std::byte> NextPacket();

  /// Handles a message from the aggregator. A message that is not due ends the operation with
  /// kDataLoss, because the stream is then out of step.
  void OnPacket(std::span<const std::byte> message);

  uint64_t packets_sent() const { return packets_sent_; }

 private:
  Status Accept(const Packet& packet);

  const Lease lease_;
  const int rank_;
  BlockColumns columns_;
  Status status_;
  uint32_t operation_ = 0;
  size_t active_ = 0;
  std::vector<uint32_t> rounds_;  // by slot: the current one
  std::deque<uint16_t> line_;     // queue of slots with something to send, each at most once
  std::vector<std::byte> buffer_;
  uint64_t packets_sent_ = 0;
};

/// The aggregator's side of such streams. A round is complete when every worker's next block lies
/// after the current block of the column. Not thread-safe. Memory: slots * (StateWords + columns *
/// workers) words.
class SparseStreamPool {
 public:
  /// lease: valid, mode kSparse.
  explicit SparseStreamPool(const Lease& lease);

  /// A request of `worker` that Fits() the lease, in the order of sending. The verdict is
  /// kCompleted or kAdded. kDataLoss: the request is of another round, operation or block than is
  /// due, which an orderly stream never causes. O(columns * (lanes + workers)).
  StatusOr<Outcome> OnPacket(int worker, const Packet& packet);

 private:
  struct Column {
    uint32_t current = kNoBlock;
    std::vector<uint32_t> nexts;  // by worker
  };
  struct Slot {
    uint32_t round = 0;
    bool first = true;  // of the operation: no worker's next block is known
    uint32_t operation = 0;
    uint64_t announced = 0;
    bool empty = true;  // this round has no packet yet
    std::vector<Column> columns;
  };

  Status Check(int worker, const Packet& packet, const Slot& slot) const;
  bool Complete(const Slot& slot) const;
  void Advance(Slot* slot);
  void EncodeReply(const PacketHeader& request, const Slot& slot, std::span<uint32_t> state);

  const Lease lease_;
  const std::unique_ptr<LaneOperation> operation_;
  const size_t words_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> state_;
  std::vector<std::byte> reply_;
};

}  // namespace weir::aggregation
