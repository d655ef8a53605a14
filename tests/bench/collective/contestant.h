// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank of a set of contestants that the script collective_bench drives. Lines over a Unix
// socket name the next contestant, so that implementations in different processes take turns and
// sleep in between.

#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace weir::bench {

/// An implementation that sums a vector over all ranks. `meet` returns when every rank has called
/// it.
struct Contestant {
  std::string transport, algorithm;
  std::function<void(std::vector<float>&)> run;
  std::function<void()> meet;
  // The largest square of a sum's error, relative to all ranks' squared norms; 0: sums are exact.
  double error_squared_max = 0;
};

/// Ends the process with status 1: a rank that is missing ends the whole run.
[[noreturn]] inline void Die(const std::string& what) {
  std::fprintf(stderr, "collective worker: %s\n", what.c_str());
  std::_Exit(1);
}

/// A connection to the script, a line each way at a time. Not thread-safe.
class Channel {
 public:
  explicit Channel(const std::string& path) : socket_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) Die("socket path too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      Die("connect to " + path + ": " + std::strerror(errno));
    }
  }
  ~Channel() { close(socket_); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void Send(std::string line) {
    line += '\n';
    if (send(socket_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
      Die("the script is gone");
  }

  /// The words of the next line; none at the end.
  std::vector<std::string> Receive() {
    size_t end;
    while ((end = pending_.find('\n')) == std::string::npos) {
      char buffer[4096];
      const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
      if (n <= 0) return {};
      pending_.append(buffer, static_cast<size_t>(n));
    }
    std::istringstream line(pending_.substr(0, end));
    pending_.erase(0, end + 1);
    std::vector<std::string> words;
    for (std::string word; line >> word;) words.push_back(word);
    return words;
  }

 private:
  int socket_;
  std::string pending_;
};

/// User and system time of all threads.
inline double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The machine's monotonic clock: equal in all processes.
inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A vector in which only some blocks of 1 KiB are not zero: the same ones on every rank, spread
/// evenly.
class Contents {
 public:
  static constexpr size_t kBlockFloats = 256;

  void Resize(size_t floats) { values_.assign(floats, 0.0f); }
  void SetDensity(double density) { density_ = density; }
  std::vector<float>& values() { return values_; }

  /// Small integers, whose sums are exact in every order.
  void SetParts(int rank) {
    Fill([&](size_t i) { return Part(i, rank); });
  }

  /// The square of the sum's error over all ranks' squared norms.
  double ErrorSquared(int world) const {
    double error = 0, norms = 0;
    for (size_t i = 0; i < values_.size(); ++i) {
      float expected = 0;
      for (int rank = 0; rank < world && Holds(i / kBlockFloats); ++rank) {
        const float part = Part(i, rank);
        expected += part;
        norms += part * part;
      }
      error += (values_[i] - expected) * (values_[i] - expected);
    }
    return error == 0 ? 0 : error / norms;
  }

 private:
  static float Part(size_t i, int rank) {
    return static_cast<float>(static_cast<int>((i + 13 * static_cast<size_t>(rank)) & 127) - 50);
  }
  bool Holds(size_t block) const {
    const auto below = [&](size_t b) { return std::floor(static_cast<double>(b) * density_); };
    return below(block + 1) > below(block);
  }
  template <typename Value>
  void Fill(const Value& value) {
    for (size_t at = 0; at < values_.size(); at += kBlockFloats) {
      const size_t end = std::min(values_.size(), at + kBlockFloats);
      if (!Holds(at / kBlockFloats)) {
        std::fill(values_.begin() + at, values_.begin() + end, 0.0f);
      } else {
        for (size_t i = at; i < end; ++i) values_[i] = value(i);
      }
    }
  }

  std::vector<float> values_;
  double density_ = 1;
};

/// Puts this thread on the rank's core once, without binding it. Thus every turn of every
/// contestant begins in the same way: otherwise ranks would start on the core where they ran
/// before, and two that share a core although another one is idle need a context switch for every
/// message.
inline void StartOnOwnCore(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int skip = rank % std::max(CPU_COUNT(&allowed), 1);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof own, &own);
    break;
  }
  sched_setaffinity(0, sizeof allowed, &allowed);
}

/// Names the contestants, then executes commands until the connection ends:
///   size BYTES   -> ok                  sets the size of the vector
///   density PPM  -> ok                  sets how many of a million of its blocks are not zero
///   verify I     -> START END CPU ERR   as run; the process ends if the error is too large
///   run I        -> START END CPU 0     seconds in which contestant I sums; all ranks meet first
/// Every rank gets the same lines.
inline void Serve(Channel& channel, int rank, int world,
                  const std::vector<Contestant>& contestants) {
  std::string names = "contestants";
  for (const Contestant& c : contestants) names += " " + c.transport + "/" + c.algorithm;
  channel.Send(names);
  Contents contents;
  for (auto words = channel.Receive(); words.size() == 2; words = channel.Receive()) {
    const size_t number = std::stoull(words[1]);
    if (words[0] == "size" || words[0] == "density") {
      if (words[0] == "size") contents.Resize(number / sizeof(float));
      if (words[0] == "density") contents.SetDensity(static_cast<double>(number) / 1e6);
      channel.Send("ok");
      continue;
    }
    const Contestant& contestant = contestants.at(number);
    contents.SetParts(rank);
    StartOnOwnCore(rank);
    contestant.meet();
    const double cpu_s = CpuSeconds(), start_s = NowSeconds();
    contestant.run(contents.values());
    const double end_s = NowSeconds(), used_s = CpuSeconds() - cpu_s;
    const double error = words[0] == "verify" ? contents.ErrorSquared(world) : 0;
    if (!(error <= contestant.error_squared_max)) {
      Die(contestant.transport + "/" + contestant.algorithm + ": relative squared error " +
          std::to_string(error) + ", expected at most " +
          std::to_string(contestant.error_squared_max));
    }
    char line[128];
    std::snprintf(line, sizeof line, "%.9f %.9f %.9f %.9f", start_s, end_s, used_s, error);
    channel.Send(line);
  }
}

}  // namespace weir::bench
