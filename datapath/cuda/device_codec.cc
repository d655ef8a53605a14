// SPDX-License-Identifier: Apache-2.0
#include "datapath/cuda/device_codec.h"

#include "datapath/cuda/memory.h"
#include "datapath/cuda/passes.h"

namespace weir::cuda {

EncodeResult ResultOf(const Outcome& outcome) {
  EncodeResult result{.bytes = outcome.bytes, .non_finite = outcome.max_bits >= kInfinityBits};
  if (result.non_finite) return result;
  result.energy_in = outcome.energy_in;
  result.energy_lost = outcome.energy_lost;
  return result;
}

GradientStatistics StatisticsOf(const Outcome& outcome, std::span<const uint32_t> bins, size_t n) {
  GradientStatistics statistics;
  std::copy(bins.begin(), bins.end(), statistics.bins().begin());
  const bool non_finite = outcome.max_bits >= kInfinityBits;
  statistics.Finish(n, outcome.energy_in,
                    std::bit_cast<float>(std::min(outcome.max_bits, kInfinityBits)), non_finite);
  return statistics;
}

size_t DeviceCodec::PinnedBytes(size_t, const DeviceCall&) const { return 0; }

size_t DeviceCodec::MaxCount(size_t) const { return 1; }

Status DeviceCodec::LocalMax(std::span<const float> gradient, std::span<const float> residual,
                             const DeviceCall& call, float* maxima) const {
  WEIR_RETURN_IF_ERROR(CheckCall(*this, call, gradient.size(), {}));
  return MaxMagnitude(gradient, residual, call, maxima);
}

StatusOr<Outcome> DeviceCodec::Resolve(const PassOperands&, const DeviceCall& call,
                                       std::span<std::byte>) const {
  Outcome outcome{};
  WEIR_RETURN_IF_ERROR(CopyToHost(&outcome, call.outcome, sizeof(outcome), call.stream));
  WEIR_RETURN_IF_ERROR(Synchronise(call.stream));
  return outcome;
}

Status DeviceCodec::Accumulate(const DeviceCall&, std::span<std::byte>,
                               std::span<const std::byte>) const {
  return Unimplemented(StrCat(host().Traits().name, ": payloads do not add on the device"));
}

#define WEIR_DEVICE_CODEC(Name) void Add##Name(std::vector<const DeviceCodec*>& codecs);
#include "datapath/cuda/device_codecs.def"
#undef WEIR_DEVICE_CODEC

const std::vector<const DeviceCodec*>& DeviceCodecs() {
  // Never destroyed, because sessions may outlive static destructors.
  static const auto* const all = [] {
    auto* filled = new std::vector<const DeviceCodec*>();
#define WEIR_DEVICE_CODEC(Name) Add##Name(*filled);
#include "datapath/cuda/device_codecs.def"
#undef WEIR_DEVICE_CODEC
    return filled;
  }();
  return *all;
}

const DeviceCodec* FindDeviceCodec(std::string_view name) {
  for (const DeviceCodec* codec : DeviceCodecs()) {
    if (codec->host().Traits().name == name) return codec;
  }
  return nullptr;
}

}  // namespace weir::cuda
