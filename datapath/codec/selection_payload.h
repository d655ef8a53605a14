#pragma once
// The payload of a selection: a header, coded positions, and values unless they travel elsewhere.
// Bytes: proto/WIRE.md section 3.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/codec/index_coding.h"
#include "datapath/codec/selection.h"

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

/// out += scale * decoded values. Trusts nothing: kDataLoss with the offset, `out` may then hold a
/// partial sum. O(kept).
Status AddSelection(std::span<const std::byte> payload, float scale, std::span<float> out);

/// The positions alone, ascending. kDataLoss with the offset.
Status ReadSelectionIndices(std::span<const std::byte> payload, size_t n,
                            std::vector<uint32_t>* indices);

}  // namespace weir
