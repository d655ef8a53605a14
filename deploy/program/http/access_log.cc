// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/http/access_log.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr size_t kIdBytesMax = 64;

bool IsIdCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

std::string TakeRequestId(std::string_view given) {
  if (!given.empty() && given.size() <= kIdBytesMax && std::ranges::all_of(given, IsIdCharacter)) {
    return std::string(given);
  }
  std::array<unsigned char, 16> bytes{};
  static std::atomic<uint64_t> count{0};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return std::to_string(++count);  // an id has to be different, not secret
  }
  std::string id;
  std::array<char, 3> digits{};
  for (const unsigned char byte : bytes) {
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    id += digits.data();
  }
  return id;
}

void AccessLog::Add(const AccessRecord& record) {
  std::string target(record.target.substr(0, kTargetBytesMax));
  if (record.target.size() > kTargetBytesMax) target += "…";
  const std::string who(record.principal.empty() ? "-" : record.principal);
  const std::string seconds = StrCat(ToSeconds(record.duration));
  const std::string bytes = std::to_string(record.bytes);
  lines_.Log(LogLevel::kInfo, "access",
             StrCat(record.protocol, " ", record.method, target.empty() ? "" : " ", target, ": ",
                    record.outcome),
             {{"peer", record.peer},
              {"principal", who},
              {"request_id", record.request_id},
              {"bytes", bytes},
              {"seconds", seconds}});
}

}  // namespace weir
