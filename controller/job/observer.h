// SPDX-License-Identifier: Apache-2.0
#pragma once
// Digests the reports of a job's ranks: the model, the recent steps and the sums over the run.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/job/help_watch.h"
#include "controller/job/job_view.h"
#include "controller/job/membership.h"
#include "controller/job/rank_said.h"
#include "controller/job/step_series.h"
#include "controller/model/job_model.h"

namespace weir {

/// Not thread-safe.
class Observer {
 public:
  Observer(std::string job, const Clock& clock)
      : job_(std::move(job)), clock_(clock), help_(clock) {}

  /// `progress`: as JobModel::SaveProgress gave it; empty: none.
  void Recover(const JobView& stored, std::string progress);
  /// The ranks of `hello` begin another incarnation. One that is further than the start belongs to
  /// a run that this controller once knew, whose sums go on.
  void Begin(const RankGreeting& hello);
  void OnGreeting(const std::string& node, const RankGreeting& hello);
  /// Whether they are others than before. kInvalidArgument as DefinitionsOf.
  StatusOr<bool> SetBuckets(const BucketList& table);
  WatchedStep Watched(const StepObservation& step) const;
  /// The bytes that the rank sent in this step.
  uint64_t OnStep(const StepObservation& step);
  /// A step of rank 0 as a point of the series, to which it is added.
  StepPoint AddPoint(const StepObservation& report);
  void AddPredictions() { series_.AddPredictions(model_->TakePredictions()); }
  void OnPaths(int rank, const PathList& paths, const Membership& members);
  void OnLink(const LinkObservation& observation);
  void OnNccl(const std::string& node, const NcclObservation& sums);
  /// Takes a rank's report of a step that was skipped for NaN or infinity. Several ranks may report
  /// one step, and one rank twice, as it learns more: false for what adds nothing to what is known.
  bool OnNonFinite(const RankIncident& incident);
  /// Sets the time of a dense step and its choices, as of the newest decision; 0 if unknown.
  void SetDense(double dense_step_s, const PlanModel& choices) {
    dense_step_s_ = dense_step_s;
    help_.SetDense(dense_step_s, choices);
  }

  /// Sets the cost of local steps that is believed, see SyncProgress.
  void SetSyncCost(double cost) {
    sync_cost_ = cost;
    if (model_ != nullptr) model_->SetSyncCost(cost);
  }

  /// Null before the first greeting.
  JobModel* model() { return model_.get(); }
  const JobModel* model() const { return model_.get(); }
  const StepSeries& series() const { return series_; }
  HelpWatch& help() { return help_; }
  const HelpWatch& help() const { return help_; }
  const JobCapabilities& capabilities() const { return capabilities_; }
  const std::vector<BucketDefinition>& buckets() const { return buckets_; }
  /// Index into buckets(); 0 without any.
  size_t LargestBucket() const;
  /// Buckets, sums and the model's figures.
  void Fill(JobView* out) const;

 private:
  const std::string job_;
  const Clock& clock_;
  JobCapabilities capabilities_;  // of the newest greeting that has any
  std::vector<BucketDefinition> buckets_;
  BucketList table_;
  std::unique_ptr<JobModel> model_;
  StepSeries series_;
  double started_unix_s_ = 0;
  uint64_t bytes_sent_ = 0;
  double dense_step_s_ = 0;
  double sync_cost_ = 0;
  HelpWatch help_;
  std::optional<RankIncident> non_finite_;
  std::string former_progress_;  // of the same run, until the next Begin
};

}  // namespace weir
