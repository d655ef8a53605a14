// SPDX-License-Identifier: Apache-2.0
#include "datapath/exchange/summed_exchange.h"

#include "datapath/base/random.h"

namespace weir {

EncodeContext SummedExchange::RegionContext(size_t region, int encoder, Encoding encoding) const {
  EncodeContext context = context_;
  context.shape = regions_[region].shape;
  context.rank = encoder;
  context.seed = MixSeed(context_.seed, 2 * region + (encoding == Encoding::kSum ? 1 : 0));
  context.state = nullptr;
  return context;
}

Status SummedExchange::EncodeNext() {
  return Annotate(EncodeOwn(), StrCat("the sum that rank ", env_.rank, " encodes"));
}

Status SummedExchange::MovePayloads(Group& group) {
  const bool first = part_ == kFirstRoundPart;
  WEIR_RETURN_IF_ERROR(MoveRound(group, first ? SumRound::kAdd : SumRound::kDistribute));
  // Perhaps not all ranks have heard of it yet.
  if (first) flags_ |= group.flags() & kFlagNonFinite;
  return OkStatus();
}

Status SummedExchange::EncodeSum(std::span<const float> sum, double owed_share) {
  if (sum.empty()) return OkStatus();
  EncodeContext context = RegionContext(own_, env_.rank, Encoding::kSum);
  context.state = in_.memory.states.back().get();
  ScratchPool& pool = in_.device == nullptr ? env_.pool : in_.device->device().pinned();
  sum_buffer_ = pool.Take(codec().MaxEncodedBytes(sum.size(), context));
  const std::span<std::byte> out = sum_buffer_.bytes();
  WEIR_ASSIGN_OR_RETURN(const EncodeResult result, Encode(sum, context, out));
  if (result.non_finite) {
    flags_ |= kFlagNonFinite;
  } else if (result.energy_in > 0) {
    outcome_.gain *= 1 - result.energy_lost / result.energy_in;
  }
  if (aggregate_.has_value()) outcome_.residual_energy += result.energy_lost * owed_share;
  sum_payload_ = out.first(result.bytes);
  return OkStatus();
}

StatusOr<EncodeResult> SummedExchange::Encode(std::span<const float> sum,
                                              const EncodeContext& context,
                                              std::span<std::byte> out) {
  const ResidualBuffers kept = aggregate_.value_or(ResidualBuffers{});
  if (in_.device != nullptr) {
    WEIR_ASSIGN_OR_RETURN(DeviceBucket* const region, DeviceRegion());
    return region->Encode(codec(), kept.current, kept.next, context, out);
  }
  if (!aggregate_.has_value()) return codec().Encode(sum, context, out);
  return codec().EncodeWithFeedback(sum, kept.current, kept.next, context, out);
}

StatusOr<DeviceBucket*> SummedExchange::DeviceRegion() {
  if (device_region_ == nullptr) {
    const Region own = Own();
    WEIR_ASSIGN_OR_RETURN(device_region_, in_.device->Part(own.begin, own.size));
  }
  return device_region_.get();
}

Status SummedExchange::DecodeRegion(size_t region, int encoder, Encoding encoding,
                                    std::span<const std::byte> payload, float scale,
                                    std::span<float> out) const {
  if (!out.empty()) {
    return codec().DecodeAdd(payload, RegionContext(region, encoder, encoding), scale, out);
  }
  if (payload.empty()) return OkStatus();
  return DataLoss(
      StrCat("expected nothing for a region without elements, found ", payload.size(), " bytes"));
}

}  // namespace weir
