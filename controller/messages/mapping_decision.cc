// SPDX-License-Identifier: Apache-2.0
// Decisions as messages and back. Their words are made here, whenever a message is.

#include <algorithm>

#include "controller/messages/explain.h"
#include "controller/messages/mapping.h"
#include "controller/solver/explain.h"

namespace weir {
namespace {

constexpr int kCandidatesMax = 64;

// The numbers of CodecPlace are those of EncodedOn.
EncodingPlace ToModel(const v1::EncodingPlace& in) {
  const bool known = v1::EncodedOn_IsValid(in.encoded_on());
  return {known ? static_cast<CodecPlace>(in.encoded_on()) : CodecPlace::kUnknown, in.copies_s()};
}

v1::EncodingPlace ToProto(const EncodingPlace& in) {
  v1::EncodingPlace out;
  out.set_encoded_on(static_cast<v1::EncodedOn>(in.place));
  out.set_copies_s(Finite(in.copies_s));
  return out;
}

CandidateRecord ToModel(const v1::Candidate& in) {
  CandidateRecord out;
  out.label = in.label();
  if (in.has_choice()) out.choice = weir::ToModel(in.choice());
  out.step_s = in.step_s();
  out.step_deviation_s = in.step_deviation_s();
  out.communication_s = in.communication_s();
  out.gain = in.gain();
  out.objective = in.objective();
  out.chosen = in.chosen();
  out.dense = in.dense();
  out.feasible = in.feasible();
  out.excluded_by = in.excluded_by();
  out.encoding = ToModel(in.encoding());
  if (in.has_sync()) out.sync = weir::ToModel(in.sync());
  return out;
}

// The numbers of an enumeration are those of the message; others, of a newer release, become
// `none`.
template <typename To>
To EnumOf(int value, To last, To none) {
  return value >= 1 && value <= static_cast<int>(last) + 1 ? static_cast<To>(value - 1) : none;
}

Change ToModel(const v1::Change& in) {
  Change out;
  out.of = EnumOf(in.of(), Change::Of::kStepTime, Change::Of::kBandwidth);
  out.seen = EnumOf(in.seen(), Change::Seen::kSincePlan, Change::Seen::kAtOnce);
  out.before = in.before();
  out.after = in.after();
  out.ratio = in.ratio();
  out.step = in.step();
  out.plan_version = in.plan_version();
  out.settled = in.settled();
  return out;
}

v1::Change ToProto(const Change& in) {
  v1::Change out;
  out.set_of(static_cast<v1::Change::Of>(static_cast<int>(in.of) + 1));
  out.set_seen(static_cast<v1::Change::Seen>(static_cast<int>(in.seen) + 1));
  out.set_before(Finite(in.before));
  out.set_after(Finite(in.after));
  out.set_ratio(in.ratio);
  out.set_step(in.step);
  out.set_plan_version(in.plan_version);
  out.set_settled(in.settled);
  return out;
}

PlanFacts ToModel(const v1::PlanFacts& in) {
  return {in.label(), in.step_s(), in.gain(), in.dense(), ToModel(in.encoding())};
}

RingFacts ToModel(const v1::RingFacts& in) {
  return {{in.order().begin(), in.order().end()},
          in.slowest_bytes_per_s(),
          in.avoided_bytes_per_s(),
          static_cast<int>(in.avoided_from()),
          static_cast<int>(in.avoided_to())};
}

v1::RingFacts ToProto(const RingFacts& in) {
  v1::RingFacts out;
  for (const int rank : in.order) out.add_order(static_cast<uint32_t>(rank));
  out.set_slowest_bytes_per_s(Finite(in.slowest_bytes_per_s));
  out.set_avoided_bytes_per_s(Finite(in.avoided_bytes_per_s));
  out.set_avoided_from(static_cast<uint32_t>(in.avoided_from));
  out.set_avoided_to(static_cast<uint32_t>(in.avoided_to));
  return out;
}

ShardFacts ToModel(const v1::ShardFacts& in) {
  return {{in.shares().begin(), in.shares().end()},
          in.speedup(),
          static_cast<int>(in.least_rank()),
          static_cast<int>(in.most_rank()),
          in.least_bytes_per_s(),
          in.most_bytes_per_s()};
}

v1::ShardFacts ToProto(const ShardFacts& in) {
  v1::ShardFacts out;
  for (const uint32_t share : in.shares) out.add_shares(share);
  out.set_speedup(Finite(in.speedup));
  out.set_least_rank(static_cast<uint32_t>(in.least_rank));
  out.set_most_rank(static_cast<uint32_t>(in.most_rank));
  out.set_least_bytes_per_s(Finite(in.least_bytes_per_s));
  out.set_most_bytes_per_s(Finite(in.most_bytes_per_s));
  return out;
}

LocalFacts ToModel(const v1::LocalFacts& in) {
  LocalFacts out;
  if (in.has_sync()) out.sync = weir::ToModel(in.sync());
  out.every_step_s = in.every_step_s();
  out.cost = in.cost();
  out.cost_deviation = in.cost_deviation();
  out.signal_share = in.signal_share();
  out.unable_rank = static_cast<int>(std::min<uint32_t>(in.unable_rank_number(), kWorldMax)) - 1;
  return out;
}

v1::LocalFacts ToProto(const LocalFacts& in) {
  v1::LocalFacts out;
  if (in.sync.local()) *out.mutable_sync() = weir::ToProto(in.sync);
  out.set_every_step_s(Finite(in.every_step_s));
  out.set_cost(in.cost);
  out.set_cost_deviation(in.cost_deviation);
  out.set_signal_share(in.signal_share);
  out.set_unable_rank_number(static_cast<uint32_t>(in.unable_rank + 1));
  return out;
}

/// Without what the decision itself has: switched, dense_step_s, binding_constraint.
DecisionFacts ToModel(const v1::DecisionFacts& in) {
  DecisionFacts out;
  if (in.rule() >= 0 && in.rule() <= v1::DECISION_RULE_HELD) {
    out.rule = static_cast<DecisionRule>(in.rule());
  }
  out.world = static_cast<int>(std::min<uint32_t>(in.world(), kWorldMax));
  out.latency_s = in.latency_s();
  out.bandwidth_bytes_per_s = in.bandwidth_bytes_per_s();
  out.chosen = ToModel(in.chosen());
  if (in.has_incumbent()) out.incumbent = ToModel(in.incumbent());
  out.alternative = in.alternative();
  out.promised = in.promised();
  out.promised_min = in.promised_min();
  out.probability = in.probability();
  out.probability_min = in.probability_min();
  out.since_switch_s = in.since_switch_s();
  out.dwell_s = in.dwell_s();
  out.excluded_by = in.excluded_by();
  out.progress_exponent = in.progress_exponent();
  out.progress_deviation = in.progress_deviation();
  out.dense_probability = in.dense_probability();
  out.failures = static_cast<int>(std::min<uint32_t>(in.failures(), 1u << 30));
  out.held_s = in.held_s();
  out.bandwidth_deviation = in.bandwidth_deviation();
  out.ring = ToModel(in.ring());
  out.shards = ToModel(in.shards());
  out.local = ToModel(in.local());
  return out;
}

v1::DecisionFacts ToProto(const DecisionFacts& in) {
  v1::DecisionFacts out;
  out.set_rule(static_cast<v1::DecisionRule>(static_cast<int>(in.rule)));
  out.set_world(static_cast<uint32_t>(in.world));
  out.set_latency_s(Finite(in.latency_s));
  out.set_bandwidth_bytes_per_s(Finite(in.bandwidth_bytes_per_s));
  *out.mutable_chosen() = ToProto(in.chosen);
  if (in.incumbent.has_value()) *out.mutable_incumbent() = ToProto(*in.incumbent);
  out.set_alternative(in.alternative);
  out.set_promised(Finite(in.promised));
  out.set_promised_min(Finite(in.promised_min));
  out.set_probability(Finite(in.probability));
  out.set_probability_min(Finite(in.probability_min));
  out.set_since_switch_s(Finite(in.since_switch_s));
  out.set_dwell_s(Finite(in.dwell_s));
  out.set_excluded_by(in.excluded_by);
  out.set_progress_exponent(Finite(in.progress_exponent));
  out.set_progress_deviation(Finite(in.progress_deviation));
  out.set_dense_probability(Finite(in.dense_probability));
  out.set_failures(static_cast<uint32_t>(in.failures));
  out.set_held_s(Finite(in.held_s));
  out.set_bandwidth_deviation(Finite(in.bandwidth_deviation));
  if (!in.ring.order.empty()) *out.mutable_ring() = ToProto(in.ring);
  if (!in.shards.shares.empty()) *out.mutable_shards() = ToProto(in.shards);
  if (in.local != LocalFacts{}) *out.mutable_local() = ToProto(in.local);
  return out;
}

BucketChange ToModel(const v1::BucketChange& in) {
  BucketChange out{.bucket = in.bucket(), .before = {}, .after = weir::ToModel(in.after())};
  if (in.has_before()) out.before = weir::ToModel(in.before());
  return out;
}

v1::BucketChange ToProto(const BucketChange& in) {
  v1::BucketChange out;
  out.set_bucket(in.bucket);
  if (in.before.has_value()) *out.mutable_before() = weir::ToProto(*in.before);
  *out.mutable_after() = weir::ToProto(in.after);
  return out;
}

}  // namespace

v1::PlanFacts ToProto(const PlanFacts& in) {
  v1::PlanFacts out;
  out.set_label(in.label);
  out.set_step_s(Finite(in.step_s));
  out.set_gain(Finite(in.gain));
  out.set_dense(in.dense);
  if (in.encoding.place != CodecPlace::kUnknown) *out.mutable_encoding() = ToProto(in.encoding);
  return out;
}

v1::LinkSharing ToProto(const JobSharing& in) {
  v1::LinkSharing out;
  out.set_job(in.job);
  out.set_nodes(in.nodes);
  out.set_node_pairs(in.node_pairs());
  return out;
}

v1::Candidate ToProto(const CandidateRecord& in) {
  v1::Candidate out;
  out.set_label(in.label);
  if (in.choice.has_value()) *out.mutable_choice() = ToProto(*in.choice);
  out.set_step_s(in.step_s);
  out.set_step_deviation_s(in.step_deviation_s);
  out.set_communication_s(in.communication_s);
  out.set_gain(in.gain);
  out.set_objective(in.objective);
  out.set_chosen(in.chosen);
  out.set_dense(in.dense);
  out.set_feasible(in.feasible);
  out.set_excluded_by(in.excluded_by);
  if (in.encoding.place != CodecPlace::kUnknown) *out.mutable_encoding() = ToProto(in.encoding);
  if (in.sync.local()) *out.mutable_sync() = ToProto(in.sync);
  return out;
}

DecisionRecord ToModel(const v1::Decision& in) {
  DecisionRecord out;
  out.id = std::atoll(in.id().c_str());
  out.job = in.job();
  out.step = in.step();
  out.unix_s = in.unix_s();
  // Records of former releases have the words.
  out.trigger.kind = in.trigger_kind() > 0 && in.trigger_kind() <= v1::DECISION_TRIGGER_DENSE_CHECK
                         ? static_cast<TriggerKind>(in.trigger_kind())
                         : TriggerNamed(in.trigger());
  out.trigger.step = in.trigger_step();
  for (const v1::Change& change : in.changes()) out.trigger.changes.push_back(ToModel(change));
  out.trigger.note = in.note();
  out.switched = in.switched();
  out.plan_version = in.plan_version();
  out.facts = ToModel(in.facts());
  out.facts.switched = in.switched();
  out.facts.dense_step_s = in.dense_step_s();
  out.facts.binding_constraint = in.binding_constraint();
  out.withdrawn_for = in.withdrawn_for();
  for (const v1::Candidate& candidate : in.candidates()) {
    if (out.candidates.size() < kCandidatesMax) out.candidates.push_back(ToModel(candidate));
  }
  out.outcome = in.result() > 0 && in.result() <= v1::DECISION_OUTCOME_WITHDRAWN
                    ? static_cast<DecisionOutcome>(in.result())
                    : OutcomeNamed(in.outcome());
  out.activation_step = in.activation_step();
  out.actual_step_s = in.actual_step_s();
  out.digest = in.digest();
  if (in.has_plan()) out.plan = ToModel(in.plan());
  out.policy = in.policy();
  for (const v1::BucketChange& change : in.bucket_changes()) {
    out.changes.push_back(ToModel(change));
  }
  out.buckets_changed = in.buckets_changed();
  for (const v1::LinkSharing& one : in.sharing()) {
    if (out.sharing.size() < JobSharing::kNamedMax) out.sharing.push_back({one.job(), one.nodes()});
  }
  out.unchanged = in.unchanged();
  return out;
}

v1::Decision ToProto(const DecisionRecord& in) {
  v1::Decision out;
  if (in.id > 0) out.set_id(std::to_string(in.id));
  out.set_job(in.job);
  out.set_step(in.step);
  out.set_unix_s(in.unix_s);
  out.set_trigger_kind(static_cast<v1::DecisionTrigger>(static_cast<int>(in.trigger.kind)));
  out.set_trigger_step(in.trigger.step);
  for (const Change& change : in.trigger.changes) *out.add_changes() = ToProto(change);
  out.set_note(in.trigger.note);
  out.set_switched(in.switched);
  out.set_plan_version(in.plan_version);
  *out.mutable_facts() = ToProto(in.facts);
  out.set_withdrawn_for(in.withdrawn_for);
  for (const CandidateRecord& candidate : in.candidates) {
    *out.add_candidates() = ToProto(candidate);
  }
  out.set_binding_constraint(in.facts.binding_constraint);
  out.set_dense_step_s(in.facts.dense_step_s);
  out.set_predicted_step_s(in.facts.chosen.step_s);
  out.set_result(static_cast<v1::DecisionOutcome>(static_cast<int>(in.outcome)));
  out.set_activation_step(in.activation_step);
  out.set_actual_step_s(in.actual_step_s);
  out.set_digest(in.digest);
  if (in.plan.has_value()) *out.mutable_plan() = ToProto(*in.plan);
  out.set_policy(in.policy);
  for (const BucketChange& change : in.changes) *out.add_bucket_changes() = ToProto(change);
  out.set_buckets_changed(in.buckets_changed);
  for (const JobSharing& one : in.sharing) *out.add_sharing() = ToProto(one);
  out.set_unchanged(in.unchanged);
  return out;
}

void AddWords(v1::Decision* decision) {
  const DecisionRecord record = ToModel(*decision);
  // Words that this release does not know, of another one, stay.
  if (decision->trigger_kind() != 0) decision->set_trigger(TriggerName(record.trigger.kind));
  if (decision->result() != 0) decision->set_outcome(OutcomeName(record.outcome));
  if (!decision->has_facts()) return;  // a former release stored its own
  const std::string cause = TriggerText(record.trigger);
  decision->set_reason(StrCat(cause, cause.empty() ? "" : ": ", ReasonText(record.facts),
                              record.withdrawn_for.empty() ? "" : "; ", record.withdrawn_for));
  decision->set_from(record.facts.incumbent.has_value() ? record.facts.incumbent->label
                                                        : "dense, no plan yet");
  decision->set_to(record.facts.chosen.label);
  decision->set_summary(SummaryText(record));
  decision->set_ring(RingText(record.facts.ring));
  decision->set_shards(ShardText(record.facts.shards));
}

}  // namespace weir
