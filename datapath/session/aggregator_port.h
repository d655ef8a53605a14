// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's connection to aggregators: one UDP port, whose address the rank reports so that leases
// are granted to it, and the state of each lease, which the rank keeps from plan to plan.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "datapath/aggregation/io/worker_port.h"
#include "datapath/collective/offload.h"
#include "datapath/plan/plan.h"
#include "datapath/transport/transport.h"

namespace weir {

/// From Bind on, `address` is thread-safe; everything else belongs to the network thread.
class AggregatorPort {
 public:
  struct Options {
    int rank = 0;
    int world = 1;
    /// Called from the network thread, with the aggregator's name and the reason, once for each
    /// lease that is abandoned because this rank failed. If several ranks failed, only the lowest
    /// of them calls it.
    std::function<void(const std::string& detail)> failed;
  };
  explicit AggregatorPort(Options options);
  ~AggregatorPort();
  AggregatorPort(const AggregatorPort&) = delete;
  AggregatorPort& operator=(const AggregatorPort&) = delete;

  /// Binds a UDP port at the address where the transport listens. It has the transport's port
  /// number if that is free, so that people recognize it, and any other number if not. If no port
  /// can be bound (no IPv4 address), every lease is abandoned at its first use, with the reason.
  void Bind(const TransportAddress& datapath);

  /// The address at which aggregators reach this rank: "10.0.0.7:40000"; empty: it has no port.
  const std::string& address() const { return address_; }

  /// The offload for operations of `plan` under this collective; null when the plan has no lease
  /// for the collective. A lease that was used before keeps its state; a new lease starts afresh.
  LaneOffload* OffloadOf(const Plan& plan, const std::string& collective);

  /// Abandons all leases of `plan`, because they were granted to other ranks or addresses.
  void Disown(const Plan& plan);

 private:
  class LeasedOffload;

  LeasedOffload& Take(const AggregatorLease& lease);

  const Options options_;
  Status missing_;  // why there is no port
  std::unique_ptr<aggregation::WorkerPort> port_;
  std::string address_;
  std::map<std::string, std::unique_ptr<LeasedOffload>> offloads_;  // by collective
};

}  // namespace weir
