// SPDX-License-Identifier: Apache-2.0
// See clock_alignment.h.

#include "controller/model/clock_alignment.h"

#include <algorithm>

namespace weir {
namespace {
constexpr double kNoBound = 1e18;
}  // namespace

ClockAlignment::ClockAlignment(int world) : world_(world) { Reset(); }

void ClockAlignment::Reset() {
  steps_ = 0;
  begin_s_.assign(world_, 0);
  step_s_.assign(world_, 0);
  offsets_.clear();
  if (world_ > kWorldMax) return;
  bounds_.assign(static_cast<size_t>(world_) * world_, kNoBound);
  former_bounds_ = bounds_;
}

void ClockAlignment::BeginStep(uint64_t step, const std::vector<double>& step_s) {
  if (world_ > kWorldMax) return;
  if (steps_ > 0 && step != step_ + 1) Reset();
  if (steps_ > 0) {
    for (int r = 0; r < world_; ++r) begin_s_[r] += step_s_[r];
    Align();
    if (steps_ % kEpochSteps == 0) {
      former_bounds_ = bounds_;
      std::fill(bounds_.begin(), bounds_.end(), kNoBound);
    }
  }
  step_ = step;
  step_s_ = step_s;
  ++steps_;
}

void ClockAlignment::Align() {
  if (steps_ < kStepsMin) return;
  offsets_.assign(world_, 0);
  for (int j = 0; j < world_; ++j) {
    // Least squares over all pairs with offsets that sum to zero: the mean of the differences.
    for (int r = 0; r < world_; ++r) {
      if (r == j) continue;
      const size_t rj = static_cast<size_t>(r) * world_ + j,
                   jr = static_cast<size_t>(j) * world_ + r;
      const double upper = std::min(bounds_[rj], former_bounds_[rj]);
      const double lower = std::min(bounds_[jr], former_bounds_[jr]);
      if (upper >= kNoBound || lower >= kNoBound) {
        offsets_.clear();
        return;
      }
      offsets_[j] += 0.5 * (upper - lower) / world_;
    }
  }
}

double ClockAlignment::Add(const std::vector<Interval>& intervals) {
  if (world_ > kWorldMax || steps_ == 0) return -1;
  for (int r = 0; r < world_; ++r) {
    for (int j = 0; j < world_; ++j) {
      if (r == j) continue;
      double& bound = bounds_[static_cast<size_t>(r) * world_ + j];
      bound =
          std::min(bound, begin_s_[r] + intervals[r].leave_s - begin_s_[j] - intervals[j].enter_s);
    }
  }
  if (offsets_.empty()) return -1;
  double enter = -kNoBound, leave = -kNoBound, least = kNoBound, greatest = 0;
  for (int r = 0; r < world_; ++r) {
    const double clock = begin_s_[r] + offsets_[r];
    enter = std::max(enter, clock + intervals[r].enter_s);
    leave = std::max(leave, clock + intervals[r].leave_s);
    least = std::min(least, intervals[r].leave_s - intervals[r].enter_s);
    greatest = std::max(greatest, intervals[r].leave_s - intervals[r].enter_s);
  }
  return std::clamp(leave - enter, least, greatest);
}

}  // namespace weir
