// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the buckets of one step overlap: encoding, the network and decoding are three stations that
// each serve one bucket at a time, in ready order. What counts is what is left when backward is
// done.

#include <span>

namespace weir {

/// One bucket on its way through the stations.
struct BucketTimes {
  double ready_s = 0;  // since the first bucket of the step was ready
  double encode_s = 0, network_s = 0, decode_s = 0;
};

/// When each station is free again, since the first bucket was ready.
struct StationTimes {
  double encoded_s = 0, sent_s = 0, decoded_s = 0;
  friend bool operator==(const StationTimes&, const StationTimes&) = default;
};

/// E = max(ready, E') + encode; W = max(E, W') + network; D = max(W, D') + decode.
StationTimes Advance(const StationTimes& before, const BucketTimes& bucket);

struct StepTimes {
  double communication_s = 0;  // sum of everything but waiting
  double exposed_s = 0;        // last result delivered after the last bucket was ready
  double step_s = 0;           // compute_s + exposed_s
};

/// Runs the recursion. `compute_s`: the step without any exposed communication; `backward_s`: first
/// bucket ready to last bucket ready. O(buckets).
StepTimes PredictStep(std::span<const BucketTimes> buckets, double compute_s, double backward_s);

}  // namespace weir
