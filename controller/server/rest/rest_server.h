// SPDX-License-Identifier: Apache-2.0
#pragma once
// REST, server-sent events, /metrics and the web page on one port. Every REST call becomes the
// AdminService method of the same name, run by AdminApi on the executor.

#include <memory>
#include <string>
#include <vector>

#include "controller/server/admin_calls.h"
#include "controller/server/auth/authenticator.h"
#include "controller/server/event_hub.h"
#include "controller/server/executor.h"
#include "controller/server/served_plane.h"
#include "deploy/program/http/http_server.h"

namespace weir {

class TlsFiles;

struct RestOptions {
  std::string host = "127.0.0.1";
  int port = 7780;  // 0: any
  /// Has a valid certificate and outlives the server. Null: plain HTTP. Renewed files are used for
  /// new connections.
  TlsFiles* tls = nullptr;
  std::string version = "0";
  LocalRights local = {};
  std::vector<std::string> names = {};  // by which a server on loopback may be reached, too
  HttpLimits limits = {};
  AccessLog* access = nullptr;  // null: none; outlives the server
};

/// "ok" while the thread that decides makes progress. kUnavailable: it has not for long.
/// Thread-safe.
StatusOr<std::string> CheckHealth(const Executor& executor);
/// "ok" if the controller can answer and store something, "ok, standing by" if it stands by and
/// knows the leader. kUnavailable or kDeadlineExceeded (2 s): not now. Thread-safe.
StatusOr<std::string> CheckReady(Executor& executor, ServedPlane& served);

/// Bounds: HttpLimits, 1 MiB a body, 12 event streams, 10 s of silence before an event stream gets
/// a comment line.
class RestServer {
 public:
  static constexpr size_t kBodyBytesMax = 1u << 20;
  static constexpr int kEventStreamsMax = 12;

  /// Listens and serves on its own threads. kUnavailable: the address is in use. All references
  /// must outlive the server.
  static StatusOr<std::unique_ptr<RestServer>> Start(RestOptions options, Executor& executor,
                                                     ServedPlane& served, AdminCalls& calls,
                                                     EventHub& events,
                                                     Authenticator& authenticator);
  virtual ~RestServer() = default;

  virtual int port() const = 0;
  /// Ends event streams and waits for the workers, at most about 2 s. The hub should be closed
  /// before.
  virtual void Stop() = 0;
};

}  // namespace weir
