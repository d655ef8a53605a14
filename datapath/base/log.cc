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
std::atomic<LogFormat> line_format{LogFormat::kText};

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

// The number of bytes of the valid UTF-8 character at the start of `text`; 0: there is none.
// Source: RFC 3629, section 4.
size_t Utf8Size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xc2 && first < 0xe0   ? 2
                      : first >= 0xe0 && first < 0xf0 ? 3
                      : first >= 0xf0 && first < 0xf5 ? 4
                                                      : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool too_large = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : size;
}

void AppendJsonString(std::string_view text, std::string* out) {
  *out += '"';
  while (!text.empty()) {
    const size_t size = Utf8Size(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (size == 0) {
      *out += "\\ufffd";
    } else if (first < 0x20 || first == 0x7f) {
      char digits[7];
      std::snprintf(digits, sizeof(digits), "\\u%04x", first);
      *out += digits;
    } else {
      if (first == '"' || first == '\\') *out += '\\';
      *out += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  *out += '"';
}

void AppendJsonMember(std::string_view key, std::string_view value, std::string* out) {
  *out += out->empty() ? '{' : ',';
  AppendJsonString(key, out);
  *out += ':';
  AppendJsonString(value, out);
}

std::string JsonLine(std::string_view stamp, LogLevel level, std::string_view part,
                     std::string_view message, const LogFields& fields) {
  std::string line;
  AppendJsonMember("time", stamp, &line);
  AppendJsonMember("level", LogLevelName(level), &line);
  AppendJsonMember("part", part, &line);
  AppendJsonMember("message", message, &line);
  for (const auto& [key, value] : fields) AppendJsonMember(key, value, &line);
  return line + "}";
}

}  // namespace

void Log(LogLevel level, std::string_view part, std::string_view unsafe, const LogFields& fields) {
  if (static_cast<int>(level) < minimum_level.load(std::memory_order_relaxed)) return;
  std::string message = Escaped(unsafe);
  for (const auto& [key, value] : fields) message += StrCat(" ", key, "=", Escaped(value));
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
  char thousandths[16];
  std::snprintf(thousandths, sizeof thousandths, ".%03dZ", static_cast<int>(ms % 1000));
  std::string line = StrCat(stamp, thousandths);
  if (line_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    line = JsonLine(line, level, part, unsafe, fields);
  } else {
    line += StrCat(" ", std::string(1, Letter(level)), " ", part, ": ", message);
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void SetMinimumLogLevel(LogLevel level) { minimum_level.store(static_cast<int>(level)); }

LogLevel MinimumLogLevel() { return static_cast<LogLevel>(minimum_level.load()); }

void SetLogFormat(LogFormat format) { line_format.store(format); }

StatusOr<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return NotFound(StrCat("unknown log format '", name, "'; valid: text, json"));
}

std::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

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
