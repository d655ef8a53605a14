// SPDX-License-Identifier: Apache-2.0
#pragma once
// Logging of every program: two flags, and two signals that change the level while it runs.

#include <CLI/CLI.hpp>

#include <string>

#include "datapath/base/status.h"

namespace weir {

struct LogFlags {
  std::string level = "info";
  std::string format = "text";
};

/// Adds --log-level and --log-format. `flags` outlives the parsing.
void AddLogFlags(CLI::App& app, LogFlags* flags);

/// Applies the flags to the process. kNotFound names an unknown level or format.
Status UseLogFlags(const LogFlags& flags);

/// The signals that change the level: SIGUSR1 makes it debug, SIGUSR2 what UseLogFlags said.
/// stop_signal.h receives them. Logs the change whatever the level. Thread-safe.
void ChangeLogLevelBySignal(int number);

}  // namespace weir
