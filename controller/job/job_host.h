// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface through which a job uses its surroundings.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "controller/job/decision_record.h"
#include "controller/job/effective_policy.h"
#include "controller/job/job_lease.h"
#include "controller/job/job_view.h"

namespace weir {

/// Prepare `plan`, and with it `lease_plan`, to which ranks turn when they have not heard of the
/// controller for too long.
struct OfferCommand {
  JobPlan plan;
  std::string nonce;
  std::optional<JobPlan> lease_plan = {};
};
struct ArmCommand {
  uint64_t version = 0;
};
struct WithdrawCommand {
  uint64_t version = 0;
};
/// The controller is there; 0: the plan has no lease.
struct LeaseCommand {
  double lease_s = 0;
};
using RankOrder = std::variant<OfferCommand, ArmCommand, WithdrawCommand, LeaseCommand>;

/// Storage for what must outlive the process. Writes are durable when they return OK.
class JobJournal {
 public:
  virtual ~JobJournal() = default;
  virtual Status SaveJob(const JobView& job, double unix_s) = 0;
  /// Stores a plan before any rank hears of it. kAlreadyExists: its version is not above all that
  /// the job ever had.
  virtual Status ClaimPlan(const JobPlan& plan, std::string_view state, double unix_s) = 0;
  /// `state`: the last line of the plan's log, or "lease".
  virtual Status SavePlan(const JobPlan& plan, std::string_view state, double unix_s) = 0;
  /// Nothing: there is none of that version that can be read.
  virtual std::optional<JobPlan> LoadPlan(const std::string& job, uint64_t version) = 0;
  /// 0: the job has none.
  virtual StatusOr<uint64_t> HighestPlanVersion(const std::string& job) = 0;
  struct Added {
    int64_t id = 0;
    size_t bytes = 0;  // that it takes
  };
  /// `snapshot` as SerializeSnapshot wrote it; `policy`: EffectivePolicy::record.
  virtual StatusOr<Added> AddDecision(const DecisionRecord& record, const std::string& snapshot,
                                      const std::string& policy) = 0;
  virtual Status UpdateDecision(const DecisionRecord& record) = 0;
  /// `learnt`: of the progress of the job's steps; see JobModel::SaveProgress.
  virtual Status SaveProgress(const std::string& job, const std::string& learnt) = 0;
  virtual Status SavePin(const std::string& job, const JobPin& pin, double unix_s) = 0;
  virtual Status DeletePin(const std::string& job) = 0;
};

/// Calls come back on the caller's thread.
class JobHost : public LeaseHost {
 public:
  virtual void SendToRank(const std::string& node, const std::string& job, int rank,
                          const RankOrder& order) = 0;
  virtual void Publish(JobEvent event) = 0;
  /// Training of a job under `policy` sent this many bytes since the last call.
  virtual void OnTrainingBytes(uint64_t bytes, const Policy& policy) = 0;
  /// The policy that rules `job`; null: the default.
  virtual const PolicyEntry* PolicyFor(const std::string& job) const = 0;
  /// The attached jobs with which `job` shares links, most of them first.
  virtual std::vector<JobSharing> SharingWith(const std::string& job) const = 0;
  virtual JobJournal& journal() = 0;
  virtual const Clock& clock() const = 0;
};

}  // namespace weir
