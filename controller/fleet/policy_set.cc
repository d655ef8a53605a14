// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/policy_set.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "controller/objective/objective.h"

namespace weir {
namespace {

constexpr char kDefaultName[] = "default";

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

}  // namespace

bool PolicySet::Learn(PolicyNames declared, double unix_s) {
  const auto add = [](const std::set<std::string>& from, std::set<std::string>* to) {
    const size_t before = to->size();
    if (before + from.size() <= kNamesMax) to->insert(from.begin(), from.end());
    return to->size() > before;
  };
  add(declared.codecs, &declared_.codecs);
  add(declared.collectives, &declared_.collectives);
  const bool codecs = add(declared.codecs, &known_.codecs);
  const bool collectives = add(declared.collectives, &known_.collectives);
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

Status PolicySet::Delete(std::string_view name) {
  if (const auto applied = applied_.find(std::string(name)); applied != applied_.end()) {
    applied_.erase(applied);
    return OkStatus();
  }
  if (name == kDefaultName) return FailedPrecondition("the default policy cannot be deleted");
  if (const PolicyEntry* entry = Find(name); entry != nullptr) {
    return FailedPrecondition(
        StrCat("policy ", name, " is of the file ", entry->origin, ": remove the file to end it"));
  }
  std::string names;
  for (const auto& [known, entry] : applied_) names += StrCat(names.empty() ? "" : ", ", known);
  return NotFound(StrCat("no policy '", name.substr(0, 128),
                         "' was applied; applied: ", names.empty() ? "none" : names));
}

template <typename Matches>
const PolicyEntry* PolicySet::First(Matches matches) const {
  const PolicyEntry* best = nullptr;
  for (const auto* entries : {&applied_, &files_}) {
    for (const auto& [key, entry] : *entries) {
      if (best != nullptr && entry.policy.priority <= best->policy.priority) continue;
      if (entry.valid && matches(entry.policy)) best = &entry;
    }
  }
  return best;
}

const PolicyEntry* PolicySet::Match(std::string_view job, const JobLabels& labels) const {
  return First([&](const Policy& policy) { return PolicyMatches(policy, job, labels); });
}

const Policy* PolicySet::NcclPolicyFor(std::string_view node) const {
  const PolicyEntry* found = First([&](const Policy& policy) { return SteersNccl(policy, node); });
  return found == nullptr ? nullptr : &found->policy;
}

std::vector<std::string> PolicySet::Warnings(const Policy& policy) const {
  std::vector<std::string> warnings;
  const auto check = [&](const char* what, const std::string& name,
                         const std::set<std::string>& declared) {
    if (declared.contains(name)) return;
    warnings.push_back(StrCat("no rank has said yet that it has the ", what, " ", name));
  };
  for (const std::string& name : policy.codecs) check("codec", name, declared_.codecs);
  for (const std::string& name : policy.collectives) {
    check("collective", name, declared_.collectives);
  }
  if (policy.objective == "fixed") {
    check("codec", policy.fixed_codec, declared_.codecs);
    check("collective", policy.fixed_collective, declared_.collectives);
  }
  return warnings;
}

std::vector<PolicyEntry> PolicySet::All() const {
  std::vector<PolicyEntry> all;
  for (const auto* entries : {&applied_, &files_}) {
    for (const auto& [key, entry] : *entries) all.push_back(entry);
  }
  std::stable_sort(all.begin(), all.end(), [](const PolicyEntry& a, const PolicyEntry& b) {
    return a.policy.priority > b.policy.priority;
  });
  PolicyEntry fallback;
  fallback.name = kDefaultName;
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

}  // namespace weir
