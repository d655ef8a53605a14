#pragma once
// What drives a worker's state machine over UDP: sockets and time come from here, the protocol from
// there.

#include <memory>

#include "datapath/aggregation/io/udp_port.h"
#include "datapath/aggregation/worker.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// The socket of one worker of one job. A lease is granted to its address, so it comes first. Not
/// thread-safe.
class WorkerPort {
 public:
  /// As UdpPort::Bind. The address that the aggregator sees must be the one bound, so `listen`
  /// names an interface, not 0.0.0.0.
  static StatusOr<std::unique_ptr<WorkerPort>> Bind(const UdpPortOptions& options);

  SourceAddress address() const { return port_->address(); }

  /// Runs the operation that the worker (any of this directory's) has begun until it is done, which
  /// its deadline bounds. The errors are the worker's, with the aggregator's address in front and
  /// whether its host says that nobody listens there; kUnavailable: no route to the aggregator.
  Status Run(SourceAddress aggregator, Worker* worker);

  const UdpPortCounters& counters() const { return port_->counters(); }

 private:
  explicit WorkerPort(std::unique_ptr<UdpPort> port) : port_(std::move(port)) {}

  std::unique_ptr<UdpPort> port_;
  SourceAddress aggregator_ = 0;
};

}  // namespace weir::aggregation
