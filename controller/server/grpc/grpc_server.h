// SPDX-License-Identifier: Apache-2.0
#pragma once
// AgentService and AdminService with health and reflection on one gRPC port.

#include <memory>
#include <string>

#include "controller/server/admin_calls.h"
#include "controller/server/auth/authenticator.h"
#include "controller/server/event_hub.h"
#include "controller/server/executor.h"
#include "controller/server/grpc/admission.h"
#include "controller/server/grpc/local_callers.h"
#include "controller/server/served_plane.h"
#include "deploy/program/http/access_log.h"

namespace weir {

class TlsFiles;

struct GrpcOptions {
  std::string address = "127.0.0.1:7700";  // port 0: any
  /// Has a valid certificate and outlives the server. Null: no TLS. With a CA clients must show
  /// certificates. Renewed files are used for new connections.
  TlsFiles* tls = nullptr;
  LocalRights local = {};                  // of callers that show nothing
  std::optional<LocalRights> others = {};  // of other users of this machine; LocalCallers
  std::string host = {};                   // of `address`
  AccessLog* access = nullptr;             // null: none; outlives the server
  AdmissionLimits admission = {};
};

/// A silent connection is pinged after the interval and closed after the timeout, whether or not a
/// call is open on it.
inline constexpr Duration kGrpcKeepaliveInterval = std::chrono::seconds(30);
inline constexpr Duration kGrpcKeepaliveTimeout = std::chrono::seconds(10);
/// Clients may ping this often, with or without open calls. A client that pings more often three
/// times gets "too many pings" and is disconnected. Agents ping every 30 s.
inline constexpr Duration kGrpcPingIntervalMin = std::chrono::seconds(10);
/// The same if several controllers share a store: their agents ping every 1.5 s, so that
/// they leave a leader that has stopped.
inline constexpr Duration kGrpcPingIntervalMinShared = std::chrono::seconds(1);

/// A stream may send so many bytes before they are read; longer messages go in parts.
inline constexpr int kGrpcStreamBytesMax = 64 << 10;

/// Calls that may be open on one connection at a time.
inline constexpr int kGrpcStreamsMax = 100;

class GrpcServer {
 public:
  /// kUnavailable: the address is in use. All references must outlive the server.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcOptions& options, Executor& executor,
                                                     ServedPlane& served, AdminCalls& calls,
                                                     EventHub& events,
                                                     Authenticator& authenticator);
  virtual ~GrpcServer() = default;

  virtual int port() const = 0;
  /// Waits for open calls until `deadline`, cancels the others, and waits for them.
  virtual void Stop(Duration deadline) = 0;
};

}  // namespace weir
