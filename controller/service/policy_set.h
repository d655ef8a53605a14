// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policies in force: those applied through the API, then those of the policy directory, then
// the built-in default. A text that does not parse never replaces one that did.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/job/effective_policy.h"
#include "controller/policy/policy.h"
#include "datapath/base/status.h"
#include "weir/v1/admin.pb.h"

namespace weir {

/// The names that `capabilities` hold.
PolicyNames NamesOf(const v1::Capabilities& capabilities);

/// ParsePolicy, then what the objective itself demands: a known name and its parameters.
/// kInvalidArgument names `origin`, line and key, and lists the valid names.
StatusOr<Policy> ReadPolicy(std::string_view source, std::string_view origin,
                            const PolicyNames* known = nullptr);

/// A policy may name the codecs and collectives of this release, and what else ranks have declared:
/// those of plug-ins are known from their first rank on. Not thread-safe: owned by the executor.
class PolicySet {
 public:
  static constexpr size_t kPoliciesMax = 256;
  static constexpr size_t kNamesMax = 4096;  // of codecs, of collectives

  PolicySet();

  /// Ranks declare what they have. Files that were refused are tried again where a name is new.
  /// True when a policy changed.
  bool Learn(const v1::Capabilities& declared, double unix_s);
  const PolicyNames& known() const { return known_; }

  /// The contents of the policy directory, file path to text. True when anything changed.
  bool LoadFiles(const std::map<std::string, std::string>& files, double unix_s);
  /// The directory could not be read: what is loaded stays.
  void DirectoryFailed(const Status& status) { directory_error_ = Message(status); }
  /// Parses and installs. `name` empty: the document's. kInvalidArgument as ReadPolicy, or when
  /// both names are given and differ; kResourceExhausted beyond kPoliciesMax.
  StatusOr<PolicyEntry> Apply(std::string_view name, std::string_view source, double unix_s,
                              bool dry_run);
  /// Installs what a former controller applied, whatever codecs and collectives it names: the ranks
  /// that have them may not have come back yet, and until then it must not give way to another
  /// policy. kInvalidArgument as ReadPolicy otherwise.
  Status Restore(std::string_view source, double unix_s);

  /// The policy of that name, those applied first; nothing: there is none, or the built-in one.
  const PolicyEntry* Find(std::string_view name) const;
  /// The first entry whose pattern matches; nothing: the default policy rules.
  const PolicyEntry* Match(std::string_view job) const;
  /// In order of precedence, the default last.
  std::vector<PolicyEntry> All() const;
  bool last_reload_successful() const;
  double last_success_unix_s() const { return last_success_unix_s_; }

 private:
  bool LoadFile(const std::string& path, const std::string& source, double unix_s);

  PolicyNames known_;
  std::map<std::string, PolicyEntry> applied_;  // by name
  std::map<std::string, PolicyEntry> files_;    // by path
  std::map<std::string, std::string> refused_;  // newest texts of files that were, by path
  std::string directory_error_;
  double last_success_unix_s_ = 0;
};

/// 16 hexadecimal digits that change with the text: for noticing that somebody else was faster, not
/// for trusting a text.
std::string SourceTag(std::string_view source);
/// The message form of an entry.
v1::Policy ToProto(const PolicyEntry& entry);

}  // namespace weir
