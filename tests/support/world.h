#pragma once
// Worlds of threads: every rank of a job in one process, so that tests of collectives and sessions
// need neither processes nor ports.

#include <functional>
#include <memory>
#include <vector>

#include "datapath/transport/transport.h"

namespace weir::testing {

/// Now plus `seconds`: every wait of a test has a bound.
TimePoint Within(double seconds);

/// Calls body(rank) for ranks 0..world-1, each on its own thread, and joins them all.
void RunRanks(int world, const std::function<void(int rank)>& body);

/// Creates and connects a whole world; entry r is rank r. `options` gives what ranks share; its
/// rank and world are overwritten. The first error of any rank, or all transports.
StatusOr<std::vector<std::unique_ptr<Transport>>> ConnectWorld(const TransportFactory& factory,
                                                               int world,
                                                               TransportOptions options = {},
                                                               double timeout_s = 20);

}  // namespace weir::testing
