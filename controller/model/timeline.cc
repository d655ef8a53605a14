// SPDX-License-Identifier: Apache-2.0
// See timeline.h.

#include "controller/model/timeline.h"

#include <algorithm>

namespace weir {

StationTimes Advance(const StationTimes& before, const BucketTimes& bucket) {
  StationTimes after;
  after.encoded_s = std::max(bucket.ready_s, before.encoded_s) + bucket.encode_s;
  after.sent_s = std::max(after.encoded_s, before.sent_s) + bucket.network_s;
  after.decoded_s = std::max(after.sent_s, before.decoded_s) + bucket.decode_s;
  return after;
}

StepTimes PredictStep(std::span<const BucketTimes> buckets, double compute_s, double backward_s) {
  StationTimes stations;
  StepTimes step;
  for (const BucketTimes& bucket : buckets) {
    stations = Advance(stations, bucket);
    step.communication_s += bucket.encode_s + bucket.network_s + bucket.decode_s;
    backward_s = std::max(backward_s, bucket.ready_s);
  }
  step.exposed_s = std::max(0.0, stations.decoded_s - backward_s);
  step.step_s = compute_s + step.exposed_s;
  return step;
}

}  // namespace weir
