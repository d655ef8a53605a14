// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part that the communicators of a process share: a thread that drives agreements, reports to
// the agent of the node and takes tables from it. Without an agent only agreements are driven, and
// without communicators there is no thread.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/nccl/plugin/profile.h"
#include "datapath/nccl/plugin/tuner.h"
#include "datapath/wire/socket_frame.h"

namespace weir::nccl::plugin {

inline constexpr size_t kCommunicatorsMax = 64;  // of each kind in a process; others are left alone

struct PluginOptions {
  std::string agent;        // as in WEIR_AGENT; empty: none
  std::string agent_token;  // sent first when not empty
  std::string shared_directory = "/dev/shm";
  std::shared_ptr<const Table> first = std::make_shared<const Table>();
  uint32_t sample_every = 16;
  Duration tick = std::chrono::milliseconds(50);
  Duration report_every = std::chrono::seconds(1);
  Duration reconnect_min = std::chrono::milliseconds(200);
  Duration reconnect_max = std::chrono::seconds(30);
};

/// Thread-safe. No function throws or fails: what cannot be done is left out.
class Plugin {
 public:
  explicit Plugin(PluginOptions options);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  /// Returns null when there are kCommunicatorsMax already. Valid until Remove.
  Tuner* AddTuner(uint64_t communicator, uint32_t ranks, uint32_t nodes);
  Profile* AddProfile(ProfileOptions options);  // sample_every is set here
  /// Ends the thread with the last communicator, because NCCL may unload the library then; waits
  /// for it at most as long as a report may take, some 100 ms.
  void Remove(const Tuner* tuner);
  void Remove(const Profile* profile);
  /// Whether there are no communicators.
  bool idle();

 private:
  void Update();  // starts or ends the thread
  void Loop();
  void Tick();
  void Serve(int fd);  // until the connection ends or Stop
  Status ReadCommands(int fd, SocketFrameReader& reader);
  Status OnCommand(int fd, const std::string& text);
  Status Report(int fd);
  Status SendAll(int fd, const std::string& bytes) const;
  void Pause(Duration at_most);

  const PluginOptions options_;
  const int wake_fd_;
  std::atomic<bool> stopping_{false};

  Mutex lifecycle_mutex_;  // held while the thread is started or joined; before mutex_
  std::thread thread_ WEIR_GUARDED_BY(lifecycle_mutex_);

  Mutex mutex_;
  std::vector<std::unique_ptr<Tuner>> tuners_ WEIR_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Profile>> profiles_ WEIR_GUARDED_BY(mutex_);
  std::shared_ptr<const Table> wanted_ WEIR_GUARDED_BY(mutex_);  // the agent's; null: none yet

  // Used by the thread only.
  std::string table_error_;  // of the agent's newest table; empty: it is good
  Duration pause_{};         // before the next connection
  bool admitted_ = false;    // by the agent, which asks for proof of a token
  bool told_unreachable_ = false;
};

}  // namespace weir::nccl::plugin
