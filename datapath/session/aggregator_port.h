#pragma once
// A rank's way to aggregators: one UDP port, known to whoever grants leases, and what the rank
// keeps of each lease from plan to plan.

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
    /// Called once for each lease that is abandoned because of this rank (of several, the lowest),
    /// with the aggregator's name and the reason, from the network thread.
    std::function<void(const std::string& detail)> failed;
  };
  explicit AggregatorPort(Options options);
  ~AggregatorPort();
  AggregatorPort(const AggregatorPort&) = delete;
  AggregatorPort& operator=(const AggregatorPort&) = delete;

  /// Binds at the interface where the transport listens: at the same port number where UDP has it
  /// free, so that people can tell it, else at any. Where that fails (no IPv4 address) this rank
  /// stays without; every lease is then abandoned at its first use, with the reason.
  void Bind(const TransportAddress& datapath);

  /// Where aggregators reach this rank: "10.0.0.7:40000"; empty: it has no port.
  const std::string& address() const { return address_; }

  /// What an operation of `plan` under this collective uses; null when the plan has no lease for
  /// it. A lease that was used before goes on as it was left, another one begins.
  LaneOffload* OffloadOf(const Plan& plan, const std::string& collective);

  /// The leases of `plan` were granted to other ranks or addresses: none is ever tried.
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
