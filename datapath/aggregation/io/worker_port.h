// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a worker's state machine over UDP. This file provides sockets and time; the state machine
// knows the protocol.

#include <memory>

#include "datapath/aggregation/io/udp_port.h"
#include "datapath/aggregation/worker.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// The socket of one worker of one job. It must exist before the lease, which is granted to its
/// address. Not thread-safe.
class WorkerPort {
 public:
  /// As UdpPort::Bind. The address that the aggregator sees must be the one bound, so `listen`
  /// names an interface, not 0.0.0.0.
  static StatusOr<std::unique_ptr<WorkerPort>> Bind(const UdpPortOptions& options);

  SourceAddress address() const { return port_->address(); }

  /// Runs the operation that the worker has begun until it is done, at the latest at its deadline.
  /// The errors are the worker's, prefixed by the aggregator's address, with a remark where its
  /// host reports that no socket listens there. kUnavailable: there is no route to the aggregator.
  ///
  /// Packets leave in rows that the interface segments. A switch in software takes such a row from
  /// a virtual interface as one frame, which it refuses. So an operation to which nothing was
  /// answered goes on with single packets from the third time-out. After three such operations in a
  /// row the port sends single packets for good, and a warning names the interface's offload.
  Status Run(SourceAddress aggregator, Worker* worker);

  const UdpPortCounters& counters() const { return port_->counters(); }

 private:
  explicit WorkerPort(std::unique_ptr<UdpPort> port) : port_(std::move(port)) {}

  void JudgeRows(bool answered_without_rows);

  std::unique_ptr<UdpPort> port_;
  SourceAddress aggregator_ = 0;
  int without_rows_ = 0;  // consecutive operations that were answered only without rows
};

}  // namespace weir::aggregation
