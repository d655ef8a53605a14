// SPDX-License-Identifier: Apache-2.0
#pragma once
// A worker's view of a sparse tensor in OmniReduce's columns: the current block of each column, the
// worker's data for it, and the contents of the worker's packets. Both protocols share it, the
// lossless one and the one that recovers from loss.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// The result of one pass over a worker's tensor.
struct BlockSurvey {
  uint16_t code = 0;           // its ExponentCode
  std::vector<bool> non_zero;  // by block: some bit is set, perhaps only a sign
};

/// Surveys `data` in blocks of `lanes` elements (at least 1). A block of zeros costs one comparison
/// of memory. Thread-safe, O(n).
BlockSurvey SurveyBlocks(std::span<const float> data, size_t lanes);

/// Sums of blocks in the order of their arrival, each block once. The last block of a tensor may be
/// shorter than the others.
struct BlockSums {
  std::vector<uint32_t> blocks;
  std::vector<float> values;  // `lanes` for each of `blocks`

  /// Writes the sums into `data`, which all workers have cut into blocks of `lanes`. Blocks that
  /// are not listed here are zero on every worker and stay as they are. O(values).
  void Store(size_t lanes, std::span<float> data) const;
};

/// Blocks of lease.lanes elements; block b is in column b modulo (slots * columns), and column c
/// belongs to slot c / columns. Not thread-safe. Memory: one bit per block and O(slots * columns).
class BlockColumns {
 public:
  /// lease: valid, mode kSparse.
  explicit BlockColumns(const Lease& lease);

  /// Starts to replace the blocks of `data` that some worker has by their sums. All other blocks
  /// are zero on every worker. code: the greatest ExponentCode of all workers' data.
  /// kInvalidArgument: `code` is not finite or below that of `data`, or there are 2^32 blocks or
  /// more. O(n).
  Status Begin(std::span<float> data, uint16_t code);

  /// The same, but leaves `data` unchanged and stores the sums of the blocks that some worker has
  /// in `sums`, which is emptied first. survey: of `data`, in blocks of the lease's lanes. All
  /// three must outlive the operation. O(n / lanes).
  Status Begin(std::span<const float> data, const BlockSurvey& survey, uint16_t code,
               BlockSums* sums);

  /// Returns whether the slot has a block left that some worker might have.
  bool Active(size_t slot) const;
  /// Returns whether this worker has data for one of the slot's current blocks.
  bool HasBlock(size_t slot) const;

  /// Fills in a request: the next blocks, the set of columns, and the data of their blocks.
  /// O(columns * lanes).
  void Build(size_t slot, PacketHeader* header, std::span<std::byte> payload);

  /// Stores the sums of a reply and moves to the next blocks that it names. kDataLoss: they are
  /// impossible; nothing has changed then. O(columns * lanes).
  Status Accept(size_t slot, const Packet& packet);

  uint64_t blocks_sent() const { return blocks_sent_; }

 private:
  struct Column {
    uint32_t current = kNoBlock;
    uint32_t own = kNoBlock;  // the first non-zero block of this worker from `current` on
  };
  struct Step {
    uint32_t next = kNoBlock;
    bool present = false;
  };

  Status Start(std::span<const float> data, const BlockSurvey& survey, uint16_t code);
  uint32_t OwnFrom(uint64_t block) const;
  uint32_t AnnouncedNext(const Column& column) const;
  std::span<const float> Block(uint32_t block) const;
  std::span<float> SumOf(uint32_t block);
  Status CheckStep(const Column& column, const Step& step) const;

  const size_t columns_, lanes_, stride_;
  const bool little_endian_;
  const int bits_;
  std::span<const float> data_;
  std::span<float> in_place_;  // where sums_ is null: the same memory as data_
  BlockSums* sums_ = nullptr;
  BlockSurvey own_survey_;
  const BlockSurvey* survey_ = nullptr;
  uint16_t code_ = 0;
  uint64_t blocks_ = 0;
  std::vector<Column> all_;
  std::vector<uint32_t> lane_buffer_;
  uint64_t blocks_sent_ = 0;
};

}  // namespace weir::aggregation
