// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/policy_set.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/mapping.h"
#include "controller/model/format.h"
#include "controller/objective/objective.h"

namespace weir {
namespace {

// The line that names the objective, or 1 if there is none.
size_t ObjectiveLine(std::string_view source, std::string_view objective) {
  const size_t key = source.find("objective");
  const size_t at = key == source.npos ? key : source.find(objective, key);
  if (at == source.npos) return 1;
  return 1 + static_cast<size_t>(std::count(source.begin(), source.begin() + at, '\n'));
}

PolicyEntry AppliedEntry(Policy policy, std::string_view source, double unix_s) {
  PolicyEntry entry;
  entry.name = policy.name;
  entry.policy = std::move(policy);
  entry.source = std::string(source);
  entry.origin = "api";
  entry.loaded_unix_s = unix_s;
  entry.valid = true;
  return entry;
}

void FillBounds(const Policy& policy, v1::PolicyBounds* out) {
  out->set_ratio_min(policy.ratio_min);
  out->set_ratio_max(policy.ratio_max);
  out->set_gain_min(policy.gain_min);
  out->set_residual_ratio_max(policy.residual_ratio_max);
  for (const std::string& codec : policy.codecs) out->add_codecs(codec);
  for (const std::string& collective : policy.collectives) out->add_collectives(collective);
  out->set_delay_target_s(policy.objective == "delay_target" ? policy.delay_target_s : 0);
}

}  // namespace

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

StatusOr<Policy> ReadPolicy(std::string_view source, std::string_view origin,
                            const PolicyNames* known) {
  WEIR_ASSIGN_OR_RETURN(Policy policy, ParsePolicy(source, origin, known));
  const Status fits = CheckObjective(policy);
  if (fits.ok()) return policy;
  return InvalidArgument(StrCat(origin, ":", ObjectiveLine(source, policy.objective),
                                ": objective.name: ", Message(fits)));
}

PolicySet::PolicySet() : known_(NamesOf(BuiltinCapabilities())) {}

bool PolicySet::Learn(const v1::Capabilities& declared, double unix_s) {
  PolicyNames names = NamesOf(declared);
  const auto add = [](std::set<std::string>& from, std::set<std::string>* to) {
    const size_t before = to->size();
    if (before + from.size() <= kNamesMax) to->merge(from);
    return to->size() > before;
  };
  const bool codecs = add(names.codecs, &known_.codecs);
  const bool collectives = add(names.collectives, &known_.collectives);
  if (!codecs && !collectives) return false;
  bool changed = false;
  for (const auto& [path, source] : std::map(refused_)) changed |= LoadFile(path, source, unix_s);
  if (last_reload_successful()) last_success_unix_s_ = unix_s;
  return changed;
}

bool PolicySet::LoadFile(const std::string& path, const std::string& source, double unix_s) {
  PolicyEntry& entry = files_[path];
  if (entry.valid && entry.error.empty() && entry.source == source) return false;
  entry.origin = path;
  StatusOr<Policy> parsed = source.empty() ? InvalidArgument(StrCat(path, ": the file is empty"))
                                           : ReadPolicy(source, path, &known_);
  if (!parsed.ok()) {
    refused_[path] = source;
    const std::string former = std::exchange(entry.error, Message(parsed.status()));
    if (entry.name.empty()) entry.name = path.substr(path.rfind('/') + 1);
    return entry.error != former;
  }
  refused_.erase(path);
  entry.policy = std::move(*parsed);
  entry.name = entry.policy.name;
  entry.source = source;
  entry.error.clear();
  entry.valid = true;
  entry.loaded_unix_s = unix_s;
  return true;
}

bool PolicySet::LoadFiles(const std::map<std::string, std::string>& files, double unix_s) {
  bool changed = false;
  directory_error_.clear();
  for (auto it = files_.begin(); it != files_.end();) {
    const bool gone = !files.contains(it->first);
    changed |= gone;
    if (gone) refused_.erase(it->first);
    it = gone ? files_.erase(it) : std::next(it);
  }
  for (const auto& [path, source] : files) changed |= LoadFile(path, source, unix_s);
  if (last_reload_successful()) last_success_unix_s_ = unix_s;
  return changed;
}

const PolicyEntry* PolicySet::Find(std::string_view name) const {
  for (const auto* entries : {&applied_, &files_}) {
    for (const auto& [key, entry] : *entries) {
      if (entry.name == name) return &entry;
    }
  }
  return nullptr;
}

StatusOr<PolicyEntry> PolicySet::Apply(std::string_view name, std::string_view source,
                                       double unix_s, bool dry_run) {
  if (source.empty()) return InvalidArgument("the policy is empty");
  WEIR_ASSIGN_OR_RETURN(Policy policy, ReadPolicy(source, name.empty() ? "policy" : name, &known_));
  if (!name.empty() && policy.name != name) {
    return InvalidArgument(
        StrCat("the policy names itself '", policy.name, "', expected '", name, "'"));
  }
  PolicyEntry entry = AppliedEntry(std::move(policy), source, unix_s);
  if (dry_run) return entry;
  if (!applied_.contains(entry.name) && applied_.size() >= kPoliciesMax) {
    return ResourceExhausted(StrCat("at most ", kPoliciesMax, " policies can be applied"));
  }
  applied_[entry.name] = entry;
  return entry;
}

Status PolicySet::Restore(std::string_view source, double unix_s) {
  WEIR_ASSIGN_OR_RETURN(Policy policy, ReadPolicy(source, "policy"));
  PolicyEntry entry = AppliedEntry(std::move(policy), source, unix_s);
  applied_[entry.name] = std::move(entry);
  return OkStatus();
}

const PolicyEntry* PolicySet::Match(std::string_view job) const {
  for (const auto* entries : {&applied_, &files_}) {
    for (const auto& [key, entry] : *entries) {
      if (entry.valid && PolicyMatches(entry.policy, job)) return &entry;
    }
  }
  return nullptr;
}

std::vector<PolicyEntry> PolicySet::All() const {
  std::vector<PolicyEntry> all;
  for (const auto* entries : {&applied_, &files_}) {
    for (const auto& [key, entry] : *entries) all.push_back(entry);
  }
  PolicyEntry fallback;
  fallback.name = "default";
  fallback.origin = "built in";
  fallback.valid = true;
  all.push_back(std::move(fallback));
  return all;
}

bool PolicySet::last_reload_successful() const {
  return directory_error_.empty() &&
         std::none_of(files_.begin(), files_.end(),
                      [](const auto& file) { return !file.second.error.empty(); });
}

std::string SourceTag(std::string_view source) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a, 64 bits
  for (const char c : source) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

v1::Policy ToProto(const PolicyEntry& entry) {
  v1::Policy policy;
  policy.set_name(entry.name);
  policy.set_source(entry.source);
  policy.set_origin(entry.origin);
  if (entry.valid) {
    policy.set_objective(entry.policy.objective);
    for (const std::string& job : entry.policy.jobs) policy.add_jobs(job);
    FillBounds(entry.policy, policy.mutable_bounds());
  }
  policy.set_loaded_unix_s(entry.loaded_unix_s);
  policy.set_error(entry.error);
  policy.set_etag(SourceTag(entry.source));
  return policy;
}

}  // namespace weir
