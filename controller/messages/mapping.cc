// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/mapping.h"

#include <algorithm>
#include <cmath>

#include "controller/job/job_lease.h"
#include "controller/model/format.h"
#include "datapath/base/json.h"

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
// The longest name of a parameter in an event. Ranks send no more, and events are kept.
constexpr size_t kEventParameterBytesMax = 256;

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
  // The numbers are the same.
  const bool placed = v1::EncodedOn_IsValid(sample.encoded_on());
  if (placed) out.encoded_on = static_cast<CodecPlace>(sample.encoded_on());
  return out;
}

}  // namespace

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
  if (hello.labels_size() > kLabelsMax) {
    return InvalidArgument(StrCat(hello.labels_size(), " labels, expected at most ", kLabelsMax));
  }
  for (const auto& [label, value] : hello.labels()) {
    WEIR_RETURN_IF_ERROR(CheckName("a label", label));
    WEIR_RETURN_IF_ERROR(CheckName(StrCat("the label ", label), value));
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

CodecModel ModelOf(const v1::CodecCapability& in, const v1::CodecSetting& setting) {
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
  out.on_device = in.has_device_encode() && in.has_device_decode();
  out.device_encode = ToModel(in.device_encode());
  out.device_decode = ToModel(in.device_decode());
  return out;
}

CodecOffer ToModel(const v1::CodecCapability& in) {
  CodecOffer out;
  out.name = in.name();
  out.form = in.form();
  out.forms.assign(in.forms().begin(), in.forms().end());
  out.lossy = in.lossy();
  out.uses_ratio = in.uses_ratio();
  out.ratio_min = Finite(in.ratio_min());
  out.ratio_max = Finite(in.ratio_max());
  for (const v1::CodecSetting& setting : in.settings()) {
    out.settings.push_back({ModelOf(in, setting),
                            setting.world_min(),
                            setting.world_max(),
                            {setting.lane_levels().begin(), setting.lane_levels().end()}});
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
  out.on_devices = in.on_devices();
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
  out.set_on_devices(in.on_devices);
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
  out.by_caller = in.by_caller();
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
  out.set_by_caller(in.by_caller);
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

JobCapabilities ToModel(const v1::Capabilities& capabilities) {
  JobCapabilities out;
  for (const auto& codec : capabilities.codecs()) out.codecs.push_back(ToModel(codec));
  for (const auto& one : capabilities.collectives()) out.collectives.push_back(ToModel(one));
  return out;
}

PolicyNames NamesOf(const v1::Capabilities& capabilities) {
  PolicyNames names;
  // Errors list these names, so a rank's name must not be able to add lines to the log.
  const auto add = [](const std::string& name, std::set<std::string>* to) {
    if (CheckName("a name", name).ok()) to->insert(name);
  };
  for (const auto& codec : capabilities.codecs()) {
    add(codec.name(), &names.codecs);
    add(CodecText(codec.name()), &names.codecs);
  }
  for (const auto& each : capabilities.collectives()) add(each.name(), &names.collectives);
  return names;
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
  out.device_link_bytes = Positive(report.device_link_bytes());
  out.device_link_s = Positive(report.device_link_s());
  if (report.has_cores()) {
    const v1::CoreUse& cores = report.cores();
    const auto ratio = [](double value) { return std::clamp(Finite(value), 0.0, 1.0); };
    out.cores = CoreObservation{.wait_ratio = ratio(cores.wait_ratio()),
                                .datapath_wait_ratio = ratio(cores.datapath_wait_ratio()),
                                .steal_ratio = ratio(cores.steal_ratio()),
                                .pressure_ratio = ratio(cores.pressure_ratio())};
  }
  if (report.has_period()) {
    const v1::LocalPeriod& period = report.period();
    out.period = {.steps = std::clamp(period.steps(), 1u, kSyncEveryMax),
                  .overlap = 0,
                  .waited_s = Positive(period.waited_s()),
                  .moved_square = Positive(period.moved_square()),
                  .mean_square = Positive(period.mean_square())};
    out.period.overlap = std::min(period.overlap_steps(), out.period.steps - 1);
  }
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
  for (const auto& arrival : report.arrivals()) {
    out.arrivals.push_back({static_cast<int>(std::min<uint32_t>(arrival.peer_rank(), INT_MAX)),
                            Positive(arrival.s_per_byte()), Positive(arrival.relative_deviation()),
                            Positive(arrival.ingress_s_per_byte()),
                            static_cast<double>(arrival.payload_bytes()), arrival.within_burst()});
  }
  return out;
}

RankGreeting ToModel(const v1::RankHello& hello) {
  RankGreeting out;
  out.job = hello.job();
  out.rank = static_cast<int>(hello.rank());
  out.world = static_cast<int>(hello.world());
  out.pid = hello.pid();
  out.step = hello.step();
  out.epoch = hello.epoch();
  out.capabilities = ToModel(hello.capabilities());
  out.active_plan_version = hello.active_plan_version();
  if (hello.has_active_plan()) out.active_plan = ToModel(hello.active_plan());
  out.aggregation_address = hello.aggregation_address();
  out.memory_group = static_cast<int>(std::min<uint32_t>(hello.memory_group(), kWorldMax));
  if (hello.has_proof()) {
    const v1::RankProof& proof = hello.proof();
    out.proof = {proof.public_key(), proof.node(), proof.challenge(), proof.signature()};
  }
  out.protection = ToModel(hello.frame_protection());
  out.unauthenticated_peers = hello.unauthenticated_peers();
  out.local_steps = hello.local_steps();
  out.labels = {hello.labels().begin(), hello.labels().end()};
  if (const auto& device = hello.gradient_device(); hello.has_gradient_device()) {
    out.gradient_device = {.copy_out_s_per_byte = Positive(device.copy_out_s_per_byte()),
                           .copy_in_s_per_byte = Positive(device.copy_in_s_per_byte()),
                           .known = true,
                           .linked = device.linked()};
  }
  return out;
}

BucketList ToModel(const v1::BucketTable& table) {
  BucketList out;
  for (const v1::Bucket& bucket : table.buckets()) out.push_back(ToModel(bucket));
  return out;
}

RankIncident ToModel(const v1::RankEvent& event) {
  return {event.kind(),   event.detail(),
          event.step(),   event.guilty_rank(),
          event.bucket(), std::string(Utf8Prefix(event.parameter(), kEventParameterBytesMax))};
}

v1::RankEvent ToProto(const RankIncident& incident) {
  v1::RankEvent out;
  out.set_kind(incident.kind);
  out.set_detail(incident.detail);
  out.set_step(incident.step);
  out.set_guilty_rank(incident.guilty_rank);
  out.set_bucket(incident.bucket);
  out.set_parameter(incident.parameter);
  return out;
}

std::optional<RankSaid> ToModel(int rank, const v1::RankMessage& message) {
  switch (message.body_case()) {
    case v1::RankMessage::kBuckets:
      return ToModel(message.buckets());
    case v1::RankMessage::kStep:
      return ToModel(rank, message.step());
    case v1::RankMessage::kPaths: {
      PathList paths;
      for (const v1::PathSample& path : message.paths().paths()) {
        paths.push_back({static_cast<int>(path.peer_rank() & 0x7fffffff), Positive(path.rtt_s()),
                         Positive(path.delivery_rate_bytes_per_s()), path.application_limited(),
                         static_cast<double>(path.congestion_window_bytes()),
                         Positive(path.rtt_min_s())});
      }
      return paths;
    }
    case v1::RankMessage::kAck:
      return PlanAcked{message.ack().version(), message.ack().nonce()};
    case v1::RankMessage::kNack:
      return PlanRefused{message.nack().version(), message.nack().nonce(), message.nack().reason()};
    case v1::RankMessage::kActive:
      return PlanActivated{message.active().version(), message.active().step()};
    case v1::RankMessage::kEvent:
      return ToModel(message.event());
    case v1::RankMessage::kHello:
    case v1::RankMessage::kNccl:  // of a process that trains without Weir: its agent keeps the sums
    case v1::RankMessage::BODY_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace weir
