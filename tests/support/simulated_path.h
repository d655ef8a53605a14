// SPDX-License-Identifier: Apache-2.0
#pragma once
// A TCP connection over a shaped link that exists only as arithmetic: slow start or a full window,
// a token bucket, jitter of the stamps, other traffic. It says when the reads of a frame would have
// arrived.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/transport/arrivals.h"

namespace weir::test {

struct PathOptions {
  double bytes_per_s = 25e6;
  double rtt_s = 0.02;
  double burst_bytes = 16384;       // of the token bucket
  double line_bytes_per_s = 1.2e9;  // within a burst
  double window_bytes = 4e6;        // the largest that the congestion window becomes
  bool cold = false;                // begins with ten segments, as after a pause
  double stamp_jitter_s = 2e-5;     // mean delay of a stamp
  double stalls_per_s = 0;          // how often the receiving host stamps nothing for stall_s
  double stall_s = 2e-3;
  double cross_share = 0;  // of the link that other traffic takes, at random
};

class SimulatedPath {
 public:
  SimulatedPath(const PathOptions& options, uint64_t seed) : options_(options), random_(seed) {}

  PathOptions& options() { return options_; }
  double now_s() const { return now_s_; }
  /// The window when the last frame ended.
  double window_bytes() const { return window_; }

  /// Sends a frame after a pause and appends the reads that it takes.
  void Send(double payload_bytes, double pause_s, std::vector<ArrivalPoint>* points) {
    now_s_ += pause_s;
    tokens_ = std::min(options_.burst_bytes, tokens_ + pause_s * options_.bytes_per_s);
    if (options_.cold || window_ == 0)
      window_ = options_.cold ? 10 * kSegment : options_.window_bytes;
    std::deque<double> acks;  // when each segment in flight is acknowledged
    double at_s = now_s_, stamp_s = 0, received = 0, piece = 0;
    bool first = true;
    for (double sent = 0; sent < payload_bytes; sent += kSegment) {
      while (static_cast<double>(acks.size() + 1) * kSegment > window_) {
        at_s = std::max(at_s, acks.front());
        acks.pop_front();
        window_ = std::min(options_.window_bytes, window_ + kSegment);
      }
      const double leaves_s = Leave(at_s);
      acks.push_back(leaves_s + options_.rtt_s);
      stamp_s = std::max(stamp_s, Stamp(leaves_s + options_.rtt_s / 2));
      received += kSegment;
      piece += kSegment;
      const bool whole =
          piece >= static_cast<double>(ArrivalLog::PieceBytes(
                       static_cast<size_t>(payload_bytes), static_cast<size_t>(received - piece)));
      if (!first && !whole && sent + kSegment < payload_bytes) continue;
      points->push_back({stamp_s, static_cast<uint32_t>(piece)});
      first = false;
      piece = 0;
    }
    now_s_ = stamp_s;
  }

 private:
  static constexpr double kSegment = 1448;

  /// When a segment that comes to the token bucket at `at_s` has passed it.
  double Leave(double at_s) {
    const double begin_s = std::max(at_s, free_s_);
    const double rate = options_.bytes_per_s * (1 - options_.cross_share * 2 * random_.Uniform());
    tokens_ = std::min(options_.burst_bytes, tokens_ + (begin_s - filled_s_) * rate);
    filled_s_ = begin_s;
    const double waits_s = std::max(0.0, (kSegment - tokens_) / rate);
    tokens_ += waits_s * rate - kSegment;
    filled_s_ += waits_s;
    free_s_ = begin_s + std::max(waits_s, kSegment / options_.line_bytes_per_s);
    return free_s_;
  }

  double Stamp(double arrives_s) {
    while (arrives_s > next_stall_s_ && options_.stalls_per_s > 0) {
      stalled_to_s_ = next_stall_s_ + options_.stall_s * random_.Uniform();
      next_stall_s_ -= std::log(1 - random_.Uniform()) / options_.stalls_per_s;
    }
    const double jitter_s = -options_.stamp_jitter_s * std::log(1 - random_.Uniform());
    return std::max(arrives_s + jitter_s, stalled_to_s_);
  }

  PathOptions options_;
  Random random_;
  double now_s_ = 0, window_ = 0;
  double tokens_ = 0, filled_s_ = 0, free_s_ = 0;
  double next_stall_s_ = 0, stalled_to_s_ = 0;
};

}  // namespace weir::test
