#pragma once
// A decision as prose for a terminal.

#include <string>
#include <vector>

#include "controller/model/job_model.h"
#include "controller/model/snapshot.h"
#include "weir/v1/admin.pb.h"

namespace weir {

/// `explanation.decision` and what was measured, as lines of at most 110 columns: what was decided
/// and why, the measurements with their age, the best candidates, the binding constraint, what an
/// aggregator would bring or why there is none, the cost of dense.
std::string ExplainText(const v1::Explanation& explanation);

/// Latency, bandwidth and compute time as the decision on `snapshot` took them. Method, samples and
/// age are those of the link that bounds the job: the slowest, and for latency the one of the
/// longest round trip. Where no link was measured the figure comes from completed collectives
/// alone, which is then the method.
v1::Explanation DescribeInputs(const Snapshot& snapshot, const std::vector<LinkEstimate>& links);

/// 12400000 as "12.4 MB/s", 0 as "unknown".
std::string FormatRate(double bytes_per_s);
/// 0.0123 as "12.3 ms", 0 as "0 s".
std::string FormatSeconds(double seconds);

}  // namespace weir
