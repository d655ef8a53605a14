// SPDX-License-Identifier: Apache-2.0
#include "controller/job/effective_policy.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weir {
namespace {

// The values of keys that the source leaves out.
StatusOr<Policy> ParseOrDefault(std::string_view name, std::string_view source,
                                const Policy& defaults) {
  if (source.empty()) return defaults;
  return ParsePolicy(source, name, nullptr, defaults);
}

void ApplyOverride(const PolicyOverride& override_by, Policy* policy) {
  policy->gain_min = std::max(policy->gain_min, override_by.gain_min);
  if (override_by.sync_every_max > 0) {
    policy->sync_every_max = std::min(policy->sync_every_max, override_by.sync_every_max);
  }
  switch (override_by.kind) {
    case PolicyOverride::Kind::kNone:
      return;
    case PolicyOverride::Kind::kPin:
      policy->objective = "fixed";
      policy->fixed_codec = override_by.codec;
      policy->fixed_collective = override_by.collective;
      policy->fixed_ratio = override_by.ratio;
      policy->fixed_bits = override_by.bits;
      policy->ratio_min = std::min(policy->ratio_min, override_by.ratio);
      policy->ratio_max = std::max(policy->ratio_max, override_by.ratio);
      // The operator overrules the bounds, too.
      policy->gain_min = 0;
      policy->residual_ratio_max = 0;
      policy->codecs = {};
      policy->collectives = {};
      break;
    case PolicyOverride::Kind::kDenseOnly:
      policy->objective = "time_to_accuracy";
      policy->codecs = override_by.lossless_codecs;
      policy->gain_min = 0;
      break;
  }
  policy->sync_every_max = 1;  // both are of gradients that are summed in every step
  policy->dwell_min_s = 0;
  policy->improvement_min = 0;
  policy->flaps_max = 1000000;
}

const char* KindName(PolicyOverride::Kind kind) {
  switch (kind) {
    case PolicyOverride::Kind::kNone:
      return "none";
    case PolicyOverride::Kind::kPin:
      return "pin";
    case PolicyOverride::Kind::kDenseOnly:
      return "dense_only";
  }
  return "";
}

}  // namespace

StatusOr<EffectivePolicy> MakeEffectivePolicy(std::string_view name, std::string_view source,
                                              const PolicyOverride& override_by,
                                              const Policy& defaults) {
  EffectivePolicy effective;
  WEIR_ASSIGN_OR_RETURN(effective.policy, ParseOrDefault(name, source, defaults));
  ApplyOverride(override_by, &effective.policy);
  nlohmann::json record;
  record["name"] = name;
  record["source"] = source;
  record["override"] = KindName(override_by.kind);
  record["codec"] = override_by.codec;
  record["collective"] = override_by.collective;
  record["ratio"] = override_by.ratio;
  record["bits"] = override_by.bits;
  if (override_by.gain_min > 0) record["gain_min"] = override_by.gain_min;
  if (override_by.sync_every_max > 0) record["sync_every_max"] = override_by.sync_every_max;
  record["lossless_codecs"] = override_by.lossless_codecs;
  record["gain_floor"] = defaults.gain_min;
  effective.record = record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return effective;
}

StatusOr<Policy> DecodeEffectivePolicy(std::string_view record) {
  const auto json = nlohmann::json::parse(record, nullptr, false);
  if (!json.is_object()) return DataLoss("the stored policy is not a JSON object");
  try {
    PolicyOverride override_by;
    const std::string kind = json.at("override");
    if (kind == "pin") override_by.kind = PolicyOverride::Kind::kPin;
    if (kind == "dense_only") override_by.kind = PolicyOverride::Kind::kDenseOnly;
    override_by.codec = json.at("codec");
    override_by.collective = json.at("collective");
    override_by.ratio = json.at("ratio");
    override_by.bits = json.at("bits");
    override_by.lossless_codecs = json.at("lossless_codecs").get<std::vector<std::string>>();
    override_by.gain_min = json.value("gain_min", 0.0);
    override_by.sync_every_max = json.value("sync_every_max", 0);
    Policy defaults;
    defaults.gain_min = json.value("gain_floor", 0.0);  // earlier releases had none
    const std::string name = json.at("name");
    const std::string source = json.at("source");
    WEIR_ASSIGN_OR_RETURN(EffectivePolicy effective,
                          MakeEffectivePolicy(name, source, override_by, defaults));
    return std::move(effective.policy);
  } catch (const nlohmann::json::exception& error) {
    return DataLoss(StrCat("the stored policy is malformed: ", error.what()));
  }
}

}  // namespace weir
