// SPDX-License-Identifier: Apache-2.0
#include "datapath/agent_link/agent_protocol.h"

#include <algorithm>

#include "datapath/base/json.h"
#include "datapath/codec/codec_names.h"

namespace weir {
namespace {

using nlohmann::json;

constexpr size_t kNonceBytesMax = 256;
constexpr size_t kReasonBytesMax = 4096;
constexpr size_t kNodeNameBytesMax = 253;
constexpr double kLeaseMax_s = 1e6;

/// Visits fields into a JSON object.
struct FieldsToJson {
  json& object;
  void operator()(const char* name, double value) const { object[name] = JsonDouble(value); }
  template <typename T>
  void operator()(const char* name, const T& value) const {
    object[name] = value;
  }
};

json ToJson(const CodecTraits& t) {
  json settings = json::array();
  for (const CodecSetting& setting : t.settings) {
    VisitFields(setting, FieldsToJson{settings.emplace_back(json::object())});
  }
  json forms = json::array();
  for (const ExchangeForm* form : ExchangeForms().All()) {
    if (Carries(form->Traits(), t)) forms.push_back(form->Traits().name);
  }
  json described = {{"settings", std::move(settings)},
                    {"forms", std::move(forms)},
                    {"sums_without_decoding", t.form == PayloadForm::kLanes},
                    {"indices_apart", HoldsIndicesOnly(t.form)}};
  VisitFields(t, FieldsToJson{described});
  return described;
}

json ToJson(const WorldFunction& f) {
  return {{"constant", f.constant},
          {"n_minus_1", f.n_minus_1},
          {"n_minus_1_over_n", f.n_minus_1_over_n},
          {"log2_n", f.log2_n},
          {"n", f.n}};
}

json ToJson(const WithinNodeCost& c) {
  return {
      {"latency", ToJson(c.latency)}, {"payload", ToJson(c.payload)}, {"reduce", ToJson(c.reduce)}};
}

json ToJson(const ExchangeTraits& t) {
  const bool nodes =
      t.encoded_sums == EncodedSums::kNodes || t.encoded_sums == EncodedSums::kNodeShards;
  return {{"gathers", t.gathers},
          {"encodes_regions", t.encoded_sums == EncodedSums::kRegions},
          {"encodes_nodes", nodes},
          {"shares_nodes", t.encoded_sums == EncodedSums::kNodeShards},
          {"needs_table", t.need == CodecNeed::kTable},
          {"on_devices", t.on_devices},
          {"gain_prior", JsonDouble(t.gain_prior)}};
}

json ToJson(const Collective& collective) {
  const CollectiveTraits& t = collective.Traits();
  json described = {{"name", t.name},
                    {"form", t.form},
                    {"exchange", ToJson(FormOf(collective).Traits())},
                    {"latency", ToJson(t.cost.latency)},
                    {"payload", ToJson(t.cost.payload)},
                    {"index", ToJson(t.cost.index)},
                    {"reduce", ToJson(t.cost.reduce)},
                    {"world_min", t.world_min},
                    {"world_max", t.world_max},
                    {"uses_ring_order", t.uses_ring_order},
                    {"all_pairs", t.all_pairs},
                    {"by_caller", t.by_caller},
                    {"payload_pattern", t.payload_pattern},
                    {"index_pattern", t.index_pattern},
                    {"shard_segment_bytes", t.shard_segment_bytes},
                    {"block_elements", t.blocks.elements},
                    {"own_block_share", JsonDouble(t.blocks.own_share)},
                    {"union_block_share", JsonDouble(t.blocks.union_share)}};
  if (t.node_cost.by_node) {
    described["node_cost"] = {{"even", ToJson(t.node_cost.even)},
                              {"uneven", ToJson(t.node_cost.uneven)}};
  }
  return described;
}

json ToJson(const CodecTime& t) {
  return {{"per_element_s", JsonDouble(t.per_element_s)}, {"per_kept_s", JsonDouble(t.per_kept_s)}};
}

/// The measured times are left out where null. `caller_sums`: whether callers can sum.
json CapabilitiesDocument(const std::map<std::string, CodecTiming>* on_host,
                          const std::map<std::string, CodecTiming>* on_device, bool caller_sums) {
  json codecs = json::array(), collectives = json::array();
  for (const Codec* codec : Codecs().All()) {
    const std::string& name = codec->Traits().name;
    json described = ToJson(codec->Traits());
    if (on_host != nullptr && on_host->contains(name)) {
      described["encode"] = ToJson(on_host->at(name).encode);
      described["decode"] = ToJson(on_host->at(name).decode);
    }
    if (on_device != nullptr && on_device->contains(name)) {
      described["device_encode"] = ToJson(on_device->at(name).encode);
      described["device_decode"] = ToJson(on_device->at(name).decode);
    }
    codecs.push_back(std::move(described));
  }
  for (const Collective* collective : Collectives().All()) {
    if (collective->Traits().by_caller && !caller_sums) continue;
    collectives.push_back(ToJson(*collective));
  }
  return {{"codecs", std::move(codecs)}, {"collectives", std::move(collectives)}};
}

const char* ProtectionName(Protection protection) {
  switch (protection) {
    case Protection::kChecked:
      return "FRAME_PROTECTION_CHECKED";
    case Protection::kAuthenticated:
      return "FRAME_PROTECTION_AUTHENTICATED";
    case Protection::kEncrypted:
      return "FRAME_PROTECTION_ENCRYPTED";
  }
  return "FRAME_PROTECTION_UNSPECIFIED";
}

json Body(const RankHello& m) {
  const DeviceCodecTimings* const device = m.device_timings;
  json body = {
      {"job", m.job},
      {"rank", m.rank},
      {"world", m.world},
      {"pid", m.pid},
      {"library_version", m.library_version},
      {"datapath_address", m.datapath_address},
      {"capabilities",
       CapabilitiesDocument(device != nullptr ? &device->on_host : m.codec_timings,
                            device != nullptr ? &device->on_device : nullptr, m.caller_sums)},
      {"active_plan_version", JsonUint64(m.active_plan_version)},
      {"step", JsonUint64(m.step)},
      {"frame_protection", ProtectionName(m.protection)},
      {"unauthenticated_peers", m.unauthenticated_peers}};
  if (!m.aggregation_address.empty()) body["aggregation_address"] = m.aggregation_address;
  if (m.lowest_rank >= 0) body["memory_group"] = m.lowest_rank + 1;
  if (m.local_steps) body["local_steps"] = true;
  if (!m.labels.empty()) body["labels"] = m.labels;
  if (device != nullptr) {
    body["gradient_device"] = {{"copy_out_s_per_byte", JsonDouble(device->copy_out_s_per_byte)},
                               {"copy_in_s_per_byte", JsonDouble(device->copy_in_s_per_byte)},
                               {"linked", m.device_linked}};
  }
  if (m.epoch != 0) body["epoch"] = JsonUint64(m.epoch);
  if (m.proof.has_value()) {
    body["proof"] = {{"public_key", m.proof->public_key},
                     {"node", m.proof->node},
                     {"challenge", m.proof->challenge},
                     {"signature", m.proof->signature}};
  }
  if (m.active_plan != nullptr && m.active_plan->version != 0) {
    body["active_plan"] = json::parse(PlanToJson(*m.active_plan));
  }
  return {{"hello", std::move(body)}};
}

json Body(const BucketTable& m) {
  json buckets = json::array();
  for (const BucketDescription& b : m.buckets) {
    json names = json::array();
    for (size_t i = 0; i < std::min(b.parameters.size(), kParameterNamesSentMax); ++i) {
      names.push_back(b.parameters[i]);
    }
    buckets.push_back({{"key", Hex64(b.key)},
                       {"elements", JsonUint64(b.elements)},
                       {"order", b.order},
                       {"dtype", b.dtype},
                       {"parameters", std::move(names)},
                       {"sharded", b.sharded}});
  }
  return {{"buckets", {{"buckets", std::move(buckets)}}}};
}

const char* EncodedOnName(EncodedOn place) {
  switch (place) {
    case EncodedOn::kNowhere:
      return "ENCODED_ON_NOTHING";
    case EncodedOn::kHost:
      return "ENCODED_ON_HOST";
    case EncodedOn::kDevice:
      return "ENCODED_ON_DEVICE";
  }
  return "ENCODED_ON_UNSPECIFIED";
}

json ToJson(const BucketSample& s) {
  return {{"bucket", Hex64(s.bucket)},
          {"codec", s.codec},
          {"collective", s.collective},
          {"ratio", JsonDouble(s.ratio)},
          {"bits", s.bits},
          {"ready_s", JsonDouble(s.ready_s)},
          {"metadata_s", JsonDouble(s.metadata_s)},
          {"encode_s", JsonDouble(s.encode_s)},
          {"network_s", JsonDouble(s.network_s)},
          {"decode_s", JsonDouble(s.decode_s)},
          {"payload_bytes", JsonUint64(s.payload_bytes)},
          {"bytes_sent", JsonUint64(s.bytes_sent)},
          {"gain", JsonDouble(s.gain)},
          {"residual_ratio", JsonDouble(s.residual_ratio)},
          {"entry_offset_s", JsonDouble(s.entry_offset_s)},
          {"encoded_on", EncodedOnName(s.encoded_on)}};
}

json Numbers(const std::vector<double>& values) {
  json array = json::array();
  for (double value : values) array.push_back(JsonDouble(value));
  return array;
}

json ToJson(const BlockDensity& d) {
  json density = {{"bucket", Hex64(d.bucket)},
                  {"block_elements", d.block_elements},
                  {"own", JsonDouble(d.own)}};
  if (d.combined >= 0) {
    density["combined"] = JsonDouble(d.combined);
    density["has_combined"] = true;
  }
  return density;
}

json ToJson(const ArrivalSample& a) {
  return {{"peer_rank", a.peer < 0 ? 0 : a.peer},
          {"s_per_byte", JsonDouble(a.s_per_byte)},
          {"relative_deviation", JsonDouble(a.relative_deviation)},
          {"ingress_s_per_byte", JsonDouble(a.ingress_s_per_byte)},
          {"payload_bytes", JsonUint64(a.payload_bytes)},
          {"trains", a.trains},
          {"within_burst", a.within_burst}};
}

json Body(const StepReport& m) {
  json buckets = json::array(), gains = json::array(), losses = json::array();
  json densities = json::array(), arrivals = json::array();
  for (const ArrivalSample& arrival : m.arrivals) arrivals.push_back(ToJson(arrival));
  for (const BlockDensity& density : m.block_densities) densities.push_back(ToJson(density));
  for (const BucketSample& sample : m.buckets) buckets.push_back(ToJson(sample));
  for (const GainCurve& curve : m.gains) {
    gains.push_back({{"bucket", Hex64(curve.bucket)},
                     {"ratios", Numbers(curve.ratios)},
                     {"gains", Numbers(curve.gains)},
                     {"peak_over_rms", JsonDouble(curve.peak_over_rms)}});
  }
  for (const CodecLoss& loss : m.codec_losses) {
    losses.push_back({{"codec", loss.codec},
                      {"bits", loss.bits},
                      {"relative_loss", JsonDouble(loss.relative_loss)}});
  }
  json body = {{"step", JsonUint64(m.step)},
               {"plan_version", JsonUint64(m.plan_version)},
               {"step_s", JsonDouble(m.step_s)},
               {"compute_s", JsonDouble(m.compute_s)},
               {"backward_s", JsonDouble(m.backward_s)},
               {"exposed_s", JsonDouble(m.exposed_s)},
               {"skipped", m.skipped},
               {"loss", JsonDouble(m.loss)},
               {"has_loss", m.has_loss},
               {"device_link_bytes", JsonDouble(m.device_link_bytes)},
               {"device_link_s", JsonDouble(m.device_link_s)},
               {"buckets", std::move(buckets)},
               {"gains", std::move(gains)},
               {"codec_losses", std::move(losses)},
               {"block_densities", std::move(densities)},
               {"arrivals", std::move(arrivals)}};
  if (m.period.steps > 1) {
    body["period"] = {{"steps", m.period.steps},
                      {"overlap_steps", m.period.overlap_steps},
                      {"waited_s", JsonDouble(m.period.waited_s)},
                      {"moved_square", JsonDouble(m.period.moved_square)},
                      {"mean_square", JsonDouble(m.period.mean_square)}};
  }
  return {{"step", std::move(body)}};
}

json Body(const PathReport& m) {
  json paths = json::array();
  for (const PathSample& p : m.paths) {
    const bool known = p.peer >= 0 && static_cast<size_t>(p.peer) < m.addresses.size();
    paths.push_back({{"peer_rank", p.peer < 0 ? 0 : p.peer},
                     {"rtt_s", JsonDouble(p.rtt_s)},
                     {"rtt_min_s", JsonDouble(p.rtt_min_s)},
                     {"delivery_rate_bytes_per_s", JsonDouble(p.delivery_rate_bytes_per_s)},
                     {"application_limited", p.application_limited},
                     {"bytes_acked", JsonUint64(p.bytes_acked)},
                     {"busy_s", JsonDouble(p.busy_s)},
                     {"receive_window_limited_s", JsonDouble(p.receive_window_limited_s)},
                     {"send_buffer_limited_s", JsonDouble(p.send_buffer_limited_s)},
                     {"retransmits", JsonUint64(p.retransmits)},
                     {"congestion_window_bytes", p.congestion_window_bytes},
                     {"peer_address", known ? m.addresses[p.peer] : ""},
                     {"medium", p.medium}});
  }
  return {{"paths", {{"paths", std::move(paths)}}}};
}

json Body(const PlanAck& m) {
  return {{"ack", {{"version", JsonUint64(m.version)}, {"nonce", m.nonce}}}};
}
json Body(const PlanNack& m) {
  return {{"nack", {{"version", JsonUint64(m.version)}, {"nonce", m.nonce}, {"reason", m.reason}}}};
}
json Body(const PlanActive& m) {
  return {{"active", {{"version", JsonUint64(m.version)}, {"step", JsonUint64(m.step)}}}};
}
json Body(const RankEvent& m) {
  return {{"event",
           {{"kind", m.kind},
            {"detail", m.detail},
            {"step", JsonUint64(m.step)},
            {"guilty_rank", m.guilty_rank},
            {"bucket", m.bucket == 0 ? "" : Hex64(m.bucket)},
            {"parameter", Utf8Prefix(m.parameter, kEventParameterBytesMax)}}}};
}

StatusOr<RankCommand> ReadOffer(const json& value) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, "offer"));
  PlanOffer offer;
  WEIR_RETURN_IF_ERROR(reader.String("nonce", kNonceBytesMax, &offer.nonce));
  const json* plan = reader.Find("plan");
  if (plan == nullptr) return InvalidArgument("offer.plan: expected an object, found none");
  WEIR_ASSIGN_OR_RETURN(ObjectReader plan_reader, ObjectReader::Make(*plan, "offer.plan"));
  WEIR_RETURN_IF_ERROR(plan_reader.Uint64("version", &offer.version));
  offer.plan = ParsePlan(DumpJson(*plan), UnknownKeys::kIgnore);
  if (const json* lease = reader.Find("lease_plan")) {
    StatusOr<Plan> parsed = ParsePlan(DumpJson(*lease), UnknownKeys::kIgnore);
    if (parsed.ok()) {
      offer.lease_plan = std::move(*parsed);
    } else if (offer.plan.ok()) {
      offer.plan = Annotate(parsed.status(), "lease_plan");
    }
  }
  return RankCommand(std::move(offer));
}

StatusOr<RankCommand> ReadLease(const json& value) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, "lease"));
  PlanLease lease;
  WEIR_RETURN_IF_ERROR(reader.Double("lease_s", &lease.lease_s));
  if (!(lease.lease_s >= 0 && lease.lease_s <= kLeaseMax_s)) {
    return InvalidArgument(
        StrCat("lease.lease_s: expected 0..", kLeaseMax_s, ", found ", lease.lease_s));
  }
  return RankCommand(lease);
}

StatusOr<RankCommand> ReadChallenge(const json& value) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, "challenge"));
  RankChallenge challenge;
  WEIR_RETURN_IF_ERROR(reader.String("node", kNodeNameBytesMax, &challenge.node));
  WEIR_RETURN_IF_ERROR(reader.String("challenge", kChallengeDigits, &challenge.challenge));
  return RankCommand(std::move(challenge));
}

StatusOr<uint64_t> ReadVersion(const json& value, const char* what) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, what));
  uint64_t version = 0;
  WEIR_RETURN_IF_ERROR(reader.Uint64("version", &version));
  if (version == 0) return InvalidArgument(StrCat(what, ".version: expected at least 1, found 0"));
  return version;
}

}  // namespace

std::string EncodeRankMessage(const RankMessage& message) {
  return DumpJson(std::visit([](const auto& m) { return Body(m); }, message));
}

StatusOr<RankCommand> ParseRankCommand(std::string_view text) {
  WEIR_ASSIGN_OR_RETURN(const json document, ParseJson(text, kCommandBytesMax));
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(document, "command"));
  if (const json* offer = reader.Find("offer")) return ReadOffer(*offer);
  if (const json* arm = reader.Find("arm")) {
    WEIR_ASSIGN_OR_RETURN(const uint64_t version, ReadVersion(*arm, "arm"));
    return RankCommand(PlanArm{version});
  }
  if (const json* withdraw = reader.Find("withdraw")) {
    WEIR_ASSIGN_OR_RETURN(const uint64_t version, ReadVersion(*withdraw, "withdraw"));
    return RankCommand(PlanWithdraw{version});
  }
  if (const json* lease = reader.Find("lease")) return ReadLease(*lease);
  if (const json* value = reader.Find("refusal")) {
    WEIR_ASSIGN_OR_RETURN(ObjectReader refusal, ObjectReader::Make(*value, "refusal"));
    RankRefusal result;
    WEIR_RETURN_IF_ERROR(refusal.String("reason", kReasonBytesMax, &result.reason));
    WEIR_RETURN_IF_ERROR(refusal.Double("retry_after_s", &result.retry_after_s));
    return RankCommand(std::move(result));
  }
  if (const json* challenge = reader.Find("challenge")) return ReadChallenge(*challenge);
  return RankCommand(std::monostate{});
}

const std::string& CapabilitiesJson() {
  static const std::string* text =
      new std::string(DumpJson(CapabilitiesDocument(nullptr, nullptr, false)));
  return *text;
}

std::string DeviceCapabilitiesJson(const std::vector<std::string>& on_device) {
  std::map<std::string, CodecTiming> timings;
  for (const std::string& name : on_device) timings[name] = {};
  return DumpJson(CapabilitiesDocument(nullptr, &timings, true));
}

}  // namespace weir
