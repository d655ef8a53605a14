// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

#include "datapath/base/mutex.h"

namespace weir {
namespace {

using Sink = std::function<void(LogLevel, std::string_view, std::string_view)>;

// Function-local statics, so that they are usable before main and never destroyed before the last
// logging thread.
Mutex& SinkMutex() {
  static Mutex* mutex = new Mutex;
  return *mutex;
}
Sink& CurrentSink() {
  static Sink* sink = new Sink;
  return *sink;
}
std::atomic<int> minimum_level{static_cast<int>(LogLevel::kInfo)};

char Letter(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return 'D';
    case LogLevel::kInfo:
      return 'I';
    case LogLevel::kWarning:
      return 'W';
    case LogLevel::kError:
      return 'E';
  }
  return '?';
}

std::string Escaped(std::string_view message) {
  std::string text;
  text.reserve(message.size());
  for (size_t i = 0; i < message.size(); ++i) {
    const auto c = static_cast<unsigned char>(message[i]);
    // In UTF-8, the bytes c2 80 to c2 9f are control characters, too.
    const bool c1 = c == 0xc2 && i + 1 < message.size() &&
                    (static_cast<unsigned char>(message[i + 1]) & 0xe0) == 0x80;
    if (c >= 0x20 && c != 0x7f && !c1) {
      text += message[i];
    } else if (c == '\n') {
      text += "\\n";
    } else {
      char digits[5];
      std::snprintf(digits, sizeof(digits), "\\x%02x", c);
      text += digits;
      if (c1) std::snprintf(digits, sizeof(digits), "\\x%02x", message[++i] & 0xff);
      if (c1) text += digits;
    }
  }
  return text;
}

}  // namespace

void Log(LogLevel level, std::string_view part, std::string_view unsafe) {
  if (static_cast<int>(level) < minimum_level.load(std::memory_order_relaxed)) return;
  const std::string message = Escaped(unsafe);
  MutexLock lock(SinkMutex());
  if (CurrentSink()) {
    CurrentSink()(level, part, message);
    return;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
  std::fprintf(stderr, "%s.%03dZ %c %.*s: %.*s\n", stamp, static_cast<int>(ms % 1000),
               Letter(level), static_cast<int>(part.size()), part.data(),
               static_cast<int>(message.size()), message.data());
}

void SetMinimumLogLevel(LogLevel level) { minimum_level.store(static_cast<int>(level)); }

StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return NotFound(StrCat("unknown log level '", name, "'; valid: debug, info, warning, error"));
}

void SetLogSink(Sink sink) {
  MutexLock lock(SinkMutex());
  CurrentSink() = std::move(sink);
}

}  // namespace weir
