// SPDX-License-Identifier: Apache-2.0
// Plans, jobs and decisions as messages and back.

#include <algorithm>

#include "controller/messages/mapping.h"
#include "controller/model/format.h"

namespace weir {
namespace {

SlotGrant ToModel(const v1::AggregatorLease& in) {
  SlotGrant out;
  out.collective = in.collective();
  out.aggregator = in.aggregator();
  out.address = in.address();
  out.mode = in.mode();
  out.id = in.id();
  out.epoch = in.epoch();
  out.cookie = in.cookie();
  out.slots = in.slots();
  out.lanes = in.lanes();
  out.columns = in.columns();
  out.sum_bits = in.sum_bits();
  out.levels.assign(in.levels().begin(), in.levels().end());
  out.quorum = in.quorum();
  out.cutoff_us = in.cutoff_us();
  out.unchecked = in.unchecked();
  return out;
}

v1::AggregatorLease ToProto(const SlotGrant& in) {
  v1::AggregatorLease out;
  out.set_collective(in.collective);
  out.set_aggregator(in.aggregator);
  out.set_address(in.address);
  out.set_mode(in.mode);
  out.set_id(in.id);
  out.set_epoch(in.epoch);
  out.set_cookie(in.cookie);
  out.set_slots(in.slots);
  out.set_lanes(in.lanes);
  out.set_columns(in.columns);
  out.set_sum_bits(in.sum_bits);
  out.mutable_levels()->Assign(in.levels.begin(), in.levels.end());
  out.set_quorum(in.quorum);
  out.set_cutoff_us(in.cutoff_us);
  out.set_unchecked(in.unchecked);
  return out;
}

v1::NcclConclusion ToProto(const NcclConclusion& in) {
  v1::NcclConclusion out;
  if (in.cause == NcclCause::kGpusLate) out.set_cause(v1::NCCL_CAUSE_GPUS_LATE);
  if (in.cause == NcclCause::kWireBinds) out.set_cause(v1::NCCL_CAUSE_WIRE_BINDS);
  out.set_own_gpu_ratio(in.shares.own_gpu);
  out.set_peer_ratio(in.shares.peer);
  out.set_wire_ratio(in.shares.wire);
  out.set_arrival_ratio(in.shares.arrival);
  out.set_others(static_cast<uint32_t>(in.others));
  out.set_waiting(static_cast<uint32_t>(in.waiting));
  return out;
}

v1::Bucket ToProto(const BucketInfo& in) {
  v1::Bucket out;
  out.set_key(in.key);
  out.set_elements(in.elements);
  out.set_order(in.order);
  out.set_dtype(in.dtype);
  for (const std::string& parameter : in.parameters) out.add_parameters(parameter);
  out.set_sharded(in.sharded);
  return out;
}

v1::GrantedLease ToProto(const ReportedLease& in) {
  v1::GrantedLease out;
  out.set_job(in.job);
  out.set_mode(in.mode);
  out.set_address(in.address);
  out.set_epoch(in.epoch);
  out.set_slots(in.slots);
  out.set_lanes(in.lanes);
  for (const std::string& worker : in.workers) out.add_workers(worker);
  out.set_idle_s(in.idle_s);
  out.set_waiting_s(in.waiting_s);
  out.set_waiting_slot(in.waiting_slot);
  for (const std::string& worker : in.missing) out.add_missing(worker);
  out.set_plane(in.plane);
  return out;
}

v1::BenefitVerdict ToProto(BenefitVerdict verdict) {
  switch (verdict) {
    case BenefitVerdict::kUnknown:
      return v1::BENEFIT_VERDICT_UNKNOWN;
    case BenefitVerdict::kDense:
      return v1::BENEFIT_VERDICT_DENSE;
    case BenefitVerdict::kSaves:
      return v1::BENEFIT_VERDICT_SAVES;
    case BenefitVerdict::kCosts:
      return v1::BENEFIT_VERDICT_COSTS;
    case BenefitVerdict::kUnclear:
      return v1::BENEFIT_VERDICT_UNCLEAR;
  }
  return v1::BENEFIT_VERDICT_UNSPECIFIED;
}

v1::Benefit ToProto(const Benefit& in) {
  v1::Benefit out;
  out.set_verdict(ToProto(in.verdict));
  out.set_basis(in.basis == BenefitBasis::kMeasured ? v1::BENEFIT_BASIS_MEASURED
                                                    : v1::BENEFIT_BASIS_PREDICTED);
  out.set_saved_share(Finite(in.saved_share));
  out.set_saved_share_low(Finite(in.saved_share_low));
  out.set_saved_share_high(Finite(in.saved_share_high));
  out.set_saved_s(Finite(in.saved_s));
  out.set_compared_s(Finite(in.compared_s));
  out.set_step_saved_share(Finite(in.step_saved_share));
  out.set_dense_step_s(Finite(in.dense_step_s));
  out.set_dense_step_deviation_s(Finite(in.dense_step_deviation_s));
  out.set_measured_steps(in.measured_steps);
  out.set_dense_checks_share(in.dense_checks_share);
  out.set_text(BenefitText(in));
  return out;
}

// "ann: top_k 0.01 over sparse_all_gather (night run)".
std::string PinText(const JobPin& pin) {
  return StrCat(pin.actor.empty() ? "unknown" : pin.actor, ": ", ChoiceLabel(pin.choice),
                pin.reason.empty() ? "" : StrCat(" (", pin.reason, ")"));
}

}  // namespace

ChoiceModel ToModel(const v1::Choice& choice) {
  return {.codec = CodecNamed(choice.codec()),
          .collective = choice.collective(),
          .ratio = choice.ratio() > 0 ? std::min(choice.ratio(), 1.0) : 1,
          .bits = static_cast<int>(std::min(choice.bits(), kBitsMax)),
          .segment_bytes = choice.segment_bytes()};
}

v1::Choice ToProto(const ChoiceModel& choice) {
  v1::Choice out;
  out.set_codec(choice.codec);
  out.set_collective(choice.collective);
  out.set_ratio(choice.ratio);
  out.set_bits(static_cast<uint32_t>(choice.bits));
  out.set_segment_bytes(choice.segment_bytes);
  return out;
}

v1::Estimate ToProto(const Measured& measured) {
  v1::Estimate out;
  out.set_value(Finite(measured.value));
  out.set_deviation(Finite(measured.deviation));
  out.set_age_s(Finite(measured.age_s));
  return out;
}

v1::Estimate ToProto(const InputEstimate& estimate) {
  v1::Estimate out = ToProto(estimate.measured);
  out.set_method(estimate.method);
  out.set_samples(estimate.samples);
  return out;
}

BucketInfo ToModel(const v1::Bucket& in) {
  return {in.key(),
          in.elements(),
          in.order(),
          in.dtype(),
          {in.parameters().begin(), in.parameters().end()},
          in.sharded()};
}

SyncModel ToModel(const v1::Sync& in) {
  SyncModel out;
  out.every = std::clamp(in.every(), 1u, kSyncEveryMax);
  out.fragments = std::clamp(in.fragments(), 1u, out.every);
  out.overlap = std::min(in.overlap_steps(), out.every / out.fragments - 1);
  if (in.outer() == v1::OUTER_STEP_SGD_NESTEROV) {
    out.outer = OuterKind::kSgdNesterov;
    out.rate = Finite(in.outer_rate());
    out.momentum = Finite(in.outer_momentum());
  }
  out.mix = std::clamp(Finite(in.mix()), 0.0, 1.0);
  return out;
}

v1::Sync ToProto(const SyncModel& in) {
  v1::Sync out;
  out.set_every(in.every);
  out.set_outer(in.outer == OuterKind::kSgdNesterov ? v1::OUTER_STEP_SGD_NESTEROV
                                                    : v1::OUTER_STEP_AVERAGE);
  out.set_outer_rate(in.rate);  // ranks accept none of 0, whatever the outer step is
  out.set_outer_momentum(in.momentum);
  out.set_fragments(in.fragments);
  out.set_overlap_steps(in.overlap);
  out.set_mix(in.mix);
  return out;
}

JobPlan ToModel(const v1::Plan& in) {
  JobPlan out;
  out.job = in.job();
  out.version = in.version();
  for (const v1::BucketChoice& bucket : in.buckets()) {
    out.buckets.push_back({bucket.bucket(), ToModel(bucket.choice())});
  }
  if (in.has_fallback()) out.fallback = ToModel(in.fallback());
  out.digest = in.digest();
  for (const v1::AggregatorLease& lease : in.leases()) out.grants.push_back(ToModel(lease));
  out.layout.ring_order.assign(in.ring_order().begin(), in.ring_order().end());
  out.layout.shard_shares.assign(in.shard_shares().begin(), in.shard_shares().end());
  if (in.has_sync()) out.sync = ToModel(in.sync());
  return out;
}

v1::Plan ToProto(const JobPlan& in) {
  v1::Plan out;
  out.set_job(in.job);
  out.set_version(in.version);
  for (const PlannedBucket& planned : in.buckets) {
    v1::BucketChoice* bucket = out.add_buckets();
    bucket->set_bucket(planned.bucket);
    *bucket->mutable_choice() = ToProto(planned.choice);
  }
  if (in.fallback.has_value()) *out.mutable_fallback() = ToProto(*in.fallback);
  out.set_digest(in.digest);
  for (const SlotGrant& grant : in.grants) *out.add_leases() = ToProto(grant);
  for (const int rank : in.layout.ring_order) out.add_ring_order(static_cast<uint32_t>(rank));
  for (const uint32_t share : in.layout.shard_shares) out.add_shard_shares(share);
  if (in.sync.local()) *out.mutable_sync() = ToProto(in.sync);
  return out;
}

JobPin ToModel(const v1::PinRequest& request) {
  return {ToModel(request.choice()), request.actor(), request.reason()};
}

v1::PinRequest ToProto(const std::string& job, const JobPin& pin) {
  v1::PinRequest out;
  out.set_job(job);
  *out.mutable_choice() = ToProto(pin.choice);
  out.set_actor(pin.actor);
  out.set_reason(pin.reason);
  return out;
}

v1::ToRank ToProto(const std::string& job, int rank, const RankOrder& order) {
  v1::ToRank out;
  out.set_job(job);
  out.set_rank(static_cast<uint32_t>(rank));
  v1::RankCommand& command = *out.mutable_command();
  if (const auto* offer = std::get_if<OfferCommand>(&order)) {
    *command.mutable_offer()->mutable_plan() = ToProto(offer->plan);
    command.mutable_offer()->set_nonce(offer->nonce);
    if (offer->lease_plan.has_value()) {
      *command.mutable_offer()->mutable_lease_plan() = ToProto(*offer->lease_plan);
    }
  } else if (const auto* arm = std::get_if<ArmCommand>(&order)) {
    command.mutable_arm()->set_version(arm->version);
  } else if (const auto* withdraw = std::get_if<WithdrawCommand>(&order)) {
    command.mutable_withdraw()->set_version(withdraw->version);
  } else {
    command.mutable_lease()->set_lease_s(std::get<LeaseCommand>(order).lease_s);
  }
  return out;
}

JobView ToModel(const v1::Job& in) {
  JobView out;
  out.name = in.name();
  out.world = static_cast<int>(std::min<uint32_t>(in.world(), kWorldMax));
  for (const v1::Rank& rank : in.ranks()) {
    out.ranks.push_back({static_cast<int>(rank.rank()), rank.node(), rank.connected(), rank.step(),
                         rank.plan_version()});
  }
  out.state = in.state();
  out.bytes_sent = in.bytes_sent();
  out.started_unix_s = in.started_unix_s();
  if (in.has_active_plan()) out.active_plan = ToModel(in.active_plan());
  out.labels = {in.labels().begin(), in.labels().end()};
  return out;
}

v1::Job ToProto(const JobView& in) {
  v1::Job out;
  out.set_name(in.name);
  out.set_world(static_cast<uint32_t>(in.world));
  for (const RankView& rank : in.ranks) {
    auto* entry = out.add_ranks();
    entry->set_rank(static_cast<uint32_t>(rank.rank));
    entry->set_node(rank.node);
    entry->set_connected(rank.connected);
    entry->set_step(rank.step);
    entry->set_plan_version(rank.plan_version);
    entry->set_slower(rank.slower);
    if (rank.cores.has_value()) {
      entry->mutable_cores()->set_wait_ratio(rank.cores->recent.wait_ratio);
      entry->mutable_cores()->set_datapath_wait_ratio(rank.cores->recent.datapath_wait_ratio);
      entry->mutable_cores()->set_steal_ratio(rank.cores->recent.steal_ratio);
      entry->mutable_cores()->set_pressure_ratio(rank.cores->recent.pressure_ratio);
      entry->set_starved(rank.cores->starved);
    }
    if (rank.nccl.has_value()) *entry->mutable_nccl() = ToProto(*rank.nccl);
  }
  for (const BucketInfo& bucket : in.buckets) *out.add_buckets() = ToProto(bucket);
  out.set_step(in.step);
  out.set_step_s(in.step_s);
  out.set_loss(in.loss);
  out.set_gain(in.gain);
  if (in.active_plan.has_value()) *out.mutable_active_plan() = ToProto(*in.active_plan);
  if (in.offered_plan.has_value()) *out.mutable_offered_plan() = ToProto(*in.offered_plan);
  out.set_rollout_state(in.rollout_state);
  out.set_state(in.state);
  if (in.pin.has_value()) out.set_pinned(PinText(*in.pin));
  out.set_policy(in.policy);
  out.set_bytes_sent(in.bytes_sent);
  out.set_started_unix_s(in.started_unix_s);
  *out.mutable_benefit() = ToProto(in.benefit);
  *out.mutable_plan_benefit() = ToProto(in.plan_benefit);
  out.set_saved_s(in.benefit.saved_s);
  out.set_compared_s(in.benefit.compared_s);
  out.mutable_progress()->set_exponent(in.progress.exponent);
  out.mutable_progress()->set_exponent_low(in.progress.exponent_low);
  out.mutable_progress()->set_exponent_high(in.progress.exponent_high);
  out.mutable_progress()->set_losses(in.progress.losses);
  out.mutable_progress()->set_loss_behind(Finite(in.progress.loss_behind));
  out.mutable_progress()->set_sync_cost(in.progress.sync_cost.value);
  out.mutable_progress()->set_sync_cost_deviation(in.progress.sync_cost.deviation);
  out.mutable_progress()->set_signal_share(in.progress.signal_share);
  out.mutable_progress()->set_consensus_share(in.progress.consensus_share);
  if (in.non_finite.has_value()) *out.mutable_non_finite() = ToProto(*in.non_finite);
  out.set_key_id(in.key_id);
  out.set_frame_protection(ToProto(in.protection));
  out.set_unauthenticated_peers(in.unauthenticated_peers);
  out.set_evaluations(in.evaluations);
  out.set_decisions(in.decisions);
  out.mutable_labels()->insert(in.labels.begin(), in.labels.end());
  out.set_nothing_to_choose(in.nothing_to_choose);
  return out;
}

// A newer release may have other values.
FramesProtected ToModel(v1::FrameProtection protection) {
  if (protection == v1::FRAME_PROTECTION_CHECKED) return FramesProtected::kChecked;
  if (protection == v1::FRAME_PROTECTION_AUTHENTICATED) return FramesProtected::kAuthenticated;
  if (protection == v1::FRAME_PROTECTION_ENCRYPTED) return FramesProtected::kEncrypted;
  return FramesProtected::kNotSaid;
}

v1::FrameProtection ToProto(FramesProtected protection) {
  switch (protection) {
    case FramesProtected::kNotSaid:
      return v1::FRAME_PROTECTION_UNSPECIFIED;
    case FramesProtected::kChecked:
      return v1::FRAME_PROTECTION_CHECKED;
    case FramesProtected::kAuthenticated:
      return v1::FRAME_PROTECTION_AUTHENTICATED;
    case FramesProtected::kEncrypted:
      return v1::FRAME_PROTECTION_ENCRYPTED;
  }
  return v1::FRAME_PROTECTION_UNSPECIFIED;
}

std::string ProtectionText(const v1::Job& job) {
  return ProtectionText(ToModel(job.frame_protection()), job.unauthenticated_peers());
}

v1::SeriesPoint ToProto(const StepPoint& in) {
  v1::SeriesPoint out;
  out.set_step(in.step);
  out.set_unix_s(in.unix_s);
  out.set_step_s(in.step_s);
  out.set_compute_s(in.compute_s);
  out.set_exposed_s(in.exposed_s);
  out.set_ratio(in.ratio);
  out.set_bits(in.bits);
  out.set_codec(in.codec);
  out.set_collective(in.collective);
  out.set_gain(in.gain);
  out.set_loss(in.loss);
  out.set_bandwidth_bytes_per_s(in.bandwidth_bytes_per_s);
  out.set_bandwidth_deviation_bytes_per_s(in.bandwidth_deviation_bytes_per_s);
  out.set_latency_deviation_s(in.latency_deviation_s);
  out.set_latency_s(in.latency_s);
  out.set_predicted_network_s(in.predicted_network_s);
  out.set_measured_network_s(in.measured_network_s);
  out.set_plan_version(in.plan_version);
  out.set_codec_s(in.codec_s);
  out.set_encode_s(in.encode_s);
  out.set_decode_s(in.decode_s);
  out.set_network_s(in.network_s);
  out.set_backward_s(in.backward_s);
  out.set_skipped(in.skipped);
  out.set_dense_step_s(in.dense_step_s);
  return out;
}

v1::Explanation ToProto(const DecisionInputs& inputs) {
  v1::Explanation out;
  *out.mutable_latency_s() = ToProto(inputs.latency_s);
  *out.mutable_bandwidth_bytes_per_s() = ToProto(inputs.bandwidth_bytes_per_s);
  out.set_compute_s(inputs.compute_s);
  return out;
}

v1::Event ToProto(const JobEvent& in) {
  v1::Event out;
  out.set_job(in.job);
  out.set_text(in.text);
  if (const auto* view = std::get_if<JobView>(&in.body)) {
    out.set_kind("job");
    *out.mutable_job_state() = ToProto(*view);
  } else if (const auto* decision = std::get_if<DecisionRecord>(&in.body)) {
    out.set_kind("decision");
    *out.mutable_decision() = ToProto(*decision);
    AddWords(out.mutable_decision());
    if (out.text().empty()) out.set_text(out.decision().reason());
  } else if (const auto* point = std::get_if<StepPoint>(&in.body)) {
    out.set_kind("step");
    *out.mutable_point() = ToProto(*point);
  } else {
    out.set_kind("rank");
    *out.mutable_rank_event() = ToProto(std::get<RankIncident>(in.body));
  }
  return out;
}

v1::Aggregator ToProto(const AggregatorReport& in) {
  v1::Aggregator out;
  out.set_name(in.name);
  out.set_url(in.url);
  out.set_reachable(in.reachable);
  out.set_since_unix_s(in.since_unix_s);
  out.set_error(in.error);
  out.set_shards(in.shards);
  out.set_slots(in.slots);
  out.set_slots_free(in.slots_free);
  out.set_slots_free_of_shard(in.slots_free_of_shard);
  out.set_slots_per_job(in.slots_per_job);
  out.set_leases_free(in.leases_free);
  out.set_lanes_max(in.lanes_max);
  out.set_workers_max(in.workers_max);
  out.set_goodput_bits_per_s(in.goodput_bits_per_s);
  for (const ReportedLease& lease : in.leases) *out.add_leases() = ToProto(lease);
  out.set_answered_unix_s(in.answered_unix_s);
  return out;
}

}  // namespace weir
