// Operations that sum before they encode. The ranks of a node add their gradients exactly, with
// what former residuals owe in them; ranks that encode a part of that sum do so inside of the
// collective and keep what it lost as the second residual of that part (ResidualStore::BeginSum).
// Whatever the next step does not encode there (another part, codec or collective, a dense step)
// joins that rank's gradient, and so the sum again. The sums' totals arrive in the caller's buffer.
//
// NaN or infinity is met by whoever encodes a sum that holds it, and announced with the payload.

#include <algorithm>

#include "datapath/collective/node_parts.h"
#include "datapath/collective/primitives.h"
#include "datapath/session/operation.h"
#include "datapath/session/passes.h"
#include "datapath/session/region_work.h"

namespace weir {

bool CarriesNodeSums(const Operation& op) { return EncodesNodeSums(op.collective->Traits().form); }

void OperationStages::PrepareNodeParts(Operation& op) {
  Bucket& bucket = *op.bucket;
  const NodeEncoders encoders = op.collective->Traits().form == PayloadForm::kNodeShards
                                    ? NodeEncoders::kAll
                                    : NodeEncoders::kFirst;
  RegionWork& work = op.regions.emplace();
  work.regions = CutRegions({bucket.elements, bucket.shape},
                            NodePartsOf(encoders, nodes_, options_.rank, options_.world));
  work.own = OwnNodePart(encoders, nodes_, options_.rank, options_.world);
  if (!RenewsRegionStates(op) || work.own < 0) return;
  bucket.region_states.states.push_back(op.codec->NewState(
      work.regions[work.own].size, RegionContext(op, work.own, options_.rank, Encoding::kSum)));
}

Status OperationStages::TakeNodeResidual(Operation& op) {
  const uint64_t key = op.bucket->key;
  if (!op.codec->Traits().needs_error_feedback && !residuals_.HasResidual(key)) return OkStatus();
  const RegionWork& work = *op.regions;
  const Region own = work.own < 0 ? Region() : work.regions[work.own];
  WEIR_ASSIGN_OR_RETURN(op.regions->server,
                        residuals_.BeginSum(key, {own.begin, own.size}, op.gradient));
  op.residual_energy = 0;
  return OkStatus();
}

Status OperationStages::RunNodeParts(Operation& op, Group& group) {
  const RegionWork& work = *op.regions;
  const Lanes floats = FloatLanes(op.gradient);
  std::vector<std::span<std::byte>> parts;
  for (const Region& part : work.regions) {
    parts.push_back(floats.bytes.subspan(part.begin * sizeof(float), part.size * sizeof(float)));
  }
  std::span<float> own;
  weir::Exchange exchange;
  if (work.own >= 0) {
    const Region& part = work.regions[work.own];
    own = op.gradient.subspan(part.begin, part.size);
    const EncodeContext context = RegionContext(op, work.own, options_.rank, Encoding::kSum);
    exchange.payload_bytes_max = own.empty() ? 0 : op.codec->MaxEncodedBytes(own.size(), context);
  }
  exchange.lanes = floats.bytes;
  exchange.lane_bytes = floats.lane_bytes;
  exchange.accumulate = floats.accumulate;
  exchange.node_parts = parts;
  // What codecs do inside of the collective is theirs and not the network's.
  exchange.encode_sum = [&]() -> StatusOr<std::span<const std::byte>> {
    const TimePoint begin = clock_.Now();
    WEIR_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, EncodeSum(op, group, own));
    op.payload_bytes = payload.size();
    std::fill(own.begin(), own.end(), 0.0f);
    const Duration took = clock_.Now() - begin;
    op.times.encode += took;
    op.times.network -= took;
    return payload;
  };
  exchange.add_region = [&](int from, std::span<const std::byte> payload) {
    const TimePoint begin = clock_.Now();
    const Status status = DecodeRegion(op, work.own, from, Encoding::kSum, payload, 1, own);
    const Duration took = clock_.Now() - begin;
    op.times.decode += took;
    op.times.network -= took;
    return status;
  };
  return op.collective->Run(group, exchange).status();
}

Status OperationStages::DeliverNodeSums(Operation& op) {
  op.non_finite = !ScaleFinite(op.gradient, op.scale);
  op.codec->Finish(op.context, op.scale, op.gradient);
  return OkStatus();
}

}  // namespace weir
