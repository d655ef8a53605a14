// SPDX-License-Identifier: Apache-2.0
#include "controller/job/lease_ask.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "datapath/base/status.h"

namespace weir {
namespace {

constexpr size_t kLeaseJobMax = 128;

bool Plain(unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; }

}  // namespace

std::string LeaseJobName(const std::string& job) {
  if (!job.empty() && job.size() <= kLeaseJobMax && std::all_of(job.begin(), job.end(), Plain)) {
    return job;
  }
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  char digits[18];
  std::snprintf(digits, sizeof(digits), "-%016llx", static_cast<unsigned long long>(hash));
  std::string name = job.substr(0, kLeaseJobMax - 17);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !Plain(c); }, '_');
  return name + digits;
}

// With a character that no name of an aggregator has, so that LeaseJobName tells it from all jobs.
std::string LeaseOwner(const std::string& job, const std::string& mode) {
  return mode.empty() || mode == "sum" ? job : StrCat(job, "/", mode);
}

}  // namespace weir
