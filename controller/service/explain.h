// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of a decision for a terminal.

#include <string>

#include "weir/v1/admin.pb.h"

namespace weir {

/// `explanation.decision` and the measurements, as lines of at most 110 columns: the decision and
/// its reason, the measurements with their age, the best candidates, the binding constraint, the
/// cost with an aggregator or why there is none, the cost of dense.
std::string ExplainText(const v1::Explanation& explanation);

/// 12400000 as "12.4 MB/s", 0 as "unknown".
std::string FormatRate(double bytes_per_s);
/// 0.0123 as "12.3 ms", 0 as "0 s".
std::string FormatSeconds(double seconds);

}  // namespace weir
