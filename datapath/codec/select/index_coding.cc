// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/index_coding.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/check.h"
#include "datapath/codec/kernels/index.h"
#include "datapath/codec/kernels/quantise.h"

namespace weir {
namespace {

constexpr unsigned kRiceBitsMax = 31;

/// floor(log2(n / count)). The optimum is round(log2(ln 2 * n / count)), which agrees except within
/// one part in fifty of the boundary. It also bounds the unary parts: n >> bits < 2 * count.
unsigned RiceBits(size_t n, size_t count) {
  if (count == 0) return 0;
  const unsigned bits = static_cast<unsigned>(std::bit_width(n / count)) - 1;
  return std::min(bits, kRiceBitsMax);
}

/// A gap of at least this size is sent as this octet and then four octets.
constexpr uint32_t kLongGap = 255;
/// With fewer plain bits than this, Rice codes take at most an octet per position, because there
/// are at most two zeros per position.
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

/// Writes bits, least significant first, into bytes that the caller has sized.
class BitWriter {
 public:
  explicit BitWriter(std::span<std::byte> out) : out_(out) {}

  /// Appends the low `bits` <= 32 bits of value, whose higher bits are zero.
  void Put(uint64_t value, unsigned bits) {
    word_ |= value << used_;
    used_ += bits;
    if (used_ < kWordBits) return;
    Store();
    used_ -= kWordBits;
    word_ = used_ == 0 ? 0 : value >> (bits - used_);
  }
  /// Appends `zeros` zeros and a one.
  void PutUnary(uint64_t zeros) {
    uint64_t end = used_ + zeros;
    for (; end >= kWordBits; end -= kWordBits) Store();
    used_ = static_cast<unsigned>(end);
    Put(1, 1);
  }
  size_t Finish() {
    const size_t rest = (used_ + 7) / 8;
    if (rest > 0) std::memcpy(out_.data() + bytes_, &word_, rest);
    return bytes_ + rest;
  }

 private:
  static constexpr unsigned kWordBits = 64;
  void Store() {
    std::memcpy(out_.data() + bytes_, &word_, sizeof(word_));
    bytes_ += sizeof(word_);
    word_ = 0;
  }

  std::span<std::byte> out_;
  size_t bytes_ = 0;
  uint64_t word_ = 0;
  unsigned used_ = 0;  // bits of the word, below 64 between calls
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
    writer.Put((index - next) & mask, rice_bits);
    next = index + 1;
  }
  next = 0;
  for (const uint32_t index : indices) {
    writer.PutUnary((index - next) >> rice_bits);
    next = index + 1;
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
  // Without plain bits the code is a bitmap that is slower to read.
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
    : format_(format), bytes_(bytes), n_(n), left_(count), offset_(offset) {
  // The quotients follow the plain bits.
  if (format.coding == IndexCoding::kRice) bit_ = count * format.rice_bits;
}

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
  const size_t size = std::min(out.size(), left_);
  for (size_t at = 0; at < size; at += kRicePart) {
    WEIR_RETURN_IF_ERROR(RicePart(out.subspan(at, std::min(kRicePart, size - at))));
  }
  return size;
}

Status IndexDecoder::RicePart(std::span<uint32_t> out) {
  uint32_t places[1 + kRicePart + kernels::kOnesSlack];
  uint32_t* const ones = places + 1;
  ones[-1] = ~uint32_t{0};
  const auto* const bytes = reinterpret_cast<const uint8_t*>(bytes_.data());
  const size_t begin = bit_;
  if (kernels::FindOnes(bytes, bytes_.size(), out.size(), &bit_, ones) < out.size()) {
    return Error("bits ran out");
  }
  // This also bounds every single quotient.
  const uint64_t zeros = bit_ - begin - out.size();
  if (n_ == 0 || zeros > (n_ - 1) >> format_.rice_bits) return Error("index past the end");
  if (format_.rice_bits > 0 && format_.rice_bits <= 8 && plain_bit_ % 8 == 0) {
    uint8_t plain[kRicePart];
    kernels::UnpackBits(bytes + plain_bit_ / 8, out.size(), format_.rice_bits, plain);
    next_min_ =
        kernels::PlacePositions(ones, plain, out.size(), format_.rice_bits, next_min_, out.data());
    plain_bit_ += out.size() * format_.rice_bits;
  } else {
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t quotient = ones[i] - places[i] - 1;  // places[i] belongs to the one before
      const uint64_t index = next_min_ + (quotient << format_.rice_bits | TakePlainBits());
      out[i] = static_cast<uint32_t>(index);
      next_min_ = index + 1;
    }
  }
  if (next_min_ > n_) return Error("index past the end");
  left_ -= out.size();
  return OkStatus();
}

uint64_t IndexDecoder::TakePlainBits() {
  const size_t byte = plain_bit_ / 8;
  uint64_t window = 0;
  std::memcpy(&window, bytes_.data() + byte, std::min(sizeof(window), bytes_.size() - byte));
  window >>= plain_bit_ % 8;
  plain_bit_ += format_.rice_bits;
  return window & ((uint64_t{1} << format_.rice_bits) - 1);
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
