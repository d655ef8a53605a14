#pragma once
// A worker's view of a sparse tensor in OmniReduce's columns: which block each column is at, what
// this worker has for it, and what its packets say. Shared by the lossless and the recovering
// protocol.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// What one look at a worker's tensor finds.
struct BlockSurvey {
  uint16_t code = 0;           // its ExponentCode
  std::vector<bool> non_zero;  // by block: some bit of it is set, that of a negative zero included
};

/// data: cut into blocks of `lanes` elements, at least 1. Blocks of zeros cost one comparison of
/// memory. Thread-safe, O(n).
BlockSurvey SurveyBlocks(std::span<const float> data, size_t lanes);

/// Sums of blocks in the order in which they became known, each block once; the last block of a
/// tensor may be shorter than the others.
struct BlockSums {
  std::vector<uint32_t> blocks;
  std::vector<float> values;  // `lanes` for each of `blocks`

  /// Makes `data`, which all workers have cut into blocks of `lanes`, the sum: blocks that are not
  /// here are zero on every worker, so they stay. O(values).
  void Store(size_t lanes, std::span<float> data) const;
};

/// Blocks of lease.lanes elements; block b is in column b modulo (slots * columns), and column c
/// belongs to slot c / columns. Not thread-safe. Memory: one bit per block and O(slots * columns).
class BlockColumns {
 public:
  /// lease: valid, mode kSparse.
  explicit BlockColumns(const Lease& lease);

  /// data: sums replace blocks that some worker has; the others are zero here, too. code: the
  /// greatest ExponentCode of all workers' data. kInvalidArgument: it is not finite, or lower than
  /// that of `data`; 2^32 blocks. O(n).
  Status Begin(std::span<float> data, uint16_t code);

  /// The same with `data` as it is: `sums`, emptied first, gets the blocks that some worker has.
  /// survey: of `data`, in blocks of the lease's lanes. All three outlive the operation. O(n /
  /// lanes).
  Status Begin(std::span<const float> data, const BlockSurvey& survey, uint16_t code,
               BlockSums* sums);

  /// Whether slot has a block left that any worker might have.
  bool Active(size_t slot) const;
  /// Whether this worker has one of the blocks that the slot is at.
  bool HasBlock(size_t slot) const;

  /// Fills in a request: nexts, the set of columns and their blocks. O(columns * lanes).
  void Build(size_t slot, PacketHeader* header, std::span<std::byte> payload);

  /// Stores the sums of a reply and moves on to its nexts. kDataLoss: they are impossible; then
  /// nothing has changed. O(columns * lanes).
  Status Accept(size_t slot, const Packet& packet);

  uint64_t blocks_sent() const { return blocks_sent_; }

 private:
  struct Column {
    uint32_t current = kNoBlock;
    uint32_t own = kNoBlock;  // the first non-zero block of ours from `current` on
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
  std::span<float> in_place_;  // sums_ == nullptr: the same as data_
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
