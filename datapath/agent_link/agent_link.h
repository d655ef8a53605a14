// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rank's connection to the agent of its node. Its own thread connects, sends a greeting, passes
// on commands and messages, and reconnects after every loss. Training never waits for it.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/base/bounded_queue.h"
#include "datapath/base/clock.h"
#include "datapath/wire/socket_frame.h"

namespace weir {

/// Takes a session's messages to its agent. Thread-safe; never waits.
class AgentPort {
 public:
  virtual ~AgentPort() = default;
  /// Queues one message. At most 64 step and path reports and 256 other messages wait; a further
  /// one replaces the oldest of its kind. Messages are dropped while no agent is connected, because
  /// a new connection begins with a greeting that has the whole state.
  virtual void Send(RankMessage message) = 0;
  virtual bool connected() const = 0;
};

/// The session's side. The link calls it on its thread.
class AgentHandler {
 public:
  virtual ~AgentHandler() = default;
  /// The messages with which every new connection begins.
  virtual std::vector<RankMessage> Greeting() = 0;
  virtual void OnCommand(RankCommand command) = 0;
  /// The rank's behaviour without an agent, for the log: "running dense", "keeping plan 7".
  virtual std::string Stance() = 0;
};

struct AgentLinkOptions {
  std::string address;  // "unix:/path" or "tcp:host:port", host numeric or "localhost"
  std::string token;    // proven first when not empty; never sent
  std::string job_key;  // kJobKeyBytes; a hello then proves it (RankProof). Empty: none
  std::string name;     // "rank 3", for the log
  Duration connect_timeout = std::chrono::seconds(2);
  Duration backoff_min = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(5);
  Duration refusal_pause = std::chrono::seconds(30);  // or less, if the agent says so
  // After this time without a challenge the hello is sent without a proof, because the agent seems
  // not to require one.
  Duration challenge_timeout = std::chrono::seconds(2);
};

class AgentLink : public AgentPort {
 public:
  /// kInvalidArgument: the address has neither form. Starts no thread. `handler` outlives the link.
  static StatusOr<std::unique_ptr<AgentLink>> Create(AgentLinkOptions options,
                                                     AgentHandler& handler);
  ~AgentLink() override;

  void Start();
  /// Sends what is queued for at most 200 ms, disconnects and joins. Idempotent.
  void Stop();

  void Send(RankMessage message) override;
  bool connected() const override { return connected_.load(std::memory_order_relaxed); }

 private:
  AgentLink(AgentLinkOptions options, AgentHandler& handler);

  void Loop();
  Status Serve(int fd);  // until the connection ends or Stop; returns why
  Status ReadCommands(int fd, SocketFrameReader& reader);
  Status WriteSome(int fd);
  Status OnText(const std::string& text);
  void Greet();
  void Prove(RankHello* hello);
  Status SendTokenProof();
  bool Refill();  // takes the next queued message into out_; false when there is none
  void AppendFrame(const std::string& text);
  void Pause(Duration at_most);  // ends early on Stop
  void Wake();
  void DrainWakeups();
  void LogUnreachable(const Status& cause);
  void LogLost(const Status& cause);

  const AgentLinkOptions options_;
  AgentHandler& handler_;
  BoundedQueue<RankMessage> reports_{64};
  BoundedQueue<RankMessage> messages_{256};
  std::atomic<bool> connected_{false};
  std::atomic<bool> stopping_{false};
  int wake_fd_ = -1;
  std::thread thread_;

  // Used by the link's thread only.
  std::string out_;
  size_t out_offset_ = 0;
  bool was_connected_ = false;
  bool said_unreachable_ = false;
  bool refused_ = false;
  Duration retry_after_{};                  // from the refusal
  std::string told_refusal_;                // the last one that was logged; empty: accepted
  std::optional<RankChallenge> challenge_;  // of this connection
};

}  // namespace weir
