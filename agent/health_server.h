// SPDX-License-Identifier: Apache-2.0
#pragma once
// grpc.health.v1.Health on a separate port, for the probes of an orchestrator. It is plain text and
// has no other service, because such probes show no certificates.

#include <atomic>
#include <memory>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

/// The agent answers SERVING, with or without a controller, while its thread calls Beat at least
/// this often.
inline constexpr Duration kHealthBeatMax = std::chrono::seconds(15);

/// Thread-safe. A separate thread checks the beats.
class HealthServer {
 public:
  /// `address`: HOST:PORT, port 0: any. kUnavailable: the address is in use. `clock` must outlive
  /// the server. `beat_max`: the time without a beat after which it answers NOT_SERVING.
  static StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& address,
                                                       const Clock& clock,
                                                       Duration beat_max = kHealthBeatMax);
  virtual ~HealthServer() = default;
  virtual int port() const = 0;
  /// To be called regularly by the thread that is supervised.
  virtual void Beat() = 0;
};

}  // namespace weir::agent
