#include "datapath/codec/codec.h"

#include <array>

#include "datapath/base/check.h"
#include "datapath/codec/kernels.h"

namespace weir {

Status Codec::Validate(const CodecParams& params, int world) const {
  const CodecTraits& traits = Traits();
  // Written so that NaN fails.
  if (traits.uses_ratio &&
      !(params.ratio >= traits.ratio_min && params.ratio <= traits.ratio_max)) {
    return InvalidArgument(StrCat(traits.name, ": ratio ", params.ratio, " outside [",
                                  traits.ratio_min, ", ", traits.ratio_max, "]"));
  }
  if (world < 1 || (traits.world_max > 0 && world > traits.world_max)) {
    return InvalidArgument(StrCat(traits.name, ": world size ", world, ", allowed 1 to ",
                                  traits.world_max > 0 ? traits.world_max : INT32_MAX));
  }
  return OkStatus();
}

std::unique_ptr<CodecState> Codec::NewState(size_t, const CodecParams&) const { return nullptr; }

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

void Codec::Accumulate(std::span<std::byte>, std::span<const std::byte>) const {
  WEIR_CHECK(!"Accumulate called on a codec whose payloads do not add lane by lane");
}

Status Codec::DecodeIndices(std::span<const std::byte>, size_t, std::vector<uint32_t>*) const {
  return Unimplemented(StrCat(Traits().name, " does not select elements"));
}

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
  // Never destroyed: sessions may outlive static destructors.
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
