// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/sparse_regions.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/codec/select/index_coding.h"
#include "datapath/codec/select/selection_payload.h"

namespace weir {
namespace {

// The paper's interval. In between, a threshold that keeps too many or too few sums is corrected.
constexpr uint64_t kSummariseEvery = 32;

// A key that is ordered as the magnitude is, with NaN above infinity.
uint32_t MagnitudeKey(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

bool Fits(const std::vector<uint64_t>& begins, uint64_t elements, int world) {
  return begins.size() + 1 == static_cast<size_t>(world) &&
         std::is_sorted(begins.begin(), begins.end()) &&
         (begins.empty() || begins.back() <= elements);
}

// The target-th largest magnitude, or 0 when there are not more than that.
float ThresholdOf(std::span<const SparseSummary> summaries, uint64_t target) {
  std::vector<std::pair<float, double>> points;  // magnitude, and how many sums it represents
  double total = 0;
  for (const SparseSummary& summary : summaries) {
    const double weight = static_cast<double>(summary.count) / SparseSummary::kPoints;
    total += static_cast<double>(summary.count);
    for (const float magnitude : summary.magnitudes) points.push_back({magnitude, weight});
  }
  if (total <= static_cast<double>(target)) return 0;
  std::sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return MagnitudeKey(a.first) > MagnitudeKey(b.first);
  });
  double above = 0;
  for (const auto& [magnitude, weight] : points) {
    above += weight;
    if (above >= static_cast<double>(target)) return magnitude;
  }
  return 0;
}

float TargetthLargest(const SparseVector& kept, uint64_t target) {
  std::vector<uint32_t> keys;
  keys.reserve(kept.values.size());
  for (const float value : kept.values) keys.push_back(MagnitudeKey(value));
  const auto place = keys.begin() + static_cast<ptrdiff_t>(std::max<uint64_t>(target, 1) - 1);
  std::nth_element(keys.begin(), place, keys.end(), std::greater<>());
  return std::bit_cast<float>(*place);
}

Status DecodePositions(const SelectionHeader& header, std::span<const std::byte> bytes,
                       const SparseRange& range, size_t offset, SparseVector* out) {
  if (header.count == 0) {
    if (bytes.empty()) return OkStatus();
    return DataLoss(
        StrCat("positions at offset ", offset, ": expected none, found ", bytes.size(), " bytes"));
  }
  const size_t before = out->indices.size();
  out->indices.resize(before + header.count);
  const std::span<uint32_t> added = std::span(out->indices).subspan(before);
  IndexDecoder decoder(header.index, bytes, range.size, header.count, offset);
  WEIR_ASSIGN_OR_RETURN(const size_t found, decoder.Next(added));
  if (found != header.count) return DataLoss("positions end early");
  WEIR_RETURN_IF_ERROR(decoder.Finish());
  for (uint32_t& index : added) index += static_cast<uint32_t>(range.begin);
  return OkStatus();
}

Status ReadSummary(ByteReader& reader, SparseSummary* summary) {
  WEIR_RETURN_IF_ERROR(reader.Read(&summary->count));
  return reader.Read(&summary->magnitudes);
}

}  // namespace

void SparseBalance::Scale(double factor) {
  if (threshold > 0) threshold = static_cast<float>(threshold * factor);
}

std::vector<SparseRange> SparseRegions(const SparseBalance& balance, uint64_t elements, int world) {
  const auto parts = static_cast<uint64_t>(world);
  const bool balanced = Fits(balance.begins, elements, world);
  const auto begin_of = [&](uint64_t region) {
    if (region == 0) return uint64_t{0};
    if (region == parts) return elements;
    if (balanced) return balance.begins[region - 1];
    return region * (elements / parts) + std::min(region, elements % parts);
  };
  std::vector<SparseRange> regions(parts);
  for (uint64_t r = 0; r < parts; ++r) {
    regions[r] = {.begin = begin_of(r), .size = begin_of(r + 1) - begin_of(r)};
  }
  return regions;
}

std::vector<std::byte> EncodeSparse(const SparseVector& all, const SparseRange& range,
                                    const std::optional<SparseSummary>& summary) {
  const auto first = std::lower_bound(all.indices.begin(), all.indices.end(), range.begin,
                                      [](uint32_t index, uint64_t begin) { return index < begin; });
  const auto last = std::lower_bound(first, all.indices.end(), range.begin + range.size,
                                     [](uint32_t index, uint64_t end) { return index < end; });
  const auto count = static_cast<size_t>(last - first);
  std::vector<uint32_t> positions(first, last);
  for (uint32_t& position : positions) position -= static_cast<uint32_t>(range.begin);
  const size_t begin = 2 * sizeof(uint64_t), body = begin + kSelectionHeaderBytes;
  std::vector<std::byte> bytes(body + MaxIndexBytes(range.size, count) + count * sizeof(float) +
                               sizeof(SparseSummary));
  SelectionHeader header{.format = ValueFormat::kFloat, .count = static_cast<uint32_t>(count)};
  if (count > 0) {
    header.index_bytes = static_cast<uint32_t>(
        EncodeIndices(positions, range.size, std::span(bytes).subspan(body), &header.index));
  }
  WriteSelectionHeader(header, std::span(bytes).subspan(begin));
  ByteWriter front(bytes);
  front.Write(range.begin);
  front.Write(range.size);
  ByteWriter rest(std::span<std::byte>(bytes).subspan(body + header.index_bytes));
  rest.WriteBytes(std::as_bytes(
      std::span(all.values).subspan(static_cast<size_t>(first - all.indices.begin()), count)));
  if (summary.has_value()) {
    rest.Write(summary->count);
    rest.Write(summary->magnitudes);
  }
  WEIR_CHECK(front.ok() && rest.ok());
  bytes.resize(body + header.index_bytes + rest.offset());
  return bytes;
}

size_t SparseBytesMax(const SparseRange& range) {
  return 2 * sizeof(uint64_t) + MaxSelectionBytes(range.size, range.size, ValueFormat::kFloat) +
         sizeof(SparseSummary);
}

Status DecodeSparse(std::span<const std::byte> bytes, const SparseRange& range, SparseVector* out,
                    std::optional<SparseSummary>* summary) {
  ByteReader reader(bytes);
  SparseRange found;
  WEIR_RETURN_IF_ERROR(reader.Read(&found.begin));
  WEIR_RETURN_IF_ERROR(reader.Read(&found.size));
  if (found.begin != range.begin || found.size != range.size) {
    return DataLoss(StrCat("region at offset 0: expected ", range.size, " elements from ",
                           range.begin, " on, found ", found.size, " from ", found.begin, " on"));
  }
  SelectionHeader header;
  WEIR_RETURN_IF_ERROR(ReadSelectionHeader(reader.rest(), range.size, &header));
  std::span<const std::byte> skipped, positions, values;
  WEIR_RETURN_IF_ERROR(reader.ReadBytes(kSelectionHeaderBytes, &skipped));
  const size_t positions_at = reader.offset();
  WEIR_RETURN_IF_ERROR(reader.ReadBytes(header.index_bytes, &positions));
  // The number of values bounds the count before the count determines an allocation.
  WEIR_RETURN_IF_ERROR(reader.ReadBytes(size_t{header.count} * sizeof(float), &values));
  if (header.format != ValueFormat::kFloat) {
    return DataLoss(StrCat("value format of a region: expected ",
                           static_cast<int>(ValueFormat::kFloat), ", found ",
                           static_cast<int>(header.format)));
  }
  WEIR_RETURN_IF_ERROR(DecodePositions(header, positions, range, positions_at, out));
  const size_t before = out->values.size();
  out->values.resize(before + header.count);
  if (header.count > 0) std::memcpy(&out->values[before], values.data(), values.size());
  if (reader.remaining() == 0) return OkStatus();
  WEIR_RETURN_IF_ERROR(ReadSummary(reader, &summary->emplace()));
  if (reader.remaining() == 0) return OkStatus();
  return DataLoss(
      StrCat("payload of a region: expected ", reader.offset(), " bytes, found ", bytes.size()));
}

SparseVector AddSparse(const SparseVector& a, const SparseVector& b) {
  SparseVector sum;
  sum.indices.reserve(a.indices.size() + b.indices.size());
  sum.values.reserve(a.indices.size() + b.indices.size());
  size_t i = 0, j = 0;
  while (i < a.indices.size() || j < b.indices.size()) {
    const bool has_a = i < a.indices.size(), has_b = j < b.indices.size();
    const bool take_a = has_a && (!has_b || a.indices[i] <= b.indices[j]);
    const bool take_b = has_b && (!has_a || b.indices[j] <= a.indices[i]);
    sum.indices.push_back(take_a ? a.indices[i] : b.indices[j]);
    sum.values.push_back(take_a && take_b ? a.values[i] + b.values[j]
                         : take_a         ? a.values[i]
                                          : b.values[j]);
    i += take_a;
    j += take_b;
  }
  return sum;
}

SparseSummary SummaryOf(const SparseVector& sums) {
  SparseSummary summary{.count = sums.values.size()};
  if (summary.count == 0) return summary;
  std::vector<uint32_t> keys;
  keys.reserve(sums.values.size());
  for (const float value : sums.values) keys.push_back(MagnitudeKey(value));
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (size_t j = 0; j < SparseSummary::kPoints; ++j) {
    const size_t place = (2 * j + 1) * keys.size() / (2 * SparseSummary::kPoints);
    summary.magnitudes[j] = std::bit_cast<float>(keys[place]);
  }
  return summary;
}

SparseVector KeepSparse(const SparseVector& sums, const SparseBalance& balance, uint64_t target,
                        int world) {
  const bool known = balance.threshold >= 0;
  const uint32_t least = known ? MagnitudeKey(balance.threshold) : 0;
  const auto owners = static_cast<uint64_t>(world);
  const uint64_t most = ((known ? 2 : 1) * target + owners - 1) / owners;
  std::vector<uint32_t> places;
  for (size_t i = 0; i < sums.values.size(); ++i) {
    if (MagnitudeKey(sums.values[i]) >= least) places.push_back(static_cast<uint32_t>(i));
  }
  if (places.size() > most) {
    const auto larger = [&](uint32_t a, uint32_t b) {
      const uint32_t key_a = MagnitudeKey(sums.values[a]), key_b = MagnitudeKey(sums.values[b]);
      return key_a != key_b ? key_a > key_b : a < b;
    };
    std::nth_element(places.begin(), places.begin() + static_cast<ptrdiff_t>(most), places.end(),
                     larger);
    places.resize(most);
    std::sort(places.begin(), places.end());
  }
  SparseVector kept;
  for (const uint32_t place : places) {
    kept.indices.push_back(sums.indices[place]);
    kept.values.push_back(sums.values[place]);
  }
  return kept;
}

void LearnSparse(const SparseVector& kept, std::span<const SparseSummary> summaries,
                 uint64_t elements, uint64_t target, int world, SparseBalance* balance) {
  const uint64_t count = kept.values.size(), ranks = static_cast<uint64_t>(world);
  ++balance->uses;
  const bool too_many = 4 * count > 5 * target;
  const bool summarised = summaries.size() == ranks;
  if (summarised) {
    balance->threshold = ThresholdOf(summaries, target);
  } else if (too_many && target > 0) {
    balance->threshold = TargetthLargest(kept, target);
  }
  // With a threshold of zero every sum was kept, so no lower threshold would keep more.
  const bool too_few = 3 * count < 2 * target && balance->threshold > 0;
  balance->summarise = too_few || balance->uses % kSummariseEvery == 0;
  if (count == 0 || !(summarised || too_few)) return;
  // This happens however few sums were kept, because an owner that its cap limited must get a
  // smaller region.
  balance->begins.resize(ranks - 1);
  for (uint64_t r = 1; r < ranks; ++r) balance->begins[r - 1] = kept.indices[r * count / ranks];
  WEIR_CHECK(Fits(balance->begins, elements, world));
}

}  // namespace weir
