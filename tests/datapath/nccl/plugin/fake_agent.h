// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agent as the plug-in sees it: takes reports, sends tables.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/random.h"
#include "datapath/wire/socket_frame.h"

namespace weir::nccl::plugin {

class FakeAgent {
 public:
  /// With `reads` false it accepts connections and reads nothing. Commands reach a connection after
  /// a random delay of at most `delay_max`.
  explicit FakeAgent(std::string path, bool reads = true, Duration delay_max = Duration(0))
      : path_(std::move(path)), reads_(reads), delay_max_(delay_max) {
    unlink(path_.c_str());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_, 64) != 0) {
      std::abort();
    }
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeAgent() {
    stopping_.store(true);
    thread_.join();
    close(listener_);
    for (const auto& [fd, connection] : connections_) close(fd);
    unlink(path_.c_str());
  }
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;

  std::string address() const { return "unix:" + path_; }

  /// Sends a command to every connection, now and in future.
  void Say(const std::string& command) {
    const MutexLock lock(mutex_);
    command_ = command;
    for (auto& [fd, connection] : connections_) Schedule(connection);
  }

  /// Waits at most 20 s until a report for which `good` is true has come; returns the last one, or
  /// null.
  nlohmann::json Await(const std::function<bool(const nlohmann::json&)>& good) {
    const TimePoint end = RealClock().Now() + std::chrono::seconds(20);
    size_t seen = 0;
    while (RealClock().Now() < end) {
      {
        const MutexLock lock(mutex_);
        for (; seen < reports_.size(); ++seen) {
          if (good(reports_[seen])) return reports_[seen];
        }
      }
      poll(nullptr, 0, 5);
    }
    return nullptr;
  }
  size_t report_count() {
    const MutexLock lock(mutex_);
    return reports_.size();
  }

 private:
  struct Connection {
    SocketFrameReader reader;
    std::string pending;
    TimePoint due = TimePoint::max();
  };

  void Schedule(Connection& connection) WEIR_REQUIRES(mutex_) {
    if (command_.empty()) return;
    connection.pending = EncodeSocketFrame(command_);
    const auto most = static_cast<uint64_t>(delay_max_.count());
    connection.due = RealClock().Now() + Duration(most == 0 ? 0 : random_.Next() % most);
  }

  void Serve() {
    while (!stopping_.load()) {
      std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
      {
        const MutexLock lock(mutex_);
        for (const auto& [fd, connection] : connections_) {
          if (reads_) waits.push_back({fd, POLLIN, 0});
        }
      }
      poll(waits.data(), waits.size(), 2);
      const MutexLock lock(mutex_);
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) Schedule(connections_[fd]);
      for (size_t i = 1; i < waits.size(); ++i) {
        if (waits[i].revents != 0) Read(waits[i].fd);
      }
      for (auto& [to, connection] : connections_) {
        if (RealClock().Now() < connection.due) continue;
        connection.due = TimePoint::max();
        (void)!send(to, connection.pending.data(), connection.pending.size(), MSG_NOSIGNAL);
      }
    }
  }

  void Read(int fd) WEIR_REQUIRES(mutex_) {
    char bytes[64 << 10];
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) {
      close(fd);
      connections_.erase(fd);
      return;
    }
    SocketFrameReader& reader = connections_[fd].reader;
    reader.Append(std::string_view(bytes, static_cast<size_t>(n)));
    for (;;) {
      const auto text = reader.Next();
      if (!text.ok() || !text->has_value()) return;
      reports_.push_back(nlohmann::json::parse(**text, nullptr, false));
    }
  }

  const std::string path_;
  const bool reads_;
  const Duration delay_max_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  Random random_ WEIR_GUARDED_BY(mutex_){1};
  std::string command_ WEIR_GUARDED_BY(mutex_);
  std::map<int, Connection> connections_ WEIR_GUARDED_BY(mutex_);
  std::vector<nlohmann::json> reports_ WEIR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace weir::nccl::plugin
