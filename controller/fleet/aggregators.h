// SPDX-License-Identifier: Apache-2.0
#pragma once
// Aggregators as resources of the fleet: their newest reports, and the jobs' calls to them.

#include <vector>

#include "controller/fleet/aggregator_gateway.h"
#include "datapath/base/clock.h"

namespace weir {

/// Not thread-safe.
class Aggregators {
 public:
  explicit Aggregators(const Clock& clock) : clock_(clock) {}

  /// To be called before the first decision. `gateway` outlives the last call, but not this.
  void Use(const std::vector<AggregatorAddress>& aggregators, LeaseGateway* gateway);
  /// Takes the gateway's reports in the order in which it gave them.
  void OnReport(AggregatorReport said);

  /// As LeaseGateway; without a gateway, nothing is asked.
  bool Ask(const LeaseAsk& ask) const { return gateway_ != nullptr && gateway_->Ask(ask); }
  void End(const std::string& aggregator, const std::string& job, uint32_t epoch) const {
    if (gateway_ != nullptr) gateway_->End(aggregator, job, epoch);
  }
  const AggregatorMap& all() const { return aggregators_; }

 private:
  const Clock& clock_;
  AggregatorMap aggregators_;
  LeaseGateway* gateway_ = nullptr;  // null: no aggregators
};

}  // namespace weir
