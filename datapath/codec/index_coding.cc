#include "datapath/codec/index_coding.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/check.h"

namespace weir {
namespace {

constexpr unsigned kRiceBitsMax = 31;

/// floor(log2(n / count)): the optimum is round(log2(ln 2 * n / count)), which this meets within
/// one part in fifty of the boundary, and it bounds the unary parts: n >> bits < 2 * count.
unsigned RiceBits(size_t n, size_t count) {
  if (count == 0) return 0;
  const unsigned bits = static_cast<unsigned>(std::bit_width(n / count)) - 1;
  return std::min(bits, kRiceBitsMax);
}

/// Least significant bit first, into bytes that the caller sized.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : out_(out) {}

  /// Appends the low `bits` <= 32 bits of value; higher ones are zero.
  void Put(uint64_t value, unsigned bits) {
    pending_ |= value << pending_bits_;
    pending_bits_ += bits;
    if (pending_bits_ < 32) return;
    std::memcpy(out_ + bytes_, &pending_, 4);
    bytes_ += 4;
    pending_ >>= 32;
    pending_bits_ -= 32;
  }
  void PutZeros(uint64_t count) {
    for (; count > 32; count -= 32) Put(0, 32);
    Put(0, static_cast<unsigned>(count));
  }
  size_t Finish() {
    for (; pending_bits_ > 0; pending_bits_ -= std::min(8u, pending_bits_)) {
      out_[bytes_++] = static_cast<std::byte>(pending_);
      pending_ >>= 8;
    }
    return bytes_;
  }

 private:
  std::byte* out_;
  size_t bytes_ = 0;
  uint64_t pending_ = 0;
  unsigned pending_bits_ = 0;
};

uint64_t RiceSizeBits(std::span<const uint32_t> indices, unsigned rice_bits) {
  uint64_t quotients = 0;
  uint32_t next = 0;
  for (const uint32_t index : indices) {
    quotients += (index - next) >> rice_bits;
    next = index + 1;
  }
  return quotients + indices.size() * (rice_bits + 1);
}

size_t EncodeRice(std::span<const uint32_t> indices, unsigned rice_bits, std::byte* out) {
  BitWriter writer(out);
  const uint32_t mask = (uint32_t{1} << rice_bits) - 1;
  uint32_t next = 0;
  for (const uint32_t index : indices) {
    const uint32_t gap = index - next;
    next = index + 1;
    const uint64_t quotient = gap >> rice_bits;
    const uint64_t tail = 1 | uint64_t{gap & mask} << 1;  // the stop bit, then the plain bits
    if (quotient + rice_bits + 1 <= 32) {
      writer.Put(tail << quotient, static_cast<unsigned>(quotient) + rice_bits + 1);
    } else {
      writer.PutZeros(quotient);
      writer.Put(tail, rice_bits + 1);
    }
  }
  return writer.Finish();
}

}  // namespace

size_t MaxIndexBytes(size_t n, size_t count_max) {
  const size_t bitmap = (n + 7) / 8;
  const size_t most = std::min(n, count_max);
  if (most == 0) return 0;
  // For a given parameter the size grows with the count, up to the last count that uses it.
  uint64_t bits = 0;
  for (unsigned b = RiceBits(n, most); b <= kRiceBitsMax; ++b) {
    const uint64_t count = std::min<uint64_t>(most, b == 0 ? n : n >> b);
    bits = std::max<uint64_t>(bits, count * (b + 1) + (n >> b));
  }
  return std::min<size_t>(bitmap, (bits + 7) / 8);
}

size_t EncodeIndices(std::span<const uint32_t> indices, size_t n, std::span<std::byte> out,
                     IndexFormat* format) {
  WEIR_CHECK(indices.size() <= n);
  const unsigned rice_bits = RiceBits(n, indices.size());
  const size_t rice_bytes = (RiceSizeBits(indices, rice_bits) + 7) / 8;
  const size_t bitmap_bytes = (n + 7) / 8;
  WEIR_CHECK(out.size() >= std::min(rice_bytes, bitmap_bytes));
  // With no plain bits the code is a bitmap in disguise, only slower to read.
  if (indices.empty() || (rice_bits > 0 && rice_bytes <= bitmap_bytes)) {
    *format = {IndexCoding::kRice, static_cast<uint8_t>(rice_bits)};
    return EncodeRice(indices, rice_bits, out.data());
  }
  *format = {IndexCoding::kBitmap, 0};
  std::memset(out.data(), 0, bitmap_bytes);
  for (const uint32_t index : indices) {
    out[index >> 3] |= static_cast<std::byte>(1u << (index & 7));
  }
  return bitmap_bytes;
}

IndexDecoder::IndexDecoder(IndexFormat format, std::span<const std::byte> bytes, size_t n,
                           size_t count, size_t offset)
    : format_(format), bytes_(bytes), n_(n), left_(count), offset_(offset) {}

Status IndexDecoder::Error(const char* what) const {
  return DataLoss(StrCat("index coding at offset ", offset_ + std::min(bit_ / 8, bytes_.size()),
                         ": ", what, " (", left_, " of the announced indices still expected, n ",
                         n_, ")"));
}

uint64_t IndexDecoder::Window(size_t* valid) const {
  const size_t byte = bit_ / 8, shift = bit_ % 8;
  const size_t available = std::min<size_t>(8, bytes_.size() - byte);
  uint64_t window = 0;
  std::memcpy(&window, bytes_.data() + byte, available);
  *valid = available * 8 - shift;
  return window >> shift;
}

StatusOr<size_t> IndexDecoder::Next(std::span<uint32_t> out) {
  if (left_ == 0) return size_t{0};
  switch (format_.coding) {
    case IndexCoding::kRice:
      return NextRice(out);
    case IndexCoding::kBitmap:
      return NextBitmap(out);
  }
  return Error("unknown index coding");
}

StatusOr<size_t> IndexDecoder::NextRice(std::span<uint32_t> out) {
  const unsigned rice_bits = format_.rice_bits;
  if (rice_bits > kRiceBitsMax) return Error("rice parameter above 31");
  const uint64_t quotient_max = n_ >> rice_bits;
  const size_t end = bytes_.size() * 8;
  size_t filled = 0;
  for (; filled < out.size() && left_ > 0; ++filled) {
    uint64_t quotient = 0;
    size_t valid = 0;
    uint64_t window = 0;
    while (true) {
      if (bit_ >= end) return Error("bits ran out");
      window = Window(&valid);
      if (window != 0) break;
      quotient += valid;
      bit_ += valid;
      if (quotient > quotient_max) return Error("index past the end");
    }
    const unsigned zeros = static_cast<unsigned>(std::countr_zero(window));
    quotient += zeros;
    if (quotient > quotient_max) return Error("index past the end");
    if (end - bit_ < zeros + 1 + rice_bits) return Error("bits ran out");
    bit_ += zeros + 1;
    if (valid < zeros + 1 + rice_bits) {
      window = rice_bits == 0 ? 0 : Window(&valid);  // at least 57 bits, or all that are left
    } else {
      window = window >> zeros >> 1;
    }
    bit_ += rice_bits;
    const uint64_t low = window & ((uint64_t{1} << rice_bits) - 1);
    const uint64_t index = next_min_ + (quotient << rice_bits | low);
    if (index >= n_) return Error("index past the end");
    out[filled] = static_cast<uint32_t>(index);
    next_min_ = index + 1;
    --left_;
  }
  return filled;
}

StatusOr<size_t> IndexDecoder::NextBitmap(std::span<uint32_t> out) {
  if (bytes_.size() != (n_ + 7) / 8) return Error("bitmap of the wrong size");
  const size_t end = bytes_.size() * 8;
  size_t filled = 0;
  while (filled < out.size() && left_ > 0) {
    if (bit_ >= end) return Error("bits ran out");
    size_t valid = 0;
    const uint64_t window = Window(&valid);
    if (window == 0) {
      bit_ += valid;
      continue;
    }
    bit_ += static_cast<size_t>(std::countr_zero(window));
    if (bit_ >= n_) return Error("index past the end");
    out[filled++] = static_cast<uint32_t>(bit_++);
    --left_;
  }
  return filled;
}

Status IndexDecoder::Finish() {
  const size_t end = bytes_.size() * 8;
  if (left_ > 0) return Error("finished early");
  if (format_.coding == IndexCoding::kRice && end - bit_ >= 8) return Error("surplus bytes");
  while (bit_ < end) {
    size_t valid = 0;
    if (Window(&valid) != 0) return Error("surplus bits are set");
    bit_ += valid;
  }
  return OkStatus();
}

}  // namespace weir
