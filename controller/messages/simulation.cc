// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/simulation.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/mapping.h"
#include "controller/model/ring_choice.h"
#include "controller/model/shard_choice.h"
#include "controller/objective/objective.h"
#include "controller/solver/explain.h"

namespace weir {
namespace {

constexpr double kGainRatios[] = {1.0,  0.5,  0.3,   0.2,   0.1,   0.05,  0.03,
                                  0.02, 0.01, 0.005, 0.003, 0.001, 0.0003};

double DoubleExponentialGain(double ratio) {
  const double log_inverse = -std::log(ratio);
  return std::min(1.0, ratio * (1 + log_inverse + log_inverse * log_inverse / 2));
}

Status CheckRequest(const v1::SimulateRequest& request) {
  if (request.model_parameters() < 1) {
    return InvalidArgument("model_parameters: expected at least 1, found 0");
  }
  if (request.world() < 1 || request.world() > kWorldMax) {
    return InvalidArgument(StrCat("world: expected 1 to ", kWorldMax, ", found ", request.world()));
  }
  if (!(request.latency_s() >= 0 && request.latency_s() <= 10)) {
    return InvalidArgument(
        StrCat("latency_s: expected 0 to 10 seconds, found ", request.latency_s()));
  }
  if (!(request.bandwidth_bytes_per_s() > 0)) {
    return InvalidArgument(StrCat("bandwidth_bytes_per_s: expected more than 0, found ",
                                  request.bandwidth_bytes_per_s()));
  }
  if (!(request.compute_s() >= 0)) {
    return InvalidArgument(StrCat("compute_s: expected at least 0, found ", request.compute_s()));
  }
  if (!(request.aggregator_bytes_per_s() >= 0)) {
    return InvalidArgument(StrCat("aggregator_bytes_per_s: expected at least 0, found ",
                                  request.aggregator_bytes_per_s()));
  }
  if (request.ranks_per_node() > request.world()) {
    return InvalidArgument(StrCat("ranks_per_node: expected at most the world of ", request.world(),
                                  " ranks, found ", request.ranks_per_node()));
  }
  if (request.ranks_per_node() > 1 && request.links_size() > 0) {
    return InvalidArgument("links: expected none where ranks share nodes");
  }
  if (!(request.device_copy_bytes_per_s() >= 0)) {
    return InvalidArgument(StrCat("device_copy_bytes_per_s: expected at least 0, found ",
                                  request.device_copy_bytes_per_s()));
  }
  if (request.devices_linked() && request.device_copy_bytes_per_s() == 0) {
    return InvalidArgument("devices_linked: expected device_copy_bytes_per_s with it, found 0");
  }
  if (request.sync_every_max() > kSyncEveryMax) {
    return InvalidArgument(StrCat("sync_every_max: expected at most ", kSyncEveryMax, ", found ",
                                  request.sync_every_max()));
  }
  if (request.buckets() > 1024) {
    return InvalidArgument(StrCat("buckets: expected at most 1024, found ", request.buckets()));
  }
  return OkStatus();
}

// Sets typical costs of codecs that no rank has measured, by order of magnitude on one core: a pass
// over the input for encode, a pass (lanes) or a write per kept element (opaque, shared index) for
// decode.
void SetTypicalCosts(CodecModel* codec) {
  if (codec->encode.per_element_s > 0 || codec->encode.per_kept_s > 0) return;
  codec->encode.per_element_s = codec->lossy ? 8e-10 : 0;
  if (codec->sums_without_decoding) {
    codec->decode.per_element_s = codec->lossy ? 4e-10 : 1e-10;
  } else {
    codec->decode.per_element_s = 1e-10;
    codec->decode.per_kept_s = 4e-9;
  }
}

// Places gradients on devices. Typical costs there are those of passes over fast memory, and on the
// host they include the copies, as those that ranks measure do.
void SetDevices(const v1::SimulateRequest& request, const v1::Capabilities& capabilities,
                Snapshot* snapshot) {
  const double bytes_per_s = std::min(request.device_copy_bytes_per_s(), 1e15);
  if (bytes_per_s == 0) {
    for (CodecModel& codec : snapshot->codecs) codec.on_device = false;
    return;
  }
  std::set<std::string> there;  // without measured times, too, which the model takes for none
  for (const v1::CodecCapability& codec : capabilities.codecs()) {
    if (codec.has_device_encode() && codec.has_device_decode()) there.insert(codec.name());
  }
  const double copy_s = 1 / bytes_per_s;
  snapshot->devices = {.copy_out_s_per_byte = copy_s,
                       .copy_in_s_per_byte = copy_s,
                       .known = true,
                       .linked = request.devices_linked()};
  for (CodecModel& codec : snapshot->codecs) {
    codec.encode.per_element_s += sizeof(float) * copy_s;
    codec.decode.per_element_s += sizeof(float) * copy_s;
    codec.on_device = there.contains(codec.name);
    const CodecModel::Time &encode = codec.device_encode, &decode = codec.device_decode;
    if (!codec.on_device || encode.per_element_s + encode.per_kept_s > 0 ||
        decode.per_element_s + decode.per_kept_s > 0) {
      continue;
    }
    codec.device_encode = {.base_s = 3e-5, .per_element_s = 1.5e-11};
    codec.device_decode = {.base_s = 3e-5, .per_element_s = 8e-12};
    if (!codec.sums_without_decoding) codec.device_decode.per_kept_s = 3e-11;
  }
}

// Sets the load of every link, and the bandwidth that the slowest one leaves to collectives that
// use it.
Status SetLinks(const v1::SimulateRequest& request, Snapshot* snapshot) {
  if (request.links_size() == 0) return OkStatus();
  const uint32_t world = request.world();
  if (world > static_cast<uint32_t>(kRingNodesMax)) {
    return InvalidArgument(
        StrCat("links: expected at most ", kRingNodesMax, " ranks with them, found ", world));
  }
  NodeLinks& links = snapshot->node_links;
  links.s_per_byte.assign(size_t{world} * world, 1 / request.bandwidth_bytes_per_s());
  for (uint32_t rank = 0; rank < world; ++rank) {
    links.nodes.push_back(static_cast<int>(rank));
    links.s_per_byte[size_t{rank} * world + rank] = 0;
  }
  double slowest = request.bandwidth_bytes_per_s();
  for (const v1::LinkRate& link : request.links()) {
    const uint32_t from = link.source_rank(), to = link.target_rank();
    if (from >= world || to >= world || from == to) {
      return InvalidArgument(StrCat("links: expected two different ranks below ", world, ", found ",
                                    from, " and ", to));
    }
    if (!(link.bandwidth_bytes_per_s() > 0) || !std::isfinite(link.bandwidth_bytes_per_s())) {
      return InvalidArgument(StrCat("links: expected a bandwidth above 0 from rank ", from,
                                    " to rank ", to, ", found ", link.bandwidth_bytes_per_s()));
    }
    links.s_per_byte[size_t{from} * world + to] = 1 / link.bandwidth_bytes_per_s();
    slowest = std::min(slowest, link.bandwidth_bytes_per_s());
  }
  snapshot->bandwidth_bytes_per_s = {slowest, 0.05 * slowest, 0};
  if (const double ascending = RingSecondsPerByte(links, {}); ascending > 0) {
    snapshot->speedup.ring = 1 / (slowest * ascending);
  }
  // For equal shards, the time that the features assume when all links have the slowest one's rate:
  // two phases of (N-1)/N of a payload.
  const double unpipelined = UnpipelinedShare(snapshot->buckets, snapshot->collectives, world);
  if (const double even = ShardSecondsPerByte(links, {}, unpipelined); even > 0) {
    snapshot->speedup.shards = 2.0 * (world - 1) / world / (slowest * even);
  }
  return OkStatus();
}

}  // namespace

StatusOr<Snapshot> MakeSimulatedSnapshot(const v1::SimulateRequest& request,
                                         const v1::Capabilities& capabilities) {
  WEIR_RETURN_IF_ERROR(CheckRequest(request));
  const uint32_t count = static_cast<uint32_t>(
      std::min<uint64_t>(std::max(1u, request.buckets()), request.model_parameters()));
  Snapshot snapshot;
  snapshot.job = "simulation";
  snapshot.world = static_cast<int>(request.world());
  snapshot.trigger = "start";
  snapshot.compute_s = {request.compute_s(), 0.02 * request.compute_s(), 0};
  snapshot.backward_s = {request.compute_s() * 2 / 3, 0.02 * request.compute_s(), 0};
  snapshot.latency_s = {request.latency_s(), 0.05 * request.latency_s(), 0};
  snapshot.bandwidth_bytes_per_s = {request.bandwidth_bytes_per_s(),
                                    0.05 * request.bandwidth_bytes_per_s(), 0};
  for (uint32_t i = 0; i < count; ++i) {
    BucketModel bucket;
    bucket.key = StrCat("bucket", i);
    bucket.elements =
        request.model_parameters() / count + (i < request.model_parameters() % count ? 1 : 0);
    bucket.order = static_cast<int>(i);
    bucket.ready_s = snapshot.backward_s.value * i / count;
    for (const double ratio : kGainRatios) {
      bucket.gain_ratios.push_back(ratio);
      bucket.gains.push_back(DoubleExponentialGain(ratio));
    }
    snapshot.buckets.push_back(std::move(bucket));
  }
  const JobCapabilities offered = ToModel(capabilities);
  snapshot.codecs = CodecsOf(offered, snapshot.world);
  for (CodecModel& codec : snapshot.codecs) SetTypicalCosts(&codec);
  SetDevices(request, capabilities, &snapshot);
  snapshot.collectives = offered.collectives;
  if (!request.framework_sums()) {
    std::erase_if(snapshot.collectives, [](const auto& one) { return one.by_caller; });
  }
  for (CollectiveModel& collective : snapshot.collectives) {
    if (!collective.needs_lease) continue;
    collective.lease_available = request.aggregator_bytes_per_s() > 0;
    // Collectives count as if they had run before: caution about untried ones would hide their
    // benefit.
    collective.relative_deviation = std::min(collective.relative_deviation, 0.1);
    collective.lease_why_not = StrCat(collective.name, ": without an aggregator");
    collective.bandwidth_max_bytes_per_s =
        std::min(request.aggregator_bytes_per_s(), 1e15) / snapshot.world;
  }
  WEIR_RETURN_IF_ERROR(SetLinks(request, &snapshot));
  snapshot.local.possible = true;  // a policy says whether that is used
  if (const uint32_t together = request.ranks_per_node(); together > 1) {
    for (uint32_t rank = 0; rank < request.world(); ++rank) {
      snapshot.memory.lowest_ranks.push_back(static_cast<int>(rank - rank % together));
    }
  }
  return snapshot;
}

Status CheckLists(const Policy& policy, const v1::Capabilities& declared) {
  Policy lists = policy;
  lists.gain_min = 0;
  lists.residual_ratio_max = 0;
  v1::SimulateRequest request;
  request.set_model_parameters(1'000'000);
  request.set_world(4);
  request.set_latency_s(1e-3);
  request.set_bandwidth_bytes_per_s(1e8);
  request.set_aggregator_bytes_per_s(1e9);
  Status first = OkStatus();
  request.set_framework_sums(true);
  for (const v1::Capabilities* offered :
       {&BuiltinCapabilities(), &BuiltinDeviceCapabilities(), &declared}) {
    for (const uint32_t together : {1u, 2u}) {  // some collectives need ranks that share a node
      request.set_ranks_per_node(together);
      WEIR_ASSIGN_OR_RETURN(const Snapshot snapshot, MakeSimulatedSnapshot(request, *offered));
      const auto decision = Decide(snapshot, lists);
      if (decision.ok()) return OkStatus();
      // Names that this release does not have are a plug-in's.
      const bool unknown = decision.status().code() == StatusCode::kNotFound;
      if (unknown && offered == &BuiltinCapabilities()) return OkStatus();
      if (first.ok()) first = decision.status();
    }
  }
  return FailedPrecondition(
      StrCat("policy ", policy.name, " leaves every job nothing to choose: ", Message(first)));
}

StatusOr<v1::SimulateResponse> Simulate(const v1::SimulateRequest& request,
                                        const v1::Capabilities& capabilities) {
  Policy policy;
  if (!request.policy_source().empty()) {
    WEIR_ASSIGN_OR_RETURN(policy, ReadPolicy(request.policy_source(), "policy_source"));
  }
  if (request.sync_every_max() > 0) {
    policy.sync_every_max = static_cast<int>(request.sync_every_max());
  }
  WEIR_ASSIGN_OR_RETURN(const Snapshot snapshot, MakeSimulatedSnapshot(request, capabilities));
  WEIR_ASSIGN_OR_RETURN(const Decision decision, Decide(snapshot, policy));
  v1::SimulateResponse response;
  for (const CandidateRecord& candidate : RecordOf(decision, 0).candidates) {
    *response.add_candidates() = ToProto(candidate);
  }
  response.set_reason(ReasonText(decision.facts));
  std::vector<BucketDefinition> buckets;
  for (const BucketModel& bucket : snapshot.buckets) {
    buckets.push_back({bucket.key, bucket.elements, bucket.order});
  }
  *response.mutable_plan() = ToProto(MakePlan(snapshot.job, 1, buckets, decision.chosen.choices,
                                              decision.chosen.layout, {}, decision.chosen.sync));
  return response;
}

}  // namespace weir
