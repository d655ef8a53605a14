// SPDX-License-Identifier: Apache-2.0
#pragma once
// AgentService and AdminService with health and reflection on one gRPC port.

#include <memory>
#include <string>

#include "controller/service/auth.h"
#include "controller/service/event_hub.h"
#include "controller/service/executor.h"
#include "controller/service/fleet.h"

namespace weir {

class TlsFiles;

struct GrpcOptions {
  std::string address = "127.0.0.1:7700";  // port 0: any
  /// With a certificate, good now; outlives the server. Null: no TLS. With a CA clients must show
  /// certificates. Renewed files count for the next connection.
  TlsFiles* tls = nullptr;
};

/// Largest message either way. What grows with a job is bounded below it: 16384 buckets in a plan.
inline constexpr int kGrpcMessageBytesMax = 8 << 20;
/// A connection without a sign of life is asked after the interval and dropped after the timeout,
/// whether or not a call is open on it.
inline constexpr Duration kGrpcKeepaliveInterval = std::chrono::seconds(30);
inline constexpr Duration kGrpcKeepaliveTimeout = std::chrono::seconds(10);
/// Clients may ask as often as this, with or without open calls; one that asks more often thrice is
/// told "too many pings" and dropped. Agents ask every 30 s.
inline constexpr Duration kGrpcPingIntervalMin = std::chrono::seconds(10);

class GrpcServer {
 public:
  /// kUnavailable: the address is taken. All references must outlive the server.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcOptions& options, Executor& executor,
                                                     Fleet& fleet, EventHub& events,
                                                     const Authenticator& authenticator);
  virtual ~GrpcServer() = default;

  virtual int port() const = 0;
  /// Cancels what is open after `deadline` and waits for it.
  virtual void Stop(Duration deadline) = 0;
};

}  // namespace weir
