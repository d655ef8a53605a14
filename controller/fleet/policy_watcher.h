// SPDX-License-Identifier: Apache-2.0
#pragma once
// Watches a policy directory. Works with editors that replace files and with Kubernetes ConfigMaps,
// which swap a symbolic link beside the files.

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "datapath/base/status.h"

namespace weir {

/// Path to text of every *.yaml, *.yml and *.json file of `directory`; names that begin with a dot
/// are skipped. kNotFound: no such directory; kResourceExhausted: more than 256 files or one above
/// 1 MiB.
StatusOr<std::map<std::string, std::string>> ReadPolicyDirectory(const std::string& directory);

/// Calls `changed` on its own thread ("weir-policies") once at the start and whenever the contents
/// or their readability changed: on a file event, and at the latest `rescan` after the change.
class PolicyWatcher {
 public:
  using Contents = StatusOr<std::map<std::string, std::string>>;

  PolicyWatcher(std::string directory, std::function<void(Contents)> changed);
  /// Ends the thread.
  ~PolicyWatcher();

 private:
  void Loop();
  void Reread();

  const std::string directory_;
  const std::function<void(Contents)> changed_;
  int stop_event_ = -1;
  int inotify_ = -1;
  bool first_ = true;
  Contents last_;
  std::thread thread_;
};

}  // namespace weir
