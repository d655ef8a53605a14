// SPDX-License-Identifier: Apache-2.0
#pragma once
// Costs of communication schedules as the literature gives them, for comparison and planning on
// paper. Decisions do not use them: those follow the features that the implemented collectives
// advertise (datapath/collective/collective.h).

#include <optional>
#include <span>
#include <string>

namespace weir {

/// One operation of all ranks over equal links.
struct TextbookSetting {
  int world = 2;           // N >= 1
  double latency_s = 0;    // alpha, one way
  double bytes_per_s = 1;  // 1/beta; > 0
  double bytes = 0;        // M, dense, per rank
  double ratio = 1;        // c; kept entries take eight bytes, half of them value
};

/// A schedule and its time.
struct TextbookCost {
  std::string name;
  std::string formula;
  bool compressed;  // depends on the ratio
  double (*seconds)(const TextbookSetting&);
};

/// Every schedule, dense ones first. Reduction time is left out, as in the published tables.
/// Sources: Tyagi and Swany, "Flexible Communication for Optimal Distributed Learning over
/// Unpredictable Networks", 2023 (star, ring, tree, all-gather, AR-Topk); Thakur, Rabenseifner and
/// Gropp, IJHPCA 19(1), 2005 (the others). Thread-safe.
std::span<const TextbookCost> TextbookCosts();

/// Seconds of the schedule called `name`, which must exist. O(number of schedules).
double TextbookSeconds(const std::string& name, const TextbookSetting& setting);

/// Two schedules of one compressed all-reduce.
enum class Crossover { kRingOverTree, kRingOverAllGather, kTreeOverAllGather };

/// The first of the two is faster where bandwidth * latency < coefficient * M * c, by equations 5a
/// to 5c of Tyagi and Swany 2023. A negative coefficient: never. Nothing where the equation divides
/// by zero or infinity and the first always wins (5a with two ranks).
std::optional<double> CrossoverCoefficient(Crossover crossover, int world);

}  // namespace weir
