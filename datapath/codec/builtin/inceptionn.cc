// SPDX-License-Identifier: Apache-2.0
// INCEPTIONN: sends as many bits as a magnitude needs under an absolute error bound of 2^-bits:
// none below the bound, 8 below 128 times the bound, 16 below 1, and float32 from there on,
// distinguished by a class of two bits per element. Most gradients must have been scaled to below
// 1, so the savings depend on their scale, not on their distribution.
// Payload, for every 2048 elements (the last block has fewer): the classes, of 2 bits each, padded
// to an octet; then for each class in turn the numbers of its elements in order: int8 times the
// bound, int16 times 2^-15, float32. Numbers are truncated towards zero, so no magnitude is ever
// increased.
// Source: Li et al., "A network-centric hardware/algorithm co-design to accelerate distributed
// training of deep neural networks", MICRO 2018 (section V); deviates: the numbers of a block are
// grouped by class in place of bursts of eight, the 8 bits have the widest range that the bound
// permits, and truncation errors stay in a residual.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/fixed.h"
#include "datapath/codec/kernels/quantise.h"

namespace weir {
namespace {

size_t ClassBytes(size_t elements) { return (elements + 3) / 4; }
/// The size of the classes of n elements; whole blocks have a multiple of four elements.
size_t LeastBytes(size_t n) { return ClassBytes(n); }

float BoundOf(int bits) { return std::ldexp(1.0f, -bits); }

/// Narrows integers to Number. Returns the place of the next ones.
template <typename Number>
std::byte* Store(const int32_t* numbers, size_t count, std::byte* out) {
  Number narrow[kernels::kBlockElements];
  for (size_t i = 0; i < count; ++i) narrow[i] = static_cast<Number>(numbers[i]);
  std::memcpy(out, narrow, count * sizeof(Number));
  return out + count * sizeof(Number);
}

/// The numbers of one block of a payload, as floats.
struct Numbers {
  float small[kernels::kBlockElements], medium[kernels::kBlockElements],
      large[kernels::kBlockElements];
};

template <typename Number>
const std::byte* Load(const std::byte* from, size_t count, float step, float* out) {
  Number narrow[kernels::kBlockElements];
  std::memcpy(narrow, from, count * sizeof(Number));
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(narrow[i]) * step;
  return from + count * sizeof(Number);
}

/// The numbers of elements of class 1, 2 and 3.
std::array<size_t, 4> CountClasses(const uint8_t* packed, size_t bytes) {
  constexpr uint64_t kLow = 0x5555555555555555ull;
  std::array<size_t, 4> counts{};
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, packed + i, std::min(sizeof(word), bytes - i));
    const uint64_t low = word & kLow, high = word >> 1 & kLow;
    counts[1] += static_cast<size_t>(std::popcount(low & ~high));
    counts[2] += static_cast<size_t>(std::popcount(high & ~low));
    counts[3] += static_cast<size_t>(std::popcount(high & low));
  }
  return counts;
}

/// Adds each element's number. Four elements at a time are fast if all are zero or all small.
void AddNumbers(const uint8_t* packed, const Numbers& numbers, std::span<float> out) {
  constexpr uint8_t kAllSmall = 0x55;
  constexpr float kZero = 0;
  const float* next[] = {nullptr, numbers.small, numbers.medium, numbers.large};
  for (size_t i = 0; i < out.size(); i += 4) {
    const unsigned classes = packed[i / 4];
    const size_t size = std::min<size_t>(4, out.size() - i);
    if (classes == 0) continue;
    if (classes == kAllSmall && size == 4) {
      for (size_t j = 0; j < 4; ++j) out[i + j] += next[1][j];
      next[1] += 4;
      continue;
    }
    for (size_t j = 0; j < size; ++j) {
      next[0] = &kZero;
      out[i + j] += *next[classes >> 2 * j & 3]++;
    }
  }
}

class InceptionnCodec : public FusedCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext&) const override {
    return LeastBytes(n) + n * sizeof(float);
  }

  /// O(n). kDataLoss with the offset: the size differs from that which the classes imply, a number
  /// is not finite, or padding is not zero.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const float bound = BoundOf(Bits(context)) * scale;
    size_t at = 0;
    for (size_t i = 0; i < out.size(); i += kernels::kBlockElements) {
      const std::span<float> to = out.subspan(i, std::min(kernels::kBlockElements, out.size() - i));
      WEIR_ASSIGN_OR_RETURN(at, AddBlock(payload, at, bound, scale, to));
    }
    if (at == payload.size()) return OkStatus();
    return DataLoss(StrCat("inceptionn payload: expected ", at, " bytes, found ", payload.size(),
                           " (offset ", at, ")"));
  }

 private:
  int Bits(const EncodeContext& context) const {
    return FindSetting(traits_, context.params, context.world)->bits;
  }

  /// Adds the block at offset `at` and returns the offset of the next one.
  StatusOr<size_t> AddBlock(std::span<const std::byte> payload, size_t at, float bound, float scale,
                            std::span<float> out) const {
    const size_t class_bytes = ClassBytes(out.size());
    if (payload.size() - at < class_bytes) return Truncated(at, class_bytes, payload.size());
    const auto* packed = reinterpret_cast<const uint8_t*>(payload.data() + at);
    const size_t used = out.size() * 2 % 8;
    if (used != 0 && packed[class_bytes - 1] >> used != 0) {
      return DataLoss(StrCat("inceptionn payload: padding at offset ", at + class_bytes - 1));
    }
    const std::array<size_t, 4> counts = CountClasses(packed, class_bytes);
    at += class_bytes;
    const size_t bytes = counts[1] + counts[2] * sizeof(int16_t) + counts[3] * sizeof(float);
    if (payload.size() - at < bytes) return Truncated(at, bytes, payload.size());
    Numbers numbers;
    const std::byte* from = payload.data() + at;
    from = Load<int8_t>(from, counts[1], bound, numbers.small);
    from = Load<int16_t>(from, counts[2], 0x1p-15f * scale, numbers.medium);
    std::fill_n(numbers.large, counts[3], 0.0f);
    if (!kernels::DecodeAddFloat(from, counts[3], scale, numbers.large)) {
      return DataLoss(StrCat("inceptionn payload: a number after offset ", at, " is not finite"));
    }
    AddNumbers(packed, numbers, out);
    return at + bytes;
  }

  static Status Truncated(size_t at, size_t wanted, size_t size) {
    return DataLoss(StrCat("inceptionn payload: expected ", wanted, " more bytes at offset ", at,
                           ", found ", size - at));
  }

  /// One pass, O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t n = operands.gradient.size();
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, MaxEncodedBytes(n, context)));
    const int bits = Bits(context);
    std::byte* to = out.data();
    kernels::FixedCodes codes;
    const kernels::Sums sums = ForEachBlock(
        operands, context.statistics,
        [&](const kernels::Block& block, size_t, float* rest, kernels::Sums* pass_sums) {
          kernels::SplitFixed(block, bits, rest, &codes, pass_sums);
          kernels::PackBits(codes.classes, block.size, 2, reinterpret_cast<uint8_t*>(to));
          to += ClassBytes(block.size);
          to = Store<int8_t>(codes.small, codes.smalls, to);
          to = Store<int16_t>(codes.medium, codes.mediums, to);
          std::memcpy(to, codes.large, codes.larges * sizeof(float));
          to += codes.larges * sizeof(float);
        });
    // For a non-finite input, the payload has only classes, all zero.
    const size_t bytes = sums.non_finite() ? LeastBytes(n) : static_cast<size_t>(to - out.data());
    return LaneResult(sums, out.first(bytes));
  }

  const CodecTraits traits_ = {
      .name = "inceptionn",
      .summary = "0, 8, 16 or 32 bits by magnitude under an error bound (Li et al. 2018)",
      .needs_error_feedback = true,
      // The error bound is absolute, so the loss depends on the scale of gradients.
      .opt_in = true,
      .form = PayloadForm::kOpaque,
      // The size if most elements fit 8 bits.
      .settings = {{.bits = 10, .fixed_bits = 10},
                   {.bits = 8, .fixed_bits = 10},
                   {.bits = 12, .fixed_bits = 10},
                   {.bits = 14, .fixed_bits = 10}},
      .error_model = ErrorModel::kUnknown,
  };
};

}  // namespace

void RegisterInceptionn(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<InceptionnCodec>());
}

}  // namespace weir
