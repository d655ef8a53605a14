// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of a burst of round-trip times.

#include <cstdint>
#include <span>

namespace weir::agent {

/// Summary of a burst of probes to one target. Times are in seconds, and zero when no reply came.
struct RttSummary {
  uint32_t sent = 0;
  uint32_t received = 0;
  double rtt_min_s = 0;
  double rtt_median_s = 0;
  /// Standard deviation around the median, from the median absolute deviation (times 1.4826), so
  /// that a single queueing spike does not determine it. It is at least 2 % of the median, because
  /// a burst does not prove a constant.
  double rtt_deviation_s = 0;
  double loss_ratio() const {
    return sent == 0 ? 0 : 1.0 - static_cast<double>(received) / static_cast<double>(sent);
  }
};

/// `rtts_s`: the replies that arrived, in any order. O(n log n).
RttSummary SummarizeRtts(std::span<const double> rtts_s, uint32_t sent);

}  // namespace weir::agent
