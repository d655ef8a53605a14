// SPDX-License-Identifier: Apache-2.0
#pragma once
// The payload of a selection: a header, coded positions, and values unless they are exchanged
// separately. Bytes: proto/WIRE.md section 3.

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

/// The fields before the coded positions.
struct SelectionHeader {
  IndexFormat index = {};
  ValueFormat format = ValueFormat::kNone;
  int8_t exponent = 0;
  uint32_t count = 0;  // number of positions
  uint32_t index_bytes = 0;
};
/// Writes the first kSelectionHeaderBytes of `out`.
void WriteSelectionHeader(const SelectionHeader& header, std::span<std::byte> out);
/// kDataLoss with the offset: there are too few bytes, a field is out of range, or the count is
/// above `positions`. The caller checks what follows the header.
Status ReadSelectionHeader(std::span<const std::byte> payload, size_t positions,
                           SelectionHeader* header);

/// The worst case of WriteSelection for at most `cap` of n elements. O(1).
size_t MaxSelectionBytes(size_t n, size_t cap, ValueFormat format);

/// Writes `selection`, whose arrays are in `state`, to `out`, which has at least MaxSelectionBytes.
/// Returns the number of bytes written. O(kept).
size_t WriteSelection(const Selection& selection, const SelectionState& state, size_t n,
                      std::span<std::byte> out);

/// Decodes a selection of n elements from front to back, trusting nothing. Not thread-safe;
/// `payload` must outlive it.
class SelectionReader {
 public:
  /// kDataLoss with the offset: the header is wrong, or there are no values.
  static StatusOr<SelectionReader> Open(std::span<const std::byte> payload, size_t n);

  /// out += scale * the elements after those of the last call, up to the n-th at most. kDataLoss
  /// with the offset; `out` may then hold a partial sum. O(kept elements among them).
  Status AddNext(float scale, std::span<float> out);

  /// To be called after all n elements: kDataLoss when bytes are left.
  Status Finish() { return indices_.Finish(); }

 private:
  /// The number of positions decoded at a time. The lines of the output that they touch fit the
  /// first-level cache.
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
  size_t begin_ = 0;      // position of the first element of the next call
  size_t added_ = 0;      // elements of the current batch that were added
  uint32_t current_ = 0;  // index of the current batch
  bool opened_ = false;   // whether the first batch was decoded
  Batch batches_[2];      // the current one, and the next one, whose lines are being prefetched
  float numbers_[kBatch] = {};  // values of the current one
};

/// Reads only the positions, ascending. kDataLoss with the offset.
Status ReadSelectionIndices(std::span<const std::byte> payload, size_t n,
                            std::vector<uint32_t>* indices);

}  // namespace weir
