#pragma once
// One rank's session: it owns the transport, the plan, the residuals and the pipeline, and carries
// every all-reduce of the training loop through them. weir.h is this class with a C face.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/session/agent_link.h"
#include "datapath/session/bucket_table.h"
#include "datapath/session/pipeline.h"
#include "datapath/session/plan_activation.h"
#include "datapath/session/telemetry.h"
#include "datapath/transport/transport.h"

namespace weir {

struct SessionOptions {
  std::string job;
  int rank = 0;
  int world = 1;
  std::string transport = "tcp";
  std::string listen = "127.0.0.1:0";
  std::string agent;  // empty: none
  std::string agent_token;
  std::string plan_file;  // empty: none
  Duration operation_timeout = std::chrono::seconds(60);
  Duration connect_timeout = std::chrono::seconds(60);
  std::string congestion_control;
  uint64_t plan_memory_bytes_max = 0;  // 0: half of what the system says is available at the offer
  bool measure_codecs = false;         // tell the controller CodecTimings()
  Duration lease_min = std::chrono::seconds(3);  // shorter leases count as this
};

/// Replaces what a session would make itself. For tests and embedding.
struct SessionParts {
  std::unique_ptr<Transport> transport;
  AgentPort* agent = nullptr;  // outlives the session; its owner calls OnCommand and Greeting
};

struct SessionStats {
  uint64_t step = 0, plan_version = 0, bytes_sent = 0, steps_skipped = 0;
  bool agent_connected = false;
  double last_step_s = 0, last_exposed_s = 0;
};

/// Steps, buckets and state calls come from one thread at a time; Stats, ActivePlan, failure and
/// the AgentHandler calls are thread-safe.
class Session : public AgentHandler {
 public:
  /// Listens and reads the plan file. kInvalidArgument, kNotFound: options or plan; the transport's
  /// errors.
  static StatusOr<std::unique_ptr<Session>> Create(SessionOptions options,
                                                   SessionParts parts = SessionParts());
  ~Session() override;

  const TransportAddress& address() const { return address_; }

  /// Connects to all ranks and checks that all start from the same plan, then starts the agent
  /// link. Errors are the transport's; kInternal: another plan.
  Status Connect(const std::vector<TransportAddress>& addresses);

  /// Ends every operation with kAborted, joins every thread and leaves the job. Peers that do not
  /// need this rank any more finish what they do. Idempotent.
  void Close();

  /// See weir_define_bucket. kInvalidArgument; kFailedPrecondition: a parameter's bucket is in use
  /// in this step.
  StatusOr<uint64_t> DefineBucket(std::vector<ResidualParameter> parameters, Dtype dtype);

  /// kFailedPrecondition: not connected or a step is open; afterwards any failure of the session.
  Status BeginStep();
  /// Waits for every operation of the step. True when some rank met NaN or infinity.
  StatusOr<bool> EndStep();

  /// Queues one all-reduce. `done` is called once, from a session thread, unless an error is
  /// returned. kNotFound: no such bucket; kFailedPrecondition: no step is open or the bucket was
  /// submitted in it; kInvalidArgument: data is null or scale is not finite; kResourceExhausted:
  /// kSubmittedMax wait.
  Status AllReduce(uint64_t bucket, void* data, double scale,
                   std::function<void(const Status&)> done);

  void ReportLoss(double loss) { report_.loss = loss, report_.has_loss = true; }

  StatusOr<size_t> ExportState(std::span<std::byte> out) const;
  size_t ExportBytes() const { return residuals_.ExportBytes(); }
  Status ImportState(std::span<const std::byte> bytes);

  SessionStats Stats() const;
  std::shared_ptr<const Plan> ActivePlan() const;
  /// Why the session failed; OK while it works.
  Status failure() const;
  const SessionOptions& options() const { return options_; }

  // AgentHandler.
  std::vector<RankMessage> Greeting() override;
  void OnCommand(RankCommand command) override;
  std::string Stance() override;

 private:
  Session(SessionOptions options, std::unique_ptr<Transport> transport, AgentPort* agent,
          std::shared_ptr<const Plan> initial);

  static uint64_t OperationSequence(const Operation& op, int sub_operation);
  void EncodeOperation(Operation& op);
  void MoveOperation(Operation* op);
  void DecodeOperation(Operation& op);
  Status RunOnNetwork(Operation& op);
  void Fail(const Status& status);
  void AbortTransport();
  void OnOffer(PlanOffer offer);
  void Tell(RankMessage message);
  Choice EffectiveChoice(const Plan& plan, const Bucket& bucket) const;
  void TellLapse(uint64_t step);
  void FinishReport(TimePoint now);
  void TellPaths(TimePoint now);

  const SessionOptions options_;
  const std::string name_;                // "job/rank 3", for the log
  std::unique_ptr<Transport> transport_;  // null after Close
  const TransportAddress address_;
  ResidualStore residuals_;
  OperationStages stages_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<AgentLink> link_;
  AgentPort* agent_;  // link_, a test's, or null

  mutable Mutex mutex_;
  CondVar all_delivered_;
  PlanActivation activation_ WEIR_GUARDED_BY(mutex_);
  BucketRegistry buckets_ WEIR_GUARDED_BY(mutex_);
  Status failure_ WEIR_GUARDED_BY(mutex_);
  size_t outstanding_ WEIR_GUARDED_BY(mutex_) = 0;
  SessionStats stats_ WEIR_GUARDED_BY(mutex_);
  // Rank 0: how long the active plan may run without a renewal; 0: without bound.
  Duration lease_ WEIR_GUARDED_BY(mutex_) = Duration(0);
  TimePoint lease_renewed_ WEIR_GUARDED_BY(mutex_) = TimePoint();
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};

  // The network thread only (after Drain: the closing thread).
  bool transport_aborted_ = false;

  // The caller's thread only.
  bool connected_ = false;
  std::vector<TransportAddress> addresses_;  // of every rank
  bool step_open_ = false;
  uint64_t next_step_ = 0;
  std::shared_ptr<const Plan> plan_;  // of the open step
  std::deque<Operation> operations_;  // of the open or last step
  std::vector<uint64_t> submitted_keys_;
  bool buckets_changed_ = false;
  StepTimes times_;
  StepReport report_;
  bool report_pending_ = false;
  TimePoint paths_told_{};
};

}  // namespace weir
