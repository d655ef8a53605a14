// SPDX-License-Identifier: Apache-2.0
#pragma once
// The jobs of a fleet by name.

#include <map>
#include <memory>
#include <string>

#include "controller/job/job.h"
#include "datapath/base/status.h"

namespace weir {

/// Not thread-safe.
class JobTable {
 public:
  static constexpr size_t kJobsMax = 256;

  /// `host` of every job outlives this.
  JobTable(JobHost& host, JobOptions options) : host_(host), options_(std::move(options)) {}

  /// Null: there is none of that name.
  Job* Find(const std::string& name) const;
  /// Adds a job if there is none of that name. If there are too many, the one that ended first is
  /// forgotten; its history stays in the store. kResourceExhausted: none has ended.
  StatusOr<Job*> FindOrAdd(const std::string& name);
  void Forget(const std::string& name) { jobs_.erase(name); }
  /// Forgets jobs that ended longer ago.
  void ForgetEnded(double keep_s);
  const std::map<std::string, std::unique_ptr<Job>>& all() const { return jobs_; }

 private:
  JobHost& host_;
  const JobOptions options_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
};

}  // namespace weir
