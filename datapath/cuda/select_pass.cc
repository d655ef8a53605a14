// SPDX-License-Identifier: Apache-2.0
// The pass that finds the elements above a threshold.

#include <algorithm>

#include "datapath/codec/select/index_coding.h"
#include "datapath/cuda/memory.h"
#include "datapath/cuda/selection.h"

namespace weir::cuda {
namespace {

/// Takes parts of a workspace one after the other; with a null base it only measures.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  T* Take(size_t count) {
    auto* const part = reinterpret_cast<T*>(base_ == nullptr ? nullptr : base_ + used_);
    used_ += (count * sizeof(T) + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    return part;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

struct TileCount {
  uint32_t count;
  static WEIR_DEVICE TileCount Zero() { return {0}; }
  WEIR_DEVICE void Add(const TileCount& other) { count += other.count; }
};

struct SelectProgram : PassProgram<true> {
  static constexpr unsigned kTile = kTileElements;
  static constexpr unsigned kWords = kTile / 32;
  struct Shared : PassProgram<true>::Shared {
    float e[kTile];
    uint32_t selected[kWords];
    uint32_t before[kWords];
    uint32_t band[kWords];
    uint32_t band_before[kWords];
    uint32_t base;
  };
  SelectionWorkspace work;
  float threshold;
  uint32_t cap;
  SelectionStore store;
  bool banded;  // not with kStage
  SelectionBand band;
  uint32_t first_index;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const unsigned size = in.SizeOf(at, kTile);
    AddSums(team, shared, team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = in.Load(at + i);
      Count(shared, at + i, e);
      part->AddInput(e);
      shared.e[i] = e;
      in.Keep(at + i, e);
    }));
    team.Ballot(
        size, [&](unsigned i) { return Magnitude(shared.e[i]) > threshold; }, shared.selected);
    const unsigned words = (size + 31) / 32;
    team.ForEach(words, [&](unsigned w) { shared.before[w] = CountOnes(shared.selected[w]); });
    const uint32_t found = team.Scan(shared.before, words);
    if (banded) return TileOfBand(team, shared, tile, size, found);
    team.Once([&] {
      if (store == SelectionStore::kStage) {
        shared.base = found > 0 ? Team::Add(&work.plan->staged, found) : 0;
        work.tile_base[tile] = shared.base;
      } else if (store == SelectionStore::kPlace) {
        shared.base = work.tile_offset[tile];
      }
      if (store != SelectionStore::kPlace) work.tile_count[tile] = found;
    });
    if (store == SelectionStore::kCount || found == 0) return;
    const bool staged = store == SelectionStore::kStage;
    uint32_t* const indices = staged ? work.staged_indices : work.indices;
    float* const values = staged ? work.staged_values : work.values;
    team.ForEach(size, [&](unsigned i) {
      const uint32_t word = shared.selected[i / 32];
      if ((word >> (i % 32) & 1) == 0) return;
      const uint64_t place = uint64_t{shared.base} + OnesBefore(shared.selected, shared.before, i);
      if (place >= cap) return;
      indices[place] = static_cast<uint32_t>(at + i) + first_index;
      values[place] = shared.e[i];
    });
  }

  /// The ones before number i, where `before` has those before its word.
  static WEIR_DEVICE uint32_t OnesBefore(const uint32_t* words, const uint32_t* before,
                                         unsigned i) {
    return before[i / 32] + CountOnes(words[i / 32] & ((1u << (i % 32)) - 1));
  }

  /// The same for a band: its elements are numbered across tiles, and so they are counted apart.
  WEIR_DEVICE void TileOfBand(Team& team, Shared& shared, size_t tile, unsigned size,
                              uint32_t found) const {
    team.Ballot(
        size,
        [&](unsigned i) {
          return (shared.selected[i / 32] >> (i % 32) & 1) != 0 &&
                 Magnitude(shared.e[i]) < band.upper;
        },
        shared.band);
    const unsigned words = (size + 31) / 32;
    team.ForEach(words, [&](unsigned w) { shared.band_before[w] = CountOnes(shared.band[w]); });
    const uint32_t in_band = team.Scan(shared.band_before, words);
    if (store == SelectionStore::kCount) {
      team.Once([&] {
        work.tile_count[tile] = found - in_band;
        work.tile_band[tile] = in_band;
      });
      return;
    }
    team.ForEach(size, [&](unsigned i) {
      const uint32_t bit = 1u << (i % 32);
      if ((shared.selected[i / 32] & bit) == 0) return;
      const uint32_t band_here = OnesBefore(shared.band, shared.band_before, i);
      const uint64_t number = uint64_t{work.tile_band_offset[tile]} + band_here;
      if ((shared.band[i / 32] & bit) != 0 && KeptBefore(number + 1) == KeptBefore(number)) return;
      const uint64_t place = uint64_t{work.tile_offset[tile]} +
                             OnesBefore(shared.selected, shared.before, i) - band_here +
                             KeptBefore(number);
      if (place >= cap) return;
      work.indices[place] = static_cast<uint32_t>(tile * kTile + i) + first_index;
      work.values[place] = shared.e[i];
    });
  }
  /// How many of the first `number` elements of the band are kept.
  WEIR_DEVICE uint64_t KeptBefore(uint64_t number) const {
    if (number <= band.first) return 0;
    return number - band.first < band.needed ? number - band.first : band.needed;
  }
};

/// Finds the offsets of kScanMax tiles of elements. Every team adds the counts before its own
/// itself, which takes less time than to wait for the teams before. The last one knows all, and
/// decides whether the pass missed.
struct OffsetProgram : TileProgram {
  struct Shared {
    uint32_t part[kScanMax];
  };
  SelectionWorkspace work;
  uint32_t tiles;
  uint32_t cap;
  uint32_t count_min;  // fewer have missed, unless the threshold is the least
  SelectionStore store;
  bool banded;
  SelectionBand band;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const auto first = static_cast<uint32_t>(tile * kScanMax);
    const TileCount before = team.Reduce<TileCount>(
        first, [&](unsigned i, TileCount* sum) { sum->count += work.tile_count[i]; });
    const unsigned size = tiles - first < kScanMax ? tiles - first : kScanMax;
    team.ForEach(size, [&](unsigned i) { shared.part[i] = work.tile_count[first + i]; });
    uint32_t total = before.count + team.Scan(shared.part, size);
    team.ForEach(size,
                 [&](unsigned i) { work.tile_offset[first + i] = before.count + shared.part[i]; });
    if (banded) {
      const TileCount band_before = team.Reduce<TileCount>(
          first, [&](unsigned i, TileCount* sum) { sum->count += work.tile_band[i]; });
      team.ForEach(size, [&](unsigned i) { shared.part[i] = work.tile_band[first + i]; });
      const uint32_t in_band = band_before.count + team.Scan(shared.part, size);
      team.ForEach(size, [&](unsigned i) {
        work.tile_band_offset[first + i] = band_before.count + shared.part[i];
      });
      if (in_band > band.first) {
        const uint64_t kept = in_band - band.first;
        total += static_cast<uint32_t>(kept < band.needed ? kept : band.needed);
      }
    }
    if (first + size < tiles) return;
    team.Once([&] {
      const bool staged = store == SelectionStore::kStage;
      work.plan->missed = staged && (total > cap || total < count_min);
      work.plan->count = total < cap ? total : cap;
    });
  }
};

/// Restores the order of staged entries.
struct OrderProgram : TileProgram {
  SelectionWorkspace work;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    if (work.plan->missed != 0) return;
    const uint32_t from = work.tile_base[tile], to = work.tile_offset[tile];
    team.ForEach(work.tile_count[tile], [&](unsigned i) {
      work.indices[to + i] = work.staged_indices[from + i];
      work.values[to + i] = work.staged_values[from + i];
    });
  }
};

struct CountProgram : PassProgram<true> {
  static constexpr unsigned kTile = kTileElements;
  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    AddSums(team, shared,
            team.Reduce<PassSums>(in.SizeOf(at, kTile), [&](unsigned i, PassSums* part) {
              const float e = in.Load(at + i);
              Count(shared, at + i, e);
              part->AddInput(e);
            }));
  }
};

struct TailProgram {
  static constexpr unsigned kRuns = kTileElements / kernels::kSampleRun;
  struct Shared {
    TailSums sums;
  };
  PassInput in;
  float threshold;
  size_t stride;  // between groups of which one is sampled; 0: all elements count
  bool logs;
  TailSums* partials;

  WEIR_DEVICE void Begin(Team& team, Shared& shared) const {
    team.Once([&] { shared.sums = TailSums::Zero(); });
  }
  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const TailSums sums = team.Reduce<TailSums>(kTileElements, [&](unsigned i, TailSums* part) {
      const size_t place = PlaceOf(tile, i);
      if (place >= in.n) return;
      const float magnitude = Magnitude(in.Load(place));
      if (!(magnitude > threshold)) return;
      const float excess = magnitude - threshold;
      ++part->count;
      part->sum += static_cast<double>(excess);
      part->squares += static_cast<double>(excess) * static_cast<double>(excess);
      if (logs) part->logs += static_cast<double>(logf(magnitude));
      part->smallest = Lesser(magnitude, part->smallest);
      part->largest = Greater(magnitude, part->largest);
    });
    team.Once([&] { shared.sums.Add(sums); });
  }
  WEIR_DEVICE void End(Team& team, Shared& shared) const {
    team.Once([&] { partials[team.index()] = shared.sums; });
  }

  WEIR_DEVICE size_t PlaceOf(size_t tile, unsigned i) const {
    if (stride == 0) return tile * kTileElements + i;
    const size_t group = SampledGroup(tile * kRuns + i / kernels::kSampleRun, stride);
    return group * kernels::kSampleGroup + kernels::SampledRun(group) * kernels::kSampleRun +
           i % kernels::kSampleRun;
  }
};

/// One team: adds the sums of all.
struct TailTotalProgram : TileProgram {
  TailSums* partials;
  unsigned teams;
  WEIR_DEVICE void Tile(Team& team, Shared&, size_t) const {
    const TailSums sums =
        team.Reduce<TailSums>(teams, [&](unsigned i, TailSums* part) { part->Add(partials[i]); });
    team.Once([&] { partials[kTeamsMax] = sums; });
  }
};

struct SampleElements {
  PassInput in;
  size_t first, stride;
  float* to;
  WEIR_DEVICE void operator()(size_t i) const {
    const float magnitude = Magnitude(in.Load((first + i) * stride));
    to[i] = IsFinite(magnitude) ? magnitude : 0.0f;
  }
};
struct ClearElements {
  const uint32_t* indices;
  float* buffer;
  WEIR_DEVICE void operator()(size_t i) const { buffer[indices[i]] = 0; }
};

Status ClearBins(const SelectionJob& job) {
  return FillDevice(job.work.bins, 0, GradientStatistics::kBins * sizeof(uint32_t), job.stream);
}

}  // namespace

SelectionWorkspace SelectionWorkspace::ForEncode(std::byte* base, size_t n, size_t cap) {
  Carver carver(base);
  SelectionWorkspace work;
  const size_t tiles = TilesOf(n, kTileElements), entry_tiles = TilesOf(cap, kEntryTile);
  work.partials = carver.Take<PassSums>(kTeamsMax);
  work.entry_partials = carver.Take<EntrySums>(kTeamsMax);
  work.tails = carver.Take<TailSums>(kTeamsMax + 1);
  work.plan = carver.Take<SelectionPlan>(1);
  work.bins = carver.Take<uint32_t>(GradientStatistics::kBins);
  work.tile_base = carver.Take<uint32_t>(tiles);
  work.tile_count = carver.Take<uint32_t>(tiles);
  work.tile_offset = carver.Take<uint32_t>(tiles);
  work.tile_band = carver.Take<uint32_t>(tiles);
  work.tile_band_offset = carver.Take<uint32_t>(tiles);
  work.staged_indices = carver.Take<uint32_t>(cap);
  work.indices = carver.Take<uint32_t>(cap);
  work.staged_values = carver.Take<float>(cap);
  work.values = carver.Take<float>(cap);
  work.tile_quotients = carver.Take<uint64_t>(entry_tiles);
  work.tile_long_gaps = carver.Take<uint64_t>(entry_tiles);
  work.quantile_counts = carver.Take<uint32_t>(2 * kQuantileBins);
  work.quantile_sums = carver.Take<uint64_t>(2 * kQuantileBins);
  work.quantile_buckets = carver.Take<uint8_t>(2 * kQuantileBins);
  work.index_words_size = MaxIndexBytes(n, cap) / sizeof(uint32_t) + 2;
  work.index_words = carver.Take<uint32_t>(work.index_words_size);
  work.bytes = carver.used();
  return work;
}

ReadingWorkspace ReadingWorkspace::For(std::byte* base, size_t payload_bytes, size_t cap) {
  Carver carver(base);
  ReadingWorkspace work;
  work.plan = carver.Take<SelectionPlan>(1);
  work.tile_ones = carver.Take<uint64_t>(TilesOf(payload_bytes / sizeof(uint32_t) + 2, kScanMax));
  work.tile_plain = carver.Take<uint64_t>(TilesOf(cap, kEntryTile));
  work.zeros = carver.Take<uint32_t>(cap);
  work.indices = carver.Take<uint32_t>(cap);
  work.bytes = carver.used();
  return work;
}

Status MeasureTails(const SelectionJob& job, float threshold, unsigned sampling, bool logs) {
  const size_t stride = sampling <= 1 ? 0 : std::max<size_t>(1, sampling / kHistogramSampling);
  const size_t tiles =
      stride == 0 ? TilesOf(job.in.n, kTileElements)
                  : TilesOf(TilesOf(job.in.n, stride * kernels::kSampleGroup), TailProgram::kRuns);
  WEIR_ASSIGN_OR_RETURN(
      const unsigned teams,
      Launch(job.stream, tiles, TailProgram{job.in, threshold, stride, logs, job.work.tails}));
  return Launch(job.stream, 1, TailTotalProgram{{}, job.work.tails, teams}).status();
}

Status SampleMagnitudes(const SelectionJob& job, size_t first, size_t stride, size_t size) {
  return ForEachElement(job.stream, size,
                        SampleElements{job.in, first, stride, job.work.staged_values});
}

Status ClearSelected(const SelectionJob& job, size_t count, std::span<float> buffer) {
  return ForEachElement(job.stream, count, ClearElements{job.work.indices, buffer.data()});
}

Status CountSelection(const SelectionJob& job) {
  WEIR_RETURN_IF_ERROR(ClearBins(job));
  CountProgram program{{job.in}};
  program.in.sampled = false;
  program.in.bins = job.work.bins;
  WEIR_ASSIGN_OR_RETURN(const unsigned teams,
                        Launch(job.stream, TilesOf(job.in.n, kTileElements), program));
  DeviceCall call;
  call.outcome = job.outcome;
  call.stream = job.stream;
  return FinishPass(call, job.work.partials, teams, {});
}

Status SelectEntries(const SelectionJob& job, SelectionStore store) {
  WEIR_RETURN_IF_ERROR(FillDevice(job.work.plan, 0, sizeof(SelectionPlan), job.stream));
  SelectProgram program{{job.in}, job.work,   job.pass.threshold, static_cast<uint32_t>(job.cap),
                        store,    job.banded, job.band,           job.first};
  program.in.rest = store == SelectionStore::kCount ? nullptr : job.rest;
  program.in.bins = job.work.bins;
  program.in.sampled = job.pass.sampled;
  const size_t tiles = TilesOf(job.in.n, kTileElements);
  WEIR_RETURN_IF_ERROR(ClearBins(job));
  WEIR_ASSIGN_OR_RETURN(const unsigned teams, Launch(job.stream, tiles, program));
  DeviceCall call;
  call.outcome = job.outcome;
  call.stream = job.stream;
  return FinishPass(call, job.work.partials, teams, {});
}

Status SetCount(const SelectionJob& job, const uint32_t* count) {
  WEIR_RETURN_IF_ERROR(FillDevice(job.work.plan, 0, sizeof(SelectionPlan), job.stream));
  return CopyToDevice(&job.work.plan->count, count, sizeof(*count), job.stream);
}

Status PlaceTiles(const SelectionJob& job, SelectionStore store) {
  const size_t tiles = TilesOf(job.in.n, kTileElements);
  const bool repairable = job.pass.threshold > kSmallestNormal && !job.accepts_few;
  const auto count_min = static_cast<uint32_t>(repairable ? (job.target + 1) / 2 : 0);
  // At least one tile, which writes the plan of no elements, too.
  WEIR_RETURN_IF_ERROR(Launch(job.stream, std::max<size_t>(1, TilesOf(tiles, kScanMax)),
                              OffsetProgram{{},
                                            job.work,
                                            static_cast<uint32_t>(tiles),
                                            static_cast<uint32_t>(job.cap),
                                            count_min,
                                            store,
                                            job.banded,
                                            job.band})
                           .status());
  if (store != SelectionStore::kStage) return OkStatus();
  return Launch(job.stream, tiles, OrderProgram{{}, job.work}).status();
}

}  // namespace weir::cuda
