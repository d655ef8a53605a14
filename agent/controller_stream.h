// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agent's stream to the controller: it connects, keeps the connection alive, and reconnects
// with back-off. The loss of the controller is an event, never an error of the agent.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "agent/credentials.h"
#include "agent/tiered_queue.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "weir/v1/agent.pb.h"

namespace weir::agent {

/// Threads "weir-control" (connects and reads) and "weir-ctl-write" (one write outstanding). All
/// methods are thread-safe.
class ControllerStream {
 public:
  struct Options {
    std::string controller;  // HOST:PORT; several with commas, of which one leads
    CredentialFactory credentials;
    std::string token_file;  // bearer token, read for every connection; empty: none
    Duration connect_timeout = std::chrono::seconds(5);  // until the connection is ready
    Duration back_off_min = std::chrono::milliseconds(200);
    Duration back_off_max = std::chrono::seconds(5);
    Duration keepalive_interval = std::chrono::seconds(30);
    Duration keepalive_timeout = std::chrono::seconds(10);
    // With several controllers, a stopped one is left for the next. So that all agents of a job
    // meet at the new leader soon, the back-off stays short for a while.
    Duration standby_keepalive_interval = std::chrono::milliseconds(1500);
    Duration standby_keepalive_timeout = std::chrono::seconds(1);
    Duration standby_connect_timeout = std::chrono::seconds(1);
    Duration standby_back_off_max = std::chrono::milliseconds(500);
    Duration standby_search = std::chrono::seconds(15);
    size_t queue_items_max = 4096;
    size_t queue_bytes_max = 16u << 20;
    uint64_t seed = 0;  // for the jitter of the back-off
  };

  /// Called on the stream's thread, one call at a time. `generation` counts connections from 1.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnControllerConnected(uint64_t generation) = 0;
    virtual void OnControllerMessage(uint64_t generation, v1::ControllerMessage message) = 0;
    /// `unsent`: the control messages that were queued and not written, oldest first.
    virtual void OnControllerLost(uint64_t generation, const std::string& reason,
                                  std::vector<v1::AgentMessage> unsent) = 0;
  };

  /// Starts connecting. `handler` and `clock` must outlive the stream.
  ControllerStream(Options options, Handler& handler, const Clock& clock);
  /// Cancels and joins, within 1 s.
  ~ControllerStream();
  ControllerStream(const ControllerStream&) = delete;
  ControllerStream& operator=(const ControllerStream&) = delete;

  /// Queues a message for the connection `generation`. A message for another connection is dropped,
  /// because the whole state is sent again on a new one. Telemetry may displace older telemetry. A
  /// control message without room ends the connection, which starts over.
  void Send(uint64_t generation, v1::AgentMessage message, Tier tier);

  /// The number of telemetry messages dropped because the queue was full.
  uint64_t dropped() const;

 private:
  struct Call;  // one connection's gRPC objects
  void Run(const std::stop_token& stop);
  struct Ended {
    Status why;
    bool was_connected = false;  // to a controller, not only to a listener
    Duration pause{};            // that the controller asks for; zero: it does not
  };
  Ended RunOnce(const std::stop_token& stop);
  StatusOr<std::unique_ptr<Call>> Open(const std::stop_token& stop);
  static std::string WhyNotConnected(const Call& call);
  Status CheckTerm(const Call& call);
  void ChooseNext(const Call& call);
  void WriteLoop(Call& call);
  void Pause(const std::stop_token& stop, Duration pause);

  const Options options_;
  Handler& handler_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar ready_;
  TieredQueue<v1::AgentMessage> queue_ WEIR_GUARDED_BY(mutex_);
  uint64_t generation_ WEIR_GUARDED_BY(mutex_) = 0;  // 0: not connected
  bool writing_ WEIR_GUARDED_BY(mutex_) = false;     // false: the writer must end
  Call* call_ WEIR_GUARDED_BY(mutex_) = nullptr;
  bool overflowed_ WEIR_GUARDED_BY(mutex_) = false;
  uint64_t connections_ = 0;  // used only by the stream's thread, as the next ones
  const std::vector<std::string> controllers_;
  size_t next_ = 0;        // of `controllers_`
  std::string target_;     // of this attempt
  std::string leader_;     // named by a standby: the next target; empty: none
  bool led_here_ = false;  // the target was named by a standby
  uint64_t term_ = 0;      // the highest of any leader
  std::jthread thread_;
};

}  // namespace weir::agent
