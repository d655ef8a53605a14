// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of sparse vectors whose index space is cut into one region for each rank: how regions are
// cut and encoded, which sums are kept, and what ranks learn from that for later steps. Pure
// arithmetic on bytes and floats; the collective sends the messages.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// The ranks' memory of one bucket between operations. It is computed from bytes that all of them
/// hold, so it is equal on all ranks if they all start over together. If they did not, the regions
/// that every payload names differ, and the operation fails.
struct SparseBalance {
  uint64_t uses = 0;
  float threshold = -1;   // magnitude from which sums are kept; negative: none known yet
  bool summarise = true;  // the next operation sends summaries of its sums
  std::vector<uint64_t> begins = {};  // of all regions but the first; empty: regions of equal size

  /// Values are `factor` times as large from the next operation on; it is finite and positive.
  void Scale(double factor);
};

/// Positions begin .. begin + size - 1.
struct SparseRange {
  uint64_t begin = 0, size = 0;
};

/// Values at ascending positions; both vectors have the same size.
struct SparseVector {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

/// The distribution of the magnitudes of an owner's sums: point j is the one at place
/// (j + 1/2) count / points of all `count`, sorted with the largest first.
struct SparseSummary {
  static constexpr size_t kPoints = 64;
  uint64_t count = 0;
  std::array<float, kPoints> magnitudes{};
};

/// The regions of `world` ranks, which cover `elements` positions in order; some may be empty. A
/// balance of another world or size counts as none. O(world). Thread-safe.
std::vector<SparseRange> SparseRegions(const SparseBalance& balance, uint64_t elements, int world);

/// The part of `all` that lies in `range`, with the range's bounds and, if given, a summary:
/// positions coded as in index_coding.h, values as float32. O(part + log all). Layout:
/// proto/WIRE.md section 2.
std::vector<std::byte> EncodeSparse(const SparseVector& all, const SparseRange& range,
                                    const std::optional<SparseSummary>& summary = {});

/// Worst case of EncodeSparse for `range`. O(1).
size_t SparseBytesMax(const SparseRange& range);

/// Decodes the output of EncodeSparse for `range` and appends it to `out`, whose positions are
/// below the range's. The input is not trusted: kDataLoss names the offset or both ranges, and
/// `out` may then hold a part.
Status DecodeSparse(std::span<const std::byte> bytes, const SparseRange& range, SparseVector* out,
                    std::optional<SparseSummary>* summary);

/// Returns a + b. A position that only one of them has keeps its value. O(a + b).
SparseVector AddSparse(const SparseVector& a, const SparseVector& b);

SparseSummary SummaryOf(const SparseVector& sums);

/// Selects which of its sums one owner keeps: those of at least the balance's threshold, at most
/// its share of twice the target. Without a threshold it keeps the largest ones, up to its share of
/// the target. NaN counts as largest, and among equals the lower position wins. O(sums).
SparseVector KeepSparse(const SparseVector& sums, const SparseBalance& balance, uint64_t target,
                        int world);

/// Learns from one operation: `kept` are the sums that all ranks keep, and `summaries` those of all
/// owners, or empty. The threshold follows the summaries; if too many sums were kept, it is the
/// magnitude of the target-th. With summaries, or if too few were kept, the regions are cut so that
/// each has equally many of `kept`. O(kept). The result is the same on every rank.
void LearnSparse(const SparseVector& kept, std::span<const SparseSummary> summaries,
                 uint64_t elements, uint64_t target, int world, SparseBalance* balance);

}  // namespace weir
