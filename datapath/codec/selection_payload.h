#pragma once
// The payload of a selection: a header, coded positions, and values unless they travel elsewhere.
// Bytes: proto/WIRE.md section 3.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/codec/selection.h"

namespace weir {

inline constexpr size_t kSelectionHeaderBytes = 12;

/// Worst case of WriteSelection for n elements at `ratio`. O(1).
size_t MaxSelectionBytes(size_t n, double ratio, bool with_values);

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
