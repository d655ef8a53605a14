#include "datapath/session/plan.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>

#include "datapath/session/json.h"

namespace weir {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 256;

Status ReadChoice(const json& value, std::string path, UnknownKeys unknown_keys, Choice* choice) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, std::move(path)));
  WEIR_RETURN_IF_ERROR(reader.String("codec", kNameBytesMax, &choice->codec));
  WEIR_RETURN_IF_ERROR(reader.String("collective", kNameBytesMax, &choice->collective));
  WEIR_RETURN_IF_ERROR(reader.Double("ratio", &choice->ratio));
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

// Shortest decimal that reads back as the same double: the same text on every machine.
std::string CanonicalNumber(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return std::string(text, result.ptr);
}

std::string CanonicalChoice(const Choice& choice) {
  return StrCat(choice.codec, "|", choice.collective, "|", CanonicalNumber(choice.ratio), "|",
                choice.segment_bytes, "\n");
}

json ChoiceToJson(const Choice& choice) {
  return {{"codec", choice.codec},
          {"collective", choice.collective},
          {"ratio", JsonDouble(choice.ratio)},
          {"segment_bytes", choice.segment_bytes}};
}

std::string_view FormName(PayloadForm form) {
  switch (form) {
    case PayloadForm::kLanes:
      return "lanes";
    case PayloadForm::kOpaque:
      return "opaque";
    case PayloadForm::kSharedIndex:
      return "shared_index";
  }
  return "unknown";
}

Status ValidateChoice(const Choice& choice, int world) {
  WEIR_ASSIGN_OR_RETURN(const Codec* codec, Codecs().Find(choice.codec));
  WEIR_ASSIGN_OR_RETURN(const Collective* collective, Collectives().Find(choice.collective));
  const CollectiveTraits& traits = collective->Traits();
  if (codec->Traits().form != traits.form) {
    return InvalidArgument(StrCat("codec '", choice.codec, "' makes ",
                                  FormName(codec->Traits().form), " payloads, collective '",
                                  choice.collective, "' carries ", FormName(traits.form)));
  }
  CodecParams params;
  params.ratio = choice.ratio;
  WEIR_RETURN_IF_ERROR(codec->Validate(params, world));
  if (world < traits.world_min || (traits.world_max != 0 && world > traits.world_max)) {
    const std::string upper = traits.world_max == 0 ? "" : std::to_string(traits.world_max);
    return InvalidArgument(StrCat("collective '", choice.collective, "' runs on ", traits.world_min,
                                  "..", upper, " ranks, found ", world));
  }
  return OkStatus();
}

}  // namespace

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
  return DumpJson(document);
}

uint64_t PlanDigest(const Plan& plan) {
  std::string text = StrCat(plan.job, "\n", plan.version, "\n", CanonicalChoice(plan.fallback));
  for (const auto& [key, choice] : plan.buckets) {
    text += Hex64(key) + "|" + CanonicalChoice(choice);
  }
  return XXH3_64bits(text.data(), text.size());
}

const Choice& ChoiceFor(const Plan& plan, uint64_t bucket) {
  const auto it = plan.buckets.find(bucket);
  return it == plan.buckets.end() ? plan.fallback : it->second;
}

ChoiceMemory MemoryOf(const Choice& choice, uint64_t elements, int world) {
  ChoiceMemory memory;
  const StatusOr<const Codec*> codec = Codecs().Find(choice.codec);
  if (!codec.ok()) return memory;
  const CodecTraits& traits = (*codec)->Traits();
  CodecParams params;
  params.ratio = choice.ratio;
  // Lossless float32 lanes are sent from the caller's buffer.
  if (traits.lossy || traits.fixed_bits != 32) {
    const uint64_t copies =
        traits.form == PayloadForm::kOpaque ? 1 + static_cast<uint64_t>(world) : 1;
    memory.payload_bytes = copies * (*codec)->MaxEncodedBytes(elements, params);
  }
  if (traits.needs_error_feedback) memory.residual_bytes = 2 * elements * sizeof(float);
  return memory;
}

Status ValidatePlan(const Plan& plan, const PlanLimits& limits) {
  if (!plan.job.empty() && plan.job != limits.job) {
    return InvalidArgument(StrCat("plan.job: expected '", limits.job, "', found '", plan.job, "'"));
  }
  WEIR_RETURN_IF_ERROR(Annotate(ValidateChoice(plan.fallback, limits.world), "plan.fallback"));
  for (const auto& [key, choice] : plan.buckets) {
    WEIR_RETURN_IF_ERROR(
        Annotate(ValidateChoice(choice, limits.world), StrCat("plan bucket ", Hex64(key))));
  }
  uint64_t residuals = 0, needed = 0;
  std::vector<uint64_t> payloads;
  for (const auto& [key, elements] : limits.bucket_elements) {
    const ChoiceMemory memory = MemoryOf(ChoiceFor(plan, key), elements, limits.world);
    residuals += memory.residual_bytes;
    payloads.push_back(memory.payload_bytes);
  }
  std::sort(payloads.begin(), payloads.end(), std::greater<>());
  payloads.resize(std::min(payloads.size(), kPayloadsInFlightMax));
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
