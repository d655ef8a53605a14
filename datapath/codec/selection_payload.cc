#include "datapath/codec/selection_payload.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/codec/index_coding.h"
#include "datapath/codec/kernels.h"

namespace weir {
namespace {

constexpr size_t kBatch = 1024;

struct Header {
  IndexFormat index = {};
  ValueFormat format = ValueFormat::kNone;
  int8_t exponent = 0;
  uint32_t count = 0;
  uint32_t index_bytes = 0;
};

size_t ValueBytes(ValueFormat format) {
  switch (format) {
    case ValueFormat::kNone:
      return 0;
    case ValueFormat::kHalf:
      return 2;
    case ValueFormat::kFloat:
      return 4;
  }
  return 0;
}

void WriteHeader(const Header& header, std::span<std::byte> out) {
  ByteWriter writer(out.first(kSelectionHeaderBytes));
  writer.Write(static_cast<uint8_t>(header.index.coding));
  writer.Write(header.index.rice_bits);
  writer.Write(static_cast<uint8_t>(header.format));
  writer.Write(header.exponent);
  writer.Write(header.count);
  writer.Write(header.index_bytes);
  WEIR_CHECK(writer.ok() && writer.offset() == kSelectionHeaderBytes);
}

/// Reads and checks the header against n and the payload's size.
StatusOr<Header> ReadHeader(std::span<const std::byte> payload, size_t n) {
  ByteReader reader(payload);
  Header header;
  uint8_t coding = 0, format = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&coding));
  WEIR_RETURN_IF_ERROR(reader.Read(&header.index.rice_bits));
  WEIR_RETURN_IF_ERROR(reader.Read(&format));
  WEIR_RETURN_IF_ERROR(reader.Read(&header.exponent));
  WEIR_RETURN_IF_ERROR(reader.Read(&header.count));
  WEIR_RETURN_IF_ERROR(reader.Read(&header.index_bytes));
  if (coding > static_cast<uint8_t>(IndexCoding::kBitmap)) {
    return DataLoss(StrCat("index coding at offset 0: expected 0 or 1, found ", int{coding}));
  }
  if (header.index.rice_bits > 31) {
    return DataLoss(StrCat("rice parameter at offset 1: expected at most 31, found ",
                           int{header.index.rice_bits}));
  }
  if (format > static_cast<uint8_t>(ValueFormat::kFloat)) {
    return DataLoss(StrCat("value format at offset 2: expected 0, 1 or 2, found ", int{format}));
  }
  header.index.coding = static_cast<IndexCoding>(coding);
  header.format = static_cast<ValueFormat>(format);
  if (header.exponent < -126 || header.exponent > 126) {
    return DataLoss(
        StrCat("exponent at offset 3: expected -126 to 126, found ", int{header.exponent}));
  }
  if (header.count > n) {
    return DataLoss(StrCat("count at offset 4: expected at most ", n, ", found ", header.count));
  }
  const uint64_t expected =
      uint64_t{header.index_bytes} + uint64_t{header.count} * ValueBytes(header.format);
  if (expected != reader.remaining()) {
    return DataLoss(StrCat("payload body at offset ", kSelectionHeaderBytes, ": expected ",
                           expected, " bytes, found ", reader.remaining()));
  }
  return header;
}

/// Decodes `size` <= kBatch values that start at byte `at` of the payload.
Status ReadValues(const Header& header, std::span<const std::byte> payload, size_t at, size_t size,
                  float* values) {
  std::memset(values, 0, size * sizeof(float));
  bool finite = true;
  if (header.format == ValueFormat::kHalf) {
    uint16_t lanes[kBatch];
    std::memcpy(lanes, payload.data() + at, size * sizeof(uint16_t));
    const float factor = std::bit_cast<float>(static_cast<uint32_t>(127 - header.exponent) << 23);
    finite = kernels::DecodeAddHalf(lanes, size, factor, values);
  } else {
    finite = kernels::DecodeAddFloat(payload.data() + at, size, 1.0f, values);
  }
  if (finite) return OkStatus();
  return DataLoss(StrCat("value that is not finite in the batch at offset ", at));
}

}  // namespace

size_t MaxSelectionBytes(size_t n, double ratio, bool with_values) {
  const size_t cap = SelectionCap(n, ratio);
  return kSelectionHeaderBytes + MaxIndexBytes(n, cap) + (with_values ? cap * sizeof(float) : 0);
}

size_t WriteSelection(const Selection& selection, const SelectionState& state, size_t n,
                      std::span<std::byte> out) {
  Header header{.format = selection.format,
                .exponent = static_cast<int8_t>(selection.exponent),
                .count = static_cast<uint32_t>(selection.count)};
  if (header.format != ValueFormat::kHalf) header.exponent = 0;
  header.index_bytes =
      static_cast<uint32_t>(EncodeIndices({state.indices.get(), selection.count}, n,
                                          out.subspan(kSelectionHeaderBytes), &header.index));
  WriteHeader(header, out);
  const size_t values_at = kSelectionHeaderBytes + header.index_bytes;
  const size_t value_bytes = selection.count * ValueBytes(header.format);
  WEIR_CHECK(values_at + value_bytes <= out.size());
  const void* values = header.format == ValueFormat::kHalf
                           ? static_cast<const void*>(state.halves.get())
                           : static_cast<const void*>(state.values.get());
  if (value_bytes > 0) std::memcpy(out.data() + values_at, values, value_bytes);
  return values_at + value_bytes;
}

Status AddSelection(std::span<const std::byte> payload, float scale, std::span<float> out) {
  WEIR_ASSIGN_OR_RETURN(const Header header, ReadHeader(payload, out.size()));
  if (header.format == ValueFormat::kNone && header.count > 0) {
    return DataLoss("value format at offset 2: expected 1 or 2, found 0");
  }
  IndexDecoder decoder(header.index, payload.subspan(kSelectionHeaderBytes, header.index_bytes),
                       out.size(), header.count, kSelectionHeaderBytes);
  uint32_t indices[kBatch];
  float values[kBatch];
  size_t at = kSelectionHeaderBytes + header.index_bytes;
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const size_t size, decoder.Next(indices));
    if (size == 0) break;
    WEIR_RETURN_IF_ERROR(ReadValues(header, payload, at, size, values));
    for (size_t i = 0; i < size; ++i) out[indices[i]] += scale * values[i];
    at += size * ValueBytes(header.format);
  }
  return decoder.Finish();
}

Status ReadSelectionIndices(std::span<const std::byte> payload, size_t n,
                            std::vector<uint32_t>* indices) {
  indices->clear();
  WEIR_ASSIGN_OR_RETURN(const Header header, ReadHeader(payload, n));
  // A Rice code is at least one bit: a count beyond the bits there are must not size an allocation.
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
