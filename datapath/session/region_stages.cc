// Operations whose sums are encoded again on their way. Each rank encodes every region for its
// owner, with its residual as ever; the owner sums what it decodes, adds its second residual,
// encodes the sum, and keeps what that lost. All ranks deliver what the second payloads decode to.
//
// Seeds and states are a region's own, and differ between the two encodings, so that rounding at
// random is independent everywhere. NaN that an owner meets first (a sum of finite values may
// overflow) is announced with the second payload.

#include <algorithm>

#include "datapath/base/random.h"
#include "datapath/session/operation.h"
#include "datapath/session/passes.h"
#include "datapath/session/region_work.h"

namespace weir {

bool CarriesRegions(const Operation& op) {
  return op.collective->Traits().form == PayloadForm::kRegions;
}

void OperationStages::PrepareRegions(Operation& op) {
  Bucket& bucket = *op.bucket;
  op.regions.emplace();
  op.regions->regions = CutRegions({bucket.elements, bucket.shape}, options_.world);
  op.regions->own = options_.rank;
  if (!RenewsRegionStates(op)) return;
  auto& states = bucket.region_states.states;
  const auto add = [&](size_t region, Encoding encoding) {
    states.push_back(op.codec->NewState(op.regions->regions[region].size,
                                        RegionContext(op, region, options_.rank, encoding)));
  };
  for (size_t r = 0; r < op.regions->regions.size(); ++r) add(r, Encoding::kPart);
  add(options_.rank, Encoding::kSum);
}

bool OperationStages::RenewsRegionStates(Operation& op) {
  RegionStates& kept = op.bucket->region_states;
  const PayloadForm form = op.collective->Traits().form;
  if (kept.form == form && SameStateChoice(kept.choice, op.choice)) return false;
  kept = {.choice = op.choice, .form = form, .states = {}};
  return true;
}

EncodeContext OperationStages::RegionContext(const Operation& op, size_t region, int encoder,
                                             Encoding encoding) const {
  EncodeContext context = op.context;
  context.shape = op.regions->regions[region].shape;
  context.rank = encoder;
  context.seed = MixSeed(op.context.seed, 2 * region + (encoding == Encoding::kSum ? 1 : 0));
  context.state = nullptr;
  return context;
}

Status OperationStages::EncodeRegions(Operation& op) {
  RegionWork& work = *op.regions;
  std::vector<size_t> bytes_max;
  size_t total = 0;
  for (size_t r = 0; r < work.regions.size(); ++r) {
    const EncodeContext context = RegionContext(op, r, options_.rank, Encoding::kPart);
    const size_t size = work.regions[r].size;
    bytes_max.push_back(size == 0 ? 0 : op.codec->MaxEncodedBytes(size, context));
    work.payload_bytes_max = std::max(work.payload_bytes_max, bytes_max.back());
    total += bytes_max.back();
  }
  op.payload = pool_.Take(total);
  work.payloads.assign(work.regions.size(), {});
  double lost = 0;
  for (size_t r = 0; r < work.regions.size(); ++r) {
    const auto [begin, size, shape] = work.regions[r];
    if (size == 0) continue;
    EncodeContext context = RegionContext(op, r, options_.rank, Encoding::kPart);
    context.state = op.bucket->region_states.states[r].get();
    const auto out = op.payload.bytes().subspan(op.payload_bytes, bytes_max[r]);
    const StatusOr<EncodeResult> result =
        op.residual.has_value()
            ? op.codec->EncodeWithFeedback(op.gradient.subspan(begin, size),
                                           op.residual->current.subspan(begin, size),
                                           op.residual->next.subspan(begin, size), context, out)
            : op.codec->Encode(op.gradient.subspan(begin, size), context, out);
    if (!result.ok()) return Annotate(result.status(), StrCat("encoding with ", op.choice.codec));
    work.payloads[r] = out.first(result->bytes);
    op.payload_bytes += result->bytes;
    if (result->non_finite) op.flags |= kFlagNonFinite;
    op.energy_in += result->energy_in;
    lost += result->energy_lost;
  }
  const bool finite = (op.flags & kFlagNonFinite) == 0;
  if (finite && op.energy_in > 0) op.gain = 1 - lost / op.energy_in;
  if (op.residual.has_value()) op.residual_energy = lost;
  if (op.sample_statistics && finite) Sample(op, GradientStatistics());
  return OkStatus();
}

Status OperationStages::RunRegions(Operation& op, Group& group) {
  RegionWork& work = *op.regions;
  const size_t own = work.regions[options_.rank].size;
  work.sum = pool_.Take(own * sizeof(float));
  std::fill_n(work.sum.floats(own).begin(), own, 0.0f);
  weir::Exchange exchange;
  exchange.regions = work.payloads;
  exchange.payload_bytes_max = work.payload_bytes_max;
  op.gathered = gathered_pool_.Take();
  exchange.gathered = &op.gathered;
  // What codecs do inside of the collective is theirs and not the network's.
  exchange.add_region = [&](int from, std::span<const std::byte> payload) {
    const TimePoint begin = clock_.Now();
    const Status status =
        DecodeRegion(op, options_.rank, from, Encoding::kPart, payload, 1, work.sum.floats(own));
    const Duration took = clock_.Now() - begin;
    op.times.decode += took;
    op.times.network -= took;
    return status;
  };
  exchange.encode_sum = [&] {
    const TimePoint begin = clock_.Now();
    StatusOr<std::span<const std::byte>> payload = EncodeSum(op, group, work.sum.floats(own));
    const Duration took = clock_.Now() - begin;
    op.times.encode += took;
    op.times.network -= took;
    return payload;
  };
  return op.collective->Run(group, exchange).status();
}

StatusOr<std::span<const std::byte>> OperationStages::EncodeSum(Operation& op, Group& group,
                                                                std::span<const float> sum) {
  RegionWork& work = *op.regions;
  if (sum.empty()) return std::span<const std::byte>();
  EncodeContext context = RegionContext(op, work.own, options_.rank, Encoding::kSum);
  context.state = op.bucket->region_states.states.back().get();
  work.sum_payload = pool_.Take(op.codec->MaxEncodedBytes(sum.size(), context));
  const std::span<std::byte> out = work.sum_payload.bytes();
  WEIR_ASSIGN_OR_RETURN(
      const EncodeResult result,
      work.server.has_value()
          ? op.codec->EncodeWithFeedback(sum, work.server->current, work.server->next, context, out)
          : op.codec->Encode(sum, context, out));
  if (result.non_finite) {
    group.Announce(kFlagNonFinite);
  } else if (result.energy_in > 0) {
    op.gain *= 1 - result.energy_lost / result.energy_in;
  }
  // As if every rank that has a part of the sum owed its share of it.
  if (work.server.has_value()) {
    op.residual_energy += result.energy_lost / static_cast<double>(work.regions.size());
  }
  return std::span<const std::byte>(out.first(result.bytes));
}

Status OperationStages::DecodeRegion(const Operation& op, size_t region, int encoder,
                                     Encoding encoding, std::span<const std::byte> payload,
                                     float scale, std::span<float> out) const {
  if (!out.empty()) {
    return op.codec->DecodeAdd(payload, RegionContext(op, region, encoder, encoding), scale, out);
  }
  if (payload.empty()) return OkStatus();
  return DataLoss(
      StrCat("expected nothing for a region without elements, found ", payload.size(), " bytes"));
}

Status OperationStages::DecodeRegions(Operation& op) {
  std::fill(op.gradient.begin(), op.gradient.end(), 0.0f);
  const std::vector<Region>& regions = op.regions->regions;
  for (size_t r = 0; r < regions.size(); ++r) {
    const Status status =
        DecodeRegion(op, r, static_cast<int>(r), Encoding::kSum, op.gathered[r], op.scale,
                     op.gradient.subspan(regions[r].begin, regions[r].size));
    if (!status.ok()) return Annotate(status, StrCat("sum of region ", r, " by rank ", r));
  }
  op.codec->Finish(op.context, op.scale, op.gradient);
  op.non_finite = !ScaleFinite(op.gradient, 1);
  return OkStatus();
}

}  // namespace weir
