// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a JobModel; only job_model*.cc include it.

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/model/change_detector.h"
#include "controller/model/codec_calibrator.h"
#include "controller/model/core_watch.h"
#include "controller/model/job_estimates.h"
#include "controller/model/job_model.h"
#include "controller/model/nccl_watch.h"
#include "controller/model/network_model.h"
#include "controller/model/plan_layout.h"
#include "controller/model/ring_choice.h"
#include "controller/model/shard_choice.h"
#include "controller/model/step_assembler.h"

namespace weir {

struct CodecEstimate {
  CodecModel model;
  CodecCalibrator encode, decode;                // on the host
  CodecCalibrator device_encode, device_decode;  // on devices
  Smoothed payload_log{0.1};
  Smoothed relative_loss{0.05};  // measured on the job's gradients, by all ranks
  explicit CodecEstimate(const CodecModel& codec)
      : model(codec),
        encode(codec.encode),
        decode(codec.decode),
        device_encode(codec.device_encode),
        device_decode(codec.device_decode) {}
  /// With what was measured in place of what was declared.
  CodecModel Calibrated() const;
};

struct JobModel::State {
  State(std::string job_name, int job_world, const Clock& job_clock)
      : job(std::move(job_name)),
        world(std::max(1, job_world)),
        clock(job_clock),
        assembler(world),
        network(world) {}

  const std::string job;
  const int world;
  const Clock& clock;
  StepAssembler assembler;
  NetworkModel network;

  std::map<int, std::pair<std::vector<CodecModel>, std::vector<CollectiveModel>>> offers;
  std::vector<CollectiveModel> collectives;
  std::vector<CodecEstimate> codecs;
  std::map<std::string, Smoothed> gain_scale_log;  // by collective
  std::vector<BucketDefinition> buckets;
  std::map<std::string, BucketEstimate> estimates;
  std::map<int, std::string> nodes;
  std::map<int, GradientDevices> gradient_devices;  // by rank
  std::map<int, RollingMedian> paces;               // of ranks: compute up to the last bucket
  CoreWatch cores;
  NcclWatch nccl;

  uint64_t plan_version = 0;
  PlanModel plan;
  SyncModel sync;               // of the plan
  uint64_t plan_steps = 0;      // complete ones that ran it
  bool plan_gain_told = false;  // that its gain is not as predicted
  LayoutInUse in_use;
  double plan_since_s = -1e9;
  std::deque<double> switches_s;

  uint64_t step = 0, steps = 0;
  uint64_t steps_before_buckets = 0;
  RollingMedian compute_s{15}, step_s{9}, metadata_s{15};
  Smoothed backward_s{0.1}, gain{0.2}, reference_gain{0.05};
  std::optional<double> loss;
  ProgressModel progress;
  std::map<int, bool> local_steps;  // whether ranks can make them
  ProgressModel sync_progress;
  bool made_local_steps = false;
  double sync_cost = 0;
  Smoothed signal_share{0.2}, consensus_share{0.2};  // of the ranks' movement
  ChangeDetector gain_detector;
  std::deque<PredictionRecord> predictions;

  std::map<TriggerKind, Trigger> pending;
  std::vector<std::pair<uint64_t, Trigger>> follow_ups;  // at step
  bool started = false;
  double last_decision_s = 0;
  double decided_bandwidth = 0, decided_latency_s = 0;
  double planned_bandwidth = 0;  // what the decision for the plan in force saw; 0: not known

  double Now() const { return ToSeconds(clock.Now().time_since_epoch()); }
  CodecEstimate* FindEstimate(const std::string& name, int bits);
  int FindCollective(const std::string& name) const;
  void Intersect();
  void Learn(const AssembledStep& step);
  void LearnCodec(const AssembledBucket& bucket, const CollectiveModel& ran, double elements,
                  double kept, CodecEstimate* codec);
  /// The excess waits of the ranks of each node, see CoreWatch.
  std::map<std::string, double> WaitsOfNodes() const;
  /// `in_backward`: it was submitted as its gradient became ready.
  void LearnBucket(const AssembledBucket& bucket, const LayoutSpeedup& speedup, bool in_backward,
                   std::vector<CollectiveSample>* samples);
  /// Returns the place of the gradients of all ranks.
  GradientDevices DevicesOfAll() const;
  NodeLinks LinksOfNodes() const { return LinksBetween(nodes, world, network.Links(Now())); }
  void Raise(TriggerKind kind, std::vector<Change> changes);
  void RaiseAndFollowUp(TriggerKind kind, const Change& change);
  void RaiseNetworkChange(const NetworkChange& change);
  void WatchGain();
  void WatchDrift();
  void RaiseFollowUps();
  std::optional<Change> SincePlan() const;
  Status Missing() const;
  double GainScaleOf(const CollectiveModel& collective) const;
  void LearnProgress(const AssembledStep& step, double gain);
  LocalSteps Local() const;
  void LearnGain(const AssembledBucket& bucket, const CodecEstimate& codec,
                 const CollectiveModel& ran, BucketEstimate* estimate);
  void WatchPlanGain();
  void FillCollectives(Snapshot* snapshot) const;
  void FillBuckets(Snapshot* snapshot) const;
};

}  // namespace weir
