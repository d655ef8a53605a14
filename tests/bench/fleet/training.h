// SPDX-License-Identifier: Apache-2.0
#pragma once
// The messages of a training job's ranks to the controller, made by arithmetic: a step of constant
// length over a network of constant speed, with a little noise.

#include <cstdint>
#include <string>

#include "datapath/base/random.h"
#include "weir/v1/rank.pb.h"

namespace weir::fleet_bench {

struct TrainingShape {
  int world = 64;
  int ranks_per_node = 8;
  int buckets = 16;
  uint64_t bucket_elements = 2'000'000;
  double step_s = 1;
};

/// The first message of a rank. `plan`: the one that it runs; version 0: none.
v1::RankMessage Hello(const TrainingShape& shape, const std::string& job, int rank, uint64_t step,
                      const v1::Plan& plan);
v1::RankMessage Buckets(const TrainingShape& shape);
/// The report of one step under `plan`. Gain curves are in every 16th one, as of real ranks.
v1::RankMessage Step(const TrainingShape& shape, int rank, uint64_t step, const v1::Plan& plan,
                     Random& random);
/// The connections to all ranks on other nodes.
v1::RankMessage Paths(const TrainingShape& shape, int rank, Random& random);

}  // namespace weir::fleet_bench
