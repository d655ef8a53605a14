// SPDX-License-Identifier: Apache-2.0
// See check_snapshot.h.

#include "controller/solver/check_snapshot.h"

#include <cmath>

#include "controller/model/node_layout.h"
#include "controller/model/plan_layout.h"
#include "controller/model/progress.h"

namespace weir {
namespace {

constexpr size_t kBucketsMax = 4096;

Status CheckFinite(const char* what, double value, double min) {
  if (std::isfinite(value) && value >= min) return OkStatus();
  return InvalidArgument(StrCat("snapshot: ", what, ": expected a finite number of at least ", min,
                                ", found ", value));
}

Status CheckSync(const SyncModel& sync) {
  const bool in_order = sync.every >= 1 && sync.every <= kSyncEveryMax && sync.fragments >= 1 &&
                        uint64_t{sync.overlap} * sync.fragments <= sync.every;
  if (!in_order) {
    return InvalidArgument(StrCat("snapshot: sync: expected 1 to ", kSyncEveryMax,
                                  " steps and less of them overlapped, found ", sync.every, " and ",
                                  sync.overlap, " of ", sync.fragments, " fragments"));
  }
  WEIR_RETURN_IF_ERROR(CheckFinite("sync.rate", sync.rate, 0));
  WEIR_RETURN_IF_ERROR(CheckFinite("sync.momentum", sync.momentum, 0));
  return CheckFinite("sync.mix", sync.mix, 0);
}

// For progress by the gain, and for the cost of local steps.
Status CheckLikelihood(const char* what, const std::vector<double>& likelihood) {
  if (!likelihood.empty() && likelihood.size() != kExponents) {
    return InvalidArgument(StrCat("snapshot: ", what, ": expected ", kExponents, " numbers, found ",
                                  likelihood.size()));
  }
  for (const double value : likelihood) {
    WEIR_RETURN_IF_ERROR(CheckFinite("a log-likelihood of progress", value, -1e6));
  }
  return OkStatus();
}

Status CheckFormer(const Snapshot& snapshot) {
  for (const HeldChange& held : snapshot.held) {
    WEIR_RETURN_IF_ERROR(CheckFinite("held_s", held.held_s, 0));
  }
  for (const FormerPlan& former : snapshot.former) {
    if (!former.choices.empty() && former.choices.size() != snapshot.buckets.size()) {
      return InvalidArgument(StrCat("snapshot: former: expected a choice for each of ",
                                    snapshot.buckets.size(), " buckets, found ",
                                    former.choices.size()));
    }
    Snapshot only;
    only.world = snapshot.world;
    only.layout = former.layout;
    only.speedup = former.speedup;
    WEIR_RETURN_IF_ERROR(CheckLayout(only));
    WEIR_RETURN_IF_ERROR(CheckSync(former.sync));
  }
  return OkStatus();
}

}  // namespace

Status CheckSnapshot(const Snapshot& snapshot) {
  if (snapshot.buckets.empty()) return FailedPrecondition("snapshot has no bucket");
  if (snapshot.buckets.size() > kBucketsMax) {
    return InvalidArgument(StrCat("snapshot: expected at most ", kBucketsMax, " buckets, found ",
                                  snapshot.buckets.size()));
  }
  if (snapshot.world < 1) {
    return InvalidArgument(
        StrCat("snapshot: expected a world of at least 1, found ", snapshot.world));
  }
  if (!snapshot.incumbent.empty() && snapshot.incumbent.size() != snapshot.buckets.size()) {
    return InvalidArgument(StrCat("snapshot: expected a choice for each of ",
                                  snapshot.buckets.size(), " buckets, found ",
                                  snapshot.incumbent.size()));
  }
  WEIR_RETURN_IF_ERROR(CheckLayout(snapshot));
  WEIR_RETURN_IF_ERROR(CheckFormer(snapshot));
  WEIR_RETURN_IF_ERROR(CheckMemory(snapshot));
  WEIR_RETURN_IF_ERROR(CheckFinite("compute_s", snapshot.compute_s.value, 0));
  WEIR_RETURN_IF_ERROR(CheckFinite("compute_s.deviation", snapshot.compute_s.deviation, 0));
  WEIR_RETURN_IF_ERROR(CheckFinite("backward_s", snapshot.backward_s.value, 0));
  WEIR_RETURN_IF_ERROR(CheckFinite("latency_s", snapshot.latency_s.value, 0));
  WEIR_RETURN_IF_ERROR(CheckFinite("latency_s.deviation", snapshot.latency_s.deviation, 0));
  WEIR_RETURN_IF_ERROR(
      CheckFinite("bandwidth_bytes_per_s", snapshot.bandwidth_bytes_per_s.value, 0));
  WEIR_RETURN_IF_ERROR(
      CheckFinite("bandwidth_bytes_per_s.deviation", snapshot.bandwidth_bytes_per_s.deviation, 0));
  if (snapshot.world > 1 && snapshot.bandwidth_bytes_per_s.value <= 0) {
    return FailedPrecondition("snapshot has no bandwidth estimate");
  }
  WEIR_RETURN_IF_ERROR(CheckLikelihood("progress", snapshot.progress));
  WEIR_RETURN_IF_ERROR(CheckLikelihood("sync_progress", snapshot.local.progress));
  WEIR_RETURN_IF_ERROR(CheckSync(snapshot.local.sync));
  WEIR_RETURN_IF_ERROR(CheckFinite("signal_share", snapshot.local.signal_share, 0));
  for (const BucketModel& bucket : snapshot.buckets) {
    WEIR_RETURN_IF_ERROR(CheckFinite("ready_s of a bucket", bucket.ready_s, 0));
    WEIR_RETURN_IF_ERROR(CheckFinite("residual_ratio of a bucket", bucket.residual_ratio, 0));
    for (const double gain : bucket.gains) WEIR_RETURN_IF_ERROR(CheckFinite("a gain", gain, 0));
    for (const double ratio : bucket.gain_ratios) {
      WEIR_RETURN_IF_ERROR(CheckFinite("a ratio of a gain curve", ratio, 1e-9));
    }
  }
  return OkStatus();
}

}  // namespace weir
