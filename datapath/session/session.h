// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's session: it owns the transport, the plan, the residuals and the pipeline, and carries
// every all-reduce of the training loop through them. weir.h is the C interface of this class.

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/agent_link/agent_link.h"
#include "datapath/base/caught.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/plan/plan_activation.h"
#include "datapath/session/adaptive_deadline.h"
#include "datapath/session/aggregator_port.h"
#include "datapath/session/bucket_table.h"
#include "datapath/session/pipeline.h"
#include "datapath/session/replicas.h"
#include "datapath/session/telemetry.h"
#include "datapath/transport/transport.h"

namespace weir {

struct SessionOptions {
  std::string job;
  std::map<std::string, std::string> labels =
      {};  // at most kJobLabelsMax, for policies to select jobs
  int rank = 0;
  int world = 1;
  std::string transport = "auto";  // and its options, as ParseTransport takes them
  std::string listen = "127.0.0.1:0";
  std::string agent;  // empty: none
  std::string agent_token;
  std::string plan_file;  // empty: none
  Duration operation_timeout = std::chrono::seconds(60);
  Duration connect_timeout = std::chrono::seconds(60);
  int encode_workers = 1;  // threads that encode different buckets; 1 to kEncodeWorkersMax
  uint64_t plan_memory_bytes_max = 0;  // 0: half of what the system says is available at the offer
  bool measure_codecs = false;         // tell the controller the times of codecs
  Device* device = nullptr;  // where the gradients will be, for these times and link_devices
  // The devices of a node's ranks form a group, and move among themselves what is in their memory;
  // needs `device`. The transport's option nccl=on sets it. If only some of a node's ranks set it,
  // the node has no group.
  bool link_devices = false;
  Duration lease_min = std::chrono::seconds(3);                 // shorter leases count as this
  Duration operation_timeout_floor = std::chrono::seconds(10);  // see AdaptiveDeadline
  // How often replicas are compared, see replicas.h; 0: never; equal on all ranks.
  uint64_t compare_every_steps = kCompareEverySteps;
  uint64_t epoch = 0;  // of the mesh; above 0 the mesh replaces one that failed, see Connect
  // The key and the two flags are those of TransportOptions. The session also proves to the agent
  // that it holds the key, which the agent never sees.
  std::optional<JobKey> job_key;
  bool encrypt = false, unauthenticated = false;
  bool local_steps =
      false;  // the caller does what the active plan's `sync` says; else such plans are refused
  bool caller_sums = false;  // the caller can sum buckets over a process group of its own
};

inline constexpr int kEncodeWorkersMax = 16;

class Session;

/// Objects that a session uses instead of creating its own. For tests and embedding.
struct SessionParts {
  std::unique_ptr<Transport> transport;
  AgentPort* agent = nullptr;  // outlives the session; its owner calls OnCommand and Greeting
  /// A closed session of the former mesh. The created session takes over its part of the job:
  /// residuals, momenta, buckets, the number of steps and the active plan, after which the former
  /// session is of no use. On an error the former session keeps all of it.
  Session* former = nullptr;
};

/// The caller's part in a bucket of the open step.
struct CallerSumNeeds {
  bool by_caller = false;  // sum it itself, between BeginSum and EndSum; else AllReduce
  bool residual = false;   // give BeginSum the elements, and sum what it leaves there
  bool sample = false;     // give BeginSum the elements, or a copy, to be measured
  bool hash = false;       // give EndSum the sum
};

/// How the caller's sum of a bucket ended.
struct CallerSum {
  Status status = {};         // of the caller's process group
  bool finite = true;         // every element of this rank's result is
  const void* sum = nullptr;  // the result in the host's memory, if NeedsOf asked for it
  Duration network{0};        // from when the group could begin with this bucket to its end
  Duration since_ready{0};    // from when the elements were complete to the end; 0: from BeginSum
  Duration ended_ago{0};      // since the end
};

/// Where a bucket's data is, if not in the host's memory.
struct DevicePlace {
  Device* device = nullptr;
  void* stream = nullptr;  // see DeviceData
};

struct SessionStats {
  uint64_t step = 0, plan_version = 0, bytes_sent = 0, steps_skipped = 0;
  bool agent_connected = false;
  int peers_shared_memory = 0;  // peers on this node that are reached without the network
  double last_step_s = 0, last_exposed_s = 0;
  uint64_t epoch = 0, next_step = 0;
  uint64_t replicas_compared = 0;  // steps after which all ranks were found to hold the same data
  int unauthenticated_peers = 0;   // see Transport
  int model_source = -1;           // the rank whose model all ranks take after a reform; -1: none
};

/// Steps, buckets and state calls come from one thread at a time; Stats, ActivePlan, failure and
/// the AgentHandler calls are thread-safe.
class Session : public AgentHandler {
 public:
  /// Listens and reads the plan file. kInvalidArgument, kNotFound: the options or the plan are
  /// wrong. Other errors are the transport's.
  static StatusOr<std::unique_ptr<Session>> Create(SessionOptions options,
                                                   SessionParts parts = SessionParts());
  ~Session() override;
  /// kInvalidArgument: job, rank, world or encode_workers is out of range.
  static Status CheckOptions(const SessionOptions& options);

  const TransportAddress& address() const { return address_; }

  /// Connects to all ranks and checks that all start from the same plan, then starts the agent
  /// link. Errors are the transport's; kInternal: a rank has another plan; kUnavailable: with
  /// link_devices, the devices of the node cannot form a group, as on all ranks.
  ///
  /// In an epoch above 0 the ranks are survivors of a former mesh (SessionParts::former) and
  /// newcomers. They agree here on the next step: the one that follows the last step of the rank
  /// with the fewest completed steps. Ranks that completed that step already undo its effect on
  /// residuals and momenta at the next BeginStep, and their callers take the model of
  /// SessionStats::model_source, the first survivor that did not complete it. All ranks take that
  /// rank's active plan if it is valid for this world, and the dense one if not. Codecs' states
  /// and the memory of EF21 are reset. If connecting failed in epoch 0, so that no mesh existed,
  /// the ranks that were created for that epoch start the job. kInternal: completed steps differ by
  /// more than one; kFailedPrecondition: all ranks are newcomers.
  Status Connect(const std::vector<TransportAddress>& addresses);

  /// Lets Connect, which runs or is still to be called, return kAborted soon. Thread-safe, but not
  /// at the same time as Close.
  void InterruptConnect() { transport_->Interrupt(); }

  /// Ends every operation with kAborted, joins every thread and leaves the job. Peers whose
  /// operations no longer need this rank complete them. Idempotent.
  void Close();
  bool closed() const { return closed_.load(); }

  /// See weir_define_bucket. kInvalidArgument: as BucketRegistry::Define; kFailedPrecondition: a
  /// parameter's bucket is in use in this step.
  StatusOr<uint64_t> DefineBucket(std::vector<ResidualParameter> parameters, Dtype dtype);

  /// Says of a bucket that each rank needs another part of its sum. So a caller that sums makes a
  /// reduce-scatter, after which the ranks hold different elements: they tell each other at the end
  /// of the step whether all are finite, and do not compare them. To be called on all ranks before
  /// the bucket is used. kNotFound: no such bucket.
  Status SetSharded(uint64_t bucket);

  /// kFailedPrecondition: not connected, or a step is open. Other errors are the session's failure.
  Status BeginStep();
  /// Waits for every operation of the step. Returns true if some rank met NaN or infinity.
  StatusOr<bool> EndStep();

  /// Queues one all-reduce. `done` is called once, from a session thread, unless an error is
  /// returned. kNotFound: no such bucket; kFailedPrecondition: no step is open, or the bucket was
  /// already submitted in it; kInvalidArgument: data is null or scale is not finite;
  /// kResourceExhausted: kSubmittedMax operations wait. With a device in `place` the data is in its
  /// memory, and errors are also those of Device::Open. When `done` is called, the result is there,
  /// and nothing uses the data any more.
  Status AllReduce(uint64_t bucket, void* data, double scale,
                   std::function<void(const Status&)> done, DevicePlace place = {});

  /// The caller's part in this bucket by the active plan; `by_caller` is equal on all ranks.
  /// kFailedPrecondition: no step is open; kNotFound as AllReduce.
  StatusOr<CallerSumNeeds> NeedsOf(uint64_t bucket);

  /// Begins the operation of a bucket that the caller sums, in the same order as on all other
  /// ranks, among AllReduce. Once it returns, `data`, if any, holds what must be summed. `done` is
  /// called once, when the sum has ended or the session has failed, unless an error is returned.
  /// kFailedPrecondition and kNotFound as AllReduce, or the plan has the session sum the bucket;
  /// kInvalidArgument: data is null, but NeedsOf asked for it.
  Status BeginSum(uint64_t bucket, void* data, std::function<void(const Status&)> done);

  /// Ends it. An error of the caller's process group fails the session on all ranks. Thread-safe.
  /// Returns the operation's outcome. kFailedPrecondition: no sum of this bucket is in progress.
  Status EndSum(uint64_t bucket, const CallerSum& sum);

  /// Runs `body`, a part of a step on the caller's thread, and returns its status. An exception in
  /// it fails the session, because the other ranks wait for this one's part.
  template <typename Body>
  Status OrFail(Body&& body) noexcept {
    bool returned = false;
    const Status status = Caught(
        [&]() -> Status {
          Status result = body();
          returned = true;
          return result;
        },
        no_memory_);
    if (!returned) FailAndTell(status);
    return status;
  }

  /// True within a step after which replicas are compared.
  bool compares() const { return step_open_ && Compares(next_step_ - 1); }
  /// Takes a hash of the model's parameters at the start of the step, compared if compares().
  void ReportParameters(uint64_t hash) { parameters_hash_ = hash; }

  /// Tells the agent that this rank's gradient of `parameter` held NaN or infinity in the step that
  /// was skipped. kFailedPrecondition: the last step was not skipped, or another one has begun.
  Status ReportNonFinite(std::string_view parameter);

  /// See weir_report_period. kInvalidArgument: no step, more overlapped ones than there are, or
  /// numbers that are negative; kFailedPrecondition: no step is open.
  Status ReportPeriod(const LocalPeriod& period);
  void ReportLoss(double loss) { report_.loss = loss, report_.has_loss = true; }

  /// Residuals, momenta and the states of codecs, to be called between steps. Errors are those of
  /// ResidualStore and, for a codec's state, kDataLoss if the codec rejects it and kNotFound if
  /// this build has no such codec.
  StatusOr<size_t> ExportState(std::span<std::byte> out);
  StatusOr<size_t> ExportBytes();
  Status ImportState(std::span<const std::byte> bytes);
  /// See weir_scale_state.
  Status ScaleState(double factor);

  SessionStats Stats() const;
  /// The node of every rank, once connected. Ranks with equal numbers share memory. Each rank
  /// reports its own number, so the list is the same on all ranks.
  const std::vector<int>& nodes() const { return nodes_; }
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

  using RestoredStates = std::map<uint64_t, CodecMemory>;  // from a checkpoint, by bucket
  std::vector<SavedCodecState> SaveCodecStates() const;
  StatusOr<RestoredStates> LoadCodecStates(const std::vector<SavedCodecState>& saved) const;
  void TakeRestored(Bucket& bucket);

  /// A rank's report of its own state, sent when a new mesh replaces a failed one.
  struct Standing;
  Status Agree(TimePoint deadline);
  Status TakePlan(Group& group, const std::vector<Standing>& all, int source);
  Status CheckStart(TimePoint deadline);
  void Inherit(Session& former);
  OperationStages::Options StageOptions() const;
  Status ApplyAgreement();

  // Indices of operations without a bucket, above those of all others: the comparison of replicas,
  // and what ranks tell each other beside sums of their callers, before and after these.
  static constexpr uint64_t kComparisonIndex = (1u << 17) - 1;
  static constexpr uint64_t kFirstRoundIndex = kComparisonIndex - 1;
  static constexpr uint64_t kLastRoundIndex = kComparisonIndex - 2;

  static uint64_t OperationSequence(const Operation& op, int part);
  void PreparePart(Operation& op);
  ReadyCount MovePart(std::span<Operation* const> ops, int ready);
  void DecodeOperation(Operation& op);
  /// `ready`: in, the count that MovePart is given; out, the one that it returns.
  Status RunOnNetwork(std::span<Operation* const> ops, ReadyCount* ready);
  Status RunWithin(std::span<Operation* const> ops, Duration allowed, ReadyCount* ready);
  Status Open();
  Status Enqueue(uint64_t bucket, void* data, double scale, std::function<void(const Status&)> done,
                 DevicePlace place);
  /// Adds an operation on a bucket to the step. On an error there is none.
  StatusOr<Operation*> Admit(uint64_t bucket, std::function<void(const Status&)> done);
  /// Takes back what Admit has added last; returns `status`.
  Status Refuse(Status status);
  /// Whether this step of the job measures gradients, at least every `every` steps.
  bool Samples(uint64_t every) const;
  /// One message to every rank beside the sums of callers, such as `beside`, as operation `index`.
  Status StartRound(const Operation& beside, uint64_t index, bool non_finite);
  /// After the callers' sums: where each rank has another part of them, whether all are finite.
  Status AgreeOnFinite();
  Status AwaitCallerSums();
  /// The failure of another rank, if one becomes known soon, else `failed`.
  Status CauseOf(Status failed);
  /// Fails the session if a peer has died or said that it fails, while the network is idle.
  void LookAtPeers();
  Status AwaitOperations();
  /// Before leaving: lets a comparison end that alone is in progress, since the other ranks need
  /// this one for it and nothing is wrong. Bounded.
  void AwaitComparison();
  /// Nothing uses the operation's data any more, and its outcome is known.
  void Delivered(Operation& op);
  StatusOr<bool> Settle();
  bool Compares(uint64_t step) const {
    return options_.compare_every_steps != 0 && options_.world > 1 &&
           (step % options_.compare_every_steps == 0 || plan_->sync.local());
  }
  /// The digest of this rank's results of the step that ends now.
  std::shared_ptr<const ReplicaDigest> TakeDigest();
  /// Queues the comparison of digest_, in front of the operations of the step that begins.
  Status Compare();
  Status Submit(Operation* op);
  /// kFailedPrecondition while operations of a step may use residuals and states.
  Status CheckQuiet(const char* what) const;
  /// kFailedPrecondition: `parameters` would dissolve a bucket that the open step has submitted.
  Status CheckUnused(const std::vector<ResidualParameter>& parameters) const WEIR_REQUIRES(mutex_);
  void Fail(const Status& status);
  /// Fail, from any thread but the network thread, which then tells the other ranks.
  void FailAndTell(const Status& status) noexcept;
  /// `buffers`: whether the posted buffers still exist, see Transport::Abandon.
  enum class Buffers { kAlive, kGone };
  void AbortTransport(Buffers buffers = Buffers::kAlive);
  void CountMedia();
  /// Every rank tells every other which node it is on, so this also acts as a barrier.
  Status LearnNodes(Group& group);
  /// `able`: by rank, whether its caller can sum. kInvalidArgument: the active plan leaves sums to
  /// the callers, and that of some rank cannot make them.
  Status AgreeOnCallers(const std::vector<bool>& able);
  /// Forms the group of the node's devices. `wanted`: by rank, whether it has link_devices.
  Status LinkDevices(Group& group, const std::vector<bool>& wanted);
  void OnOffer(PlanOffer offer);
  void Tell(RankMessage message);
  void OnOffloadFailed(const std::string& detail);
  Choice EffectiveChoice(const Plan& plan, const Bucket& bucket) const;
  void TellLapse(uint64_t step);
  void TellSkipped();
  void FinishReport(TimePoint now);
  void TellPaths(TimePoint now);

  const SessionOptions options_;
  const std::string name_;                     // "job/rank 3", for the log
  const Status no_memory_, closed_by_caller_;  // both name this rank and are allocated early
  ScratchPool scratch_{kScratchIdleMax, kScratchIdleBytesMax};  // of the network thread
  std::unique_ptr<Transport> transport_;                        // null after Close
  std::unique_ptr<DeviceGroup> device_group_;  // of this rank's node; null: none, or after Close
  const TransportAddress address_;
  AggregatorPort aggregators_;
  std::unique_ptr<ResidualStore> residuals_;
  std::unique_ptr<OperationStages> stages_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<AgentLink> link_;
  AgentPort* agent_;  // link_, a test's, or null

  mutable Mutex mutex_;
  CondVar all_delivered_;
  PlanActivation activation_ WEIR_GUARDED_BY(mutex_);
  BucketRegistry buckets_ WEIR_GUARDED_BY(mutex_);
  Status failure_ WEIR_GUARDED_BY(mutex_);
  size_t outstanding_ WEIR_GUARDED_BY(mutex_) = 0;
  bool comparing_ WEIR_GUARDED_BY(mutex_) = false;               // one of them is comparison_
  std::vector<Operation*> caller_sums_ WEIR_GUARDED_BY(mutex_);  // begun and not ended
  SessionStats stats_ WEIR_GUARDED_BY(mutex_);
  uint64_t former_bytes_sent_ = 0;  // in former meshes; constant once Create has returned
  // On rank 0: how long the active plan may run without a renewal; 0: without limit.
  Duration lease_ WEIR_GUARDED_BY(mutex_) = Duration(0);
  TimePoint lease_renewed_ WEIR_GUARDED_BY(mutex_) = TimePoint();
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> callers_sum_{false};  // the callers of all ranks can

  // Used by the network thread only (after Drain, by the closing thread).
  bool transport_aborted_ = false;
  AdaptiveDeadline adaptive_deadline_;
  uint64_t confirmed_step_ = UINT64_MAX;  // the residuals of the step before it are final

  // Used by the caller's thread only.
  bool connected_ = false;
  std::vector<TransportAddress> addresses_;  // of every rank
  bool sums_in_staging_ = false;             // Transport::staging
  std::vector<int> nodes_;                   // of every rank; equal numbers share memory
  bool step_open_ = false;
  uint64_t next_step_ = 0;
  uint64_t steps_done_ = 0;           // completed steps, including skipped ones
  bool survivor_ = false;             // the caller's model has seen steps_done_ steps
  bool founder_ = false;              // this session or its first predecessor is of epoch 0
  bool agreement_pending_ = false;    // no step has begun since Agree
  std::shared_ptr<const Plan> plan_;  // of the open step
  std::deque<Operation> operations_;  // of the open or last step
  std::vector<uint64_t> submitted_keys_;
  bool buckets_changed_ = false;
  RestoredStates restored_;  // of buckets that are not defined yet
  SessionStepTimes times_;
  StepReport report_;
  bool report_pending_ = false;
  std::optional<uint64_t> parameters_hash_;      // of the open step
  std::shared_ptr<const ReplicaDigest> digest_;  // of the last step, when it is to be compared
  Operation comparison_;                         // compares digest_ in the open step
  Operation first_round_, last_round_;           // of the open or last step, see StartRound
  bool non_finite_somewhere_ = false;            // what last_round_ found
  TimePoint paths_told_{};
};

}  // namespace weir
