#pragma once
// grpc.health.v1.Health on a port of its own, for probes of an orchestrator. Plain text and without
// any other service: such probes show no certificates.

#include <atomic>
#include <memory>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

/// The agent answers SERVING, with or without a controller, while its thread beats.
inline constexpr Duration kHealthBeatMax = std::chrono::seconds(15);

/// Thread-safe. A thread of its own looks at the beats.
class HealthServer {
 public:
  /// `address`: HOST:PORT, port 0: any. kUnavailable: the address is taken. `clock` outlives the
  /// server. `beat_max`: silence after which it answers NOT_SERVING.
  static StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& address,
                                                       const Clock& clock,
                                                       Duration beat_max = kHealthBeatMax);
  virtual ~HealthServer() = default;
  virtual int port() const = 0;
  /// Says that who calls it is alive.
  virtual void Beat() = 0;
};

}  // namespace weir::agent
