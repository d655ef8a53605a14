// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interfaces through which a fleet uses its surroundings.

#include <optional>
#include <string>
#include <vector>

#include "controller/fleet/nodes.h"
#include "controller/job/job_host.h"

namespace weir {

/// Storage for what must outlive the process. Writes are durable when they return OK.
class FleetJournal : public JobJournal {
 public:
  struct KeptNode {
    NodeGreeting said;
    double last_seen_unix_s = 0;
  };
  struct KeptPolicy {
    std::string name, source;
    double applied_unix_s = 0;
  };
  struct KeptJob {
    std::string name;
    JobView view;
    std::optional<JobPin> pin;
    std::optional<DecisionRecord> newest;  // decision
    std::string progress;                  // as JobJournal::SaveProgress got it; empty: none
  };
  virtual Status SaveNode(const NodeGreeting& said, double last_seen_unix_s) = 0;
  virtual Status SavePolicy(const KeptPolicy& policy) = 0;
  virtual Status DeletePolicy(const std::string& name) = 0;
  virtual Status DeleteNode(const std::string& name) = 0;
  /// With its plans, decisions and pin. HighestPlanVersion stays. kNotFound: there is no such job.
  virtual Status DeleteJob(const std::string& name) = 0;
  // Entries that cannot be read are left out.
  virtual StatusOr<std::vector<KeptNode>> Nodes() = 0;
  virtual StatusOr<std::vector<KeptPolicy>> Policies() = 0;
  virtual StatusOr<std::vector<KeptJob>> Jobs() = 0;
};

/// A node, and the jobs with ranks on it. Valid during the call that passes it.
struct NodeView {
  const NodeState& state;
  std::vector<std::string> jobs;
};

/// One event of the fleet itself.
struct FleetEvent {
  enum class Kind { kNode, kLink, kPolicy };
  Kind kind = Kind::kNode;
  std::string text;
  std::optional<NodeView> node = {};  // kNode
};

/// Is told what happens. Must not call the fleet.
class FleetWatcher {
 public:
  virtual ~FleetWatcher() = default;
  virtual void OnEvent(const FleetEvent& event, double unix_s) = 0;
  virtual void OnEvent(const JobEvent& event, double unix_s) = 0;
};

}  // namespace weir
