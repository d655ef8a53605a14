// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which ranks of a job compute longer than the others, whose cores are taken, and which nodes hold
// up NCCL's transfers, in words: the same wherever they are read.

#include <string>
#include <vector>

#include "weir/v1/admin.pb.h"

namespace weir {

/// Something that makes steps long and that no plan changes.
struct LateRanks {
  std::string text;  // begins with "rank 2 on b computes 1.4 times slower", "the cores of b are
                     // taken" or "the GPUs of b are late"
  std::string node;
  bool steal = false;  // by other guests of the hypervisor
  bool gpus = false;   // NCCL's transfers wait for the node's GPUs
};

/// Slow ranks first, then nodes, each in the order of the ranks. Late GPUs of a node are told with
/// its slow rank, if it has one. The cores of a node count as taken if its ranks wait for them
/// longer than the job is used to, for at least kTakenWaitRatio of the time in which they could
/// run, or if at least kTakenStealRatio of the cores' time is stolen.
std::vector<LateRanks> LateRanksOf(const v1::Job& job);
inline constexpr double kTakenWaitRatio = 0.3, kTakenStealRatio = 0.1;

/// A node where NCCL's transfers wait for the network for most of their time.
struct BindingWire {
  std::string text;  // begins with "the wire of b binds"
  std::string node;
  bool alone = false;  // most of the other nodes wait for it
};
/// In the order of the ranks.
std::vector<BindingWire> BindingWiresOf(const v1::Job& job);

}  // namespace weir
