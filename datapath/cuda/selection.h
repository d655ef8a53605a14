// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selections on the device (proto/WIRE.md section 3): the pass that finds the elements above a
// threshold, the kernels that make a payload of them, and those that read one.

#include <span>

#include "datapath/codec/select/selection.h"
#include "datapath/codec/select/threshold_codec.h"
#include "datapath/codec/select/value_coding.h"
#include "datapath/cuda/passes.h"

namespace weir::cuda {

/// Shared variables of the kernels of one selection, in device memory.
struct SelectionPlan {
  uint32_t count;  // entries of the selection
  uint32_t missed;
  uint32_t coding, rice_bits;
  uint32_t format;
  int32_t exponent;
  uint32_t index_bytes;
  uint32_t min_bits, max_bits;  // patterns of the smallest and the largest magnitude
  uint32_t usable;              // reading: the header is valid
  uint32_t staged;              // entries found by a staging pass
  float means[2];               // kTwoMeans: of the positive and of the negative values
  float quantile_means[kQuantileBucketsMax];
};

/// The moments of the elements above a threshold; see kernels::TailMoments.
struct TailSums {
  uint64_t count;
  double sum, squares, logs;
  float smallest, largest;

  static WEIR_DEVICE TailSums Zero() { return {0, 0, 0, 0, 3.402823466e+38f, 0}; }
  WEIR_DEVICE void Add(const TailSums& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
    logs += other.logs;
    smallest = Lesser(other.smallest, smallest);
    largest = Greater(other.largest, largest);
  }
};

/// How a pass stores what it finds.
enum class SelectionStore : uint32_t {
  kStage,  // as the teams come, at most `cap`; a second kernel restores the order
  kCount,  // only the number in each tile
  kPlace,  // in order, after a kCount pass; those after the first `cap` are left out
};

/// The sums of the ordered entries of one team.
struct EntrySums {
  double energy, positives, negatives;  // the last two: sums of values
  uint64_t quotients, long_gaps;
  uint32_t min_bits, max_bits, negative_count, unused;

  static WEIR_DEVICE EntrySums Zero() { return {0, 0, 0, 0, 0, 0xFFFFFFFFu, 0, 0, 0}; }
  WEIR_DEVICE void Add(const EntrySums& other) {
    energy += other.energy;
    positives += other.positives;
    negatives += other.negatives;
    negative_count += other.negative_count;
    quotients += other.quotients;
    long_gaps += other.long_gaps;
    min_bits = min_bits < other.min_bits ? min_bits : other.min_bits;
    max_bits = max_bits > other.max_bits ? max_bits : other.max_bits;
  }
};

/// The number of entries in a tile of the kernels that work on entries.
inline constexpr unsigned kEntryTile = kScanMax;

/// The parts of a workspace.
struct SelectionWorkspace {
  PassSums* partials;
  EntrySums* entry_partials;
  TailSums* tails;  // of each team, and after kTeamsMax their sum
  SelectionPlan* plan;
  uint32_t* bins;
  uint32_t *tile_base, *tile_count, *tile_offset;
  uint32_t *tile_band, *tile_band_offset;  // elements of the band, which do not count in tile_count
  uint32_t *staged_indices, *indices;
  float *staged_values, *values;
  uint64_t *tile_quotients, *tile_long_gaps;  // before each tile of entries
  uint32_t* quantile_counts;                  // values in each of 2 * kQuantileBins bins
  uint64_t* quantile_sums;                    // their magnitudes in units of the bin, see UnitOf
  uint8_t* quantile_buckets;                  // of each bin
  uint32_t* index_words;                      // the coded positions
  size_t index_words_size = 0;
  size_t bytes = 0;  // of all

  /// For at most `cap` of n elements, encoded, in memory that begins at `base`.
  static SelectionWorkspace ForEncode(std::byte* base, size_t n, size_t cap);
};
/// The parts of a workspace for reading.
struct ReadingWorkspace {
  SelectionPlan* plan;
  uint64_t* tile_ones;   // before each tile of words
  uint64_t* tile_plain;  // before each tile of entries
  uint32_t* zeros;       // between the ones before each entry
  uint32_t* indices;
  size_t bytes = 0;

  static ReadingWorkspace For(std::byte* base, size_t payload_bytes, size_t cap);
};

/// One selection being encoded.
struct SelectionJob {
  PassInput in;
  SelectionWorkspace work;
  SelectionPass pass;
  SelectionBand band;  // if `banded`, which of the elements above the threshold are kept
  bool banded;
  ValueFormat format;  // any but kNone and kFloat
  double ratio;
  size_t target, cap;
  uint32_t first;    // added to the positions of entries
  bool accepts_few;  // a kStage pass does not miss by finding too few
  float* rest;       // null: not kept
  std::byte* out;
  Outcome* outcome;
  Stream stream;
};

/// The moments of the excess over a threshold, as Tails::above, to job.work.tails[kTeamsMax], where
/// they are not scaled. Reads one run of elements in `sampling`. Two launches.
Status MeasureTails(const SelectionJob& job, float threshold, unsigned sampling, bool logs);
/// The magnitudes of `size` (at most job.cap) elements, of numbers (first + i) * stride, to
/// job.work.staged_values; 0 for those that are not finite.
Status SampleMagnitudes(const SelectionJob& job, size_t first, size_t stride, size_t size);
/// Sets buffer[i] to zero for the first `count` entries i of a selection that has been packed.
Status ClearSelected(const SelectionJob& job, size_t count, std::span<float> buffer);
/// Fills the bins in the workspace with a full histogram, and the outcome with sums. Two launches.
Status CountSelection(const SelectionJob& job);
/// Selects by job.pass, which also fills the bins and, except with kCount, stores e as rest
/// everywhere. One pass.
Status SelectEntries(const SelectionJob& job, SelectionStore store);
/// After a kStage or kCount pass: the offsets of tiles and plan->count. After kStage, also whether
/// the count is outside of its bounds, and if not, the ordered entries.
Status PlaceTiles(const SelectionJob& job, SelectionStore store);
/// Replaces the plan by one of `count` entries. The value is read before the stream is waited for,
/// so it must live until then.
Status SetCount(const SelectionJob& job, const uint32_t* count);
/// Makes the payload of plan->count ordered entries, the rest of selected elements, and the
/// outcome. Where the plan says missed, so does the outcome, and nothing else is done. O(kept).
Status PackSelection(const SelectionJob& job);

/// out += scale * the elements of a payload. `cap`: the most elements for which there is
/// workspace; a payload with more is a fault. O(payload).
Status AddSelection(std::span<const std::byte> payload, const ReadingWorkspace& work, size_t cap,
                    float scale, std::span<float> out, uint64_t* fault, Stream stream);

}  // namespace weir::cuda
