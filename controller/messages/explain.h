// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text of a decision for a terminal.

#include <string>
#include <vector>

#include "controller/job/decision_record.h"
#include "weir/v1/admin.pb.h"

namespace weir {

/// `explanation.decision` and the measurements, as lines of at most 110 columns: the decision and
/// its reason, the measurements with their age, the best candidates, the binding constraint, the
/// cost with an aggregator or why there is none, the cost of dense.
std::string ExplainText(const v1::Explanation& explanation);

/// Says what changed and what followed from it, without the alternatives: "Step 68: bandwidth rose
/// 33 Mb/s -> 60 Mb/s. Now top_k 0.1 over sparse_all_gather instead of dense over ring; predicted
/// 0.44 s (dense 0.57 s), keeps 96 %." One line.
std::string SummaryText(const DecisionRecord& record);

/// "shares the links between 4 nodes with job b"; empty: with none.
std::string SharingText(const std::vector<JobSharing>& sharing);

}  // namespace weir
