#pragma once
// The rank's connection to the agent of its node, on a thread of its own: it connects, greets,
// passes commands in and messages out, and connects again for ever. Training never waits for it.

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

/// Where a session's messages to its agent go. Thread-safe; never waits.
class AgentPort {
 public:
  virtual ~AgentPort() = default;
  /// Queues one message. Step and path reports push out their oldest kind when 64 wait; of other
  /// messages 256 wait at most. Nothing is kept while no agent is connected: a new connection is
  /// told the state of the world.
  virtual void Send(RankMessage message) = 0;
  virtual bool connected() const = 0;
};

/// The session's side. Called on the link's thread.
class AgentHandler {
 public:
  virtual ~AgentHandler() = default;
  /// What every new connection is told first.
  virtual std::vector<RankMessage> Greeting() = 0;
  virtual void OnCommand(RankCommand command) = 0;
  /// What the rank does without an agent: "running dense", "keeping plan 7". For the log.
  virtual std::string Stance() = 0;
};

struct AgentLinkOptions {
  std::string address;  // "unix:/path" or "tcp:host:port", host numeric or "localhost"
  std::string token;    // sent first when not empty
  std::string job_key;  // kJobKeyBytes; a hello then proves it (RankProof). Empty: none
  std::string name;     // "rank 3", for the log
  Duration connect_timeout = std::chrono::seconds(2);
  Duration backoff_min = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(5);
  Duration refusal_pause = std::chrono::seconds(30);  // or less, where the agent says so
  // Without a challenge for so long, the hello goes without a proof: the agent asks for none.
  Duration challenge_timeout = std::chrono::seconds(2);
};

class AgentLink : public AgentPort {
 public:
  /// kInvalidArgument when the address is neither form. Starts no thread. `handler` outlives the
  /// link.
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
  StatusOr<int> Connect();
  Status Serve(int fd);  // until the connection ends or Stop; returns why
  Status ReadCommands(int fd, SocketFrameReader& reader);
  Status WriteSome(int fd);
  Status OnText(const std::string& text);
  void Greet();
  void Prove(RankHello* hello);
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

  // The link's thread only.
  std::string out_;
  size_t out_offset_ = 0;
  bool was_connected_ = false;
  bool said_unreachable_ = false;
  bool refused_ = false;
  Duration retry_after_{};                  // of the refusal
  std::string told_refusal_;                // the last one, which is in the log; empty: accepted
  std::optional<RankChallenge> challenge_;  // of this connection
};

}  // namespace weir
