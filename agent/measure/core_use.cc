// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/core_use.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

#include "agent/measure/socket.h"

namespace weir::agent {
namespace {

// Names of the threads that libweir starts; see StartThread.
constexpr std::string_view kDatapathPrefix = "weir-";
constexpr size_t kFileBytesMax = 4096;  // the first line of /proc/stat is the longest that counts

std::string ReadSmallFile(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  std::string text(kFileBytesMax, '\0');
  const ssize_t bytes = read(fd.get(), text.data(), text.size());
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

double Share(double part, double whole) {
  return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
}

}  // namespace

std::optional<CoreUseMeter::Threads> CoreUseMeter::ReadThreads(pid_t pid,
                                                               const Threads& known) const {
  const std::string directory = StrCat(proc_, "/", pid, "/task");
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(directory.c_str()), closedir);
  if (tasks == nullptr) return std::nullopt;
  Threads threads;
  while (const dirent* entry = readdir(tasks.get())) {
    const std::string_view name = entry->d_name;
    pid_t tid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), tid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    if (threads.size() == kThreadsMax) break;
    const std::string path = StrCat(directory, "/", entry->d_name);
    unsigned long long ran_ns = 0, waited_ns = 0;
    if (std::sscanf(ReadSmallFile(path + "/schedstat").c_str(), "%llu %llu", &ran_ns, &waited_ns) !=
        2) {
      continue;  // it ended meanwhile, or the kernel keeps no such accounts
    }
    Thread thread{1e-9 * static_cast<double>(ran_ns), 1e-9 * static_cast<double>(waited_ns), false};
    // A thread gets its name soon after it began, so that of a young one is read again.
    const auto old = known.find(tid);
    thread.datapath = (old != known.end() && old->second.datapath) ||
                      ReadSmallFile(path + "/comm").starts_with(kDatapathPrefix);
    threads.emplace(tid, thread);
  }
  if (threads.empty()) return std::nullopt;
  return threads;
}

CoreUseMeter::Host CoreUseMeter::ReadHost() const {
  Host host;
  // user nice system idle iowait irq softirq steal; guest times, which follow, are within user's.
  unsigned long long ticks[8] = {};
  const int found = std::sscanf(ReadSmallFile(proc_ + "/stat").c_str(),
                                "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1],
                                &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]);
  if (found == 8) {
    for (const unsigned long long one : ticks) host.ticks += static_cast<double>(one);
    host.stolen_ticks = static_cast<double>(ticks[7]);
  }
  unsigned long long total_us = 0;
  const std::string pressure = ReadSmallFile(proc_ + "/pressure/cpu");
  const size_t at = pressure.find("total=");
  if (pressure.starts_with("some") && at != std::string::npos &&
      std::sscanf(pressure.c_str() + at, "total=%llu", &total_us) == 1) {
    host.pressure_s = 1e-6 * static_cast<double>(total_us);
  }
  return host;
}

std::optional<CoreUse> CoreUseMeter::Look(pid_t pid, TimePoint now) {
  pid = std::max<pid_t>(pid, 0);
  if (!processes_.contains(pid) && processes_.size() == kProcessesMax) return std::nullopt;
  Process& process = processes_[pid];
  if (now < process.next_look) return process.newest;
  const TimePoint begin = RealClock().Now();
  std::optional<Threads> threads = pid > 0 ? ReadThreads(pid, process.threads) : Threads();
  const Host host = ReadHost();
  const Duration taken = RealClock().Now() - begin;
  process.next_look = now + std::max<Duration>(kLookInterval, kDuty * taken);
  if (!threads.has_value()) {
    process.threads.clear();
    process.looked_at.reset();
    process.newest.reset();
    return std::nullopt;
  }
  if (process.looked_at.has_value()) {
    const double passed_s = ToSeconds(now - *process.looked_at);
    double ran_s = 0, waited_s = 0, datapath_s = 0;
    for (const auto& [tid, thread] : *threads) {
      const auto old = process.threads.find(tid);
      const Thread before = old == process.threads.end() ? Thread{} : old->second;
      const double own_s = std::max(0.0, thread.waited_s - before.waited_s);
      ran_s += std::max(0.0, thread.ran_s - before.ran_s);
      waited_s += own_s;
      if (thread.datapath) datapath_s = std::max(datapath_s, own_s);
    }
    process.newest =
        CoreUse{.wait_ratio = Share(waited_s, ran_s + waited_s),
                .datapath_wait_ratio = Share(datapath_s, passed_s),
                .steal_ratio = Share(host.stolen_ticks - process.host.stolen_ticks,
                                     host.ticks - process.host.ticks),
                .pressure_ratio = Share(host.pressure_s - process.host.pressure_s, passed_s)};
  }
  process.threads = *std::move(threads);
  process.host = host;
  process.looked_at = now;
  return process.newest;
}

}  // namespace weir::agent
