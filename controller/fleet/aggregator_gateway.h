// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections to aggregators: each is asked for its state every few seconds, and requests for
// leases and their ends are carried. No decision waits for an aggregator.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/fleet/aggregator_api.h"
#include "datapath/base/clock.h"
#include "deploy/program/name_lookup.h"

namespace weir {

/// The part of a gateway that decisions use: it takes and ends leases.
class LeaseGateway {
 public:
  virtual ~LeaseGateway() = default;
  /// The answer comes later, exactly once. Returns false if too many requests wait already; then no
  /// answer comes.
  virtual bool Ask(const LeaseAsk& ask) = 0;
  /// Ends a job's lease of that epoch; failures are logged, and the aggregator ends it in time.
  virtual void End(const std::string& aggregator, const std::string& job, uint32_t epoch) = 0;
};

struct GatewayOptions {
  std::vector<AggregatorAddress> aggregators;  // at most kAggregatorsMax, of different names
  std::string token;                           // bearer token of all; empty: none
  std::string ca_file;  // PEM, for https, read again when it changes; empty: the system's
  /// The secret from which the owner of each lease is derived, a different one for each aggregator
  /// and job. A controller with the secret of an earlier one owns its leases. Empty: a new secret
  /// is made.
  std::string owner_secret;
  Duration poll_interval = std::chrono::seconds(2);
  Duration connect_timeout = std::chrono::seconds(1);
  Duration answer_timeout = std::chrono::seconds(2);  // without any byte of an answer
  Duration call_timeout = std::chrono::seconds(5);    // of a whole answer
  StartLookup start_lookup = StartSystemLookup;       // bounded by connect_timeout
};

constexpr size_t kAggregatorsMax = 16;

/// Called on the gateway's threads. Events of one aggregator come in the order in which they
/// happened.
struct GatewayEvents {
  /// Called with each answer of an aggregator. If it cannot be reached, only name, url and error
  /// are set.
  std::function<void(AggregatorReport)> state;
  std::function<void(const LeaseAsk&, StatusOr<SlotGrant>)> answer;
};

/// One thread and at most 64 waiting calls for each aggregator; answers of at most 8 MiB. The
/// destructor returns within a connect_timeout and a call_timeout and does not end leases, so that
/// ranks keep them. kInvalidArgument: too many aggregators, a name twice, or a CA file that cannot
/// be read.
StatusOr<std::unique_ptr<LeaseGateway>> StartHttpGateway(GatewayOptions options,
                                                         GatewayEvents events);

}  // namespace weir
