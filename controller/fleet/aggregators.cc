// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/aggregators.h"

#include "datapath/base/log.h"

namespace weir {

void Aggregators::Use(const std::vector<AggregatorAddress>& aggregators, LeaseGateway* gateway) {
  gateway_ = gateway;
  for (const AggregatorAddress& address : aggregators) {
    AggregatorState& state = aggregators_[address.name];
    state.said.name = address.name;
    state.said.url = address.url;
    state.said.error = "not asked yet";
    state.said.since_unix_s = clock_.UnixSeconds();
    state.since = clock_.Now();
  }
}

void Aggregators::OnReport(AggregatorReport said) {
  const auto found = aggregators_.find(said.name);
  if (found == aggregators_.end()) return;
  AggregatorState& state = found->second;
  const bool answered_before = state.answered_at != TimePoint{};
  const bool changed = said.reachable != state.said.reachable;
  const bool first_failure = !said.reachable && !answered_before && said.error != state.said.error;
  if (!said.reachable) {
    // The last good report is kept: it still informs people, above all where a job runs on the
    // aggregator.
    AggregatorReport before = state.said;
    before.reachable = false;
    before.error = said.error;
    said = std::move(before);
  } else {
    said.since_unix_s = state.said.since_unix_s;
    said.answered_unix_s = clock_.UnixSeconds();
    state.answered_at = clock_.Now();
  }
  if (changed) {
    said.since_unix_s = clock_.UnixSeconds();
    state.since = clock_.Now();
  }
  if (changed || first_failure) {
    Log(said.reachable ? LogLevel::kInfo : LogLevel::kWarning, "controller",
        said.reachable ? StrCat("aggregator ", said.name, " answers: ", said.slots_free, " of ",
                                said.slots, " slots free")
                       : StrCat("aggregator ", said.name, " does not answer: ", said.error));
  }
  state.said = std::move(said);
}

}  // namespace weir
