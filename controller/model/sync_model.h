// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often ranks synchronise, as the controller chooses it: what that does to the time of a step
// of the optimiser and to its progress.

#include <cstdint>
#include <string>
#include <vector>

#include "controller/model/timeline.h"

namespace weir {

/// weir.v1.OuterStep.
enum class OuterKind { kAverage, kSgdNesterov };

/// weir.v1.Sync with one fragment. The default is a sum of gradients in every step.
struct SyncModel {
  uint32_t every = 1;    // steps of the optimiser from one synchronisation to the next
  uint32_t overlap = 0;  // steps by which a synchronisation begins before ranks wait for it
  OuterKind outer = OuterKind::kAverage;
  double rate = 1, momentum = 0;  // of kSgdNesterov
  uint32_t fragments = 1;
  double mix = 0;  // with overlap: the share of a rank's own parameters in what it goes on with

  bool local() const { return every > 1; }
  friend bool operator==(const SyncModel&, const SyncModel&) = default;
};

/// A sum of gradients in every step.
inline constexpr SyncModel kEveryStep{};

/// The largest number of steps between synchronisations that any policy may ask for.
inline constexpr uint32_t kSyncEveryMax = 1u << 16;

/// Local steps cost a share of progress for each e-fold of their number. ProgressModel learns it in
/// multiples of this.
inline constexpr double kSyncCostUnit = 0.1;

/// One synchronisation, in seconds: the sum of all work, from begin to end, and of it encoding.
struct SyncTimes {
  double communication_s = 0, elapsed_s = 0, encode_s = 0;
};

/// All buckets are there when it begins. O(buckets).
SyncTimes PredictSync(std::vector<BucketTimes> buckets);

/// Times of one step of the optimiser, `sync.every` of which share a synchronisation. As many
/// seconds of it are hidden as `overlap` steps compute:
/// T = compute + max(encode, synchronisation - overlap * compute) / every. `communication_s` and
/// `exposed_s` are for one step, too.
StepTimes PredictLocalStep(const SyncTimes& times, const SyncModel& sync, double compute_s);

/// The progress of a step over that of a step whose gradients are summed: every^-cost, less what
/// overlap throws away: the share of steps that run beside a synchronisation, as far as `mix` does
/// not keep them. `cost`: for each e-fold of `every`, at least 0. 1 for every = 1.
double SyncProgress(const SyncModel& sync, double cost);

/// The gain that stands for a period in a ProgressModel whose exponent is the cost in units of
/// kSyncCostUnit.
double SyncGain(uint32_t every);

/// The cost that is believed before losses say more: `prior`, which is meant for ranks that half
/// agree, by the signal's share of what they move (see SignalShare): none is lost where they move
/// alike. signal 0: not measured.
double SyncCostPrior(double prior, double signal_share);

/// Share of the mean movement that is common to the ranks and not noise:
/// (N q - 1) / (N - 1) with q = |mean D|^2 / mean |D|^2 over `world` ranks, between 0 and 1. D is
/// what a rank's parameters moved since the last synchronisation. Above 0 where it was measured; 0
/// for a world of one and where nothing moved.
double SignalShare(double mean_square, double square_of_mean, int world);

/// Numbers of steps between synchronisations that are worth looking at: powers of two from 2 up to
/// `every_max`, and that itself; ascending.
std::vector<uint32_t> SyncGrid(uint32_t every_max);

/// "every 32 steps, 2 of them overlapped, outer Nesterov 0.7"; "" for every = 1.
std::string SyncText(const SyncModel& sync);

}  // namespace weir
