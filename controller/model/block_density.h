// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many of a bucket's blocks hold anything, on one rank and on all together: what collectives
// that leave out blocks of zeros move.

#include <cstdint>
#include <map>
#include <vector>

#include "controller/model/snapshot.h"

namespace weir {

/// Sizes of blocks that are followed; ranks that name more are not heard.
inline constexpr size_t kBlockSizesMax = 8;

/// The share of blocks that any of N ranks holds when each holds `own` of them, drawn independently
/// of the others: 1 - (1 - own)^N. own in [0, 1], world >= 1. O(world). Source: reference of the
/// OmniReduce plan, Fei et al., SIGCOMM 2021, section 2 (overlap of random blocks).
double IndependentUnion(double own, int world);

/// The densities of one bucket in blocks of one size. Not thread-safe. Deterministic.
class BlockDensityEstimate {
 public:
  /// Records the density `own` of `rank`, in [0, 1].
  void AddOwn(int rank, double own);
  /// Records the density of the exact sum at `now_s`: an average of weight 0.2, and its variance.
  void AddUnion(double combined, double now_s);

  /// The density of the densest rank; 1 before the first report.
  double Own() const;
  /// Until a sum was seen, 1 - prod(1 - d_r) over ranks (as IndependentUnion where all are alike,
  /// which those not heard of count as), uncertain by how far it could be off: somewhere from the
  /// densest rank's, when all hold the same blocks, to the sum of all, when no two do. Then the
  /// average, uncertain by its variance and by its age: a density wanders by 0.01 in a minute.
  /// Always within what the ranks' own densities allow. Age: of the newest sum.
  Measured Union(int world, double now_s) const;

 private:
  std::map<int, double> own_;  // by rank; averages
  double union_ = 0, variance_ = 0, seen_at_s_ = 0;
  int sums_ = 0;
};

/// As the solver wants them.
std::vector<BlockDensityModel> DensitiesOf(
    const std::map<uint32_t, BlockDensityEstimate>& densities, int world, double now_s);

}  // namespace weir
