// SPDX-License-Identifier: Apache-2.0
#pragma once
// Puts the local clocks of ranks side by side, from nothing but when each entered and left
// collectives.

#include <cstdint>
#include <vector>

namespace weir {

/// No rank leaves a collective before every other has entered it. So for ranks r and j, the least
/// of (leave_r - enter_j) over many collectives bounds the difference of their clocks from one
/// side, and the same with r and j exchanged from the other; both bounds are too wide by the
/// collective's own duration, which cancels in their middle. (The principle of NTP's clock filter.)
/// Windows of 32 to 64 steps; local clocks are chained from step times, so a missing step starts
/// afresh. Not thread-safe. O(world^2) per collective; ranks beyond kWorldMax are not aligned.
class ClockAlignment {
 public:
  static constexpr int kWorldMax = 64;
  static constexpr int kStepsMin = 4;  // before offsets are trusted
  static constexpr int kEpochSteps = 32;

  struct Interval {
    double enter_s = 0, leave_s = 0;  // since the rank's own step began
  };

  explicit ClockAlignment(int world);

  /// Starts step `step`; step_s[r]: duration of rank r's step, until its next begins.
  void BeginStep(uint64_t step, const std::vector<double>& step_s);
  /// One collective of the step in progress, one interval per rank. Returns the time from the last
  /// entry to the last leave, within [least, greatest] of the ranks' own durations; below 0 while
  /// the clocks are not aligned yet.
  double Add(const std::vector<Interval>& intervals);

 private:
  void Reset();
  void Align();

  const int world_;
  uint64_t step_ = 0;
  int steps_ = 0;  // since the chain began
  std::vector<double> begin_s_,
      step_s_;  // local clocks: begin and duration of the step in progress
  std::vector<double> bounds_, former_bounds_;  // [r * world + j]: least leave_r - enter_j
  std::vector<double> offsets_;                 // add to a local clock
};

}  // namespace weir
