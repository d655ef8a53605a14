// SPDX-License-Identifier: Apache-2.0
// The progress that JobModel learns, by the gain and by local steps.

#include <algorithm>
#include <cmath>

#include "controller/model/job_model.h"
#include "controller/model/job_model_state.h"

namespace weir {
namespace {

constexpr double kKeptMin = 1e-3;  // a gain below it says nothing

}  // namespace

// A period counts as the steps that it is worth: in the curve of progress by gain as many as local
// steps are believed to keep, and in that by the cost of local steps as many as the gain keeps.
void JobModel::State::LearnProgress(const AssembledStep& assembled, double kept) {
  const PeriodObservation& period = assembled.period;
  const auto add = [&](ProgressModel* model, double gain, double worth) {
    const int steps = std::max(1, static_cast<int>(std::lround(period.steps * worth)));
    for (int i = 1; i < steps; ++i) model->Add(gain, std::nullopt);
    model->Add(gain, assembled.loss);
  };
  const bool planned = assembled.plan_version == plan_version && sync.every >= period.steps;
  SyncModel ran = planned ? sync : SyncModel{.every = period.steps};
  if (!period.local()) ran = {};
  made_local_steps = made_local_steps || period.local();
  add(&progress, kept, SyncProgress(ran, sync_cost));
  if (Local().possible) add(&sync_progress, SyncGain(ran.every), period.local() ? kept : 1);
  if (!period.local() || !(period.moved_square > 0)) return;
  // The part that a codec leaves for later is missing here, and not for lack of agreement.
  const double mean = period.mean_square / std::max(kept, kKeptMin);
  signal_share.Add(SignalShare(period.moved_square, mean, world));
  consensus_share.Add(std::clamp(1 - mean / period.moved_square, 0.0, 1.0));
}

LocalSteps JobModel::State::Local() const {
  LocalSteps local;
  local.possible = static_cast<int>(local_steps.size()) == world;
  for (const auto& [rank, possible] : local_steps) {
    if (possible) continue;
    local.possible = false;
    if (local.unable_rank < 0) local.unable_rank = rank;
  }
  local.sync = sync;
  if (made_local_steps) local.progress = sync_progress.LogLikelihood();
  const auto rounded = [](double share) { return std::round(share * 1e4) / 1e4; };
  local.signal_share = rounded(signal_share.value_or(0));
  local.consensus_share = rounded(consensus_share.value_or(0));
  return local;
}

LocalSteps JobModel::local_steps() const { return state_->Local(); }
const ProgressModel& JobModel::sync_progress() const { return state_->sync_progress; }
void JobModel::SetSyncCost(double cost) { state_->sync_cost = cost; }

}  // namespace weir
