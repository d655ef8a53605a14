#include "tests/support/world.h"

#include <thread>

namespace weir::testing {

TimePoint Within(double seconds) { return RealClock().Now() + FromSeconds(seconds); }

void RunRanks(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

StatusOr<std::vector<std::unique_ptr<Transport>>> ConnectWorld(const TransportFactory& factory,
                                                               int world, TransportOptions options,
                                                               double timeout_s) {
  options.world = world;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<TransportAddress> addresses;
  for (int rank = 0; rank < world; ++rank) {
    options.rank = rank;
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, factory.Create(options));
    addresses.push_back(transport->address());
    transports.push_back(std::move(transport));
  }
  std::vector<Status> statuses(world);
  RunRanks(world, [&](int rank) {
    statuses[rank] = transports[rank]->Connect(addresses, Within(timeout_s));
  });
  for (const Status& status : statuses) WEIR_RETURN_IF_ERROR(status);
  return transports;
}

}  // namespace weir::testing
