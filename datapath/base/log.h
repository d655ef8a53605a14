// SPDX-License-Identifier: Apache-2.0
#pragma once
// The logging interface of every part. Lines are written to standard error as
// "2026-01-31T12:00:00.123Z I agent node-3: message", or as JSON, one object a line; a process may
// replace the sink.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Facts of a line for programs that read logs: keys of lower-case letters and '_', any values.
using LogFields = std::vector<std::pair<std::string_view, std::string_view>>;

/// Writes one line if `level` reaches the minimum. Thread-safe. `part` is the component's name.
/// Control characters of the message, which may come from strangers, appear as escapes ("\n"), so
/// that no message can look like another line. Fields follow as " key=value", and in JSON as
/// members of their own.
void Log(LogLevel level, std::string_view part, std::string_view message,
         const LogFields& fields = {});

/// Sets the lowest level that is written. Default kInfo. Thread-safe.
void SetMinimumLogLevel(LogLevel level);
LogLevel MinimumLogLevel();

/// kJson: {"time":"2026-01-31T12:00:00.123Z","level":"info","part":"agent","message":"...",...}.
/// Bytes that are not UTF-8 become U+FFFD.
enum class LogFormat { kText, kJson };

/// Sets the form of the lines on standard error. Default kText. Thread-safe.
void SetLogFormat(LogFormat format);

/// "text" or "json"; kNotFound otherwise.
StatusOr<LogFormat> ParseLogFormat(std::string_view name);

/// "debug", "info", "warning" or "error". Static text.
std::string_view LogLevelName(LogLevel level);

/// "debug", "info", "warning" or "error"; kNotFound otherwise.
StatusOr<LogLevel> ParseLogLevel(std::string_view name);

/// Replaces standard error; an empty function restores it. Thread-safe. The sink may be called from
/// any thread, one call at a time.
void SetLogSink(
    std::function<void(LogLevel, std::string_view part, std::string_view message)> sink);

}  // namespace weir
