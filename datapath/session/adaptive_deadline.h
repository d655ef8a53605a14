// SPDX-License-Identifier: Apache-2.0
#pragma once
// The deadline of a part of an operation, learnt from the times of earlier parts and steps. The
// class is pure: it is given times and returns deadlines.
//
// The first operation of a step also waits for the slowest rank to finish its work between steps: a
// checkpoint, an evaluation, a data loader. No bound of such a time can be learnt, so the first
// operation may take as long as the ceiling. (The transport names a rank that died, or whose host
// no longer answers, without any deadline.) But an all-reduce does not end on any rank before every
// rank has contributed. So once one operation of a step is done, all ranks are known to be in the
// backward pass of this step, and a rank that then stays silent for the time of ten steps is
// missing.
//
// The estimates are those of TCP's retransmission timer: smoothed time plus four deviations. The
// factor ten allows for networks and ranks that become ten times as slow from one step to the next;
// one step later the estimate has adapted.

#include <cstdint>
#include <map>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/plan/plan.h"

namespace weir {

/// Smoothed time plus four deviations. Source: RFC 6298, section 2; deviates: no clock granularity.
class TimeEstimate {
 public:
  void Add(double seconds);
  int samples() const { return samples_; }
  double smoothed_s() const { return smoothed_; }
  double upper_s() const { return smoothed_ + 4 * deviation_; }

 private:
  int samples_ = 0;  // counts up to kSamplesMin
  double smoothed_ = 0, deviation_ = 0;
};

/// Not thread-safe. Memory: one entry for each part of each bucket that ever ran.
class AdaptiveDeadline {
 public:
  /// Estimates are used once a part was measured this often under one choice, and as many steps.
  static constexpr int kSamplesMin = 8;
  static constexpr double kFactor = 10;

  struct Options {
    Duration floor{};    // no deadline is shorter, unless the ceiling is lower
    Duration ceiling{};  // no deadline is longer, but see Begin
  };
  explicit AdaptiveDeadline(const Options& options) : options_(options) {}

  /// A part of a bucket's operation, see Exchange::part.
  struct Part {
    uint64_t bucket = 0;
    int part = 1;
    auto operator<=>(const Part&) const = default;
  };

  /// A part of an operation of `step` begins to communicate at `now`. Returns how long it may take:
  /// the ceiling for the first one of a step and until enough was measured, else ten times the sum
  /// of the estimates for this part and for a step, between the bounds. `choice` names codec and
  /// collective with their settings; when it differs from the last one, the part's estimate starts
  /// over. If the part before this one ended without waiting for all ranks, this part gets that
  /// part's time plus a tenth of it (at most a second), even above the ceiling: a peer may still
  /// wait in the earlier part for a missing rank, and should be the first to name it. Steps never
  /// decrease.
  Duration Begin(uint64_t step, const Part& part, const std::string& choice, TimePoint now);

  /// Reports that the part that began last succeeded. Do not call this for a part that failed.
  /// `by_all`: the part cannot end before every rank has begun it.
  void Finish(TimePoint now, bool by_all = true);

  /// A text for the error of the part that began last: "; this one usually takes 0.012 s and a step
  /// 0.3 s, so 5 s were allowed", or the reason why the ceiling was the deadline.
  std::string Explain() const;

 private:
  struct Entry {
    std::string choice;
    TimeEstimate took = {};
    // From the last time that the part began:
    uint64_t step = 0;
    Duration allowed{};
    bool by_all = true;
  };

  const Options options_;
  std::map<Part, Entry> parts_;
  TimeEstimate steps_;
  bool any_step_ = false;
  uint64_t step_ = 0;
  TimePoint step_began_{};
  bool all_here_ = false;  // an operation of this step is done, so every rank has reached it
  Entry* running_ = nullptr;
  TimePoint began_{};
};

/// A key that differs between choices whose times differ, for Begin. Bytes, not text.
std::string AdaptiveDeadlineKey(const Choice& choice);

}  // namespace weir
