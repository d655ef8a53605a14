// SPDX-License-Identifier: Apache-2.0
#pragma once
// top: what every job does now, drawn again as steps come in.

#include <string>

#include "controller/cli/client.h"

namespace weir::cli {

struct TopOptions {
  std::string job;           // empty: all that have not ended
  double interval_s = 1;     // at most one table in this time
  unsigned iterations = 0;   // tables to draw; 0: until interrupted
  int terminal_columns = 0;  // 0: not a terminal; tables follow each other, nothing is cut
};

/// Draws a table of jobs: step, loss, choice, the parts of the last step's time (step, computing,
/// coding, network, exposed), bandwidth and latency of the bottleneck. The next one follows when
/// the controller says that something happened, and after five intervals of silence anyway. Errors:
/// kInvalidArgument for an interval outside 0.1 to 3600 s, kNotFound for a job, those of calls.
Status Top(Client& client, const TopOptions& options);

}  // namespace weir::cli
