// SPDX-License-Identifier: Apache-2.0
#pragma once
// The active policies: those applied through the API, those of the policy directory, and the
// built-in default. Of several that match a job, the one of the highest priority rules it; of equal
// ones the first that was applied, by name, then the first file, by path. The default comes last,
// whatever its priority. A text that does not parse never replaces one that did.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/job/effective_policy.h"
#include "controller/policy/policy.h"
#include "datapath/base/status.h"

namespace weir {

/// A policy may name the codecs and collectives of this release and those that ranks have declared:
/// plug-ins are known as soon as their first rank connects. Not thread-safe: owned by the executor.
class PolicySet {
 public:
  static constexpr size_t kPoliciesMax = 256;
  static constexpr size_t kNamesMax = 4096;  // of codecs, of collectives

  /// `known`: names that need no rank.
  explicit PolicySet(PolicyNames known) : known_(std::move(known)) {}

  /// Adds the names that ranks declare. If a name is new, rejected files are tried again. Returns
  /// true when a policy changed.
  bool Learn(PolicyNames declared, double unix_s);
  const PolicyNames& known() const { return known_; }

  /// Takes the contents of the policy directory, path to text. Returns true when anything changed.
  bool LoadFiles(const std::map<std::string, std::string>& files, double unix_s);
  /// Records that the directory could not be read; the loaded policies stay.
  void DirectoryFailed(const Status& status) { directory_error_ = Message(status); }
  /// Parses and installs. `name` empty: the document's. kInvalidArgument as ReadPolicy, or when
  /// both names are given and differ; kResourceExhausted beyond kPoliciesMax.
  StatusOr<PolicyEntry> Apply(std::string_view name, std::string_view source, double unix_s,
                              bool dry_run);
  /// Installs a policy that an earlier controller applied, whatever codecs and collectives it
  /// names: the ranks that have them may not have reconnected yet, and until then another policy
  /// must not replace it. kInvalidArgument as ReadPolicy otherwise.
  Status Restore(std::string_view source, double unix_s);

  /// Ends an applied policy. kNotFound: there is none of that name; kFailedPrecondition: it is of a
  /// file, or the default.
  Status Delete(std::string_view name);

  /// The policy of that name, preferably an applied one; null: there is none, or it is the built-in
  /// one.
  const PolicyEntry* Find(std::string_view name) const;
  /// The entry that rules a job; null: the default policy.
  const PolicyEntry* Match(std::string_view job, const JobLabels& labels = {}) const;
  /// The first policy that has rules for NCCL on the node; null: none has.
  const Policy* NcclPolicyFor(std::string_view node) const;
  /// Codecs and collectives that a policy names and no rank has declared yet, one sentence each.
  std::vector<std::string> Warnings(const Policy& policy) const;
  /// In order of precedence, the default last.
  std::vector<PolicyEntry> All() const;
  bool last_reload_successful() const;
  double last_success_unix_s() const { return last_success_unix_s_; }

 private:
  /// The first policy in the order of precedence for which `matches` is true; null: none.
  template <typename Matches>
  const PolicyEntry* First(Matches matches) const;
  bool LoadFile(const std::string& path, const std::string& source, double unix_s);

  PolicyNames known_, declared_;                // declared_: by ranks
  std::map<std::string, PolicyEntry> applied_;  // by name
  std::map<std::string, PolicyEntry> files_;    // by path
  std::map<std::string, std::string> refused_;  // by path: newest rejected text of a file
  std::string directory_error_;
  double last_success_unix_s_ = 0;
};

/// 16 hexadecimal digits that change with the text. They detect concurrent edits and are no
/// protection against forgery.
std::string SourceTag(std::string_view source);

}  // namespace weir
