// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/codec.h"

#include <algorithm>
#include <array>

#include "datapath/base/check.h"
#include "datapath/codec/kernels/kernels.h"

namespace weir {

bool IsRawFloat(const CodecTraits& traits) {
  return !traits.lossy && traits.form == PayloadForm::kLanes &&
         traits.settings.front().fixed_bits == 32;
}

const CodecSetting* FindSetting(const CodecTraits& traits, const CodecParams& params, int world) {
  for (const CodecSetting& setting : traits.settings) {
    if (params.bits != 0 && params.bits != setting.bits) continue;
    if (world < setting.world_min) continue;
    if (setting.world_max == 0 || world <= setting.world_max) return &setting;
  }
  return nullptr;
}

Status Codec::Validate(const CodecParams& params, int world) const {
  const CodecTraits& traits = Traits();
  // Written so that NaN fails the test.
  if (traits.uses_ratio &&
      !(params.ratio >= traits.ratio_min && params.ratio <= traits.ratio_max)) {
    return InvalidArgument(StrCat(traits.name, ": ratio ", params.ratio, " outside [",
                                  traits.ratio_min, ", ", traits.ratio_max, "]"));
  }
  if (world >= 1 && FindSetting(traits, params, world) != nullptr) return OkStatus();
  std::string offered;
  for (const CodecSetting& setting : traits.settings) {
    if (!offered.empty()) offered += ", ";
    if (setting.bits != 0) offered += StrCat(setting.bits, " bits on ");
    offered += StrCat(setting.world_min, " to ",
                      setting.world_max > 0 ? setting.world_max : INT32_MAX, " ranks");
  }
  return InvalidArgument(StrCat(traits.name, ": world size ", world, " with bits ", params.bits,
                                "; allowed: ", offered));
}

std::vector<std::byte> CodecState::Save() const { return {}; }

Status CodecState::Load(std::span<const std::byte> bytes) {
  if (bytes.empty()) return OkStatus();
  return DataLoss(
      StrCat("codec state: expected nothing at offset 0, found ", bytes.size(), " bytes"));
}

void CodecState::Scale(double) {}

std::unique_ptr<CodecState> Codec::NewState(size_t, const EncodeContext&) const { return nullptr; }

SharedMax Codec::LocalMax(std::span<const float> gradient, std::span<const float> residual,
                          const EncodeContext&) const {
  return MaxAbs(gradient, residual);
}

StatusOr<EncodeResult> Codec::EncodeWithFeedback(std::span<const float> gradient,
                                                 std::span<const float> residual,
                                                 std::span<float> residual_out,
                                                 const EncodeContext& context,
                                                 std::span<std::byte> out) const {
  const size_t n = gradient.size();
  WEIR_CHECK(residual.size() == n && residual_out.size() == n);
  kernels::Sums ignored;
  for (size_t at = 0; at < n; at += kernels::kBlockElements) {
    kernels::Measure({.gradient = gradient.data() + at,
                      .residual = residual.data() + at,
                      .size = std::min(kernels::kBlockElements, n - at)},
                     residual_out.data() + at, &ignored);
  }
  WEIR_ASSIGN_OR_RETURN(const EncodeResult result, Encode(residual_out, context, out));
  if (result.non_finite) return result;
  WEIR_RETURN_IF_ERROR(DecodeAdd(out.first(result.bytes), context, -1.0f, residual_out));
  return result;
}

Status Codec::DecodeSum(std::span<const std::vector<std::byte>> payloads,
                        const EncodeContext& context, float scale, std::span<float> out,
                        const std::function<void(std::span<float>)>& done) const {
  std::fill(out.begin(), out.end(), 0.0f);
  EncodeContext sender = context;
  for (size_t rank = 0; rank < payloads.size(); ++rank) {
    sender.rank = static_cast<int>(rank);
    const Status status = DecodeAdd(payloads[rank], sender, scale, out);
    if (!status.ok()) return Annotate(status, StrCat("payload of rank ", rank));
  }
  Finish(context, scale, out);
  done(out);
  return OkStatus();
}

void Codec::Finish(const EncodeContext&, float, std::span<float>) const {}

size_t Codec::LaneBytes(const EncodeContext&) const { return 0; }

void Codec::Accumulate(const EncodeContext&, std::span<std::byte>,
                       std::span<const std::byte>) const {
  WEIR_CHECK(!"Accumulate called on a codec whose payloads do not add lane by lane");
}

Status Codec::DecodeIndices(std::span<const std::byte>, size_t, std::vector<uint32_t>*) const {
  return Unimplemented(StrCat(Traits().name, " does not select elements"));
}

void Codec::LearnSelection(const EncodeContext&, size_t, size_t) const {}

#define WEIR_CODEC(Name, wire_id) void Register##Name(Registry<Codec>& registry, uint8_t id);
#include "datapath/codec/builtin_codecs.def"
#undef WEIR_CODEC

namespace {

constexpr std::array kWireIds = {
#define WEIR_CODEC(Name, wire_id) wire_id,
#include "datapath/codec/builtin_codecs.def"
#undef WEIR_CODEC
};

constexpr bool IdsAreValid() {
  for (size_t i = 0; i < kWireIds.size(); ++i) {
    if (kWireIds[i] < 1 || kWireIds[i] > 255) return false;
    for (size_t j = 0; j < i; ++j) {
      if (kWireIds[i] == kWireIds[j]) return false;
    }
  }
  return true;
}
static_assert(IdsAreValid(), "builtin_codecs.def: wire ids must differ and lie in 1..255");

}  // namespace

const Registry<Codec>& Codecs() {
  // Never destroyed, because sessions may outlive static destructors.
  static const Registry<Codec>* const registry = [] {
    auto* filled = new Registry<Codec>("codec");
#define WEIR_CODEC(Name, wire_id) Register##Name(*filled, wire_id);
#include "datapath/codec/builtin_codecs.def"
#undef WEIR_CODEC
    return filled;
  }();
  return *registry;
}

}  // namespace weir
