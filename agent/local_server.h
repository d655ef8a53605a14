// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where ranks attach: a Unix socket, and optionally TCP with a token for ranks that do not share
// the node's file system. Nothing that a client sends can end or block this process.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/measure/socket.h"
#include "agent/rank_claims.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "datapath/wire/socket_frame.h"
#include "deploy/program/token_file.h"
#include "weir/v1/rank.pb.h"

namespace weir::agent {

/// Serves rank connections on one thread ("weir-local"). Frames: datapath/wire/socket_frame.h;
/// texts: rank.proto as JSON. A malformed message is answered with RankRefusal and the connection
/// closed.
class LocalServer {
 public:
  struct Options {
    std::string socket_path;      // empty: no Unix socket. Its directory is made if absent (0755).
    uint32_t socket_mode = 0660;  // who may attach: owner and group
    std::optional<SocketAddress> tcp;  // absent: no TCP
    // Required with tcp: the first TCP frame proves one of its tokens (WIRE.md). It outlives the
    // server.
    TokenFile* tokens = nullptr;
    size_t connections_max = 256;
    size_t output_bytes_max = 4u << 20;  // waiting per connection; over it, it is closed
    Duration hello_timeout = std::chrono::seconds(10);  // from accept to the first whole message
    std::string node;                                   // what challenges name; ranks sign it
  };

  /// Called on the server's thread; must not wait and must not call the server's destructor.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// False: the receiver is overloaded; the connection is closed and the rank may come again.
    /// `peer` is the same for all messages of a connection.
    virtual bool OnRankMessage(ConnectionId connection, v1::RankMessage message, size_t bytes,
                               const std::shared_ptr<const RankPeer>& peer) = 0;
    /// Once per connection that delivered a message.
    virtual void OnRankClosed(ConnectionId connection, const std::string& reason) = 0;
  };

  /// Binds and starts. A socket file that nobody listens on is replaced. kFailedPrecondition when
  /// another live process listens there, or the path is no socket; kInvalidArgument for TCP without
  /// a token; kUnavailable with the kernel's reason. `handler` and `clock` outlive the server.
  static StatusOr<std::unique_ptr<LocalServer>> Start(Options options, Handler& handler,
                                                      const Clock& clock);
  /// Closes every connection, removes the socket file and joins, within 1 s.
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  /// Queues a command. It is dropped if the connection is gone. A connection that does not read is
  /// closed when its queue is full. Thread-safe.
  void Send(ConnectionId connection, const v1::RankCommand& command);
  /// Sends RankRefusal and closes. Logs a warning unless this client was refused for the same
  /// reason before. Thread-safe.
  void Refuse(ConnectionId connection, const std::string& reason, double retry_after_s = 0);

  /// The bound TCP port, or 0 without TCP.
  uint16_t tcp_port() const { return tcp_port_; }
  /// The number of open connections. Thread-safe.
  size_t connection_count() const;
  /// The number of connections refused because of their messages or because the server was full.
  /// Thread-safe.
  uint64_t refused_count() const;

 private:
  struct Connection {
    FileDescriptor fd;
    std::shared_ptr<const RankPeer> peer;
    bool needs_token = false;
    bool framed = false;    // has sent a complete frame
    bool spoke = false;     // has delivered a message
    bool refusing = false;  // its input is discarded until it closes
    bool shut = false;      // this side has been shut down
    TimePoint deadline;     // for the first message, or for closing
    SocketFrameReader reader;
    std::string output;  // to be written
    size_t output_offset = 0;
  };
  // Frames and decisions that other threads hand to a connection.
  struct Outbox {
    std::string frames;
    std::optional<v1::RankRefusal> refusal;
    bool overflow = false;
  };

  LocalServer(Options options, Handler& handler, const Clock& clock);
  Status Listen();
  Status ListenUnix();
  Status LockSocket();
  void Serve();
  void Accept(int listener, bool is_tcp);
  void Admit(FileDescriptor fd, bool is_tcp);
  void Challenge(ConnectionId id, Connection& connection);
  void OnReadable(ConnectionId id);
  bool HandleFrames(ConnectionId id, Connection& connection);
  Status HandleMessage(ConnectionId id, Connection& connection, const std::string& json);
  void CollectOutboxes();
  void StartRefusal(ConnectionId id, Connection& connection, const std::string& reason,
                    double retry_after_s = 0);
  void Flush(ConnectionId id);
  void Watch(ConnectionId id, bool want_write);
  void CloseConnection(ConnectionId id, const std::string& reason);
  void EnforceDeadlines();
  int WaitMilliseconds() const;
  void Wake() const;

  const Options options_;
  Handler& handler_;
  const Clock& clock_;
  FileDescriptor lock_;
  FileDescriptor unix_listener_;
  FileDescriptor tcp_listener_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  uint16_t tcp_port_ = 0;
  bool owns_socket_file_ = false;
  bool accepting_ = true;
  TimePoint accept_again_{};
  std::map<ConnectionId, Connection> connections_;  // used only by the server's thread
  ConnectionId next_id_;
  std::set<std::string> told_;  // refusals that were logged

  mutable Mutex mutex_;
  std::map<ConnectionId, Outbox> outboxes_ WEIR_GUARDED_BY(mutex_);
  uint64_t refused_ WEIR_GUARDED_BY(mutex_) = 0;
  bool stopping_ WEIR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weir::agent
