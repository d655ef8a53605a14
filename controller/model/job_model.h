// SPDX-License-Identifier: Apache-2.0
#pragma once
// The controller's model of one job: it turns observations into estimates with variance and age,
// notices changes, and produces the Snapshot for a decision.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/model/nccl_watch.h"
#include "controller/model/progress.h"
#include "controller/model/snapshot.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// One bucket in one step on one rank; see BucketSample in proto/weir/v1/rank.proto.
struct BucketObservation {
  std::string bucket, codec, collective;
  double ratio = 1;
  int bits = 0;
  double ready_s = 0, metadata_s = 0, encode_s = 0, network_s = 0, decode_s = 0;
  uint64_t payload_bytes = 0, bytes_sent = 0;
  double gain = 1, residual_ratio = 0, entry_offset_s = 0;
  CodecPlace encoded_on = CodecPlace::kUnknown;
};

struct GainObservation {
  std::string bucket;
  std::vector<double> ratios, gains;
  double peak_over_rms = 0;
};

struct CodecLossObservation {
  std::string codec;
  int bits = 0;
  double relative_loss = 0;
};

/// See BlockDensity in rank.proto.
struct BlockDensityObservation {
  std::string bucket;
  uint32_t block_elements = 0;
  double own = 1;
  std::optional<double> combined;  // of the exact sum
};

/// How fast payloads came from another rank; see ArrivalSample in rank.proto.
struct ArrivalObservation {
  int source_rank = -1;
  double s_per_byte = 0, relative_deviation = 0;
  double ingress_s_per_byte = 0;
  double payload_bytes = 0;
  bool within_burst = false;
};

/// How long a rank's threads waited for a core of its host; see CoreUse in rank.proto.
struct CoreObservation {
  double wait_ratio = 0, datapath_wait_ratio = 0, steal_ratio = 0, pressure_ratio = 0;
  friend bool operator==(const CoreObservation&, const CoreObservation&) = default;
};

/// A rank's report of the steps of its optimiser that one step of its session spans; see
/// LocalPeriod in rank.proto.
struct PeriodObservation {
  uint32_t steps = 1, overlap = 0;
  double waited_s = 0;      // for the synchronisation, when it was due
  double moved_square = 0;  // |D|^2 of this rank; 0: not measured
  double mean_square = 0;   // |mean D|^2, as delivered
  bool local() const { return steps > 1; }
};

struct StepObservation {
  int rank = 0;
  uint64_t step = 0, plan_version = 0;
  double step_s = 0, compute_s = 0, backward_s = 0, exposed_s = 0;
  bool skipped = false;
  std::optional<double> loss;
  std::vector<BucketObservation> buckets;
  std::vector<GainObservation> gains;
  std::vector<CodecLossObservation> codec_losses;
  std::vector<BlockDensityObservation> block_densities;
  std::vector<ArrivalObservation> arrivals;
  double device_link_bytes = 0, device_link_s = 0;  // see StepReport in rank.proto
  std::optional<CoreObservation> cores;             // nothing: not known
  PeriodObservation period = {};

  /// With the times of one step of the optimiser, and without what is told of buckets.
  StepObservation OfOneStep() const;
};

/// One sample of one directed link between two ranks' nodes.
struct LinkObservation {
  std::string source_node, target_node;
  std::string method;  // "tcp_info", "tcp_connect", "udp_echo", "iperf3", "traceroute"
  double rtt_s = 0;    // 0: not measured
  double rtt_deviation_s = 0;
  double bandwidth_bytes_per_s = 0;  // 0: not measured
  bool application_limited = false;  // the bandwidth says nothing about the link
  double window_bytes = 0;           // "tcp_info": the sender's congestion window; 0: not known
  double rtt_min_s = 0;              // "tcp_info": the least of the connection; 0: not known
  double age_s = 0;
};

struct BucketDefinition {
  std::string key;
  uint64_t elements = 0;
  int order = 0;
  int element_bytes = 4;  // this and the next: see BucketModel
  bool sharded = false;
};

/// An estimate that changed.
struct Change {
  enum class Of {
    kBandwidth,
    kLatency,
    kGain,
    kPlanGain,  // of `plan_version`: predicted before, measured after
    kLoss,      // under `plan_version`: of the fitted curve before, smoothed after
    kStepTime,  // under `plan_version`, over a step's progress: promised before, measured after
  };
  enum class Seen {
    kAtOnce,     // by a change detector, at `step`
    kDrifted,    // little by little since the last decision, noticed at `step`
    kSincePlan,  // since plan `plan_version` became active
  };
  Of of = Of::kBandwidth;
  Seen seen = Seen::kAtOnce;
  double before = 0, after = 0;
  double ratio = 0;  // kGain: at which
  uint64_t step = 0, plan_version = 0;
  bool settled = false;  // the estimate had some steps to settle since then
  friend bool operator==(const Change&, const Change&) = default;
};
/// "bandwidth 118 MB/s -> 12.4 MB/s (step 120)".
std::string ChangeText(const Change& change);

enum class TriggerKind {
  kNone,
  kStart,
  kPeriodic,
  kBandwidthChange,
  kLatencyChange,
  kGainChange,
  // The following are the caller's.
  kPolicy,
  kPin,
  kRollback,
  kAggregator,
  kLoss,
  kDenseCheck,
};
/// "bandwidth_change"; empty for kNone.
std::string TriggerName(TriggerKind kind);
/// The kind of that name; kNone for another text.
TriggerKind TriggerNamed(std::string_view name);

/// A reason for a new decision.
struct Trigger {
  TriggerKind kind = TriggerKind::kNone;
  uint64_t step = 0;  // job's step at which it was noticed
  std::vector<Change> changes = {};
  std::string note = {};  // the caller's reason, beside changes of estimates
};
/// Changes and note; empty: there is nothing to say.
std::string TriggerText(const Trigger& trigger);

struct LinkEstimate {
  std::string source_node, target_node;
  Measured rtt_s, bandwidth_bytes_per_s;
  std::string rtt_method, bandwidth_method;
  uint64_t rtt_samples = 0, bandwidth_samples = 0;
  int bandwidth_windows = 0;  // see LinkEstimator::bandwidth_windows
};

/// How long a rank computes. What a rank that computes late makes the others wait is no network.
struct RankPace {
  int rank = 0;
  Measured compute_s;  // of a step, up to its last bucket: without any wait for others
  // Over the middle rank's; 1 unless it differs beyond kPaceDeviations of both together and by
  // kPaceMin.
  double slower = 1;
};
inline constexpr double kPaceMin = 1.15, kPaceDeviations = 3;

/// The waits of a rank for its host's cores.
struct RankCores {
  int rank = 0;
  CoreObservation recent;
  bool starved = false;  // beyond what the job is used to: see CoreWatch
};

/// Predicted against measured time of one collective run, for the prediction-error report.
struct PredictionRecord {
  uint64_t step = 0;
  std::string bucket, collective, codec;
  double predicted_s = 0, measured_s = 0;  // from the last rank's entry to the last leave
};

/// Not thread-safe: owned by the controller's executor. Time comes from `clock` only.
class JobModel {
 public:
  JobModel(std::string job, int world, const Clock& clock);
  ~JobModel();

  /// Sets the capabilities of one rank. The model plans with the intersection over ranks and, until
  /// codecs have run, with the longest of the times that ranks measured.
  void SetCapabilities(int rank, std::vector<CodecModel> codecs,
                       std::vector<CollectiveModel> collectives);
  /// The job's buckets, from rank 0. Estimates of keys that stay are kept.
  void SetBuckets(std::vector<BucketDefinition> buckets);
  /// Node of each rank, so that link estimates can be picked.
  void SetRankNode(int rank, std::string node);
  /// The lowest rank that `rank` shares memory with; itself, as long as nothing is said, where it
  /// stands alone. Numbers outside of the job are ignored.
  void SetLowestRank(int rank, int lowest);
  /// Sets the place of the gradients of `rank`. Decisions count them as on devices if those of all
  /// ranks are; their copies take as long as the slowest rank's.
  void SetGradientDevice(int rank, const GradientDevices& device);
  /// The plan in force since `step`, in bucket order of SetBuckets, and its layout, of which parts
  /// that make no sense count as empty; resets dwell. `excursion`: the plan before comes back in a
  /// few steps, or does so now: that is no switch to count.
  void SetActivePlan(uint64_t version, uint64_t step, PlanModel plan, PlanLayout layout = {},
                     bool excursion = false, const SyncModel& sync = {});
  /// Whether the rank can make local steps.
  void SetLocalSteps(int rank, bool possible);

  /// Sets the rate in bytes per second at which the aggregator under `collective` can receive from
  /// one rank, so that a step that waited for it does not count as evidence about the network; 0:
  /// no limit.
  void SetRateMax(const std::string& collective, double bytes_per_s);

  void OnStep(const StepObservation& observation);
  void OnLink(const LinkObservation& observation);
  /// Takes what NCCL's transfers on a node of the job have waited for; see NcclWatch.
  void OnNccl(const std::string& node, const NcclObservation& sums);

  /// The most urgent pending trigger, once. `periodic_s`: also fire when the last decision is
  /// older.
  std::optional<Trigger> TakeTrigger(double periodic_s);

  /// Whether a short bandwidth probe would tell the model something that training itself does not,
  /// and why: "bandwidth is uncertain by 45 %: the last 12 collectives moved too few bytes". Empty:
  /// no need. True for long stretches while a heavily compressed plan runs; the caller spaces and
  /// pays probes.
  std::string BandwidthProbeReason() const;
  bool WantsBandwidthProbe() const { return !BandwidthProbeReason().empty(); }

  /// Whether the plan's layout could be chosen if the bandwidth from one node to the other were
  /// known, which it is not: see NetworkModel::KnowsBandwidth, of kLinkProbeS.
  bool WantsLinkProbe(const std::string& source, const std::string& target) const;
  static constexpr double kLinkProbeS = 300;

  /// Complete input for Decide. kFailedPrecondition says what is still missing (buckets,
  /// capabilities, a first step, a latency or bandwidth estimate).
  StatusOr<Snapshot> MakeSnapshot(const std::string& trigger) const;

  /// Estimates for people.
  std::vector<LinkEstimate> Links() const;
  std::vector<RankPace> Paces() const;  // of the ranks that reported kPaceSteps steps or more
  static constexpr size_t kPaceSteps = 8;
  std::vector<RankCores> Cores() const;  // of the ranks of which it is known
  /// See NcclWatch::Of.
  std::optional<NcclConclusion> NcclOn(const std::string& node) const;
  /// Some rank waits for a core beyond what the job is used to, so that its steps show neither what
  /// a plan is worth nor that links or codecs became slower.
  bool starved() const;
  Measured latency_s() const;              // one way, worst link
  Measured bandwidth_bytes_per_s() const;  // bottleneck
  Measured step_s() const;
  uint64_t step() const;
  double gain() const;  // of the last steps, dimension-weighted
  std::optional<double> loss() const;
  /// The progress per step by the job's losses.
  const ProgressModel& progress() const;
  /// All that was learnt of that until this step, and of local steps, as a text; empty: nothing
  /// was.
  std::string SaveProgress() const;
  /// Takes over what another model of the same run saved; the run is at `step`. kInvalidArgument:
  /// it is damaged, or of a later step, as where ranks went back to a checkpoint.
  Status RestoreProgress(std::string_view saved, uint64_t step);
  /// The same of local steps, by their cost in kSyncCostUnit in place of the exponent.
  const ProgressModel& sync_progress() const;
  /// Sets the cost of local steps that is believed, by which clocks run until losses say more.
  void SetSyncCost(double cost);
  LocalSteps local_steps() const;
  /// Bounded ring of the newest prediction records, oldest first (at most 4096), removed by the
  /// call.
  std::vector<PredictionRecord> TakePredictions();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weir
