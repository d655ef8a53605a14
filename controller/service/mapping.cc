#include "controller/service/mapping.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "controller/service/job_lease.h"

namespace weir {
namespace {

WorldFunctionModel ToModel(const v1::WorldFunction& function) {
  return {Finite(function.constant()), Finite(function.n_minus_1()),
          Finite(function.n_minus_1_over_n()), Finite(function.log2_n()), Finite(function.n())};
}

v1::WorldFunction ToProto(const WorldFunctionModel& function) {
  v1::WorldFunction out;
  out.set_constant(function.constant);
  out.set_n_minus_1(function.n_minus_1);
  out.set_n_minus_1_over_n(function.n_minus_1_over_n);
  out.set_log2_n(function.log2_n);
  out.set_n(function.n);
  return out;
}

constexpr uint32_t kBlockElementsMax = 1u << 24;

double Positive(double value) { return std::max(Finite(value), 0.0); }

BucketObservation ToModel(const v1::BucketSample& sample) {
  BucketObservation out;
  out.bucket = sample.bucket();
  out.codec = sample.codec();
  out.collective = sample.collective();
  out.ratio = std::clamp(Finite(sample.ratio()), 0.0, 1.0);
  out.bits = static_cast<int>(std::min(sample.bits(), kBitsMax));
  out.ready_s = Positive(sample.ready_s());
  out.metadata_s = Positive(sample.metadata_s());
  out.encode_s = Positive(sample.encode_s());
  out.network_s = Positive(sample.network_s());
  out.decode_s = Positive(sample.decode_s());
  out.payload_bytes = sample.payload_bytes();
  out.bytes_sent = sample.bytes_sent();
  out.gain = std::clamp(Finite(sample.gain()), 0.0, 1.0);
  out.residual_ratio = Positive(sample.residual_ratio());
  out.entry_offset_s = Positive(sample.entry_offset_s());
  return out;
}

std::string CanonicalChoice(const v1::Choice& choice) {
  char ratio[40];
  std::snprintf(ratio, sizeof(ratio), "%.17g", choice.ratio());
  return StrCat(choice.codec(), " ", choice.collective(), " ", ratio, " ", choice.bits(), " ",
                choice.segment_bytes(), "\n");
}

}  // namespace

double Finite(double value) { return std::isfinite(value) ? value : 0; }

Status CheckName(std::string_view what, std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax) {
    return InvalidArgument(
        StrCat(what, " has ", name.size(), " bytes, expected 1 to ", kNameBytesMax));
  }
  if (std::any_of(name.begin(), name.end(),
                  [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return InvalidArgument(StrCat(what, " holds a control character"));
  }
  return OkStatus();
}

Status CheckHello(const v1::RankHello& hello) {
  WEIR_RETURN_IF_ERROR(CheckName("the job's name", hello.job()));
  if (hello.world() < 1 || hello.world() > kWorldMax) {
    return InvalidArgument(StrCat("world size ", hello.world(), ", expected 1 to ", kWorldMax));
  }
  if (hello.rank() >= hello.world()) {
    return InvalidArgument(StrCat("rank ", hello.rank(), " of a world of ", hello.world()));
  }
  const auto& capabilities = hello.capabilities();
  if (capabilities.codecs_size() > kCapabilitiesMax ||
      capabilities.collectives_size() > kCapabilitiesMax) {
    return InvalidArgument(StrCat("more than ", kCapabilitiesMax, " codecs or collectives"));
  }
  return OkStatus();
}

CodecModel::Time ToModel(const v1::CodecTime& in) {
  CodecModel::Time out;
  out.per_element_s = Positive(in.per_element_s());
  out.per_kept_s = Positive(in.per_kept_s());
  out.deviation_s_per_element = 0.5 * out.per_element_s;
  return out;
}

CodecModel ToModel(const v1::CodecCapability& in, const v1::CodecSetting& setting) {
  CodecModel out;
  out.name = in.name();
  out.bits = static_cast<int>(std::min(setting.bits(), kBitsMax));
  out.form = in.form();
  out.forms.assign(in.forms().begin(), in.forms().end());
  out.sums_without_decoding = in.sums_without_decoding();
  out.indices_apart = in.indices_apart();
  out.lossy = in.lossy();
  out.unbiased = in.unbiased();
  out.needs_error_feedback = in.needs_error_feedback();
  out.shared_metadata = in.shared_metadata();
  out.opt_in = in.opt_in();
  out.rounds = static_cast<int>(std::clamp(in.rounds(), 1u, 1000u));
  out.fixed_bits = Positive(setting.fixed_bits());
  out.kept_bits = Positive(setting.kept_bits());
  out.indices_coded = in.indices_coded();
  out.uses_ratio = in.uses_ratio();
  out.ratio_min = std::clamp(Finite(in.ratio_min()), 0.0, 1.0);
  out.ratio_max = std::clamp(Finite(in.ratio_max()), 0.0, 1.0);
  out.error_model = in.error_model();
  out.relative_error_squared = Positive(setting.relative_error_squared());
  out.levels = Positive(setting.levels());
  out.levels_divided_by_world = in.levels_divided_by_world();
  out.peak_over_rms = Positive(in.peak_over_rms());
  out.error_divisor = in.error_divisor() > 0 ? Finite(in.error_divisor()) : 12;
  out.shared_block = in.shared_block();
  out.sum_error_squared = Positive(in.sum_error_squared());
  out.encode = ToModel(in.encode());
  out.decode = ToModel(in.decode());
  return out;
}

/// One model for each setting that the world size allows.
std::vector<CodecModel> ToModels(const v1::CodecCapability& in, int world) {
  std::vector<CodecModel> out;
  const auto ranks = static_cast<uint32_t>(world);
  for (const v1::CodecSetting& setting : in.settings()) {
    if (ranks < setting.world_min()) continue;
    if (setting.world_max() != 0 && ranks > setting.world_max()) continue;
    CodecModel model = ToModel(in, setting);
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const auto& other) { return other.bits == model.bits; });
    if (known) continue;  // a second one could never be asked for
    // A job has one lease of a table, so one table.
    model.tabled = out.empty() && setting.lane_levels_size() > 0;
    out.push_back(std::move(model));
  }
  return out;
}

WithinNodeModel ToModel(const v1::WithinNodeCost& in) {
  return {ToModel(in.latency()), ToModel(in.payload()), ToModel(in.reduce())};
}

v1::WithinNodeCost ToProto(const WithinNodeModel& in) {
  v1::WithinNodeCost out;
  *out.mutable_latency() = ToProto(in.latency);
  *out.mutable_payload() = ToProto(in.payload);
  *out.mutable_reduce() = ToProto(in.reduce);
  return out;
}

ExchangeModel ToModel(const v1::ExchangeForm& in) {
  ExchangeModel out;
  out.gathers = in.gathers();
  out.encodes_regions = in.encodes_regions();
  out.encodes_nodes = in.encodes_nodes();
  out.shares_nodes = in.shares_nodes();
  out.needs_table = in.needs_table();
  if (in.gain_prior() > 0 && in.gain_prior() < 1) out.gain_prior = in.gain_prior();
  return out;
}

v1::ExchangeForm ToProto(const ExchangeModel& in) {
  v1::ExchangeForm out;
  out.set_gathers(in.gathers);
  out.set_encodes_regions(in.encodes_regions);
  out.set_encodes_nodes(in.encodes_nodes);
  out.set_shares_nodes(in.shares_nodes);
  out.set_needs_table(in.needs_table);
  out.set_gain_prior(in.gain_prior);
  return out;
}

CollectiveModel ToModel(const v1::CollectiveCapability& in) {
  CollectiveModel out;
  out.name = in.name();
  out.form = in.form();
  out.exchange = ToModel(in.exchange());
  out.latency = ToModel(in.latency());
  out.payload = ToModel(in.payload());
  out.index = ToModel(in.index());
  out.reduce = ToModel(in.reduce());
  out.world_min = static_cast<int>(std::clamp<uint32_t>(in.world_min(), 1, kWorldMax));
  out.world_max = static_cast<int>(std::min<uint32_t>(in.world_max(), kWorldMax));
  out.uses_ring_order = in.uses_ring_order();
  out.all_pairs = in.all_pairs();
  out.payload_pattern = in.payload_pattern();
  out.index_pattern = in.index_pattern();
  out.shard_segment_bytes = in.shard_segment_bytes();
  out.by_node = in.has_node_cost();
  out.within_even = ToModel(in.node_cost().even());
  out.within_uneven = ToModel(in.node_cost().uneven());
  out.block_elements = std::min(in.block_elements(), kBlockElementsMax);
  out.own_block_share = std::clamp(Finite(in.own_block_share()), 0.0, 1.0);
  out.union_block_share =
      std::clamp(Finite(in.union_block_share()), 0.0, 1.0 - out.own_block_share);
  out.needs_lease = !LeaseModeOf(out.name).empty();
  return out;
}

v1::CollectiveCapability ToProto(const CollectiveModel& in) {
  v1::CollectiveCapability out;
  out.set_name(in.name);
  out.set_form(in.form);
  *out.mutable_exchange() = ToProto(in.exchange);
  *out.mutable_latency() = ToProto(in.latency);
  *out.mutable_payload() = ToProto(in.payload);
  *out.mutable_index() = ToProto(in.index);
  *out.mutable_reduce() = ToProto(in.reduce);
  out.set_uses_ring_order(in.uses_ring_order);
  out.set_all_pairs(in.all_pairs);
  out.set_payload_pattern(in.payload_pattern);
  out.set_index_pattern(in.index_pattern);
  out.set_shard_segment_bytes(in.shard_segment_bytes);
  if (in.by_node) {
    *out.mutable_node_cost()->mutable_even() = ToProto(in.within_even);
    *out.mutable_node_cost()->mutable_uneven() = ToProto(in.within_uneven);
  }
  out.set_block_elements(in.block_elements);
  out.set_own_block_share(in.own_block_share);
  out.set_union_block_share(in.union_block_share);
  out.set_world_min(static_cast<uint32_t>(in.world_min));
  out.set_world_max(static_cast<uint32_t>(in.world_max));
  return out;
}

std::vector<CodecModel> CodecsOf(const v1::Capabilities& capabilities, int world) {
  std::vector<CodecModel> out;
  for (const auto& codec : capabilities.codecs()) {
    for (CodecModel& model : ToModels(codec, world)) out.push_back(std::move(model));
  }
  return out;
}

std::vector<CollectiveModel> CollectivesOf(const v1::Capabilities& capabilities) {
  std::vector<CollectiveModel> out;
  for (const auto& collective : capabilities.collectives()) out.push_back(ToModel(collective));
  return out;
}

StatusOr<std::vector<BucketDefinition>> ToModel(const v1::BucketTable& table) {
  if (table.buckets_size() == 0) return InvalidArgument("the bucket table is empty");
  if (table.buckets_size() > kTableBucketsMax) {
    return InvalidArgument(StrCat(table.buckets_size(), " buckets, at most ", kTableBucketsMax));
  }
  std::vector<BucketDefinition> out;
  std::set<std::string> keys;
  for (const auto& bucket : table.buckets()) {
    WEIR_RETURN_IF_ERROR(CheckName("a bucket's key", bucket.key()));
    if (!keys.insert(bucket.key()).second) {
      return InvalidArgument(StrCat("bucket ", bucket.key(), " is listed twice"));
    }
    if (bucket.elements() == 0)
      return InvalidArgument(StrCat("bucket ", bucket.key(), " has no elements"));
    out.push_back({bucket.key(), bucket.elements(), static_cast<int>(bucket.order() & 0x7fffffff)});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  return out;
}

StepObservation ToModel(int rank, const v1::StepReport& report) {
  StepObservation out;
  out.rank = rank;
  out.step = report.step();
  out.plan_version = report.plan_version();
  out.step_s = Positive(report.step_s());
  out.compute_s = Positive(report.compute_s());
  out.backward_s = Positive(report.backward_s());
  out.exposed_s = Positive(report.exposed_s());
  out.skipped = report.skipped();
  if (report.has_loss() && std::isfinite(report.loss())) out.loss = report.loss();
  for (const auto& sample : report.buckets()) out.buckets.push_back(ToModel(sample));
  for (const auto& curve : report.gains()) {
    GainObservation gain;
    gain.bucket = curve.bucket();
    const int points = std::min({curve.ratios_size(), curve.gains_size(), 256});
    for (int i = 0; i < points; ++i) {
      gain.ratios.push_back(std::clamp(Finite(curve.ratios(i)), 0.0, 1.0));
      gain.gains.push_back(std::clamp(Finite(curve.gains(i)), 0.0, 1.0));
    }
    gain.peak_over_rms = Positive(curve.peak_over_rms());
    out.gains.push_back(std::move(gain));
  }
  for (const auto& loss : report.codec_losses()) {
    if (!std::isfinite(loss.relative_loss())) continue;
    out.codec_losses.push_back({loss.codec(), static_cast<int>(std::min(loss.bits(), kBitsMax)),
                                std::clamp(loss.relative_loss(), 0.0, 1e6)});
  }
  for (const auto& density : report.block_densities()) {
    if (!std::isfinite(density.own()) || !std::isfinite(density.combined())) continue;
    BlockDensityObservation seen{density.bucket(), density.block_elements(),
                                 std::clamp(density.own(), 0.0, 1.0), std::nullopt};
    if (density.has_combined()) seen.combined = std::clamp(density.combined(), 0.0, 1.0);
    out.block_densities.push_back(std::move(seen));
  }
  return out;
}

ChoiceModel ToModel(const v1::Choice& choice) {
  return {.codec = choice.codec(),
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

std::string ChoiceLabel(const ChoiceModel& choice) {
  const std::string ratio = choice.ratio < 1 ? StrCat(" ", choice.ratio) : "";
  const std::string bits = choice.bits == 0 ? "" : StrCat(" ", choice.bits, "-bit");
  return StrCat(choice.codec, bits, ratio, " over ", choice.collective);
}

std::string PlanLabel(const PlanModel& plan, const std::vector<BucketDefinition>& buckets) {
  if (plan.empty()) return "";
  size_t largest = 0;
  bool mixed = false;
  for (size_t i = 0; i < plan.size() && i < buckets.size(); ++i) {
    if (buckets[i].elements > buckets[largest].elements) largest = i;
    mixed = mixed || !(plan[i] == plan[0]);
  }
  return StrCat(mixed ? "mixed: " : "", ChoiceLabel(plan[largest]));
}

v1::Plan MakePlan(const std::string& job, uint64_t version,
                  const std::vector<BucketDefinition>& buckets, const PlanModel& choices,
                  const PlanLayout& layout, const ChoiceModel& fallback) {
  v1::Plan plan;
  plan.set_job(job);
  plan.set_version(version);
  for (size_t i = 0; i < choices.size() && i < buckets.size(); ++i) {
    auto* bucket = plan.add_buckets();
    bucket->set_bucket(buckets[i].key);
    *bucket->mutable_choice() = ToProto(choices[i]);
  }
  for (const int rank : layout.ring_order) plan.add_ring_order(static_cast<uint32_t>(rank));
  for (const uint32_t share : layout.shard_shares) plan.add_shard_shares(share);
  *plan.mutable_fallback() = ToProto(fallback);
  plan.set_digest(PlanDigest(plan));
  return plan;
}

PlanLayout LayoutIn(const v1::Plan& plan) {
  return {{plan.ring_order().begin(), plan.ring_order().end()},
          {plan.shard_shares().begin(), plan.shard_shares().end()}};
}

v1::Plan Redacted(v1::Plan plan) {
  if (plan.leases_size() == 0) return plan;
  for (auto& lease : *plan.mutable_leases()) lease.clear_cookie();
  plan.set_digest(PlanDigest(plan));
  return plan;
}

PlanModel ChoicesFor(const v1::Plan& plan, const std::vector<BucketDefinition>& buckets) {
  PlanModel choices(buckets.size(), plan.has_fallback() ? ToModel(plan.fallback()) : ChoiceModel{});
  for (const auto& bucket : plan.buckets()) {
    for (size_t i = 0; i < buckets.size(); ++i) {
      if (buckets[i].key == bucket.bucket()) choices[i] = ToModel(bucket.choice());
    }
  }
  return choices;
}

std::string PlanDigest(const v1::Plan& plan) {
  std::string text;
  for (const auto& bucket : plan.buckets()) {
    text += StrCat(bucket.bucket(), " ", CanonicalChoice(bucket.choice()));
  }
  for (const auto& lease : plan.leases()) {
    text += StrCat("lease|", lease.collective(), "|", lease.aggregator(), "|", lease.address(), "|",
                   lease.mode(), "|", lease.id(), "|", lease.epoch(), "|", lease.cookie(), "|",
                   lease.slots(), "|", lease.lanes(),
                   lease.columns() == 0 ? "" : StrCat("|", lease.columns()));
    if (lease.sum_bits() > 0) text += StrCat("|", lease.sum_bits(), "|");
    for (const uint32_t level : lease.levels()) text += StrCat(level, ",");
    if (lease.quorum() > 0) text += StrCat("|quorum|", lease.quorum(), "|", lease.cutoff_us());
    if (lease.unchecked()) text += "|unchecked";
    text += "\n";
  }
  for (const uint32_t rank : plan.ring_order()) text += StrCat("ring|", rank, "\n");
  for (const uint32_t share : plan.shard_shares()) text += StrCat("share|", share, "\n");
  text += StrCat("fallback ", CanonicalChoice(plan.fallback()));
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

std::string ProtectionText(const v1::Job& job) {
  if (job.unauthenticated_peers() > 0) return "unauthenticated";
  if (job.frame_protection() == v1::FRAME_PROTECTION_CHECKED) return "checked";
  if (job.frame_protection() == v1::FRAME_PROTECTION_AUTHENTICATED) return "authenticated";
  if (job.frame_protection() == v1::FRAME_PROTECTION_ENCRYPTED) return "encrypted";
  return "";
}

v1::Candidate ToProto(const CandidatePlan& candidate, size_t largest) {
  v1::Candidate out;
  out.set_label(candidate.label);
  if (largest < candidate.choices.size())
    *out.mutable_choice() = ToProto(candidate.choices[largest]);
  out.set_step_s(Finite(candidate.step_s));
  out.set_step_deviation_s(Finite(candidate.step_deviation_s));
  out.set_communication_s(Finite(candidate.communication_s));
  out.set_gain(Finite(candidate.gain));
  out.set_objective(Finite(candidate.objective));
  out.set_dense(candidate.dense);
  out.set_feasible(candidate.feasible);
  out.set_excluded_by(candidate.excluded_by);
  return out;
}

namespace {

bool SamePlanOf(const CandidatePlan& a, const CandidatePlan& b) {
  return a.choices == b.choices && a.layout == b.layout;
}

}  // namespace

void FillDecision(const Decision& decision, size_t largest, v1::Decision* out) {
  bool chosen_listed = false;
  bool dense_listed = false;
  for (const CandidatePlan& candidate : decision.top) {
    v1::Candidate* added = out->add_candidates();
    *added = ToProto(candidate, largest);
    added->set_chosen(!chosen_listed && SamePlanOf(candidate, decision.chosen));
    chosen_listed = chosen_listed || added->chosen();
    dense_listed = dense_listed || candidate.choices == decision.dense.choices;
  }
  if (!chosen_listed && !decision.chosen.choices.empty()) {
    v1::Candidate* added = out->add_candidates();
    *added = ToProto(decision.chosen, largest);
    added->set_chosen(true);
    dense_listed = dense_listed || decision.chosen.choices == decision.dense.choices;
  }
  // What dense would have cost belongs into every answer.
  if (!dense_listed && !decision.dense.choices.empty()) {
    *out->add_candidates() = ToProto(decision.dense, largest);
  }
  out->set_ring(decision.ring);
  out->set_shards(decision.shards);
  out->set_reason(decision.reason);
  out->set_switched(decision.switched);
  out->set_from(decision.incumbent.choices.empty() ? "" : decision.incumbent.label);
  out->set_to(decision.chosen.label);
  out->set_binding_constraint(decision.binding_constraint);
  out->set_dense_step_s(Finite(decision.dense.step_s));
  out->set_predicted_step_s(Finite(decision.chosen.step_s));
  out->set_digest(decision.digest);
}

}  // namespace weir
