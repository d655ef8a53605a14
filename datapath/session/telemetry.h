// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the report for the agent from what a step's operations recorded. All functions but
// AvailableMemoryBytes are pure.

#include <algorithm>
#include <deque>
#include <string_view>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/session/operation.h"

namespace weir {

/// Gain curves are made in every step whose number is a multiple of this.
inline constexpr uint64_t kGainCurveEverySteps = 10;
/// As rarely gradients are measured that the caller sums, since that delays the sum.
inline constexpr uint64_t kCallerGainCurveEverySteps = 50;
/// Path reports of a rank in a job of `world` ranks are at least this far apart. A report has every
/// other rank, so that the reports of all ranks would be the square of the job's size: from 9 ranks
/// on a rank reports 8 paths a second, and a report is rarer instead.
inline Duration PathReportInterval(int world) {
  constexpr Duration kLeast = std::chrono::seconds(1), kPerPath = std::chrono::milliseconds(125);
  return std::max(kLeast, kPerPath * (world - 1));
}

struct SessionStepTimes {
  TimePoint begin{}, first_submit{}, last_submit{}, last_delivery{};
};

/// One bucket's line of the report. `op` is done.
BucketSample SampleOf(const Operation& op, const SessionStepTimes& times);

/// Fills everything but step_s, skipped and the loss from the operations of a step that is over.
void FillReport(const std::deque<Operation>& operations, const SessionStepTimes& times,
                StepReport* report);

/// Returns at most kArrivalsMax of the peers' samples, others in each step.
std::vector<ArrivalSample> InTurn(std::vector<ArrivalSample> samples, uint64_t step);
inline constexpr size_t kArrivalsMax = 8;

/// The rank that an error blames: the last "rank N" in its text where N is not `own_rank`; -1 if
/// there is none.
int GuiltyRank(std::string_view message, int own_rank);

/// Memory that the system could still hand out, from /proc/meminfo; UINT64_MAX when unknown.
uint64_t AvailableMemoryBytes();

}  // namespace weir
