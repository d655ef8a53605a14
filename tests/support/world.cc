// SPDX-License-Identifier: Apache-2.0
#include "tests/support/world.h"

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "datapath/base/random.h"

namespace weir::testing {

namespace {

std::vector<std::string> DeviceHosts() {
  std::vector<std::string> hosts;
  const char* const given = std::getenv("WEIR_TEST_DEVICE_HOSTS");
  std::istringstream list(given == nullptr ? "" : given);
  for (std::string host; std::getline(list, host, ',');) hosts.push_back(host);
  return hosts;
}

}  // namespace

std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Random random(seed);
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  for (; at < size; ++at) bytes[at] = static_cast<std::byte>(random.Next());
  return bytes;
}

TransportAddress ListenAddress(const TransportFactory& factory, int rank) {
  const std::vector<std::string> hosts = DeviceHosts();
  if (!factory.Traits().needs_device || hosts.empty()) return "127.0.0.2:0";
  return hosts[static_cast<size_t>(rank) % hosts.size()] + ":0";
}

std::string MissingDevice(const TransportFactory& factory) {
  if (!factory.Traits().needs_device || !DeviceHosts().empty()) return "";
  const Status status = factory.Create({}).status();
  if (status.code() != StatusCode::kUnavailable) return "";
  return Message(status) + "; WEIR_TEST_DEVICE_HOSTS names the addresses of devices";
}

std::vector<const TransportFactory*> UsableFactories() {
  std::vector<const TransportFactory*> factories = Transports().All();
  std::erase_if(factories,
                [](const TransportFactory* factory) { return !MissingDevice(*factory).empty(); });
  return factories;
}

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
  // Devices are not on loopback.
  if (factory.Traits().needs_device && !options.job_key.has_value()) options.unauthenticated = true;
  const bool anywhere = options.listen == TransportOptions().listen;
  for (int rank = 0; rank < world; ++rank) {
    options.rank = rank;
    if (anywhere) options.listen = ListenAddress(factory, rank);
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
