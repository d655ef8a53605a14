// SPDX-License-Identifier: Apache-2.0
#pragma once
// explain: why a job runs what it runs.

#include <string>

#include "controller/cli/client.h"
#include "controller/cli/render.h"

namespace weir::cli {

struct ExplainOptions {
  std::string job;
  std::string decision;  // the number of one; empty: the newest
  bool replay = false;   // also have the controller decide again on the stored snapshot
};

/// Prints inputs, candidates with predicted time and gain, the binding constraint and dense's cost.
/// kInternal: a replay differs.
Status Explain(Client& client, const ExplainOptions& options, Output output);

}  // namespace weir::cli
