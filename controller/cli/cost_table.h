// SPDX-License-Identifier: Apache-2.0
#pragma once
// simulate --table: the cost formulas of the literature at one setting, where schedules cross, and
// the published tables beside what the formulas give.

#include <cstdint>

#include "controller/cli/render.h"
#include "controller/model/textbook_costs.h"

namespace weir::cli {

/// One entry of a published table.
struct PublishedTime {
  const char* table;  // "VI" or "II"
  const char* model;
  double parameters;     // float32
  const char* schedule;  // of TextbookCosts()
  double latency_ms, gigabits_per_s, ratio;
  double published_ms;
  double codec_ms;  // constant part that the published figure holds beside the formula
};

/// Tables VI and II of Tyagi and Swany 2023 (eight ranks).
const std::vector<PublishedTime>& PublishedTimes();

/// The result of the formula for that entry in milliseconds, codec_ms included.
double FormulaMilliseconds(const PublishedTime& entry);

/// Prints everything as tables or as one JSON or YAML document. `setting`: ratio is ignored, 0.1,
/// 0.01 and 0.001 are shown.
Status PrintCostTable(const TextbookSetting& setting, Output output);

}  // namespace weir::cli
