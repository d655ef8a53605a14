// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections to aggregators: asks each for its state every few seconds, and carries asks for
// leases and their ends. Nobody who decides waits for any of it.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/service/aggregator_api.h"
#include "controller/service/name_lookup.h"
#include "datapath/base/clock.h"

namespace weir {

/// The part of a gateway that decisions use: it takes and ends leases.
class LeaseGateway {
 public:
  virtual ~LeaseGateway() = default;
  /// The answer comes later, once. False: too many wait already, and none will come.
  virtual bool Ask(const LeaseAsk& ask) = 0;
  /// Ends a job's lease of that epoch; failures are logged, and the aggregator ends it in time.
  virtual void End(const std::string& aggregator, const std::string& job, uint32_t epoch) = 0;
};

struct GatewayOptions {
  std::vector<AggregatorAddress> aggregators;  // at most kAggregatorsMax, of different names
  std::string token;                           // bearer token of all; empty: none
  std::string ca_file;  // PEM, for https, read again when it changes; empty: the system's
  /// Secret from which the owner of each lease is derived, for each aggregator and job another; the
  /// leases that a former controller took are this one's if it had the same. Empty: a fresh one.
  std::string owner_secret;
  Duration poll_interval = std::chrono::seconds(2);
  Duration connect_timeout = std::chrono::seconds(1);
  Duration answer_timeout = std::chrono::seconds(2);  // of an answer without a sign of life
  Duration call_timeout = std::chrono::seconds(5);    // of a whole answer
  StartLookup start_lookup = StartSystemLookup;       // waited for as for a connection
};

constexpr size_t kAggregatorsMax = 16;

/// Called on the gateway's threads, for one aggregator in the order in which things happened.
struct GatewayEvents {
  /// Called with each answer of an aggregator. If it cannot be reached, only name, url and error
  /// are set.
  std::function<void(AggregatorReport)> state;
  std::function<void(const LeaseAsk&, StatusOr<SlotGrant>)> answer;
};

/// One thread and at most 64 waiting calls for each aggregator; answers of at most 8 MiB. Ends
/// within a connect_timeout and a call_timeout, without ending leases: ranks go on with them.
/// kInvalidArgument: too many aggregators, a name twice, or a CA file that cannot be read.
StatusOr<std::unique_ptr<LeaseGateway>> StartHttpGateway(GatewayOptions options,
                                                         GatewayEvents events);

}  // namespace weir
