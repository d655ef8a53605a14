// SPDX-License-Identifier: Apache-2.0
#pragma once
// The logging interface of every part. Lines are written to standard error as
// "2026-01-31T12:00:00.123Z I agent node-3: message"; a process may replace the sink.

#include <functional>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Writes one line if `level` reaches the minimum. Thread-safe. `part` is the component's name.
/// Control characters of the message, which may come from strangers, appear as escapes ("\n"), so
/// that no message can look like another line.
void Log(LogLevel level, std::string_view part, std::string_view message);

/// Sets the lowest level that is written. Default kInfo. Thread-safe.
void SetMinimumLogLevel(LogLevel level);

/// "debug", "info", "warning" or "error"; kNotFound otherwise.
StatusOr<LogLevel> ParseLogLevel(std::string_view name);

/// Replaces standard error; an empty function restores it. Thread-safe. The sink may be called from
/// any thread, one call at a time.
void SetLogSink(
    std::function<void(LogLevel, std::string_view part, std::string_view message)> sink);

}  // namespace weir
