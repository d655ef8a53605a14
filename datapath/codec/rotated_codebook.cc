#include "datapath/codec/rotated_codebook.h"

#include <cmath>

#include "datapath/codec/rotation.h"

namespace weir {
namespace {

constexpr double kRmsMin = 0x1p-100, kRmsMax = 0x1p100;
/// No encoder sends more: the largest rms over the smallest centroid.
constexpr float kScaleMax = 0x1p104f;

/// Every rank rotates by itself, so that equal gradients do not err together. Rank 0 has the seed.
uint64_t SenderSeed(const EncodeContext& context) {
  return context.seed + static_cast<uint64_t>(context.rank) * 0x9E3779B97F4A7C15;
}

size_t BlockBytes(int bits, size_t size) { return sizeof(float) + size / 8 * bits; }

size_t PayloadBytes(int bits, size_t n) {
  constexpr size_t kSize = kernels::kRotationElements;
  const size_t rest = n % kSize;
  return n / kSize * BlockBytes(bits, kSize) +
         (rest == 0 ? 0 : BlockBytes(bits, RotatedElements(rest)));
}

/// Writes one rotation and replaces it by what the receiver sees or, when that is asked for, adds
/// what is lost.
void EncodeBlock(const kernels::Codebook& book, const RotatedBlock& block, std::byte* out) {
  const double square = kernels::SquareSum(block.y, block.size);
  const double rms = std::sqrt(square / static_cast<double>(block.size));
  if (!(rms >= kRmsMin && rms <= kRmsMax)) {
    std::fill_n(out, BlockBytes(book.bits, block.size), std::byte{0});
    std::fill_n(block.y, block.size, 0.0f);
    if (block.lost != nullptr) *block.lost += square;
    return;
  }
  auto* planes = reinterpret_cast<uint8_t*>(out + sizeof(float));
  const kernels::CodebookSums sums =
      kernels::EncodeCodebook(book, static_cast<float>(1 / rms), block.y, block.size, planes);
  const auto scale = static_cast<float>(square / sums.product);
  std::memcpy(out, &scale, sizeof(scale));
  if (block.lost != nullptr) {
    // |y - s c|^2 multiplied out.
    const double s = scale;
    *block.lost += square - 2 * s * sums.product + s * s * sums.square;
  } else {
    kernels::DecodeCodebook(book, planes, block.size, scale, block.y);
  }
}

}  // namespace

double RotatedCodebookBits(int bits) {
  return 8.0 * static_cast<double>(BlockBytes(bits, kernels::kRotationElements)) /
         static_cast<double>(kernels::kRotationElements);
}

RotatedCodebookCodec::RotatedCodebookCodec(CodecTraits traits, std::vector<kernels::Codebook> books)
    : traits_(std::move(traits)), books_(std::move(books)) {
  WEIR_CHECK(books_.size() == traits_.settings.size());
}

const kernels::Codebook& RotatedCodebookCodec::Choose(const EncodeContext& context) const {
  const CodecSetting* setting = FindSetting(traits_, context.params, context.world);
  WEIR_CHECK(setting != nullptr);
  return books_[setting - traits_.settings.data()];
}

size_t RotatedCodebookCodec::MaxEncodedBytes(size_t n, const EncodeContext& context) const {
  return PayloadBytes(Choose(context).bits, n);
}

StatusOr<EncodeResult> RotatedCodebookCodec::Pass(const PassOperands& operands,
                                                  const EncodeContext& context,
                                                  std::span<std::byte> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const kernels::Codebook& book = Choose(context);
  const size_t bytes = PayloadBytes(book.bits, operands.gradient.size());
  WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, bytes));
  const size_t stride = BlockBytes(book.bits, kernels::kRotationElements);
  const kernels::Sums sums =
      Rotation(SenderSeed(context))
          .Encode(operands, context.statistics, [&](const RotatedBlock& block) {
            EncodeBlock(book, block, out.data() + block.index * stride);
          });
  return LaneResult(sums, out.first(bytes));
}

Status RotatedCodebookCodec::DecodeAdd(std::span<const std::byte> payload,
                                       const EncodeContext& context, float scale,
                                       std::span<float> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const kernels::Codebook& book = Choose(context);
  WEIR_RETURN_IF_ERROR(CheckLaneBytes(traits_, payload, PayloadBytes(book.bits, out.size())));
  const size_t stride = BlockBytes(book.bits, kernels::kRotationElements);
  return Rotation(SenderSeed(context)).DecodeAdd(scale, out, [&](const RotatedBlock& block) {
    const std::byte* from = payload.data() + block.index * stride;
    float block_scale;
    std::memcpy(&block_scale, from, sizeof(block_scale));
    if (!(block_scale >= 0 && block_scale <= kScaleMax)) {
      return DataLoss(StrCat(traits_.name, " payload: scale ", block_scale, " at offset ",
                             block.index * stride, ", expected 0 to 2^104"));
    }
    kernels::DecodeCodebook(book, reinterpret_cast<const uint8_t*>(from + sizeof(float)),
                            block.size, block_scale, block.y);
    return OkStatus();
  });
}

}  // namespace weir
