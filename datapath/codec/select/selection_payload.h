#pragma once
// The payload of a selection: a header, coded positions, and values unless they travel elsewhere.
// Bytes: proto/WIRE.md section 3.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/codec/select/index_coding.h"
#include "datapath/codec/select/selection.h"
#include "datapath/codec/select/value_coding.h"

namespace weir {

inline constexpr size_t kSelectionHeaderBytes = 12;

/// What stands before the coded positions.
struct SelectionHeader {
  IndexFormat index = {};
  ValueFormat format = ValueFormat::kNone;
  int8_t exponent = 0;
  uint32_t count = 0;  // of positions
  uint32_t index_bytes = 0;
};
/// Writes the first kSelectionHeaderBytes of out.
void WriteSelectionHeader(const SelectionHeader& header, std::span<std::byte> out);
/// kDataLoss with the offset: too few bytes, a field out of range, a count above `positions`. What
/// follows the header is the caller's to check.
Status ReadSelectionHeader(std::span<const std::byte> payload, size_t positions,
                           SelectionHeader* header);

/// Worst case of WriteSelection for at most `cap` of n elements. O(1).
size_t MaxSelectionBytes(size_t n, size_t cap, ValueFormat format);

/// Writes `selection`, whose arrays lie in `state`, into out (at least MaxSelectionBytes). Returns
/// the bytes written. O(kept).
size_t WriteSelection(const Selection& selection, const SelectionState& state, size_t n,
                      std::span<std::byte> out);

/// Decodes a selection of n elements from the front, trusting nothing. Not thread-safe; `payload`
/// outlives it.
class SelectionReader {
 public:
  /// kDataLoss with the offset: a bad header, or no values.
  static StatusOr<SelectionReader> Open(std::span<const std::byte> payload, size_t n);

  /// out += scale * the elements that follow those of the last call, at most up to the n-th.
  /// kDataLoss with the offset, `out` may then hold a partial sum. O(kept of them).
  Status AddNext(float scale, std::span<float> out);

  /// To be called when all n were added: kDataLoss when something is left over.
  Status Finish() { return indices_.Finish(); }

 private:
  /// Positions decoded at a time: their lines of the output fit the first-level cache.
  static constexpr size_t kBatch = 256;
  static_assert(kBatch % kValueBlock == 0);
  struct Batch {
    size_t size = 0;
    uint32_t positions[kBatch] = {};
  };

  SelectionReader(const SelectionHeader& header, std::span<const std::byte> payload, size_t n);
  Status Advance(std::span<const float> out);

  IndexDecoder indices_;
  ValueDecoder values_;
  size_t begin_ = 0;            // position of the next call's first element
  size_t added_ = 0;            // of the current batch
  uint32_t current_ = 0;        // of the two
  bool opened_ = false;         // the first batch was decoded
  Batch batches_[2];            // the current one, and the one whose lines are on their way
  float numbers_[kBatch] = {};  // values of the current one
};

/// The positions alone, ascending. kDataLoss with the offset.
Status ReadSelectionIndices(std::span<const std::byte> payload, size_t n,
                            std::vector<uint32_t>* indices);

}  // namespace weir
