// SPDX-License-Identifier: Apache-2.0
#pragma once
// Joins what the ranks say about one step into what happened to the job in it.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/model/clock_alignment.h"
#include "controller/model/job_model.h"

namespace weir {

struct AssembledBucket {
  std::string key, codec, collective;
  double ratio = 1;
  int bits = 0;
  double ready_s = 0;                 // mean over ranks
  double encode_s = 0, decode_s = 0;  // mean over ranks
  double metadata_s = 0;              // least over ranks: the last to enter waits for nobody
  double network_s = 0;               // last entry to last leave: waiting for late ranks left out,
                                      // and for codecs of ranks that encode for others
  double payload_bytes = 0;           // mean over ranks
  double gain = 1;                    // mean over ranks that encoded
  double residual_ratio = 0;          // greatest
  CodecPlace encoded_on = CodecPlace::kUnknown;  // kDevice: on all ranks that encoded
};

struct AssembledStep {
  uint64_t step = 0, plan_version = 0;
  double step_s = 0;     // mean over ranks
  double compute_s = 0;  // step_s minus the least exposed time: the slowest rank waits for nobody
  double backward_s = 0;
  double exposed_s = 0;  // least over ranks
  bool skipped = false;
  std::optional<double> loss;
  std::vector<AssembledBucket> buckets;
  PeriodObservation period;  // squares: means over ranks
};

/// Not thread-safe. Holds at most kPendingMax steps.
class StepAssembler {
 public:
  static constexpr size_t kPendingMax = 8;

  explicit StepAssembler(int world) : world_(world), alignment_(world) {}

  /// The step that `observation` completes, if any. A step for which a rank stays silent is given
  /// up when a newer one completes or kPendingMax newer ones wait. Second reports of a rank are
  /// ignored.
  std::optional<AssembledStep> Add(const StepObservation& observation);

 private:
  using Ranks = std::map<int, StepObservation>;
  AssembledStep Assemble(const Ranks& ranks);
  std::optional<AssembledBucket> AssembleBucket(const Ranks& ranks, size_t index);

  const int world_;
  ClockAlignment alignment_;
  std::map<uint64_t, Ranks> pending_;
  uint64_t done_ = 0;  // newest step given out or given up
  bool any_done_ = false;
};

}  // namespace weir
