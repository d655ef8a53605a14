// SPDX-License-Identifier: Apache-2.0
// Reads the payload of a selection and adds its elements, trusting nothing in it. A Rice code's
// quotients are found by counting ones: the r-th one ends the quotient of entry r, and the zeros
// before it are the sum of the quotients up to there.

#include "datapath/codec/select/index_coding.h"
#include "datapath/codec/select/selection_payload.h"
#include "datapath/cuda/selection.h"
#include "datapath/cuda/selection_bits.h"

namespace weir::cuda {
namespace {

constexpr unsigned kWordTile = kScanMax;

/// A payload, and where its faults are noted.
struct Reading {
  const uint8_t* payload;
  size_t bytes;
  uint64_t n;
  uint32_t cap;
  ReadingWorkspace work;
  uint64_t* fault;

  WEIR_DEVICE void Refuse(uint64_t offset) const {
    Team::Lower(fault, offset < bytes ? offset : bytes);
  }
  WEIR_DEVICE bool IsRice() const {
    return work.plan->coding == static_cast<uint32_t>(IndexCoding::kRice);
  }
  WEIR_DEVICE bool IsOctets() const {
    return work.plan->coding == static_cast<uint32_t>(IndexCoding::kOctets);
  }
  /// The first bit of the ones that end quotients, or of the bitmap.
  WEIR_DEVICE uint64_t FirstOne() const {
    return IsRice() ? uint64_t{work.plan->count} * work.plan->rice_bits : 0;
  }
  /// Bits 32 w and later of the coded positions, without those before FirstOne and after the end.
  WEIR_DEVICE uint32_t OnesOf(uint64_t w) const {
    const uint64_t index_bytes = work.plan->index_bytes, at = w * sizeof(uint32_t);
    if (at >= index_bytes) return 0;
    const uint8_t* const from = payload + kSelectionHeaderBytes + at;
    uint32_t word = 0;
    if (at + sizeof(uint32_t) <= index_bytes) {
      word = *reinterpret_cast<const uint32_t*>(from);  // the payload is aligned
    } else {
      for (unsigned i = 0; at + i < index_bytes; ++i) word |= uint32_t{from[i]} << (8 * i);
    }
    const uint64_t first = FirstOne(), bit = w * 32;
    if (bit + 32 <= first) return 0;
    return bit < first ? word >> (first - bit) << (first - bit) : word;
  }
  /// The plain bits of entry i, which lie within the coded positions.
  WEIR_DEVICE uint32_t PlainOf(uint64_t i) const {
    const unsigned bits = work.plan->rice_bits;
    const uint64_t at = i * bits;
    const uint8_t* const from = payload + kSelectionHeaderBytes + at / 8;
    uint64_t window = 0;
    for (unsigned j = 0; j * 8 < at % 8 + bits; ++j) window |= uint64_t{from[j]} << (8 * j);
    return static_cast<uint32_t>(window >> (at % 8) & ((uint64_t{1} << bits) - 1));
  }
  WEIR_DEVICE unsigned EntriesIn(size_t tile) const {
    const uint64_t at = uint64_t{tile} * kEntryTile, count = work.plan->count;
    if (work.plan->usable == 0 || at >= count) return 0;
    return count - at < kEntryTile ? static_cast<unsigned>(count - at) : kEntryTile;
  }
};

/// One team: reads and checks the header.
struct HeaderProgram : TileProgram {
  Reading reading;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t) const {
    team.Once([&] {
      const uint64_t fault = Read();
      reading.work.plan->usable = fault == kSound;
      if (fault != kSound) reading.Refuse(fault);
    });
  }

  static constexpr uint64_t kSound = ~uint64_t{0};
  WEIR_DEVICE uint64_t Read() const {
    const uint8_t* const in = reading.payload;
    SelectionPlan* const plan = reading.work.plan;
    plan->coding = in[0];
    plan->rice_bits = in[1];
    plan->format = in[2];
    plan->exponent = static_cast<int8_t>(in[3]);
    plan->count = LoadWord(in + 4);
    plan->index_bytes = LoadWord(in + 8);
    if (plan->coding < static_cast<uint32_t>(kIndexCodingFirst) ||
        plan->coding > static_cast<uint32_t>(kIndexCodingLast)) {
      return 0;
    }
    if (plan->rice_bits > 31) return 1;
    if (plan->format > static_cast<uint32_t>(kValueFormatLast)) return 2;
    if (plan->exponent < -126 || plan->exponent > 126) return 3;
    if (plan->count > reading.n || plan->count > reading.cap) return 4;
    const auto format = static_cast<ValueFormat>(plan->format);
    if (format == ValueFormat::kNone && plan->count > 0) return 2;
    const uint64_t values = BytesOfValues(format, plan->count);
    const uint64_t body = reading.bytes - kSelectionHeaderBytes;
    if (values > body || plan->index_bytes != body - values) return kSelectionHeaderBytes;
    return ReadPositions();
  }
  WEIR_DEVICE uint64_t ReadPositions() const {
    const SelectionPlan& plan = *reading.work.plan;
    const bool bitmap = !reading.IsRice() && !reading.IsOctets();
    if (plan.count == 0) {
      return bitmap || plan.index_bytes == 0 ? kSound : kSelectionHeaderBytes;
    }
    if (bitmap && plan.index_bytes != (reading.n + 7) / 8) return kSelectionHeaderBytes;
    if (reading.FirstOne() > uint64_t{plan.index_bytes} * 8) return kSelectionHeaderBytes;
    return kSound;
  }
};

struct SumOf64 {
  uint64_t value;
  static WEIR_DEVICE SumOf64 Zero() { return {0}; }
  WEIR_DEVICE void Add(const SumOf64& other) { value += other.value; }
};

/// The number of ones in each tile of words.
struct OnesProgram : TileProgram {
  Reading reading;
  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const bool needed = reading.work.plan->usable != 0 && !reading.IsOctets();
    const SumOf64 ones =
        team.Reduce<SumOf64>(needed ? kWordTile : 0, [&](unsigned i, SumOf64* part) {
          part->value += CountOnes(reading.OnesOf(uint64_t{tile} * kWordTile + i));
        });
    team.Once([&] { reading.work.tile_ones[tile] = ones.value; });
  }
};

/// The sum of the plain bits in each tile of entries.
struct PlainProgram : TileProgram {
  Reading reading;
  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const unsigned size = reading.IsRice() ? reading.EntriesIn(tile) : 0;
    const SumOf64 plain = team.Reduce<SumOf64>(size, [&](unsigned i, SumOf64* part) {
      part->value += reading.PlainOf(uint64_t{tile} * kEntryTile + i);
    });
    team.Once([&] { reading.work.tile_plain[tile] = plain.value; });
  }
};

/// One team: the sums before each tile, and whether there are as many ones as entries. Octets have
/// entries of unequal lengths, so one thread reads them; encoders use them for few entries only.
struct BeforeProgram : TileProgram {
  struct Shared {
    uint64_t part[kScanMax];
  };
  Reading reading;
  size_t word_tiles, entry_tiles;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t) const {
    if (reading.work.plan->usable == 0) return;
    if (reading.IsOctets()) {
      team.Once([&] { ReadOctets(); });
      return;
    }
    const uint64_t ones = ScanTiles(team, shared.part, reading.work.tile_ones, word_tiles);
    ScanTiles(team, shared.part, reading.work.tile_plain, entry_tiles);
    team.Once([&] {
      if (ones == reading.work.plan->count) return;
      Refuse(kSelectionHeaderBytes + reading.work.plan->index_bytes);
    });
  }

  WEIR_DEVICE void Refuse(uint64_t offset) const {
    reading.work.plan->usable = 0;
    reading.Refuse(offset);
  }
  WEIR_DEVICE void ReadOctets() const {
    const SelectionPlan& plan = *reading.work.plan;
    const uint8_t* const from = reading.payload + kSelectionHeaderBytes;
    uint64_t at = 0, next = 0;
    for (uint32_t i = 0; i < plan.count; ++i) {
      if (at >= plan.index_bytes) return Refuse(kSelectionHeaderBytes + at);
      uint32_t gap = from[at++];
      if (gap == kLongGap) {
        if (plan.index_bytes - at < sizeof(gap)) return Refuse(kSelectionHeaderBytes + at);
        gap = LoadWord(from + at);
        at += sizeof(gap);
        if (gap < kLongGap) return Refuse(kSelectionHeaderBytes + at);
      }
      const uint64_t index = next + gap;
      if (index >= reading.n) return Refuse(kSelectionHeaderBytes + at);
      reading.work.indices[i] = static_cast<uint32_t>(index);
      next = index + 1;
    }
    if (at != plan.index_bytes) Refuse(kSelectionHeaderBytes + at);
  }
};

/// For each one its number of zeros before (Rice), or its position (bitmap).
struct RankProgram : TileProgram {
  struct Shared {
    uint32_t before[kWordTile];
  };
  Reading reading;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const SelectionPlan& plan = *reading.work.plan;
    if (plan.usable == 0 || reading.IsOctets()) return;
    const uint64_t first = uint64_t{tile} * kWordTile;
    if (first * sizeof(uint32_t) >= plan.index_bytes) return;
    team.ForEach(kWordTile,
                 [&](unsigned i) { shared.before[i] = CountOnes(reading.OnesOf(first + i)); });
    team.Scan(shared.before, kWordTile);
    const uint64_t before = reading.work.tile_ones[tile];
    team.ForEach(kWordTile, [&](unsigned i) {
      uint64_t rank = before + shared.before[i];
      for (uint32_t word = reading.OnesOf(first + i); word != 0; word &= word - 1, ++rank) {
        const unsigned lowest = CountOnes((word & (~word + 1)) - 1);
        Note(rank, (first + i) * 32 + lowest);
      }
    });
  }

  /// There are plan.count ones, so `rank` is below that.
  WEIR_DEVICE void Note(uint64_t rank, uint64_t bit) const {
    const SelectionPlan& plan = *reading.work.plan;
    const uint64_t offset = kSelectionHeaderBytes + bit / 8;
    if (!reading.IsRice()) {
      if (bit >= reading.n) reading.Refuse(offset);
      reading.work.indices[rank] = static_cast<uint32_t>(bit);
      return;
    }
    if (rank + 1 == plan.count && uint64_t{plan.index_bytes} * 8 - (bit + 1) >= 8) {
      reading.Refuse(offset);  // superfluous bytes
    }
    // A sum beyond n would not fit; AddProgram refuses it.
    const uint64_t zeros = bit - reading.FirstOne() - rank;
    reading.work.zeros[rank] = static_cast<uint32_t>(zeros < reading.n ? zeros : reading.n);
  }
};

struct AddProgram : TileProgram {
  struct Shared {
    uint64_t before[kEntryTile];
  };
  Reading reading;
  float scale;
  float* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const unsigned size = reading.EntriesIn(tile);
    const size_t first = tile * kEntryTile;
    const SelectionPlan& plan = *reading.work.plan;
    if (size > 0 && reading.IsRice()) {
      team.ForEach(size, [&](unsigned j) { shared.before[j] = reading.PlainOf(first + j); });
      team.Scan(shared.before, size);
    }
    const uint8_t* const values = reading.payload + kSelectionHeaderBytes + plan.index_bytes;
    team.ForEach(size, [&](unsigned j) {
      const size_t i = first + j;
      const uint64_t index = reading.IsRice()
                                 ? RicePosition(i, reading.work.tile_plain[tile] + shared.before[j])
                                 : reading.work.indices[i];
      if (index >= reading.n) {
        reading.Refuse(kSelectionHeaderBytes);
        return;
      }
      float value;
      if (!ValueOf(values, i, &value)) {
        reading.Refuse(static_cast<uint64_t>(values - reading.payload));
        return;
      }
      out[index] += scale * value;
    });
  }

  WEIR_DEVICE uint64_t RicePosition(size_t i, uint64_t plain_before) const {
    const uint64_t zeros = reading.work.zeros[i];
    const unsigned bits = reading.work.plan->rice_bits;
    if (zeros > (reading.n - 1) >> bits) return reading.n;
    return (zeros << bits) + plain_before + reading.PlainOf(i) + i;
  }

  /// Returns whether the value, and what it shares with others, is valid.
  WEIR_DEVICE bool ValueOf(const uint8_t* values, size_t i, float* value) const {
    const SelectionPlan& plan = *reading.work.plan;
    const auto format = static_cast<ValueFormat>(plan.format);
    if (format == ValueFormat::kHalf) {
      const auto lane = static_cast<uint16_t>(values[2 * i] | values[2 * i + 1] << 8);
      *value = 0.0f + FromHalf(lane) * TwoToThe(-plan.exponent);  // a sum, as on the host: no -0
      return HalfIsFinite(lane);
    }
    if (format == ValueFormat::kFloat) {
      *value = 0.0f + FloatOf(LoadWord(values + i * sizeof(float)));
      return IsFinite(*value);
    }
    if (format == ValueFormat::kTwoMeans) return SignedMean(values, i, value);
    if (IsQuantiles(format)) return QuantileMean(values, i, value);
    const bool wide = format == ValueFormat::kInt8;
    const uint64_t block = i / kValueBlock, place = i % kValueBlock;
    const uint64_t left = plan.count - block * kValueBlock;
    const unsigned size = left < kValueBlock ? static_cast<unsigned>(left) : kValueBlock;
    const uint8_t* const from = values + sizeof(float) + block * BytesOfLevels(wide, kValueBlock);
    const uint8_t* const codes = from + sizeof(float);
    const float low = FloatOf(LoadWord(values)), step = FloatOf(LoadWord(from));
    const int levels = wide ? 127 : 7;
    if (!(low >= 0) || !IsFinite(low) || !(step >= 0) ||
        !IsFinite(low + static_cast<float>(levels) * step)) {
      return false;
    }
    if (!wide && size % 2 == 1 && codes[size / 2] >> 4 != 0) return false;
    const uint32_t code = wide ? codes[place] : codes[place / 2] >> (place % 2 * 4) & 15u;
    const float magnitude = low + static_cast<float>(static_cast<int>(code) & levels) * step;
    *value = (static_cast<int>(code) & (levels + 1)) != 0 ? -magnitude : magnitude;
    return true;
  }

  WEIR_DEVICE bool QuantileMean(const uint8_t* values, size_t i, float* value) const {
    const auto format = static_cast<ValueFormat>(reading.work.plan->format);
    const uint64_t count = reading.work.plan->count;
    const unsigned bits = BitsOfQuantiles(format), buckets = QuantileBucketsOf(format, count);
    const uint8_t* const codes = values + buckets * sizeof(float);
    const unsigned used = count * bits % 8;
    if (i + 1 == count && used != 0 && codes[count * bits / 8] >> used != 0) return false;
    const uint32_t code = UnpackCode(codes, bits, i);
    // A mean that no code names is checked, too.
    if (code >= buckets || (i < buckets && !IsFinite(MeanAt(values, i)))) return false;
    *value = MeanAt(values, code);
    return IsFinite(*value);
  }
  static WEIR_DEVICE float MeanAt(const uint8_t* values, size_t bucket) {
    return FloatOf(LoadWord(values + bucket * sizeof(float)));
  }

  WEIR_DEVICE bool SignedMean(const uint8_t* values, size_t i, float* value) const {
    const float means[2] = {FloatOf(LoadWord(values)), FloatOf(LoadWord(values + sizeof(float)))};
    const uint8_t* const signs = values + 2 * sizeof(float);
    const uint32_t count = reading.work.plan->count;
    if (i + 1 == count && count % 8 != 0 && signs[i / 8] >> (count % 8) != 0) return false;
    *value = means[signs[i / 8] >> (i % 8) & 1];
    return IsFinite(means[0]) && IsFinite(means[1]);
  }
};

}  // namespace

Status AddSelection(std::span<const std::byte> payload, const ReadingWorkspace& work, size_t cap,
                    float scale, std::span<float> out, uint64_t* fault, Stream stream) {
  const Reading reading{.payload = reinterpret_cast<const uint8_t*>(payload.data()),
                        .bytes = payload.size(),
                        .n = out.size(),
                        .cap = static_cast<uint32_t>(cap),
                        .work = work,
                        .fault = fault};
  const size_t words = TilesOf(payload.size() / sizeof(uint32_t) + 1, kWordTile);
  const size_t entries = TilesOf(std::min(cap, payload.size() * 8), kEntryTile);
  WEIR_RETURN_IF_ERROR(Launch(stream, 1, HeaderProgram{{}, reading}).status());
  WEIR_RETURN_IF_ERROR(Launch(stream, words, OnesProgram{{}, reading}).status());
  WEIR_RETURN_IF_ERROR(Launch(stream, entries, PlainProgram{{}, reading}).status());
  WEIR_RETURN_IF_ERROR(Launch(stream, 1, BeforeProgram{{}, reading, words, entries}).status());
  WEIR_RETURN_IF_ERROR(Launch(stream, words, RankProgram{{}, reading}).status());
  return Launch(stream, entries, AddProgram{{}, reading, scale, out.data()}).status();
}

}  // namespace weir::cuda
