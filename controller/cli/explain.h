// SPDX-License-Identifier: Apache-2.0
#pragma once
// explain: why a job runs what it runs.

#include "controller/cli/client.h"
#include "controller/cli/render.h"

namespace weir::cli {

/// Prints inputs, candidates with predicted time and gain, the binding constraint and dense's cost.
/// `replay`: also has the controller decide again on the stored snapshot; kFailure when it differs.
Status Explain(Client& client, const std::string& job, bool replay, Output output);

}  // namespace weir::cli
