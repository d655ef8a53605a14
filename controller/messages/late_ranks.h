// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which ranks of a job compute longer than the others, and whose cores are taken, in words: the
// same wherever they are read.

#include <string>
#include <vector>

#include "weir/v1/admin.pb.h"

namespace weir {

/// Something that makes steps long and that no plan changes.
struct LateRanks {
  std::string
      text;  // begins with "rank 2 on b computes 1.4 times slower" or "the cores of b are taken"
  std::string node;
  bool steal = false;  // by other guests of the hypervisor
};

/// Slow ranks first, then nodes, each in the order of the ranks. The cores of a node count as taken
/// if its ranks wait for them longer than the job is used to, for at least kTakenWaitRatio of the
/// time in which they could run, or if at least kTakenStealRatio of the cores' time is stolen.
std::vector<LateRanks> LateRanksOf(const v1::Job& job);
inline constexpr double kTakenWaitRatio = 0.3, kTakenStealRatio = 0.1;

}  // namespace weir
