#pragma once
// One rank's session: it owns the transport, the plan, the residuals and the pipeline, and carries
// every all-reduce of the training loop through them. weir.h is this class with a C face.

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
  int rank = 0;
  int world = 1;
  std::string transport = "auto";  // and its options, as ParseTransport takes them
  std::string listen = "127.0.0.1:0";
  std::string agent;  // empty: none
  std::string agent_token;
  std::string plan_file;  // empty: none
  Duration operation_timeout = std::chrono::seconds(60);
  Duration connect_timeout = std::chrono::seconds(60);
  int encode_workers = 1;  // threads that encode, each another bucket; 1 to kEncodeWorkersMax
  uint64_t plan_memory_bytes_max = 0;  // 0: half of what the system says is available at the offer
  bool measure_codecs = false;         // tell the controller CodecTimings()
  Duration lease_min = std::chrono::seconds(3);                 // shorter leases count as this
  Duration operation_timeout_floor = std::chrono::seconds(10);  // see AdaptiveDeadline
  // See replicas.h; 0: never; equal on all ranks.
  uint64_t compare_every_steps = kCompareEverySteps;
  uint64_t epoch = 0;  // of the mesh; above 0 it is one that was formed anew, see Connect
  // This and the following as in TransportOptions; proven to the agent, too, which never sees it.
  std::optional<JobKey> job_key;
  bool encrypt = false, unauthenticated = false;
};

inline constexpr int kEncodeWorkersMax = 16;

class Session;

/// Replaces what a session would make itself. For tests and embedding.
struct SessionParts {
  std::unique_ptr<Transport> transport;
  AgentPort* agent = nullptr;  // outlives the session; its owner calls OnCommand and Greeting
  /// Closed. The session made takes over what this one holds of the job: residuals, momenta,
  /// buckets, the number of steps, the active plan. It is of no more use then; on an error it keeps
  /// all.
  Session* former = nullptr;
};

struct SessionStats {
  uint64_t step = 0, plan_version = 0, bytes_sent = 0, steps_skipped = 0;
  bool agent_connected = false;
  int peers_shared_memory = 0;  // peers on this node that are reached without the network
  double last_step_s = 0, last_exposed_s = 0;
  uint64_t epoch = 0, next_step = 0;
  uint64_t replicas_compared = 0;  // steps in which all ranks were found to hold the same
  int unauthenticated_peers = 0;   // see Transport
  int model_source = -1;  // whose model every rank takes after the mesh was formed anew; -1: none
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
  /// kInvalidArgument: job, rank, world or encode_workers cannot be.
  static Status CheckOptions(const SessionOptions& options);

  const TransportAddress& address() const { return address_; }

  /// Connects to all ranks and checks that all start from the same plan, then starts the agent
  /// link. Errors are the transport's; kInternal: another plan.
  ///
  /// In an epoch above 0 the ranks are survivors of a former mesh (SessionParts::former) and
  /// newcomers, which agree here on where to go on: at the step that the rank with the fewest
  /// completed steps has to do next. Ranks that completed that step already undo what it did to
  /// residuals and momenta at the next BeginStep, and their callers take the model of
  /// SessionStats::model_source, the first survivor that did not. All take that rank's active plan
  /// if this world may run it, else dense. What codecs keep besides residuals, and the memory of
  /// EF21, begins anew. Where no mesh ever came to be, since connecting failed in epoch 0, those
  /// that were made for that one begin the job. kInternal: completed steps differ by more than one;
  /// kFailedPrecondition: all ranks are newcomers.
  Status Connect(const std::vector<TransportAddress>& addresses);

  /// Ends every operation with kAborted, joins every thread and leaves the job. Peers that do not
  /// need this rank any more finish what they do. Idempotent.
  void Close();
  bool closed() const { return closed_.load(); }

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

  /// What `body`, a part of a step on the caller's thread, returns. An exception in it fails the
  /// session, since the other ranks wait for this one's part.
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
  /// The model's parameters as the step finds them, as one hash; compared where compares().
  void ReportParameters(uint64_t hash) { parameters_hash_ = hash; }

  void ReportLoss(double loss) { report_.loss = loss, report_.has_loss = true; }

  /// Residuals, momenta and the states of codecs, between steps. See ResidualStore, whose errors
  /// these are; of a codec's state besides: kDataLoss when the codec does not take it, kNotFound
  /// when this build has no such codec.
  StatusOr<size_t> ExportState(std::span<std::byte> out);
  StatusOr<size_t> ExportBytes();
  Status ImportState(std::span<const std::byte> bytes);
  /// See weir_scale_state.
  Status ScaleState(double factor);

  SessionStats Stats() const;
  /// Of every rank, once connected: ranks with equal numbers share memory, by what each said of
  /// itself, so the list is the same everywhere.
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

  using RestoredStates = std::map<uint64_t, CodecMemory>;  // out of a checkpoint, by bucket
  std::vector<SavedCodecState> SaveCodecStates() const;
  StatusOr<RestoredStates> LoadCodecStates(const std::vector<SavedCodecState>& saved) const;
  void TakeRestored(Bucket& bucket);

  /// What a rank says of itself when a mesh is formed anew.
  struct Standing;
  Status Agree(TimePoint deadline);
  Status TakePlan(Group& group, const std::vector<Standing>& all, int source);
  Status CheckStart(TimePoint deadline);
  void Inherit(Session& former);
  Status ApplyAgreement();

  static uint64_t OperationSequence(const Operation& op, int part);
  void PreparePart(Operation& op);
  ReadyCount MovePart(std::span<Operation* const> ops, int ready);
  void DecodeOperation(Operation& op);
  /// `ready` as of MovePart: first this rank's, then what it returns.
  Status RunOnNetwork(std::span<Operation* const> ops, ReadyCount* ready);
  Status RunWithin(std::span<Operation* const> ops, Duration allowed, ReadyCount* ready);
  Status Open();
  Status Enqueue(uint64_t bucket, void* data, double scale,
                 std::function<void(const Status&)> done);
  Status AwaitOperations();
  StatusOr<bool> Settle();
  bool Compares(uint64_t step) const {
    return options_.compare_every_steps != 0 && step % options_.compare_every_steps == 0 &&
           options_.world > 1;
  }
  /// What the step that ends now left on this rank.
  std::shared_ptr<const ReplicaDigest> TakeDigest();
  /// Queues the comparison of digest_, in front of the operations of the step that begins.
  Status Compare();
  Status Submit(Operation* op);
  /// kFailedPrecondition: `parameters` would dissolve a bucket that the open step has submitted.
  Status CheckUnused(const std::vector<ResidualParameter>& parameters) const WEIR_REQUIRES(mutex_);
  void Fail(const Status& status);
  /// Fail, from any thread but the network thread, which then tells the other ranks.
  void FailAndTell(const Status& status) noexcept;
  /// `buffers`: whether what was posted is still there, see Transport::Abandon.
  enum class Buffers { kAlive, kGone };
  void AbortTransport(Buffers buffers = Buffers::kAlive);
  void CountMedia();
  /// Every rank tells every other which node it is on; a barrier besides.
  Status LearnNodes(Group& group);
  void OnOffer(PlanOffer offer);
  void Tell(RankMessage message);
  void OnOffloadFailed(const std::string& detail);
  Choice EffectiveChoice(const Plan& plan, const Bucket& bucket) const;
  void TellLapse(uint64_t step);
  void FinishReport(TimePoint now);
  void TellPaths(TimePoint now);

  const SessionOptions options_;
  const std::string name_;                     // "job/rank 3", for the log
  const Status no_memory_, closed_by_caller_;  // name this rank; made while there is memory
  ScratchPool scratch_{kScratchIdleMax, kScratchIdleBytesMax};  // of the network thread
  std::unique_ptr<Transport> transport_;                        // null after Close
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
  SessionStats stats_ WEIR_GUARDED_BY(mutex_);
  uint64_t former_bytes_sent_ = 0;  // in former meshes; never changes once Create returned
  // Rank 0: how long the active plan may run without a renewal; 0: without bound.
  Duration lease_ WEIR_GUARDED_BY(mutex_) = Duration(0);
  TimePoint lease_renewed_ WEIR_GUARDED_BY(mutex_) = TimePoint();
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};

  // The network thread only (after Drain: the closing thread).
  bool transport_aborted_ = false;
  AdaptiveDeadline adaptive_deadline_;
  uint64_t confirmed_step_ = UINT64_MAX;  // the residuals of the step before it are final

  // The caller's thread only.
  bool connected_ = false;
  std::vector<TransportAddress> addresses_;  // of every rank
  bool sums_in_staging_ = false;             // Transport::staging
  std::vector<int> nodes_;                   // of every rank; equal numbers share memory
  bool step_open_ = false;
  uint64_t next_step_ = 0;
  uint64_t steps_done_ = 0;           // completed, skipped ones too
  bool survivor_ = false;             // the caller's model is that of steps_done_ steps
  bool founder_ = false;              // made in epoch 0, this or the first of its formers
  bool agreement_pending_ = false;    // the caller has not gone on since Agree
  std::shared_ptr<const Plan> plan_;  // of the open step
  std::deque<Operation> operations_;  // of the open or last step
  std::vector<uint64_t> submitted_keys_;
  bool buckets_changed_ = false;
  RestoredStates restored_;  // of buckets that were not defined again yet
  StepTimes times_;
  StepReport report_;
  bool report_pending_ = false;
  std::optional<uint64_t> parameters_hash_;      // of the open step
  std::shared_ptr<const ReplicaDigest> digest_;  // of the last step, when it is to be compared
  Operation comparison_;                         // of it, in the open step
  TimePoint paths_told_{};
};

}  // namespace weir
