// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/log_flags.h"

#include <signal.h>

#include <atomic>

#include "datapath/base/log.h"

namespace weir {
namespace {

std::atomic<LogLevel> level_at_start{LogLevel::kInfo};

}  // namespace

void AddLogFlags(CLI::App& app, LogFlags* flags) {
  app.add_option("--log-level", flags->level,
                 "least severe level that is written to standard error; SIGUSR1 makes it debug, "
                 "SIGUSR2 this one again")
      ->type_name("LEVEL:{debug,info,warning,error}")
      ->capture_default_str();
  app.add_option("--log-format", flags->format,
                 "form of a line on standard error; json: an object with time, level, part, "
                 "message and fields")
      ->type_name("FORMAT:{text,json}")
      ->capture_default_str();
}

Status UseLogFlags(const LogFlags& flags) {
  WEIR_ASSIGN_OR_RETURN(const LogLevel level, ParseLogLevel(flags.level));
  WEIR_ASSIGN_OR_RETURN(const LogFormat format, ParseLogFormat(flags.format));
  SetMinimumLogLevel(level);
  SetLogFormat(format);
  level_at_start = level;
  return OkStatus();
}

void ChangeLogLevelBySignal(int number) {
  const LogLevel level = number == SIGUSR1 ? LogLevel::kDebug : level_at_start.load();
  SetMinimumLogLevel(level);
  Log(LogLevel::kError, "log", StrCat("from now on, by a signal: ", LogLevelName(level)));
}

}  // namespace weir
