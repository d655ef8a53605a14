// SPDX-License-Identifier: Apache-2.0
#pragma once
// An HTTP server that slow clients cannot stop. cpp-httplib gives each read a deadline of its own,
// so that a client which sends a byte now and then holds a thread for ever. Here the whole request
// has one deadline, every connection its own thread, and where there are too many, those that have
// waited longest for the rest of a request are closed.

#include <httplib.h>

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "deploy/program/http/access_log.h"
#include "deploy/program/tls/tls_files.h"

namespace weir {

struct HttpLimits {
  size_t connections_max = 256;  // each has a thread while it lasts
  size_t connections_of_peer_max = 64;
  Duration request_max = std::chrono::seconds(10);  // TLS handshake, header and body
  Duration answer_max = std::chrono::seconds(30);   // except streams
  Duration write_max = std::chrono::seconds(5);     // without progress
  Duration idle_max = std::chrono::seconds(1);      // until the next request begins
  size_t requests_max = 1000;                       // of a connection
};

/// The open connections, so that one can be closed in favour of a new one. Thread-safe.
class HttpConnections {
 public:
  enum class Phase { kIdle, kReading, kAnswering, kStreaming, kEnding };
  struct Connection {
    int socket;
    std::string peer;
    Phase phase;
    TimePoint since;
  };
  using Handle = std::list<Connection>::iterator;

  explicit HttpConnections(HttpLimits limits) : limits_(limits) {}

  /// Registers a connection and, if its peer has too many, ends another one of it, or else this
  /// one. It must be removed before its socket is closed.
  Handle Add(int socket, const std::string& peer) WEIR_EXCLUDES(mutex_);
  void Remove(Handle connection) WEIR_EXCLUDES(mutex_);
  void Enter(Handle connection, Phase phase) WEIR_EXCLUDES(mutex_);
  /// Shuts down the connection that can best be spared, of `peer` if not empty: the longest without
  /// a whole request, or else one whose answer takes longest. Streams are spared. False: none.
  bool Spare(const std::string& peer) WEIR_EXCLUDES(mutex_);
  /// Shuts down all, also those that are added later.
  void End() WEIR_EXCLUDES(mutex_);

 private:
  bool SpareLocked(const std::string& peer) WEIR_REQUIRES(mutex_);

  const HttpLimits limits_;
  Mutex mutex_;
  std::list<Connection> connections_ WEIR_GUARDED_BY(mutex_);
  bool ended_ WEIR_GUARDED_BY(mutex_) = false;
};

class HttpServer : public httplib::Server {
 public:
  /// `tls`: null for plain text; else it has a certificate. `access`: null for no access log. Both
  /// outlive the server.
  explicit HttpServer(TlsFiles* tls, HttpLimits limits = {}, AccessLog* access = nullptr);
  ~HttpServer() override;

  bool is_valid() const override;

  /// Binds `host` and `port` (0: any free one) and serves on threads of its own. To be called once,
  /// after the handlers were installed. kUnavailable: the address cannot be bound; kInternal:
  /// OpenSSL makes no context.
  Status Begin(const std::string& host, int port);
  /// The port that Begin has bound.
  int port() const { return port_; }
  /// Ends accepting and every connection, and joins. The destructor calls it, too; an owner whose
  /// handlers use anything that ends before the server calls it before.
  void End();

  /// The id of the request that is being answered: what its X-Request-ID said or, where that is
  /// missing or not an id, a new one. The answer has the same header.
  static std::string RequestId(const httplib::Response& response);
  /// Names the caller of the request that the calling thread handles, for the access log.
  static void NameCaller(std::string principal);

  /// The connection whose request the calling thread handles becomes a stream: its answer has no
  /// deadline, only each write has.
  static void KeepStreaming();

 private:
  bool process_and_close_socket(socket_t socket) override;
  void Serve(int socket);
  void LogAccess(const httplib::Request& request, const httplib::Response& response) const;
  // The library's protected method of the same purpose takes more arguments since 0.12.
  template <typename Self>
  static bool Process(Self& self, httplib::Stream& stream, bool last, bool& closed);

  const HttpLimits limits_;
  HttpConnections connections_;
  std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> tls_context_;
  const bool plain_;
  AccessLog* const access_;
  int port_ = 0;
  std::thread thread_;  // accepts
  std::atomic<bool> ended_{false};
};

}  // namespace weir
