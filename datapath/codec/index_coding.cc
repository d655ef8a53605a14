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

/// A gap from here on follows this octet as four octets.
constexpr uint32_t kLongGap = 255;
/// With fewer plain bits Rice codes take at most an octet each: there are at most two zeros a
/// position.
constexpr unsigned kOctetsRiceBitsMin = 6;

size_t OctetsSize(std::span<const uint32_t> indices) {
  size_t long_gaps = 0;
  uint32_t next = 0;
  for (const uint32_t index : indices) {
    long_gaps += index - next >= kLongGap;
    next = index + 1;
  }
  return indices.size() + long_gaps * sizeof(uint32_t);
}

size_t EncodeOctets(std::span<const uint32_t> indices, std::byte* out) {
  std::byte* to = out;
  uint32_t next = 0;
  for (const uint32_t index : indices) {
    const uint32_t gap = index - next;
    next = index + 1;
    *to++ = static_cast<std::byte>(std::min(gap, kLongGap));
    if (gap < kLongGap) continue;
    std::memcpy(to, &gap, sizeof(gap));
    to += sizeof(gap);
  }
  return static_cast<size_t>(to - out);
}

/// Least significant bit first, into bytes that the caller sized.
class BitWriter {
 public:
  explicit BitWriter(std::span<std::byte> out) : out_(out) {}

  /// Appends the low `bits` <= 32 bits of value; higher ones are zero.
  void Put(uint64_t value, unsigned bits) {
    pending_ |= value << pending_bits_;
    pending_bits_ += bits;
    const unsigned whole = pending_bits_ / 8;
    // Always eight octets where there is room: a branch on how many are ready would often be wrong.
    if (bytes_ + sizeof(pending_) <= out_.size()) {
      std::memcpy(out_.data() + bytes_, &pending_, sizeof(pending_));
    } else {
      std::memcpy(out_.data() + bytes_, &pending_, whole);
    }
    bytes_ += whole;
    pending_ >>= 8 * whole;
    pending_bits_ %= 8;
  }
  void PutZeros(uint64_t count) {
    for (; count > 32; count -= 32) Put(0, 32);
    Put(0, static_cast<unsigned>(count));
  }
  size_t Finish() {
    if (pending_bits_ > 0) out_[bytes_++] = static_cast<std::byte>(pending_);
    return bytes_;
  }

 private:
  std::span<std::byte> out_;
  size_t bytes_ = 0;
  uint64_t pending_ = 0;
  unsigned pending_bits_ = 0;  // below 8 between calls
};

uint64_t RiceSizeBits(std::span<const uint32_t> indices, unsigned rice_bits) {
  if (indices.empty()) return 0;
  uint64_t quotients = indices[0] >> rice_bits;
  for (size_t i = 1; i < indices.size(); ++i) {
    quotients += (indices[i] - indices[i - 1] - 1) >> rice_bits;
  }
  return quotients + indices.size() * (rice_bits + 1);
}

size_t EncodeRice(std::span<const uint32_t> indices, unsigned rice_bits, std::span<std::byte> out) {
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
  if (rice_bits >= kOctetsRiceBitsMin && OctetsSize(indices) < std::min(rice_bytes, bitmap_bytes)) {
    *format = {IndexCoding::kOctets, 0};
    return EncodeOctets(indices, out.data());
  }
  // With no plain bits the code is a bitmap in disguise, only slower to read.
  if (indices.empty() || (rice_bits > 0 && rice_bytes <= bitmap_bytes)) {
    *format = {IndexCoding::kRice, static_cast<uint8_t>(rice_bits)};
    return EncodeRice(indices, rice_bits, out);
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
    case IndexCoding::kOctets:
      return NextOctets(out);
  }
  return Error("unknown index coding");
}

StatusOr<size_t> IndexDecoder::NextRice(std::span<uint32_t> out) {
  if (format_.rice_bits > kRiceBitsMax) return Error("rice parameter above 31");
  size_t filled = 0;
  while (true) {
    const size_t some = ShortRice(out.subspan(filled));
    filled += some;
    left_ -= some;
    if (filled == out.size() || left_ == 0) return filled;
    WEIR_RETURN_IF_ERROR(OneRice(&out[filled]));
    ++filled;
    --left_;
  }
}

/// Decodes codes as long as each lies whole in the eight octets around the read position and yields
/// an index below n; OneRice goes on where it stops and says what is wrong. Several codes are taken
/// from one load, since a load that waits for the length of the code before is what costs.
size_t IndexDecoder::ShortRice(std::span<uint32_t> out) {
  const unsigned rice_bits = format_.rice_bits;
  const uint64_t mask = (uint64_t{1} << rice_bits) - 1;
  const size_t most = std::min(out.size(), left_);
  uint64_t next = next_min_;
  size_t filled = 0;
  bool stuck = false;
  while (!stuck && filled < most && bit_ / 8 + 8 <= bytes_.size()) {
    uint64_t window = 0;
    std::memcpy(&window, bytes_.data() + bit_ / 8, 8);
    window >>= bit_ % 8;
    const unsigned valid = 64 - static_cast<unsigned>(bit_ % 8);
    unsigned used = 0;
    const size_t before = filled;
    while (filled < most && window != 0) {
      const auto zeros = static_cast<unsigned>(std::countr_zero(window));
      if (used + zeros + 1 + rice_bits > valid) break;
      const uint64_t tail = window >> zeros >> 1;
      const uint64_t index = next + (uint64_t{zeros} << rice_bits | (tail & mask));
      if (index >= n_) break;
      out[filled++] = static_cast<uint32_t>(index);
      next = index + 1;
      window = tail >> rice_bits;
      used += zeros + 1 + rice_bits;
    }
    bit_ += used;
    stuck = filled == before;
  }
  next_min_ = next;
  return filled;
}

/// Decodes one code of any length.
Status IndexDecoder::OneRice(uint32_t* out) {
  const unsigned rice_bits = format_.rice_bits;
  const uint64_t quotient_max = n_ >> rice_bits;
  const size_t end = bytes_.size() * 8;
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
  *out = static_cast<uint32_t>(index);
  next_min_ = index + 1;
  return OkStatus();
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

StatusOr<size_t> IndexDecoder::NextOctets(std::span<uint32_t> out) {
  size_t filled = 0;
  for (; filled < out.size() && left_ > 0; ++filled) {
    size_t at = bit_ / 8;
    if (at >= bytes_.size()) return Error("bytes ran out");
    auto gap = static_cast<uint32_t>(bytes_[at++]);
    if (gap == kLongGap) {
      if (bytes_.size() - at < sizeof(gap)) return Error("bytes ran out");
      std::memcpy(&gap, bytes_.data() + at, sizeof(gap));
      at += sizeof(gap);
      if (gap < kLongGap) return Error("short gap in the long form");
    }
    const uint64_t index = next_min_ + gap;
    if (index >= n_) return Error("index past the end");
    bit_ = at * 8;
    out[filled] = static_cast<uint32_t>(index);
    next_min_ = index + 1;
    --left_;
  }
  return filled;
}

Status IndexDecoder::Finish() {
  const size_t end = bytes_.size() * 8;
  if (left_ > 0) return Error("finished early");
  if (format_.coding != IndexCoding::kBitmap && end - bit_ >= 8) return Error("surplus bytes");
  while (bit_ < end) {
    size_t valid = 0;
    if (Window(&valid) != 0) return Error("surplus bits are set");
    bit_ += valid;
  }
  return OkStatus();
}

}  // namespace weir
