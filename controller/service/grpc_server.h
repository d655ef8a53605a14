#pragma once
// AgentService and AdminService with health and reflection on one gRPC port.

#include <memory>
#include <string>

#include "controller/service/auth.h"
#include "controller/service/event_hub.h"
#include "controller/service/executor.h"
#include "controller/service/fleet.h"

namespace weir {

struct GrpcOptions {
  std::string address = "127.0.0.1:7700";  // port 0: any
  std::string tls_cert, tls_key,
      tls_ca;  // files; empty: no TLS. With a CA clients must show certificates
};

/// Bounds: 8 MiB a message; pings at most every 10 s; a silent client is dropped after 30 s + 10 s.
class GrpcServer {
 public:
  /// kUnavailable: the address is taken; kInvalidArgument: unreadable TLS files. All references
  /// must outlive the server.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcOptions& options, Executor& executor,
                                                     Fleet& fleet, EventHub& events,
                                                     const Authenticator& authenticator);
  virtual ~GrpcServer() = default;

  virtual int port() const = 0;
  /// Cancels what is open after `deadline` and waits for it.
  virtual void Stop(Duration deadline) = 0;
};

}  // namespace weir
