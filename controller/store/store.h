// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that the controller must not lose when it is killed: nodes, jobs, plans, decisions with
// their inputs, policies applied through the API, pins and the audit trail. Payloads are JSON texts
// whose form belongs to the caller, so the store needs no schema change when a message gains a
// field.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

struct StoredNode {
  std::string name;
  std::string payload;
  double last_seen_unix_s = 0;
};

struct StoredJob {
  std::string name;
  std::string payload;
  double updated_unix_s = 0;
};

struct StoredPlan {
  std::string job;
  uint64_t version = 0;
  std::string payload;
  std::string state;  // last line of its log: "offered", "withdrawn", "armed" or "active"
  double unix_s = 0;
};

struct StoredDecision {
  int64_t id = 0;  // assigned by the store, ascending
  std::string job;
  uint64_t step = 0;
  double unix_s = 0;
  std::string payload = {};   // without the snapshot
  std::string snapshot = {};  // canonical solver input; empty: deleted to make room
  std::string policy = {};    // the solver's policy, enough to replay
  bool switched = false;      // the plan changed: it is never deleted to make room
  std::string base = {};      // `snapshot` is the difference from this; empty: it is complete
};

struct StoredPolicy {
  std::string name;
  std::string source;
  double applied_unix_s = 0;
};

struct StoredPin {
  std::string job;
  std::string payload;
  double unix_s = 0;
};

struct AuditEntry {
  double unix_s = 0;
  std::string actor, action, target, detail;
  bool refused = false;  // it was not permitted; these have a limit of their own
  int64_t id = 0;        // set by the store
};

/// Limits of the history; the oldest entries go first. Decisions that switched the plan are kept
/// longest: if these alone exceed the limit, the inputs of the oldest are deleted. The newest plans
/// of a job stay, whatever their size.
struct StoreLimits {
  uint64_t decisions_per_job_max = 2000;  // that kept the plan
  uint64_t decision_bytes_per_job_max = 8u << 20;
  uint64_t decision_bytes_max = 128u << 20;  // of all jobs
  uint64_t plans_per_job_max = 1000;
  uint64_t plan_bytes_per_job_max = 4u << 20;
  uint64_t plan_bytes_max = 64u << 20;  // of all jobs
  uint64_t bytes_max = 1u << 30;        // of everything: beyond it writes are kResourceExhausted
  uint64_t nodes_max = 16384;
  uint64_t jobs_max = 256;
  uint64_t audit_max = 10000, audit_refused_max = 2000;
};

/// The bytes that the store holds.
struct StoreUsage {
  uint64_t bytes = 0;                         // of everything, with what the storage itself needs
  std::map<std::string, uint64_t> job_bytes;  // plans and decisions of each job
};

/// Durable state. Used by one thread at a time. A write that returned OK survives the death of the
/// process; those of PutNode and PutJob may need a Flush. Errors: kUnavailable when the file stays
/// locked or cannot be written, or no quorum answers; kDataLoss when it is damaged;
/// kFailedPrecondition when another controller leads (etcd); kResourceExhausted when it is full.
class Store {
 public:
  virtual ~Store() = default;

  /// Makes earlier writes durable. To be called several times a second.
  virtual Status Flush() { return OkStatus(); }

  virtual Status PutNode(const StoredNode& node) = 0;
  /// OK also if there was none; so are the other deletions but DeleteJob's.
  virtual Status DeleteNode(std::string_view name) = 0;
  virtual StatusOr<std::vector<StoredNode>> ListNodes() = 0;

  virtual Status PutJob(const StoredJob& job) = 0;
  /// With its plans, decisions, pin and the fact "progress/NAME", but its highest plan version
  /// stays, of the newest 10,000 such jobs. kNotFound: nothing of it is stored.
  virtual Status DeleteJob(const std::string& name) = 0;
  virtual StatusOr<std::vector<StoredJob>> ListJobs() = 0;

  /// Inserts a plan whose version has never been given: kAlreadyExists unless it is above all that
  /// the job ever had, also those of controllers that led before. The only way to a new version.
  virtual Status ClaimPlan(const StoredPlan& plan) = 0;
  /// Inserts or replaces by (job, version).
  virtual Status PutPlan(const StoredPlan& plan) = 0;
  virtual StatusOr<std::optional<StoredPlan>> GetPlan(std::string_view job, uint64_t version) = 0;
  /// Also of plans that were deleted; 0 when the job has none.
  virtual StatusOr<uint64_t> HighestPlanVersion(std::string_view job) = 0;

  /// Returns the id of the decision; `decision.id` is ignored. Equal bases and policies are stored
  /// once. Limits are enforced within 64 decisions.
  virtual StatusOr<int64_t> AddDecision(const StoredDecision& decision) = 0;
  /// Replaces the payload of a decision (its outcome becomes known later). kNotFound: no such id.
  virtual Status UpdateDecision(int64_t id, std::string_view payload) = 0;
  /// With snapshot, base and policy. kNotFound: no such id.
  virtual StatusOr<StoredDecision> GetDecision(int64_t id) = 0;
  /// Newest first, without snapshot, base and policy. `job` empty: all. `before`: only smaller ids;
  /// 0: from the newest.
  virtual StatusOr<std::vector<StoredDecision>> ListDecisions(std::string_view job, int64_t before,
                                                              size_t count_max,
                                                              bool switched_only = false) = 0;

  virtual Status PutPolicy(const StoredPolicy& policy) = 0;
  virtual Status DeletePolicy(std::string_view name) = 0;
  virtual StatusOr<std::vector<StoredPolicy>> ListPolicies() = 0;

  virtual Status PutPin(const StoredPin& pin) = 0;
  virtual Status DeletePin(std::string_view job) = 0;
  virtual StatusOr<std::vector<StoredPin>> ListPins() = 0;

  /// Entries cannot be changed. The limits delete the oldest; many refused ones do not displace
  /// others.
  virtual Status AddAudit(const AuditEntry& entry) = 0;
  /// Newest first. `before`: only smaller ids; 0: from the newest.
  virtual StatusOr<std::vector<AuditEntry>> ListAudit(size_t count_max, int64_t before = 0) = 0;

  /// Small facts by name; empty when unset.
  virtual Status PutFact(std::string_view name, std::string_view value) = 0;
  virtual StatusOr<std::string> GetFact(std::string_view name) = 0;

  virtual StatusOr<StoreUsage> Usage() = 0;
  /// Writes a copy of everything as of one moment to the new file `path`, and checks it. Any thread
  /// may call it while another one uses the store. kAlreadyExists: there is such a file;
  /// kUnimplemented: this store is backed up by its own tools, which the message names.
  virtual Status Backup(const std::string& path) const = 0;
};

/// Opens or creates `path` (":memory:": no file). Other users can neither read nor write the file,
/// because it holds a secret. A file of a former release is brought to the present schema, after a
/// copy beside it. Reads every row to compare it with its checksum. kFailedPrecondition: another
/// process holds it, or a newer release wrote it; kDataLoss: not a database or damaged (says which
/// rows, and what to do); kUnavailable: cannot be created or opened.
StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path, StoreLimits limits = {});

/// Makes a file that Backup wrote the state in `path`. What was there before is kept as
/// `path`.before-restore. Ranks may run plans that are newer than the backup, so the versions of
/// each job go on far above those in it. Errors as above, with kDataLoss and kNotFound of `backup`;
/// `path` is then as it was.
Status RestoreSqliteStore(const std::string& backup, const std::string& path);

}  // namespace weir
