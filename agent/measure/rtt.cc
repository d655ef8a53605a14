// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/rtt.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weir::agent {
namespace {

double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

}  // namespace

RttSummary SummarizeRtts(std::span<const double> rtts_s, uint32_t sent) {
  RttSummary summary;
  summary.sent = sent;
  summary.received = static_cast<uint32_t>(rtts_s.size());
  if (rtts_s.empty()) return summary;
  std::vector<double> values(rtts_s.begin(), rtts_s.end());
  summary.rtt_median_s = Median(values);
  summary.rtt_min_s = values.front();
  for (double& value : values) value = std::abs(value - summary.rtt_median_s);
  summary.rtt_deviation_s = std::max(1.4826 * Median(values), 0.02 * summary.rtt_median_s);
  return summary;
}

}  // namespace weir::agent
