// SPDX-License-Identifier: Apache-2.0
#pragma once
// The per-bucket programme: it finds the plans that no other plan beats in both step time and gain.

#include <vector>

#include "controller/solver/candidates.h"

namespace weir {

/// Kind of each bucket, in bucket order.
using KindPlan = std::vector<int>;

struct ParetoOptions {
  // Partial plans kept per bucket. The result is exact while there are no more; otherwise the least
  // lossy of each interval of finishing times is kept. 0: chosen so that the search takes
  // milliseconds.
  size_t labels_max = 0;
};

/// The Pareto front of (delivery of the last bucket, lost gain) over all allowed kinds per bucket,
/// ascending in time. Times are those of the timeline, never rounded, so what is kept is exactly
/// predicted; only completeness is limited by labels_max. Empty when some bucket allows nothing.
/// Complexity: buckets x labels x options.
std::vector<KindPlan> ParetoFront(const CandidateSpace& space, const ParetoOptions& options = {});

}  // namespace weir
