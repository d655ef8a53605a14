// SPDX-License-Identifier: Apache-2.0
#pragma once
// Worlds of threads: every rank of a job in one process, so that tests of collectives and sessions
// need neither processes nor ports.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "datapath/transport/transport.h"

namespace weir::testing {

/// A deadline in seconds; a test that reaches it has failed.
inline constexpr double kPatience = 20;

/// The present plus `seconds`, so that every wait of a test has a bound.
TimePoint Within(double seconds);

/// `size` random bytes, equal for equal seeds.
std::vector<std::byte> Pattern(size_t size, uint64_t seed);

/// Calls body(rank) for ranks 0..world-1, each on its own thread, and joins them all.
void RunRanks(int world, const std::function<void(int rank)>& body);

/// The address at which `rank` listens: a port of 127.0.0.2 (its peers are at 127.0.0.1, so that
/// nobody can tell that both are one host), or, for transports that need a device, one of the hosts
/// that the environment variable WEIR_TEST_DEVICE_HOSTS lists ("10.0.0.1,10.0.0.2"), each rank the
/// next one.
TransportAddress ListenAddress(const TransportFactory& factory, int rank);

/// The reason why `factory` can make no transport here, for tests that have to be skipped: its
/// device is missing. Empty if it can, and if WEIR_TEST_DEVICE_HOSTS says that it must.
std::string MissingDevice(const TransportFactory& factory);

/// The transports of the build that can be made here, for suites over all of them. Those without
/// their device are left out; their own tests give the reason.
std::vector<const TransportFactory*> UsableFactories();

/// Creates and connects a whole world; entry r is rank r. `options` gives what ranks share; its
/// rank and world are overwritten, and the default of listen. The first error of any rank, or all
/// transports.
StatusOr<std::vector<std::unique_ptr<Transport>>> ConnectWorld(const TransportFactory& factory,
                                                               int world,
                                                               TransportOptions options = {},
                                                               double timeout_s = kPatience);

}  // namespace weir::testing
