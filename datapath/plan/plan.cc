// SPDX-License-Identifier: Apache-2.0
#include "datapath/plan/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>

#include "datapath/base/json.h"
#include "datapath/codec/codec_names.h"
#include "datapath/collective/primitives.h"
#include "datapath/plan/canonical_number.h"

namespace weir {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 256;
constexpr uint32_t kBitsMax = 32;
constexpr size_t kRingOrderMax = 65536;  // frames have 16 bits for a rank

Status ReadChoice(const json& value, std::string path, UnknownKeys unknown_keys, Choice* choice) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, std::move(path)));
  WEIR_RETURN_IF_ERROR(reader.String("codec", kNameBytesMax, &choice->codec));
  WEIR_RETURN_IF_ERROR(reader.String("collective", kNameBytesMax, &choice->collective));
  WEIR_RETURN_IF_ERROR(reader.Double("ratio", &choice->ratio));
  WEIR_RETURN_IF_ERROR(reader.Uint32("bits", &choice->bits));
  WEIR_RETURN_IF_ERROR(reader.Uint32("segment_bytes", &choice->segment_bytes));
  if (choice->codec.empty()) {
    return InvalidArgument(StrCat(reader.PathOf("codec"), ": expected a name, found none"));
  }
  if (choice->collective.empty()) {
    return InvalidArgument(StrCat(reader.PathOf("collective"), ": expected a name, found none"));
  }
  if (!(choice->ratio > 0 && choice->ratio <= 1)) {
    return InvalidArgument(
        StrCat(reader.PathOf("ratio"), ": expected 0 < ratio <= 1, found ", choice->ratio));
  }
  if (choice->bits > kBitsMax) {
    return InvalidArgument(
        StrCat(reader.PathOf("bits"), ": expected at most ", kBitsMax, ", found ", choice->bits));
  }
  if (choice->segment_bytes != 0 &&
      (choice->segment_bytes < kSegmentBytesMin || choice->segment_bytes > kSegmentBytesMax)) {
    return InvalidArgument(StrCat(reader.PathOf("segment_bytes"), ": expected 0 or ",
                                  kSegmentBytesMin, "..", kSegmentBytesMax, ", found ",
                                  choice->segment_bytes));
  }
  return unknown_keys == UnknownKeys::kReject ? reader.RejectUnknown() : OkStatus();
}

Status ReadBucket(const json& value, std::string path, UnknownKeys unknown_keys, Plan* plan) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, std::move(path)));
  std::string text;
  WEIR_RETURN_IF_ERROR(reader.String("bucket", kNameBytesMax, &text));
  const StatusOr<uint64_t> key = ParseHex64(text);
  if (!key.ok()) return Annotate(key.status(), reader.PathOf("bucket"));
  const json* choice_value = reader.Find("choice");
  if (choice_value == nullptr) {
    return InvalidArgument(StrCat(reader.PathOf("choice"), ": expected an object, found none"));
  }
  Choice choice;
  WEIR_RETURN_IF_ERROR(ReadChoice(*choice_value, reader.PathOf("choice"), unknown_keys, &choice));
  if (unknown_keys == UnknownKeys::kReject) WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  if (!plan->buckets.try_emplace(*key, std::move(choice)).second) {
    return InvalidArgument(StrCat(reader.PathOf("bucket"), ": duplicate bucket ", Hex64(*key)));
  }
  return OkStatus();
}

Status ReadLevels(ObjectReader* reader, std::vector<uint8_t>* levels) {
  WEIR_ASSIGN_OR_RETURN(const json* values, reader->FindArray("levels", aggregation::kTableLevels));
  for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
    const json& level = (*values)[i];
    if (!level.is_number_unsigned() || level.get<uint64_t>() > 255) {
      return InvalidArgument(StrCat(reader->PathOf("levels"), ": expected integers of 0 to 255"));
    }
    levels->push_back(static_cast<uint8_t>(level.get<uint64_t>()));
  }
  return OkStatus();
}

Status ReadLease(const json& value, std::string path, UnknownKeys unknown_keys, Plan* plan) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, std::move(path)));
  AggregatorLease lease;
  std::string cookie;
  WEIR_RETURN_IF_ERROR(reader.String("collective", kNameBytesMax, &lease.collective));
  WEIR_RETURN_IF_ERROR(reader.String("aggregator", kNameBytesMax, &lease.aggregator));
  WEIR_RETURN_IF_ERROR(reader.String("address", kNameBytesMax, &lease.address));
  WEIR_RETURN_IF_ERROR(reader.String("mode", kNameBytesMax, &lease.mode));
  WEIR_RETURN_IF_ERROR(reader.Uint32("id", &lease.id));
  WEIR_RETURN_IF_ERROR(reader.Uint32("epoch", &lease.epoch));
  WEIR_RETURN_IF_ERROR(reader.String("cookie", kNameBytesMax, &cookie));
  WEIR_RETURN_IF_ERROR(reader.Uint32("slots", &lease.slots));
  WEIR_RETURN_IF_ERROR(reader.Uint32("lanes", &lease.lanes));
  WEIR_RETURN_IF_ERROR(reader.Uint32("columns", &lease.columns));
  WEIR_RETURN_IF_ERROR(reader.Uint32("sum_bits", &lease.sum_bits));
  WEIR_RETURN_IF_ERROR(ReadLevels(&reader, &lease.levels));
  WEIR_RETURN_IF_ERROR(reader.Uint32("quorum", &lease.quorum));
  WEIR_RETURN_IF_ERROR(reader.Uint32("cutoff_us", &lease.cutoff_us));
  WEIR_RETURN_IF_ERROR(reader.Boolean("unchecked", &lease.unchecked));
  const StatusOr<uint64_t> secret = ParseHex64(cookie);
  if (!secret.ok()) {  // the value is left out, because it may be most of a cookie
    return InvalidArgument(StrCat(reader.PathOf("cookie"), ": expected 16 hexadecimal digits"));
  }
  lease.cookie = *secret;
  if (lease.collective.empty()) {
    return InvalidArgument(StrCat(reader.PathOf("collective"), ": expected a name, found none"));
  }
  if (unknown_keys == UnknownKeys::kReject) WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  const std::string collective = lease.collective;
  if (!plan->leases.try_emplace(collective, std::move(lease)).second) {
    return InvalidArgument(
        StrCat(reader.PathOf("collective"), ": duplicate lease of '", collective, "'"));
  }
  return OkStatus();
}

// ValidatePlan checks that the ranks exist.
Status ReadRingOrder(ObjectReader& reader, Plan* plan) {
  WEIR_ASSIGN_OR_RETURN(const json* order, reader.FindArray("ring_order", kRingOrderMax));
  for (size_t i = 0; order != nullptr && i < order->size(); ++i) {
    const json& rank = (*order)[i];
    if (!rank.is_number_unsigned() || rank.get<uint64_t>() >= kRingOrderMax) {
      return InvalidArgument(StrCat("plan.ring_order[", i, "]: expected a rank below ",
                                    kRingOrderMax, ", found ", DumpJson(rank).substr(0, 40)));
    }
    plan->ring_order.push_back(rank.get<int>());
  }
  return OkStatus();
}

Status ValidateRingOrder(const std::vector<int>& order, int world) {
  if (order.empty()) return OkStatus();
  if (order.size() != static_cast<size_t>(world)) {
    return InvalidArgument(StrCat("plan.ring_order: expected each of ", world,
                                  " ranks once, found ", order.size(), " ranks"));
  }
  std::vector<bool> seen(order.size());
  for (const int rank : order) {
    if (rank < 0 || rank >= world || seen[static_cast<size_t>(rank)]) {
      return InvalidArgument(StrCat("plan.ring_order: expected each of ", world,
                                    " ranks once, found rank ", rank,
                                    rank < 0 || rank >= world ? "" : " twice"));
    }
    seen[static_cast<size_t>(rank)] = true;
  }
  return OkStatus();
}

Status ReadShardShares(ObjectReader& reader, Plan* plan) {
  WEIR_ASSIGN_OR_RETURN(const json* shares, reader.FindArray("shard_shares", kRingOrderMax));
  for (size_t i = 0; shares != nullptr && i < shares->size(); ++i) {
    const json& share = (*shares)[i];
    if (!share.is_number_unsigned() || share.get<uint64_t>() > kShardShareTotal) {
      return InvalidArgument(StrCat("plan.shard_shares[", i, "]: expected an integer of 0 to ",
                                    kShardShareTotal, ", found ", DumpJson(share).substr(0, 40)));
    }
    plan->shard_shares.push_back(share.get<uint32_t>());
  }
  return OkStatus();
}

Status ValidateShardShares(const std::vector<uint32_t>& shares, int world) {
  if (shares.empty()) return OkStatus();
  if (shares.size() != static_cast<size_t>(world)) {
    return InvalidArgument(StrCat("plan.shard_shares: expected a share for each of ", world,
                                  " ranks, found ", shares.size()));
  }
  uint64_t sum = 0;
  for (const uint32_t share : shares) sum += share;
  if (sum == kShardShareTotal) return OkStatus();
  return InvalidArgument(
      StrCat("plan.shard_shares: expected a sum of ", kShardShareTotal, ", found ", sum));
}

std::string CanonicalChoice(const Choice& choice) {
  return StrCat(choice.codec, "|", choice.collective, "|", CanonicalNumber(choice.ratio), "|",
                choice.bits, "|", choice.segment_bytes, "\n");
}

json ChoiceToJson(const Choice& choice) {
  return {{"codec", choice.codec},
          {"collective", choice.collective},
          {"ratio", JsonDouble(choice.ratio)},
          {"bits", choice.bits},
          {"segment_bytes", choice.segment_bytes}};
}

json LeaseToJson(const AggregatorLease& lease) {
  json levels = json::array();
  for (const uint8_t level : lease.levels) levels.push_back(level);
  return {{"collective", lease.collective},
          {"aggregator", lease.aggregator},
          {"address", lease.address},
          {"mode", lease.mode},
          {"id", lease.id},
          {"epoch", lease.epoch},
          {"cookie", Hex64(lease.cookie)},
          {"slots", lease.slots},
          {"lanes", lease.lanes},
          {"columns", lease.columns},
          {"sum_bits", lease.sum_bits},
          {"levels", std::move(levels)},
          {"quorum", lease.quorum},
          {"cutoff_us", lease.cutoff_us},
          {"unchecked", lease.unchecked}};
}

Status ValidateChoice(const Choice& choice, const Plan& plan, const PlanLimits& limits) {
  const int world = limits.world;
  WEIR_ASSIGN_OR_RETURN(const Codec* codec, Codecs().Find(choice.codec));
  WEIR_ASSIGN_OR_RETURN(const Collective* collective, Collectives().Find(choice.collective));
  const CollectiveTraits& traits = collective->Traits();
  const ExchangeTraits& form = FormOf(*collective).Traits();
  if (!Carries(form, codec->Traits())) {
    return InvalidArgument(StrCat("codec '", choice.codec, "' makes ", NameOf(codec->Traits().form),
                                  " payloads, collective '", choice.collective, "' carries ",
                                  traits.form));
  }
  WEIR_RETURN_IF_ERROR(codec->Validate(ParamsOf(choice), world));
  if (world < traits.world_min || (traits.world_max != 0 && world > traits.world_max)) {
    const std::string upper = traits.world_max == 0 ? "" : std::to_string(traits.world_max);
    return InvalidArgument(StrCat("collective '", choice.collective, "' runs on ", traits.world_min,
                                  "..", upper, " ranks, found ", world));
  }
  if (!traits.lease_mode.empty() && !plan.leases.contains(choice.collective)) {
    return InvalidArgument(StrCat("collective '", choice.collective, "' runs through an aggregator",
                                  ": expected its lease in the plan, found none"));
  }
  if (traits.by_caller && !limits.caller_sums) {
    return InvalidArgument(StrCat("collective '", choice.collective,
                                  "' leaves the sum to a process ",
                                  "group of the training job: expected one on every rank"));
  }
  if (form.need == CodecNeed::kTable) {
    const CodecSetting* setting = FindSetting(codec->Traits(), ParamsOf(choice), world);
    const AggregatorLease& lease = plan.leases.at(choice.collective);
    WEIR_RETURN_IF_ERROR(CheckTable(lease, *setting));
    if (lease.quorum > 0 && !codec->Traits().needs_error_feedback) {
      return InvalidArgument(StrCat("codec '", choice.codec, "' keeps no residual for what a sum ",
                                    "of ", lease.quorum, " ranks leaves out"));
    }
  }
  return OkStatus();
}

}  // namespace

CodecParams ParamsOf(const Choice& choice) {
  return {.ratio = choice.ratio, .bits = static_cast<int>(choice.bits)};
}

Choice DenseChoice() {
  Choice choice;
  choice.codec = "identity";
  choice.collective = "ring";
  return choice;
}

StatusOr<Plan> ParsePlan(std::string_view text, UnknownKeys unknown_keys) {
  WEIR_ASSIGN_OR_RETURN(const json document, ParseJson(text, kPlanBytesMax));
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(document, "plan"));
  Plan plan;
  WEIR_RETURN_IF_ERROR(reader.String("job", kNameBytesMax, &plan.job));
  if (unknown_keys == UnknownKeys::kReject) plan.version = 1;
  WEIR_RETURN_IF_ERROR(reader.Uint64("version", &plan.version));
  if (plan.version == 0) {
    return InvalidArgument("plan.version: expected at least 1, found 0");
  }
  WEIR_RETURN_IF_ERROR(reader.String("digest", kNameBytesMax, &plan.digest));
  if (const json* fallback = reader.Find("fallback")) {
    Choice choice;
    WEIR_RETURN_IF_ERROR(ReadChoice(*fallback, "plan.fallback", unknown_keys, &choice));
    plan.fallback = std::move(choice);
  }
  WEIR_ASSIGN_OR_RETURN(const json* buckets, reader.FindArray("buckets", kPlanBucketsMax));
  for (size_t i = 0; buckets != nullptr && i < buckets->size(); ++i) {
    WEIR_RETURN_IF_ERROR(
        ReadBucket((*buckets)[i], StrCat("plan.buckets[", i, "]"), unknown_keys, &plan));
  }
  WEIR_ASSIGN_OR_RETURN(const json* leases, reader.FindArray("leases", kPlanLeasesMax));
  for (size_t i = 0; leases != nullptr && i < leases->size(); ++i) {
    WEIR_RETURN_IF_ERROR(
        ReadLease((*leases)[i], StrCat("plan.leases[", i, "]"), unknown_keys, &plan));
  }
  WEIR_RETURN_IF_ERROR(ReadRingOrder(reader, &plan));
  WEIR_RETURN_IF_ERROR(ReadShardShares(reader, &plan));
  if (const json* sync = reader.Find("sync")) {
    WEIR_ASSIGN_OR_RETURN(plan.sync,
                          ReadSync(*sync, "plan.sync", unknown_keys == UnknownKeys::kReject));
  }
  if (unknown_keys == UnknownKeys::kReject) WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  return plan;
}

StatusOr<Plan> ReadPlanFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(StrCat("plan file '", path, "' cannot be opened"));
  std::string text(kPlanBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return NotFound(StrCat("plan file '", path, "' cannot be read"));
  text.resize(static_cast<size_t>(file.gcount()));
  StatusOr<Plan> plan = ParsePlan(text, UnknownKeys::kReject);
  if (!plan.ok()) return Annotate(plan.status(), StrCat("plan file '", path, "'"));
  return plan;
}

std::string PlanToJson(const Plan& plan) {
  json buckets = json::array();
  for (const auto& [key, choice] : plan.buckets) {
    buckets.push_back({{"bucket", Hex64(key)}, {"choice", ChoiceToJson(choice)}});
  }
  json document = {{"job", plan.job},
                   {"version", JsonUint64(plan.version)},
                   {"buckets", std::move(buckets)},
                   {"fallback", ChoiceToJson(plan.fallback)},
                   {"digest", plan.digest.empty() ? Hex64(PlanDigest(plan)) : plan.digest}};
  for (const auto& [collective, lease] : plan.leases) {
    document["leases"].push_back(LeaseToJson(lease));
  }
  if (!plan.ring_order.empty()) document["ring_order"] = plan.ring_order;
  if (!plan.shard_shares.empty()) document["shard_shares"] = plan.shard_shares;
  if (plan.sync != Sync()) document["sync"] = SyncToJson(plan.sync);
  return DumpJson(document);
}

uint64_t PlanDigest(const Plan& plan) {
  std::string text = StrCat(plan.job, "\n", plan.version, "\n", CanonicalChoice(plan.fallback));
  for (const auto& [key, choice] : plan.buckets) {
    text += Hex64(key) + "|" + CanonicalChoice(choice);
  }
  for (const auto& [collective, lease] : plan.leases) text += CanonicalText(lease);
  if (!plan.ring_order.empty()) {
    text += "ring_order";
    for (const int rank : plan.ring_order) text += StrCat("|", rank);
    text += "\n";
  }
  if (!plan.shard_shares.empty()) {
    text += "shard_shares";
    for (const uint32_t share : plan.shard_shares) text += StrCat("|", share);
    text += "\n";
  }
  if (plan.sync != Sync()) text += CanonicalText(plan.sync);
  return XXH3_64bits(text.data(), text.size());
}

const Choice& ChoiceFor(const Plan& plan, uint64_t bucket) {
  const auto it = plan.buckets.find(bucket);
  return it == plan.buckets.end() ? plan.fallback : it->second;
}

ExchangeMemory MemoryOf(const Choice& choice, const BucketSize& bucket, int world) {
  const StatusOr<const Codec*> codec = Codecs().Find(choice.codec);
  const StatusOr<const Collective*> collective = Collectives().Find(choice.collective);
  if (!codec.ok() || !collective.ok()) return {};
  EncodeContext context;
  context.params = ParamsOf(choice);
  context.world = world;
  context.shape = bucket.shape;
  return FormOf(**collective).MemoryOf(**codec, bucket.elements, context);
}

Status ValidatePlan(const Plan& plan, const PlanLimits& limits) {
  if (!plan.job.empty() && plan.job != limits.job) {
    return InvalidArgument(StrCat("plan.job: expected '", limits.job,
                                  "', or none, which fits every job, found '", plan.job, "'"));
  }
  WEIR_RETURN_IF_ERROR(ValidateRingOrder(plan.ring_order, limits.world));
  WEIR_RETURN_IF_ERROR(ValidateShardShares(plan.shard_shares, limits.world));
  if (plan.sync.local() && !limits.local_steps) {
    return InvalidArgument(
        StrCat("plan.sync: expected a sum of gradients in every step, since this rank was attached "
               "without its optimiser, found a period of ",
               plan.sync.every, plan.sync.every == 1 ? " step" : " steps"));
  }
  for (const auto& [collective, lease] : plan.leases) {
    WEIR_RETURN_IF_ERROR(TermsOf(lease, limits.world).status());
  }
  WEIR_RETURN_IF_ERROR(Annotate(ValidateChoice(plan.fallback, plan, limits), "plan.fallback"));
  for (const auto& [key, choice] : plan.buckets) {
    WEIR_RETURN_IF_ERROR(
        Annotate(ValidateChoice(choice, plan, limits), StrCat("plan bucket ", Hex64(key))));
  }
  uint64_t residuals = 0, needed = 0;
  std::vector<uint64_t> payloads;
  for (const auto& [key, size] : limits.buckets) {
    const ExchangeMemory memory = MemoryOf(ChoiceFor(plan, key), size, limits.world);
    residuals += memory.residual_bytes;
    payloads.push_back(memory.payload_bytes);
  }
  std::sort(payloads.begin(), payloads.end(), std::greater<>());
  payloads.resize(std::min(payloads.size(), kPayloadsPastEncodingMax + limits.encode_workers));
  for (const uint64_t payload : payloads) needed += payload;
  needed += residuals - std::min(residuals, limits.residual_bytes_held);
  if (needed > limits.memory_bytes_max) {
    return ResourceExhausted(StrCat("plan ", plan.version, " needs ", needed,
                                    " bytes of memory; at most ", limits.memory_bytes_max,
                                    " are free for it"));
  }
  return OkStatus();
}

}  // namespace weir
