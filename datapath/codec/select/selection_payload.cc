// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/selection_payload.h"

#include <algorithm>
#include <cstring>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/codec/select/index_coding.h"

namespace weir {
namespace {

/// Reads the header of a selection of n elements and checks it against the size of the payload.
StatusOr<SelectionHeader> ReadHeader(std::span<const std::byte> payload, size_t n) {
  SelectionHeader header;
  WEIR_RETURN_IF_ERROR(ReadSelectionHeader(payload, n, &header));
  const uint64_t expected = uint64_t{header.index_bytes} + ValueBytes(header.format, header.count);
  const size_t found = payload.size() - kSelectionHeaderBytes;
  if (expected != found) {
    return DataLoss(StrCat("payload body at offset ", kSelectionHeaderBytes, ": expected ",
                           expected, " bytes, found ", found));
  }
  return header;
}

}  // namespace

void WriteSelectionHeader(const SelectionHeader& header, std::span<std::byte> out) {
  ByteWriter writer(out.first(kSelectionHeaderBytes));
  writer.Write(static_cast<uint8_t>(header.index.coding));
  writer.Write(header.index.rice_bits);
  writer.Write(static_cast<uint8_t>(header.format));
  writer.Write(header.exponent);
  writer.Write(header.count);
  writer.Write(header.index_bytes);
  WEIR_CHECK(writer.ok() && writer.offset() == kSelectionHeaderBytes);
}

Status ReadSelectionHeader(std::span<const std::byte> payload, size_t positions,
                           SelectionHeader* header) {
  ByteReader reader(payload);
  uint8_t coding = 0, format = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&coding));
  WEIR_RETURN_IF_ERROR(reader.Read(&header->index.rice_bits));
  WEIR_RETURN_IF_ERROR(reader.Read(&format));
  WEIR_RETURN_IF_ERROR(reader.Read(&header->exponent));
  WEIR_RETURN_IF_ERROR(reader.Read(&header->count));
  WEIR_RETURN_IF_ERROR(reader.Read(&header->index_bytes));
  if (coding < static_cast<uint8_t>(kIndexCodingFirst) ||
      coding > static_cast<uint8_t>(kIndexCodingLast)) {
    return DataLoss(StrCat("index coding at offset 0: expected ",
                           static_cast<int>(kIndexCodingFirst), " to ",
                           static_cast<int>(kIndexCodingLast), ", found ", int{coding}));
  }
  if (header->index.rice_bits > 31) {
    return DataLoss(StrCat("rice parameter at offset 1: expected at most 31, found ",
                           int{header->index.rice_bits}));
  }
  if (format > static_cast<uint8_t>(kValueFormatLast)) {
    return DataLoss(StrCat("value format at offset 2: expected at most ",
                           static_cast<int>(kValueFormatLast), ", found ", int{format}));
  }
  header->index.coding = static_cast<IndexCoding>(coding);
  header->format = static_cast<ValueFormat>(format);
  if (header->exponent < -126 || header->exponent > 126) {
    return DataLoss(
        StrCat("exponent at offset 3: expected -126 to 126, found ", int{header->exponent}));
  }
  if (header->count > positions) {
    return DataLoss(
        StrCat("count at offset 4: expected at most ", positions, ", found ", header->count));
  }
  return OkStatus();
}

size_t MaxSelectionBytes(size_t n, size_t cap, ValueFormat format) {
  return kSelectionHeaderBytes + MaxIndexBytes(n, cap) + MaxValueBytes(format, cap);
}

size_t WriteSelection(const Selection& selection, const SelectionState& state, size_t n,
                      std::span<std::byte> out) {
  SelectionHeader header{.format = selection.format,
                         .exponent = static_cast<int8_t>(selection.exponent),
                         .count = static_cast<uint32_t>(selection.count)};
  if (header.format != ValueFormat::kHalf) header.exponent = 0;
  header.index_bytes =
      static_cast<uint32_t>(EncodeIndices({state.indices.get(), selection.count}, n,
                                          out.subspan(kSelectionHeaderBytes), &header.index));
  WriteSelectionHeader(header, out);
  const size_t values_at = kSelectionHeaderBytes + header.index_bytes;
  const size_t value_bytes = ValueBytes(header.format, selection.count);
  WEIR_CHECK(values_at + value_bytes <= out.size());
  const void* values = header.format == ValueFormat::kFloat
                           ? static_cast<const void*>(state.values.get())
                           : static_cast<const void*>(state.bytes());
  if (value_bytes > 0) std::memcpy(out.data() + values_at, values, value_bytes);
  return values_at + value_bytes;
}

StatusOr<SelectionReader> SelectionReader::Open(std::span<const std::byte> payload, size_t n) {
  WEIR_ASSIGN_OR_RETURN(const SelectionHeader header, ReadHeader(payload, n));
  if (header.format == ValueFormat::kNone && header.count > 0) {
    return DataLoss("value format at offset 2: expected values, found 0");
  }
  return SelectionReader(header, payload, n);
}

SelectionReader::SelectionReader(const SelectionHeader& header, std::span<const std::byte> payload,
                                 size_t n)
    : indices_(header.index, payload.subspan(kSelectionHeaderBytes, header.index_bytes), n,
               header.count, kSelectionHeaderBytes),
      values_(header.format, header.exponent, payload, kSelectionHeaderBytes + header.index_bytes,
              header.count) {}

/// Makes the next batch current and decodes the one after it. The lines of `out` that it touches
/// are prefetched, because they are scattered over memory and can arrive while the current batch is
/// decoded and added.
Status SelectionReader::Advance(std::span<const float> out) {
  current_ ^= 1;
  added_ = 0;
  Batch& next = batches_[current_ ^ 1];
  WEIR_ASSIGN_OR_RETURN(next.size, indices_.Next(next.positions));
  for (size_t i = 0; i < next.size && next.positions[i] - begin_ < out.size(); ++i) {
    __builtin_prefetch(&out[next.positions[i] - begin_], 1);
  }
  return values_.Next(batches_[current_].size, numbers_);
}

Status SelectionReader::AddNext(float scale, std::span<float> out) {
  if (!opened_) {
    opened_ = true;
    WEIR_RETURN_IF_ERROR(Advance(out));
    WEIR_RETURN_IF_ERROR(Advance(out));
  }
  const size_t end = begin_ + out.size();
  for (;;) {
    const uint32_t* const positions = batches_[current_].positions;
    const size_t size = batches_[current_].size;
    const auto stop = static_cast<size_t>(
        std::lower_bound(positions + added_, positions + size, end) - positions);
    for (; added_ < stop; ++added_) out[positions[added_] - begin_] += scale * numbers_[added_];
    if (added_ < size || size == 0) break;
    WEIR_RETURN_IF_ERROR(Advance(out));
  }
  begin_ = end;
  return OkStatus();
}

Status ReadSelectionIndices(std::span<const std::byte> payload, size_t n,
                            std::vector<uint32_t>* indices) {
  indices->clear();
  WEIR_ASSIGN_OR_RETURN(const SelectionHeader header, ReadHeader(payload, n));
  // A Rice code has at least one bit. A count above the number of bits must not determine the size
  // of an allocation.
  if (header.count > uint64_t{header.index_bytes} * 8) {
    return DataLoss(StrCat("count at offset 4: expected at most ", uint64_t{header.index_bytes} * 8,
                           " (one bit each), found ", header.count));
  }
  indices->resize(header.count);
  IndexDecoder decoder(header.index, payload.subspan(kSelectionHeaderBytes, header.index_bytes), n,
                       header.count, kSelectionHeaderBytes);
  WEIR_ASSIGN_OR_RETURN(const size_t size, decoder.Next(*indices));
  if (size != header.count) return DataLoss("indices end early");
  return decoder.Finish();
}

}  // namespace weir
