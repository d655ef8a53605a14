// SPDX-License-Identifier: Apache-2.0
// The payload of a selection: which coding of positions is smallest, the coded positions, and the
// values. As datapath/codec/select/{index_coding,value_coding,selection_payload}.cc.

#include "datapath/codec/select/index_coding.h"
#include "datapath/codec/select/selection_payload.h"
#include "datapath/cuda/memory.h"
#include "datapath/cuda/selection.h"
#include "datapath/cuda/selection_bits.h"

namespace weir::cuda {
namespace {

/// The number of positions between entry i and the one before.
WEIR_DEVICE uint32_t GapOf(const uint32_t* indices, size_t i) {
  return i == 0 ? indices[0] : indices[i] - indices[i - 1] - 1;
}

/// The entries of a tile; 0 after the last.
WEIR_DEVICE unsigned EntriesOf(uint32_t count, size_t tile, unsigned size) {
  const size_t at = tile * size;
  if (at >= count) return 0;
  return count - at < size ? static_cast<unsigned>(count - at) : size;
}

/// Measures the ordered entries, as far as the size of each coding depends on them.
struct MeasureProgram {
  struct Shared {
    EntrySums sums;
  };
  SelectionWorkspace work;
  uint64_t n;

  WEIR_DEVICE void Begin(Team& team, Shared& shared) const {
    team.Once([&] { shared.sums = EntrySums::Zero(); });
  }
  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const unsigned size =
        work.plan->missed != 0 ? 0 : EntriesOf(work.plan->count, tile, kEntryTile);
    const unsigned rice_bits = RiceBitsOf(n, work.plan->count);
    const EntrySums sums = team.Reduce<EntrySums>(size, [&](unsigned j, EntrySums* part) {
      const size_t i = tile * kEntryTile + j;
      const float value = work.values[i];
      const uint32_t gap = GapOf(work.indices, i), magnitude = BitsOf(value) & kMagnitudeBits;
      part->energy += static_cast<double>(value) * static_cast<double>(value);
      const bool negative = BitsOf(value) != magnitude;
      (negative ? part->negatives : part->positives) += static_cast<double>(value);
      part->negative_count += negative;
      part->quotients += gap >> rice_bits;
      part->long_gaps += gap >= kLongGap;
      part->min_bits = part->min_bits < magnitude ? part->min_bits : magnitude;
      part->max_bits = part->max_bits > magnitude ? part->max_bits : magnitude;
    });
    team.Once([&] {
      work.tile_quotients[tile] = sums.quotients;
      work.tile_long_gaps[tile] = sums.long_gaps;
      shared.sums.Add(sums);
    });
  }
  WEIR_DEVICE void End(Team& team, Shared& shared) const {
    team.Once([&] { work.entry_partials[team.index()] = shared.sums; });
  }
};

/// One team: chooses the codings, and writes the header and the outcome.
struct DecideProgram : TileProgram {
  struct Shared {
    uint64_t part[kScanMax];
  };
  SelectionWorkspace work;
  uint64_t n;
  size_t tiles;
  unsigned teams;
  SelectionPass pass;
  ValueFormat wanted;
  uint8_t* out;
  Outcome* outcome;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t) const {
    SelectionPlan* const plan = work.plan;
    const bool finite = outcome->max_bits < kInfinityBits;
    if (plan->missed != 0 && finite) {
      team.Once([&] { outcome->missed = 1; });
      return;
    }
    const EntrySums sums = team.Reduce<EntrySums>(
        teams, [&](unsigned i, EntrySums* part) { part->Add(work.entry_partials[i]); });
    ScanTiles(team, shared.part, work.tile_quotients, tiles);
    ScanTiles(team, shared.part, work.tile_long_gaps, tiles);
    team.Once([&] {
      if (!finite) {
        plan->count = 0;
        plan->missed = 0;
      }
      plan->min_bits = sums.min_bits;
      plan->max_bits = sums.max_bits;
      plan->means[0] = MeanOf(sums.positives, plan->count - sums.negative_count);
      plan->means[1] = MeanOf(sums.negatives, sums.negative_count);
      ChooseFormat(finite);
      ChooseCoding(sums);
      const double lost = outcome->energy_in - sums.energy;
      outcome->energy_lost = lost > 0 ? lost : 0;
      outcome->bytes = kSelectionHeaderBytes + plan->index_bytes +
                       BytesOfValues(static_cast<ValueFormat>(plan->format), plan->count);
      outcome->missed = 0;
      WriteHeader();
    });
  }

  static WEIR_DEVICE float MeanOf(double sum, uint32_t count) {
    return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
  }

  /// Half precision becomes single precision where the values span too many powers of two.
  WEIR_DEVICE void ChooseFormat(bool finite) const {
    SelectionPlan* const plan = work.plan;
    plan->exponent = pass.exponent;
    plan->format = static_cast<uint32_t>(finite ? wanted : ValueFormat::kNone);
    if (!finite || wanted != ValueFormat::kHalf || plan->count == 0) return;
    const float largest = FloatOf(outcome->max_bits), smallest = FloatOf(plan->min_bits);
    if (FitsHalfLanes(pass.threshold, largest, plan->exponent) ||
        FitsHalfLanes(smallest, largest, plan->exponent)) {
      return;
    }
    plan->exponent = ExponentOfHalf(largest);
    if (FitsHalfLanes(smallest, largest, plan->exponent)) return;
    plan->format = static_cast<uint32_t>(ValueFormat::kFloat);
  }

  WEIR_DEVICE void ChooseCoding(const EntrySums& sums) const {
    SelectionPlan* const plan = work.plan;
    const uint64_t count = plan->count, bitmap = (n + 7) / 8;
    const unsigned rice_bits = RiceBitsOf(n, plan->count);
    const uint64_t rice = count == 0 ? 0 : (sums.quotients + count * (rice_bits + 1) + 7) / 8;
    const uint64_t octets = count + sums.long_gaps * sizeof(uint32_t);
    plan->rice_bits = 0;
    if (rice_bits >= kOctetsRiceBitsMin && octets < (rice < bitmap ? rice : bitmap)) {
      plan->coding = static_cast<uint32_t>(IndexCoding::kOctets);
      plan->index_bytes = static_cast<uint32_t>(octets);
    } else if (count == 0 || (rice_bits > 0 && rice <= bitmap)) {
      plan->coding = static_cast<uint32_t>(IndexCoding::kRice);
      plan->rice_bits = rice_bits;
      plan->index_bytes = static_cast<uint32_t>(rice);
    } else {
      plan->coding = static_cast<uint32_t>(IndexCoding::kBitmap);
      plan->index_bytes = static_cast<uint32_t>(bitmap);
    }
  }

  WEIR_DEVICE void WriteHeader() const {
    const SelectionPlan& plan = *work.plan;
    const bool half = plan.format == static_cast<uint32_t>(ValueFormat::kHalf);
    out[0] = static_cast<uint8_t>(plan.coding);
    out[1] = static_cast<uint8_t>(plan.rice_bits);
    out[2] = static_cast<uint8_t>(plan.format);
    out[3] = static_cast<uint8_t>(half ? plan.exponent : 0);
    StoreWord(out + 4, plan.count);
    StoreWord(out + 8, plan.index_bytes);
  }
};

/// Writes the coded positions to words that were zero.
struct IndexProgram : TileProgram {
  struct Shared {
    uint32_t part[kEntryTile];
  };
  SelectionWorkspace work;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const SelectionPlan& plan = *work.plan;
    if (plan.missed != 0) return;
    const unsigned size = EntriesOf(plan.count, tile, kEntryTile);
    const size_t first = tile * kEntryTile;
    const auto coding = static_cast<IndexCoding>(plan.coding);
    const bool rice = coding == IndexCoding::kRice;
    team.ForEach(size, [&](unsigned j) {
      const uint32_t gap = GapOf(work.indices, first + j);
      shared.part[j] = rice ? gap >> plan.rice_bits : gap >= kLongGap;
    });
    team.Scan(shared.part, size);
    const uint64_t before = size == 0 ? 0
                            : rice    ? work.tile_quotients[tile]
                                      : work.tile_long_gaps[tile];
    team.ForEach(size, [&](unsigned j) {
      const size_t i = first + j;
      const uint32_t gap = GapOf(work.indices, i);
      if (coding == IndexCoding::kBitmap) {
        PutBits(work.index_words, work.indices[i], 1, 1);
      } else if (rice) {
        const unsigned bits = plan.rice_bits;
        PutBits(work.index_words, uint64_t{i} * bits, gap & ((1u << bits) - 1), bits);
        const uint64_t zeros = before + shared.part[j] + (gap >> bits);
        PutBits(work.index_words, uint64_t{plan.count} * bits + zeros + i, 1, 1);
      } else {
        auto* const to = reinterpret_cast<uint8_t*>(work.index_words) + i +
                         (before + shared.part[j]) * sizeof(uint32_t);
        *to = static_cast<uint8_t>(gap < kLongGap ? gap : kLongGap);
        if (gap >= kLongGap) StoreWord(to + 1, gap);
      }
    });
  }
};

struct Largest {
  uint32_t bits;
  static WEIR_DEVICE Largest Zero() { return {0}; }
  WEIR_DEVICE void Add(const Largest& other) { bits = bits > other.bits ? bits : other.bits; }
};

/// The bins of quantile formats. The range of the bit patterns of magnitudes is cut into equal
/// parts; bins of negative values are mirrored and come first.
struct QuantileGrid {
  uint32_t least;
  unsigned shift;

  WEIR_DEVICE uint32_t BinOf(float value) const {
    const uint32_t bits = BitsOf(value), magnitude = bits & kMagnitudeBits;
    const uint32_t part = (magnitude - least) >> shift;
    return bits == magnitude ? kQuantileBins + part : kQuantileBins - 1 - part;
  }
  /// The exponent of the unit of magnitudes in a bin: that of the last bit of its least one. A bin
  /// spans less than an octave, so sums of magnitudes are integers that fit 64 bits, and do not
  /// depend on the order.
  WEIR_DEVICE int UnitOf(uint32_t bin) const {
    const uint32_t part = bin < kQuantileBins ? kQuantileBins - 1 - bin : bin - kQuantileBins;
    return static_cast<int>((least + (part << shift)) >> 23) - 150;
  }
};
WEIR_DEVICE inline QuantileGrid GridOf(const SelectionPlan& plan) {
  QuantileGrid grid{plan.min_bits, 0};
  while ((plan.max_bits - plan.min_bits) >> grid.shift >= kQuantileBins) ++grid.shift;
  return grid;
}
WEIR_DEVICE inline bool HasQuantiles(const SelectionPlan& plan) {
  return plan.missed == 0 && plan.count > 0 && IsQuantiles(static_cast<ValueFormat>(plan.format));
}

/// Sorts the values into bins that were zero.
struct QuantileProgram : TileProgram {
  SelectionWorkspace work;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const SelectionPlan& plan = *work.plan;
    if (!HasQuantiles(plan)) return;
    const QuantileGrid grid = GridOf(plan);
    team.ForEach(EntriesOf(plan.count, tile, kEntryTile), [&](unsigned j) {
      const float value = work.values[tile * kEntryTile + j];
      const uint32_t bin = grid.BinOf(value), magnitude = BitsOf(value) & kMagnitudeBits;
      const uint64_t digits = (magnitude & 0x7FFFFFu) | 0x800000u;
      const int shift = static_cast<int>(magnitude >> 23) - 150 - grid.UnitOf(bin);
      Team::Add(&work.quantile_counts[bin], 1u);
      Team::Add(&work.quantile_sums[bin], digits << shift);
    });
  }
};

/// One team: cuts the bins into buckets with about equal numbers of values, none of which has both
/// signs if there are two, and finds their means.
struct CutProgram : TileProgram {
  struct Shared {
    uint32_t before[kQuantileBins];
    uint8_t bucket[2 * kQuantileBins];
  };
  static_assert(kQuantileBins <= kScanMax);
  SelectionWorkspace work;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t) const {
    SelectionPlan& plan = *work.plan;
    if (!HasQuantiles(plan)) return;
    const unsigned buckets = QuantileBucketsOf(static_cast<ValueFormat>(plan.format), plan.count);
    const uint32_t negatives = ScanSide(team, shared, 0), positives = plan.count - negatives;
    uint64_t below = (uint64_t{buckets} * negatives + plan.count / 2) / plan.count;
    if (negatives > 0 && below < 1) below = 1;
    if (positives > 0 && below > buckets - 1) below = buckets - 1;
    CutSide(team, shared, 0, {.first = 0, .buckets = below, .values = negatives, .all = buckets});
    ScanSide(team, shared, kQuantileBins);
    CutSide(team, shared, kQuantileBins,
            {.first = below, .buckets = buckets - below, .values = positives, .all = buckets});
    const QuantileGrid grid = GridOf(plan);
    team.ForEach(buckets, [&](unsigned b) {
      double sum = 0;
      uint64_t size = 0;
      for (uint32_t bin = 0; bin < 2 * kQuantileBins; ++bin) {
        if (shared.bucket[bin] != b || work.quantile_counts[bin] == 0) continue;
        const double magnitude =
            ldexp(static_cast<double>(work.quantile_sums[bin]), grid.UnitOf(bin));
        sum += bin < kQuantileBins ? -magnitude : magnitude;
        size += work.quantile_counts[bin];
      }
      plan.quantile_means[b] =
          size == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(size));
    });
  }

  /// Fills in the number of values before each bin of the side, and returns that of all.
  WEIR_DEVICE uint32_t ScanSide(Team& team, Shared& shared, uint32_t first) const {
    team.ForEach(kQuantileBins,
                 [&](unsigned i) { shared.before[i] = work.quantile_counts[first + i]; });
    return team.Scan(shared.before, kQuantileBins);
  }
  struct Side {
    uint64_t first, buckets, values, all;
  };
  /// The bucket of the middle value of each bin.
  WEIR_DEVICE void CutSide(Team& team, Shared& shared, uint32_t first, const Side& side) const {
    team.ForEach(kQuantileBins, [&](unsigned i) {
      const uint64_t here = work.quantile_counts[first + i];
      uint64_t bucket = side.buckets == 0 || here == 0
                            ? 0
                            : (shared.before[i] + here / 2) * side.buckets / side.values;
      bucket += side.first;
      if (bucket > side.all - 1) bucket = side.all - 1;
      shared.bucket[first + i] = static_cast<uint8_t>(bucket);
      work.quantile_buckets[first + i] = static_cast<uint8_t>(bucket);
    });
  }
};

/// Writes the values, kValueBlock a tile, stores their errors as rest, and copies the tile's share
/// of the coded positions.
struct ValueProgram {
  static constexpr unsigned kTile = kValueBlock;
  struct Shared {
    PassSums sums;
    uint8_t codes[kTile + 1];
  };
  SelectionWorkspace work;
  float* rest;
  uint8_t* out;
  size_t tiles;

  WEIR_DEVICE void Begin(Team& team, Shared& shared) const {
    team.Once([&] { shared.sums = PassSums::Zero(); });
  }
  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const SelectionPlan& plan = *work.plan;
    if (plan.missed != 0) return;
    CopyShare(team, plan, tile);
    const unsigned size = EntriesOf(plan.count, tile, kTile);
    if (size == 0) return;
    uint8_t* const to = out + kSelectionHeaderBytes + plan.index_bytes;
    const auto format = static_cast<ValueFormat>(plan.format);
    const PassSums lost = format == ValueFormat::kHalf || format == ValueFormat::kFloat
                              ? StoreFloats(team, plan, tile, size, to)
                          : IsQuantiles(format) ? StoreQuantiles(team, shared, plan, tile, size, to)
                          : format == ValueFormat::kTwoMeans
                              ? StoreSigns(team, shared, plan, tile, size, to)
                              : StoreLevels(team, shared, plan, tile, size, to);
    team.Once([&] { shared.sums.Add(lost); });
  }
  WEIR_DEVICE void End(Team& team, Shared& shared) const {
    team.Once([&] { work.partials[team.index()] = shared.sums; });
  }

  WEIR_DEVICE void CopyShare(Team& team, const SelectionPlan& plan, size_t tile) const {
    const size_t share = (plan.index_bytes + tiles - 1) / tiles, from = tile * share;
    if (from >= plan.index_bytes) return;
    const size_t left = plan.index_bytes - from;
    const auto* const bytes = reinterpret_cast<const uint8_t*>(work.index_words) + from;
    team.ForEach(static_cast<unsigned>(left < share ? left : share),
                 [&](unsigned i) { out[kSelectionHeaderBytes + from + i] = bytes[i]; });
  }

  WEIR_DEVICE void KeepError(size_t i, float error, PassSums* part) const {
    part->AddLost(error);
    if (rest != nullptr) rest[work.indices[i]] = error;
  }

  WEIR_DEVICE PassSums StoreFloats(Team& team, const SelectionPlan& plan, size_t tile,
                                   unsigned size, uint8_t* to) const {
    const bool half = plan.format == static_cast<uint32_t>(ValueFormat::kHalf);
    const float scale = TwoToThe(plan.exponent), inverse = 1.0f / scale;
    return team.Reduce<PassSums>(size, [&](unsigned j, PassSums* part) {
      const size_t i = tile * kTile + j;
      const float value = work.values[i];
      if (!half) {
        StoreWord(to + i * sizeof(float), BitsOf(value));
        KeepError(i, 0, part);
        return;
      }
      const uint16_t lane = ToHalf(ClampTo(value * scale, 65504.0f));
      to[2 * i] = static_cast<uint8_t>(lane);
      to[2 * i + 1] = static_cast<uint8_t>(lane >> 8);
      KeepError(i, value - FromHalf(lane) * inverse, part);
    });
  }

  WEIR_DEVICE PassSums StoreSigns(Team& team, Shared& shared, const SelectionPlan& plan,
                                  size_t tile, unsigned size, uint8_t* to) const {
    const PassSums lost = team.Reduce<PassSums>(size, [&](unsigned j, PassSums* part) {
      const size_t i = tile * kTile + j;
      const float value = work.values[i];
      const bool negative = (BitsOf(value) & ~kMagnitudeBits) != 0;
      shared.codes[j] = negative;
      KeepError(i, value - plan.means[negative], part);
    });
    team.Once([&] {
      if (tile != 0) return;
      StoreWord(to, BitsOf(plan.means[0]));
      StoreWord(to + sizeof(float), BitsOf(plan.means[1]));
    });
    PackCodes(team, shared.codes, size, 1, to + 2 * sizeof(float) + tile * kTile / 8);
    return lost;
  }

  WEIR_DEVICE PassSums StoreQuantiles(Team& team, Shared& shared, const SelectionPlan& plan,
                                      size_t tile, unsigned size, uint8_t* to) const {
    const auto format = static_cast<ValueFormat>(plan.format);
    const unsigned bits = BitsOfQuantiles(format);
    const unsigned buckets = QuantileBucketsOf(format, plan.count);
    const QuantileGrid grid = GridOf(plan);
    const PassSums lost = team.Reduce<PassSums>(size, [&](unsigned j, PassSums* part) {
      const size_t i = tile * kTile + j;
      const float value = work.values[i];
      const uint8_t code = work.quantile_buckets[grid.BinOf(value)];
      shared.codes[j] = code;
      KeepError(i, value - plan.quantile_means[code], part);
    });
    if (tile == 0) {
      team.ForEach(buckets, [&](unsigned b) {
        StoreWord(to + b * sizeof(float), BitsOf(plan.quantile_means[b]));
      });
    }
    PackCodes(team, shared.codes, size, bits,
              to + buckets * sizeof(float) + tile * kTile * bits / 8);
    return lost;
  }

  WEIR_DEVICE PassSums StoreLevels(Team& team, Shared& shared, const SelectionPlan& plan,
                                   size_t tile, unsigned size, uint8_t* to) const {
    const bool wide = plan.format == static_cast<uint32_t>(ValueFormat::kInt8);
    const int levels = wide ? 127 : 7;
    const float low = FloatOf(plan.min_bits);
    const Largest high = team.Reduce<Largest>(size, [&](unsigned j, Largest* part) {
      part->Add({BitsOf(work.values[tile * kTile + j]) & kMagnitudeBits});
    });
    const float step = StepBetween(low, FloatOf(high.bits), levels);
    const float inverse = step > 0 ? 1.0f / step : 0.0f;
    const PassSums lost = team.Reduce<PassSums>(size, [&](unsigned j, PassSums* part) {
      const size_t i = tile * kTile + j;
      const float value = work.values[i];
      const float scaled = (Magnitude(value) - low) * inverse;
      const float level = Lesser(floorf(scaled + 0.5f), static_cast<float>(levels));
      const float clamped = Greater(level, 0.0f);
      const uint32_t sign = BitsOf(value) & ~kMagnitudeBits;
      const float decoded = FloatOf(BitsOf(low + clamped * step) | sign);
      const uint32_t code = (IntegerBits(clamped) & 0xFF) | (sign != 0 ? levels + 1 : 0);
      shared.codes[j] = static_cast<uint8_t>(code);
      KeepError(i, value - decoded, part);
    });
    uint8_t* block = to + sizeof(float) + tile * BytesOfLevels(wide, kTile);
    team.Once([&] {
      if (tile == 0) StoreWord(to, BitsOf(low));
      StoreWord(block, BitsOf(step));
      shared.codes[size] = 0;
    });
    block += sizeof(float);
    team.ForEach(wide ? size : (size + 1) / 2, [&](unsigned j) {
      block[j] = wide ? shared.codes[j]
                      : static_cast<uint8_t>(shared.codes[2 * j] | shared.codes[2 * j + 1] << 4);
    });
    return lost;
  }

  /// The step from `low` to `high` in `levels`; 0 where its reciprocal would not be a number.
  static WEIR_DEVICE float StepBetween(float low, float high, int levels) {
    float step = (high - low) / static_cast<float>(levels);
    if (!(step >= kSmallestNormal)) return 0;
    while (!IsFinite(low + static_cast<float>(levels) * step)) step = FloatOf(BitsOf(step) - 1);
    return step;
  }
};

/// One team: adds the errors of values to the outcome.
struct LossProgram : TileProgram {
  const PassSums* partials;
  unsigned teams;
  Outcome* outcome;
  WEIR_DEVICE void Tile(Team& team, Shared&, size_t) const {
    const PassSums sums =
        team.Reduce<PassSums>(teams, [&](unsigned i, PassSums* part) { part->Add(partials[i]); });
    team.Once([&] {
      if (outcome->missed == 0) outcome->energy_lost += sums.energy_lost;
    });
  }
};

}  // namespace

Status PackSelection(const SelectionJob& job) {
  const SelectionWorkspace& work = job.work;
  const size_t tiles = TilesOf(job.cap, kEntryTile), values = TilesOf(job.cap, kValueBlock);
  auto* const out = reinterpret_cast<uint8_t*>(job.out);
  WEIR_RETURN_IF_ERROR(
      FillDevice(work.index_words, 0, work.index_words_size * sizeof(uint32_t), job.stream));
  WEIR_ASSIGN_OR_RETURN(const unsigned measurers,
                        Launch(job.stream, tiles, MeasureProgram{work, job.in.n}));
  WEIR_RETURN_IF_ERROR(
      Launch(job.stream, 1,
             DecideProgram{
                 {}, work, job.in.n, tiles, measurers, job.pass, job.format, out, job.outcome})
          .status());
  WEIR_RETURN_IF_ERROR(Launch(job.stream, tiles, IndexProgram{{}, work}).status());
  if (IsQuantiles(job.format)) {
    WEIR_RETURN_IF_ERROR(
        FillDevice(work.quantile_counts, 0, 2 * kQuantileBins * sizeof(uint32_t), job.stream));
    WEIR_RETURN_IF_ERROR(
        FillDevice(work.quantile_sums, 0, 2 * kQuantileBins * sizeof(uint64_t), job.stream));
    WEIR_RETURN_IF_ERROR(Launch(job.stream, tiles, QuantileProgram{{}, work}).status());
    WEIR_RETURN_IF_ERROR(Launch(job.stream, 1, CutProgram{{}, work}).status());
  }
  WEIR_ASSIGN_OR_RETURN(const unsigned writers,
                        Launch(job.stream, values, ValueProgram{work, job.rest, out, values}));
  return Launch(job.stream, 1, LossProgram{{}, work.partials, writers, job.outcome}).status();
}

}  // namespace weir::cuda
