// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps the state of a fleet in the state store, as messages in JSON.

#include <map>
#include <string>

#include "controller/fleet/fleet_host.h"
#include "controller/store/store.h"
#include "weir/v1/admin.pb.h"

namespace weir {

/// Not thread-safe; `store` outlives it.
class StoreJournal : public FleetJournal {
 public:
  explicit StoreJournal(Store& store) : store_(store) {}

  Status SaveNode(const NodeGreeting& said, double last_seen_unix_s) override;
  Status SavePolicy(const KeptPolicy& policy) override;
  Status DeletePolicy(const std::string& name) override { return store_.DeletePolicy(name); }
  Status DeleteNode(const std::string& name) override { return store_.DeleteNode(name); }
  Status DeleteJob(const std::string& name) override;
  StatusOr<std::vector<KeptNode>> Nodes() override;
  StatusOr<std::vector<KeptPolicy>> Policies() override;
  StatusOr<std::vector<KeptJob>> Jobs() override;

  Status SaveJob(const JobView& job, double unix_s) override;
  Status ClaimPlan(const JobPlan& plan, std::string_view state, double unix_s) override;
  Status SavePlan(const JobPlan& plan, std::string_view state, double unix_s) override;
  std::optional<JobPlan> LoadPlan(const std::string& job, uint64_t version) override;
  StatusOr<uint64_t> HighestPlanVersion(const std::string& job) override;
  StatusOr<Added> AddDecision(const DecisionRecord& record, const std::string& snapshot,
                              const std::string& policy) override;
  Status UpdateDecision(const DecisionRecord& record) override;
  Status SaveProgress(const std::string& job, const std::string& learnt) override;
  Status SavePin(const std::string& job, const JobPin& pin, double unix_s) override;
  Status DeletePin(const std::string& job) override;

  /// The newest that ranks have declared, also to a former controller; empty: none.
  const v1::Capabilities& capabilities() const { return capabilities_; }
  Status LoadCapabilities();
  /// Writes only if they changed.
  Status SaveCapabilities(const v1::Capabilities& declared);

 private:
  Store& store_;
  v1::Capabilities capabilities_;
  std::string capabilities_bytes_;  // of the newest that a rank declared
  std::string capabilities_json_;
  // By job: the tables from which the snapshots of its newest decisions are differences.
  std::map<std::string, std::string> tables_;
};

/// kDataLoss: the payload is not a decision.
StatusOr<v1::Decision> DecisionOf(const StoredDecision& stored);
/// The same without candidates, which take nine tenths of the time to parse.
StatusOr<v1::Decision> LightDecisionOf(const StoredDecision& stored);

/// The solver's inputs, of a decision with its base. kFailedPrecondition: they were deleted to make
/// room; kDataLoss: malformed.
StatusOr<std::string> SnapshotOf(const StoredDecision& stored);

}  // namespace weir
