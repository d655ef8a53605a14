// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time-out after which a worker sends a packet again.

#include <algorithm>

#include "datapath/base/clock.h"

namespace weir::aggregation {

struct TimeoutLimits {
  Duration first = std::chrono::milliseconds(100);  // before any measurement
  Duration min = std::chrono::milliseconds(1);
  Duration max = std::chrono::seconds(1);  // if the least round trip is at most half of it
};

/// Source: RFC 6298, sections 2 and 5, with the limits' `first` and `min` instead of a second,
/// because an aggregator is near; deviates: the time-out is at least two round trips. A reply also
/// waits for the slowest worker, and repeating a whole window because of one late worker fills the
/// link and delays the others, too. For that reason `max` gives way to twice the least measured
/// round trip: on a path longer than the limits foresaw, everything would be sent twice. Before
/// there is a measurement it gives way to four times `first`, because packets that were sent twice
/// never give one; and for a worker that has only one packet under way (`alone`) to kAloneMax. Not
/// thread-safe. O(1).
class RoundTripEstimate {
 public:
  explicit RoundTripEstimate(const TimeoutLimits& limits) : limits_(limits), rto_(limits.first) {}

  /// Records the reply to a packet that was sent once. Others are ambiguous (Karn's rule).
  void OnSample(Duration rtt) {
    least_ = least_ == Duration::zero() ? rtt : std::min(least_, rtt);
    if (srtt_ == Duration::zero()) {
      srtt_ = rtt;
      variation_ = rtt / 2;
    } else {
      const Duration error = srtt_ > rtt ? srtt_ - rtt : rtt - srtt_;
      variation_ += (error - variation_) / 4;
      srtt_ += (rtt - srtt_) / 8;
    }
    rto_ = std::clamp(srtt_ + std::max(srtt_, 4 * variation_), limits_.min, Ceiling());
  }

  /// Some packet was not answered in time. Doubles the time-out, at most once per time-out, because
  /// the packets of one window tend to expire together. Returns whether it is the first of them.
  bool OnExpiry(TimePoint now, bool alone = false) {
    if (backed_off_ && now - backed_off_at_ < rto_) return false;
    backed_off_ = true;
    backed_off_at_ = now;
    rto_ = std::min(rto_ * 2, alone ? std::max(kAloneMax, Ceiling()) : Ceiling());
    return true;
  }

  Duration timeout() const { return rto_; }
  Duration smoothed() const { return srtt_; }
  /// Whether a time-out of two round trips is permitted. Otherwise what waits at the aggregator is
  /// sent again.
  bool Fits() const { return 2 * srtt_ <= Ceiling(); }

 private:
  static constexpr Duration kAloneMax = std::chrono::seconds(8);

  Duration Ceiling() const {
    return std::max(limits_.max, least_ == Duration::zero() ? 4 * limits_.first : 2 * least_);
  }

  TimeoutLimits limits_;
  Duration rto_;
  Duration least_ = Duration::zero();
  Duration srtt_ = Duration::zero();
  Duration variation_ = Duration::zero();
  bool backed_off_ = false;
  TimePoint backed_off_at_;
};

}  // namespace weir::aggregation
