// SPDX-License-Identifier: Apache-2.0
// EDEN: the bucket is rotated by a randomised Hadamard transform. Each coordinate, divided by the
// root mean square of its rotation, becomes the nearest of 2^bits Lloyd-Max centroids c of the
// standard normal distribution. With y the coordinates of a rotation, the scale <y, y> / <c, y>
// makes the estimate unbiased for a rotation drawn uniformly. The transform comes close to that
// unless a few elements hold most of the energy of their rotation; then the loss is smaller, but
// biased. Every rank has a rotation of its own, from the shared seed and its number. With 1 bit
// this is DRIVE: the signs of the rotated bucket and the scale ||y||_2^2 / ||y||_1.
// Payload: for each rotation of 1024 elements a float32 scale, at least 0, then bit planes as
// kernels::EncodeCodebook writes them. A rotation whose root mean square is outside 2^-100 .. 2^100
// is sent as zeros.
// Source: Vargaftik et al., "EDEN: communication-efficient and robust distributed mean estimation",
// ICML 2022, and "DRIVE: one-bit distributed mean estimation", NeurIPS 2021; deviates: rotations of
// 1024 elements with a scale each, no sub-sampling below one bit.

#include <cmath>
#include <iterator>
#include <vector>

#include "datapath/codec/fused_codec.h"
#include "datapath/codec/kernels/hadamard.h"
#include "datapath/codec/rotation.h"

namespace weir {
namespace {

constexpr int kBitsMax = kernels::kCodebookBitsMax;
/// Lloyd-Max quantisers of the standard normal distribution of 1 to 8 bits (J. Max, "Quantizing for
/// minimum distortion", 1960, table I, extended to more digits and bits): their distortion, and the
/// 2^(bits - 1) positive centroids of each width. The one of 1 bit, sqrt(2 / pi), is a part of the
/// scale, as in DRIVE.
constexpr double kDistortion[] = {0.36338022763241865, 0.11748185,    0.034547761,   0.0095010080,
                                  0.0025046684,        0.00064423967, 0.00016347823, 4.1185083e-05};
constexpr float kCentroids[] = {
    // 1 to 4 bits.
    1.0f, 0.452780035f, 1.51041761f, 0.245094179f, 0.756005281f, 1.34390928f, 2.1519457f,
    0.12839503f, 0.388048299f, 0.656759119f, 0.942340456f, 1.2562312f, 1.61804639f, 2.06901723f,
    2.73258957f,
    // 5 bits.
    0.0658896598f, 0.19805183f, 0.331378306f, 0.466699523f, 0.604933624f, 0.747135704f,
    0.894565117f, 1.04878332f, 1.21180438f, 1.38634034f, 1.57622808f, 1.78723322f, 2.0287284f,
    2.3177394f, 2.69111958f, 3.26073249f,
    // 6 bits.
    0.0334095064f, 0.100278289f, 0.167296903f, 0.234566985f, 0.302192846f, 0.370282645f,
    0.438949672f, 0.508313781f, 0.578503031f, 0.649655581f, 0.721921941f, 0.795467656f,
    0.870476587f, 0.947154945f, 1.02573635f, 1.10648824f, 1.18972014f, 1.27579449f, 1.36514102f,
    1.45827637f, 1.55583122f, 1.6585889f, 1.76754188f, 1.88397724f, 2.00961104f, 2.14681022f,
    2.29898121f, 2.4713048f, 2.67227384f, 2.91740679f, 3.24043706f, 3.74410127f,
    // 7 bits.
    0.0168281695f, 0.050490864f, 0.0841726421f, 0.117886282f, 0.151644648f, 0.185460721f,
    0.21934764f, 0.253318733f, 0.287387558f, 0.321567943f, 0.355874025f, 0.390320296f, 0.42492165f,
    0.459693429f, 0.49465148f, 0.529812212f, 0.565192654f, 0.600810526f, 0.636684311f, 0.672833333f,
    0.709277847f, 0.746039137f, 0.783139616f, 0.820602955f, 0.858454207f, 0.896719957f, 0.93542849f,
    0.974609974f, 1.01429667f, 1.05452319f, 1.09532672f, 1.13674739f, 1.17882859f, 1.22161742f,
    1.26516511f, 1.30952762f, 1.35476629f, 1.40094856f, 1.44814893f, 1.49645f, 1.54594375f,
    1.59673313f, 1.64893391f, 1.70267702f, 1.75811144f, 1.81540771f, 1.87476255f, 1.93640456f,
    2.00060177f, 2.06767148f, 2.13799338f, 2.21202752f, 2.29033916f, 2.37363427f, 2.46281143f,
    2.55904052f, 2.66388654f, 2.77951426f, 2.90904707f, 3.05724615f, 3.2319332f, 3.44743027f,
    3.73493664f, 4.18969416f,
    // 8 bits.
    0.00844619322f, 0.0253393831f, 0.0422349838f, 0.0591346043f, 0.0760398564f, 0.0929523554f,
    0.109873722f, 0.126805581f, 0.143749568f, 0.160707322f, 0.177680496f, 0.194670749f,
    0.211679755f, 0.2287092f, 0.245760782f, 0.262836217f, 0.279937235f, 0.297065586f, 0.314223039f,
    0.33141138f, 0.348632422f, 0.365887997f, 0.383179964f, 0.400510208f, 0.417880642f, 0.435293207f,
    0.452749878f, 0.470252661f, 0.487803597f, 0.505404764f, 0.523058279f, 0.540766299f,
    0.558531025f, 0.576354701f, 0.59423962f, 0.612188126f, 0.630202613f, 0.648285532f, 0.666439391f,
    0.684666759f, 0.702970268f, 0.72135262f, 0.739816586f, 0.758365009f, 0.777000815f, 0.795727007f,
    0.814546679f, 0.833463011f, 0.852479283f, 0.871598873f, 0.890825266f, 0.910162056f,
    0.929612959f, 0.949181811f, 0.968872581f, 0.988689374f, 1.00863644f, 1.02871819f, 1.04893919f,
    1.06930417f, 1.08981807f, 1.11048599f, 1.13131325f, 1.15230539f, 1.17346818f, 1.19480761f,
    1.21632997f, 1.23804179f, 1.25994992f, 1.2820615f, 1.30438402f, 1.32692533f, 1.34969366f,
    1.37269763f, 1.39594633f, 1.41944929f, 1.44321656f, 1.46725873f, 1.49158699f, 1.51621314f,
    1.54114966f, 1.56640979f, 1.59200755f, 1.61795784f, 1.64427649f, 1.67098037f, 1.69808745f,
    1.72561696f, 1.75358945f, 1.78202694f, 1.81095309f, 1.84039334f, 1.87037512f, 1.90092806f,
    1.93208422f, 1.9638784f, 1.99634845f, 2.02953567f, 2.06348518f, 2.09824651f, 2.13387415f,
    2.17042825f, 2.20797546f, 2.24658993f, 2.28635445f, 2.32736193f, 2.36971713f, 2.41353874f,
    2.45896213f, 2.50614256f, 2.5552594f, 2.60652147f, 2.66017397f, 2.71650758f, 2.77587065f,
    2.83868579f, 2.9054729f, 2.97688213f, 3.05374202f, 3.13713253f, 3.22850021f, 3.32984847f,
    3.44407168f, 3.57558797f, 3.73166626f, 3.92563778f, 4.18659544f, 4.60353561f};
static_assert(std::size(kDistortion) == kBitsMax && std::size(kCentroids) == (1 << kBitsMax) - 1);

constexpr double kRmsMin = 0x1p-100, kRmsMax = 0x1p100;
/// The largest scale that an encoder sends: the largest rms divided by the smallest centroid.
constexpr float kScaleMax = 0x1p104f;

/// Every rank uses another rotation, so that equal gradients do not have equal errors. Rank 0 uses
/// the seed itself.
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

/// Writes one rotation, and either replaces it by its decoded value or, if requested, adds its
/// loss.
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
    // |y - s c|^2, expanded.
    const double s = scale;
    *block.lost += square - 2 * s * sums.product + s * s * sums.square;
  } else {
    kernels::DecodeCodebook(book, planes, block.size, scale, block.y);
  }
}

/// Includes the scale of a rotation.
double BitsPerElement(int bits) {
  return 8.0 * static_cast<double>(BlockBytes(bits, kernels::kRotationElements)) /
         static_cast<double>(kernels::kRotationElements);
}

class EdenCodec : public FusedCodec {
 public:
  EdenCodec();

  const CodecTraits& Traits() const override { return traits_; }
  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override;
  /// One pass, O(n log 1024), as is encoding.
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context, float scale,
                   std::span<float> out) const override;

 private:
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override;
  const kernels::Codebook& Choose(const EncodeContext& context) const;

  CodecTraits traits_ = {
      .name = "eden",
      .summary = "Lloyd-Max levels of the rotated bucket, unbiased (Vargaftik et al. 2021, 2022)",
      .unbiased = true,
      .form = PayloadForm::kOpaque,
      .settings = {},
      .error_model = ErrorModel::kRelative,
      .rotated = true,
  };
  std::vector<kernels::Codebook> books_;  // one for each setting
};

EdenCodec::EdenCodec() {
  for (const int bits : {4, 8, 7, 6, 5, 3, 2, 1}) {
    const double distortion = kDistortion[bits - 1];
    books_.push_back(kernels::MakeCodebook(bits, kCentroids + (1 << (bits - 1)) - 1));
    // The factor that makes the estimate unbiased turns the distortion D into D / (1 - D).
    traits_.settings.push_back({.bits = bits,
                                .fixed_bits = BitsPerElement(bits),
                                .relative_error_squared = distortion / (1 - distortion)});
  }
}

const kernels::Codebook& EdenCodec::Choose(const EncodeContext& context) const {
  const CodecSetting* setting = FindSetting(traits_, context.params, context.world);
  WEIR_CHECK(setting != nullptr);
  return books_[setting - traits_.settings.data()];
}

size_t EdenCodec::MaxEncodedBytes(size_t n, const EncodeContext& context) const {
  return PayloadBytes(Choose(context).bits, n);
}

StatusOr<EncodeResult> EdenCodec::Pass(const PassOperands& operands, const EncodeContext& context,
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

Status EdenCodec::DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                            float scale, std::span<float> out) const {
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

}  // namespace

void RegisterEden(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<EdenCodec>());
}

}  // namespace weir
