// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/jobs.h"

namespace weir {

Job* JobTable::Find(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

StatusOr<Job*> JobTable::FindOrAdd(const std::string& name) {
  if (Job* job = Find(name); job != nullptr) return job;
  if (jobs_.size() >= kJobsMax) {
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      const std::string state = it->second->members().state();
      if (state != "ended" && state != "lost") continue;
      if (oldest == jobs_.end() ||
          it->second->finished_unix_s() < oldest->second->finished_unix_s()) {
        oldest = it;
      }
    }
    if (oldest == jobs_.end()) return ResourceExhausted(StrCat("at most ", kJobsMax, " jobs"));
    jobs_.erase(oldest);
  }
  auto& added = jobs_[name] = std::make_unique<Job>(name, host_, options_);
  return added.get();
}

void JobTable::ForgetEnded(double keep_s) {
  const double now = host_.clock().UnixSeconds();
  std::erase_if(jobs_, [&](const auto& entry) {
    const double finished = entry.second->finished_unix_s();
    return entry.second->members().state() == "ended" && finished > 0 && now - finished > keep_s;
  });
}

}  // namespace weir
