// SPDX-License-Identifier: Apache-2.0
// The cost of summing packets: the state machine alone, and the software aggregator with its
// sockets, fed over loopback by workers that only send and count.
//
//   aggregation_bench [--protocol all|NAME] [--seconds S] [--workers 2,4,8,16] [--loss 0,0.01]
//                     [--slots N]
//
// The number of packets in flight is the same for any number of workers (944), unless --slots sets
// it per worker: the rates of all workers and the time around add up to it, and few workers with
// few packets each would measure how long threads sleep.
//
// JSON lines: goodput_gbps is the payload of packets that entered sums, per second of the clock (of
// the thread's processor time for the state machine alone). gbps_per_core is the same per second of
// the shard's processor time, which includes the kernel's work in the shard's calls (on loopback
// also the workers' receiving side).

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/io/server.h"
#include "datapath/base/check.h"
#include "tests/bench/aggregation/simulated_workers.h"

namespace weir::aggregation {
namespace {

struct BenchOptions {
  std::string protocol = "all";
  double seconds = 1;
  std::vector<double> workers = {2, 4, 8, 16};
  std::vector<double> loss = {0, 0.001, 0.01, 0.05};
  int slots = 0;  // of a lease; 0: kInFlight packets of all workers are in flight
};

// 16 times 59 packets of 256 lanes, which a kernel takes as one message.
constexpr int kInFlight = 944;

int SlotsOf(int workers, const BenchOptions& options) {
  return options.slots > 0 ? options.slots : std::clamp(kInFlight / workers, 1, 512);
}

struct NullSink : ReplySink {
  uint64_t replies = 0;
  void Send(SourceAddress, std::span<const std::byte>) override { ++replies; }
  void SendToAll(std::span<const SourceAddress>, std::span<const std::byte>) override { ++replies; }
};

void Print(nlohmann::ordered_json row) {
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

/// Fields that a plane does not fill in stay null: only collective_bench compares its sums with
/// rings.
nlohmann::ordered_json Row(const char* plane, const Protocol& protocol, int workers, double loss) {
  return {{"plane", plane},           {"protocol", protocol.name},
          {"workers", workers},       {"loss", loss},
          {"elements", nullptr},      {"goodput_gbps", nullptr},
          {"ns_per_packet", nullptr}, {"over_ring", nullptr},
          {"over_gloo", nullptr}};
}

// ---- the state machine alone

Duration ThreadCpuTime() {
  timespec used = {};
  WEIR_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

void MeasureStateMachine(const Protocol& protocol, int workers, const BenchOptions& options) {
  // The first two rounds are not timed, because the first use of a set allocates memory. A pass has
  // about as many packets for any number of workers, and they fit into a second-level cache.
  constexpr uint32_t kWarmRounds = 2;
  constexpr int kSlots = 8;
  const uint32_t rounds = kWarmRounds + std::max(1u, 64u / static_cast<uint32_t>(workers));
  const Lease lease = MakeLease(protocol, workers, kSlots, true);
  std::vector<SlotPacket> packets;
  std::vector<SourceAddress> sources;
  for (int w = 0; w < workers; ++w) sources.push_back(1000 + static_cast<SourceAddress>(w));
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint16_t slot = 0; slot < kSlots; ++slot) {
      for (int w = 0; w < workers; ++w) {
        packets.emplace_back(lease, slot, packets.size());
        packets.back().SetRound(round);
      }
    }
  }
  NullSink sink;
  Duration spent = {};
  uint64_t count = 0, passes = 0;
  while (ToSeconds(spent) < options.seconds) {
    Aggregator aggregator({.exact_floats = protocol.exact_floats});
    WEIR_CHECK(aggregator.Grant(lease, sources).ok());
    const size_t warm = packets.size() / rounds * kWarmRounds;
    Duration start = {};
    for (size_t i = 0; i < packets.size(); ++i) {
      if (i == warm) start = ThreadCpuTime();
      aggregator.OnPacket(sources[i % sources.size()], packets[i].bytes, TimePoint{}, &sink);
    }
    spent += ThreadCpuTime() - start;
    count += packets.size() - warm;
    ++passes;
    WEIR_CHECK(aggregator.counters().completed == rounds * kSlots);
  }
  const double bits = static_cast<double>(count * packets[0].payload_bytes() * 8);
  auto row = Row("state_machine", protocol, workers, 0);
  row["elements"] =
      passes * (rounds - kWarmRounds) * kSlots * lease.lanes * std::max<uint8_t>(lease.columns, 1);
  row["goodput_gbps"] = bits / ToSeconds(spent) * 1e-9;
  row["ns_per_packet"] = ToSeconds(spent) * 1e9 / static_cast<double>(count);
  Print(row);
}

// ---- with sockets

ShardCounters CountersOf(AggregatorServer* server) {
  const auto shards = server->Shards();
  WEIR_CHECK(shards.ok());
  return shards->front().counters;
}

void MeasureSoftware(const Protocol& protocol, int workers, double loss,
                     const BenchOptions& options) {
  const auto server =
      AggregatorServer::Start({.limits = {.exact_floats = protocol.exact_floats}, .drop = loss});
  WEIR_CHECK(server.ok());
  SimulatedWorkers senders(workers);
  const auto grant =
      (*server)->Grant({.job = "bench",
                        .terms = MakeLease(protocol, workers, SlotsOf(workers, options), true),
                        .workers = senders.addresses()});
  WEIR_CHECK(grant.ok());
  senders.Attach(*grant);
  senders.RunUntil(RealClock().Now() + std::chrono::milliseconds(100));  // warm
  const ShardCounters before = CountersOf(server->get());
  const TimePoint start = RealClock().Now();
  senders.RunUntil(start + FromSeconds(options.seconds));
  const double seconds = ToSeconds(RealClock().Now() - start);
  const ShardCounters after = CountersOf(server->get());
  const SlotPacket example(grant->lease, 0, 0);
  const auto summed = static_cast<double>(after.packets.added + after.packets.completed -
                                          before.packets.added - before.packets.completed);
  const double cpu_s = ToSeconds(after.cpu_time - before.cpu_time);
  const double bits = summed * static_cast<double>(example.payload_bytes()) * 8;
  auto row = Row("software", protocol, workers, loss);
  row["elements"] = (after.packets.completed - before.packets.completed) * grant->lease.lanes *
                    std::max<uint8_t>(grant->lease.columns, 1);
  row["goodput_gbps"] = bits / seconds * 1e-9;
  row["ns_per_packet"] =
      cpu_s * 1e9 / static_cast<double>(after.port.received - before.port.received);
  row["slots"] = grant->lease.slots;
  row["gbps_per_core"] = bits / cpu_s * 1e-9;
  row["shard_busy"] = cpu_s / seconds;
  row["repeated"] = after.packets.duplicate + after.packets.served - before.packets.duplicate -
                    before.packets.served;
  row["unsent"] = after.port.unsent - before.port.unsent;
  Print(row);
}

/// Whether such a job can get a lease: 16 levels of up to 15, times the workers, must fit into
/// eight bits.
bool FitsJob(const Protocol& protocol, double workers) {
  return protocol.mode != PacketMode::kTable || workers <= 17;
}

// ---- flags

std::vector<double> Numbers(const char* text) {
  std::vector<double> all;
  char* end = nullptr;
  for (const char* at = text;; at = end + 1) {
    all.push_back(std::strtod(at, &end));
    if (end == at || (*end != '\0' && *end != ',')) return {};
    if (*end == '\0') return all;
  }
}

bool ParseFlags(int argc, char** argv, BenchOptions* options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--protocol" && i + 1 < argc) {
      options->protocol = argv[i + 1];
      const auto named = [&](const Protocol& one) { return one.name == options->protocol; };
      if (options->protocol != "all" &&
          std::none_of(std::begin(kProtocols), std::end(kProtocols), named)) {
        return false;
      }
      continue;
    }
    const std::vector<double> values = i + 1 < argc ? Numbers(argv[i + 1]) : std::vector<double>();
    if (values.empty()) return false;
    if (flag == "--seconds") {
      options->seconds = values[0];
    } else if (flag == "--workers") {
      options->workers = values;
    } else if (flag == "--loss") {
      options->loss = values;
    } else if (flag == "--slots") {
      options->slots = static_cast<int>(values[0]);
    } else {
      return false;
    }
  }
  const auto [least, most] = std::minmax_element(options->workers.begin(), options->workers.end());
  return *least >= 1 && *most <= static_cast<double>(kWorkersMax) && options->slots >= 0 &&
         options->slots <= 512;
}

int Main(int argc, char** argv) {
  BenchOptions options;
  if (!ParseFlags(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: aggregation_bench [--protocol "
                 "all|switchml|omnireduce|thc|fpisa|fpisa_approximate] [--seconds S] "
                 "[--workers 2,4,8,16] [--loss 0,0.01] [--slots 1..512]\n");
    return 2;
  }
  const auto wanted = [&](const Protocol& protocol, double workers) {
    return (options.protocol == "all" || options.protocol == protocol.name) &&
           FitsJob(protocol, workers);
  };
  for (const double workers : options.workers) {
    for (const Protocol& protocol : kProtocols) {
      if (wanted(protocol, workers)) {
        MeasureStateMachine(protocol, static_cast<int>(workers), options);
      }
    }
  }
  for (const Protocol& protocol : kProtocols) {
    // The next packet of a sparse stream depends on replies, which simulated workers do not read.
    if (protocol.mode == PacketMode::kSparse) continue;
    for (const double workers : options.workers) {
      for (const double loss : options.loss) {
        if (wanted(protocol, workers)) {
          MeasureSoftware(protocol, static_cast<int>(workers), loss, options);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace weir::aggregation

int main(int argc, char** argv) { return weir::aggregation::Main(argc, argv); }
