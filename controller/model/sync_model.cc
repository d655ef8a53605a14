// SPDX-License-Identifier: Apache-2.0
#include "controller/model/sync_model.h"

#include <algorithm>

#include "controller/model/deterministic_math.h"
#include "controller/model/format.h"
#include "datapath/base/status.h"

namespace weir {
namespace {

// Ranks that half agree have the prior itself. What ranks lose that agree wholly is never nothing:
// signals are noisy, and losses have the last word.
constexpr double kAgreeingShare = 0.2;
constexpr double kSignalMin = 1e-3;

}  // namespace

SyncTimes PredictSync(std::vector<BucketTimes> buckets) {
  SyncTimes times;
  for (BucketTimes& bucket : buckets) {
    bucket.ready_s = 0;
    times.encode_s += bucket.encode_s;
  }
  const StepTimes whole = PredictStep(buckets, 0, 0);
  times.communication_s = whole.communication_s;
  times.elapsed_s = whole.exposed_s;
  return times;
}

StepTimes PredictLocalStep(const SyncTimes& times, const SyncModel& sync, double compute_s) {
  const double hidden_s = compute_s * sync.overlap * sync.fragments;
  // Encoding takes the processor from the steps that it overlaps.
  const double paid_s =
      std::max(sync.overlap > 0 ? times.encode_s : 0.0, times.elapsed_s - hidden_s);
  StepTimes step;
  step.communication_s = times.communication_s / sync.every;
  step.exposed_s = paid_s / sync.every;
  step.step_s = compute_s + step.exposed_s;
  return step;
}

double SyncProgress(const SyncModel& sync, double cost) {
  if (!sync.local()) return 1;
  const double beside = static_cast<double>(sync.overlap) * sync.fragments / sync.every;
  const double kept = 1 - std::clamp((1 - sync.mix) * beside, 0.0, 1.0);
  return kept * DetExp(-std::max(0.0, cost) * DetLog(sync.every));
}

double SyncGain(uint32_t every) { return DetExp(-kSyncCostUnit * DetLog(std::max(1u, every))); }

double SyncCostPrior(double prior, double signal_share) {
  if (!(signal_share > 0)) return prior;
  return prior * std::max(kAgreeingShare, 2 * (1 - std::min(1.0, signal_share)));
}

double SignalShare(double mean_square, double square_of_mean, int world) {
  if (world < 2 || !(mean_square > 0)) return 0;
  const double agreement = square_of_mean / mean_square;
  return std::clamp((world * agreement - 1) / (world - 1), kSignalMin, 1.0);
}

std::vector<uint32_t> SyncGrid(uint32_t every_max) {
  std::vector<uint32_t> grid;
  every_max = std::min(every_max, kSyncEveryMax);
  for (uint32_t every = 2; every < every_max; every *= 2) grid.push_back(every);
  if (every_max > 1) grid.push_back(every_max);
  return grid;
}

std::string SyncText(const SyncModel& sync) {
  if (!sync.local()) return "";
  std::string text = StrCat("every ", sync.every, " steps");
  if (sync.overlap > 0) text += StrCat(", ", sync.overlap, " of them overlapped");
  if (sync.outer == OuterKind::kSgdNesterov) text += ", outer Nesterov " + NumberText(sync.rate);
  return text;
}

}  // namespace weir
