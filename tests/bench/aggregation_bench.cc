// SPDX-License-Identifier: Apache-2.0
// The cost of summing packets: the state machine alone, and the software aggregator with its
// sockets, fed over loopback by workers that only send and count.
//
//   aggregation_bench [--plane all|xdp|veth] [--protocol all|NAME] [--seconds S]
//                     [--workers 2,4,8,16] [--loss 0,0.01] [--slots N]
//
// The number of packets in flight is the same for any number of workers (944, or 128 with plane
// veth), unless --slots sets it per worker: the rates of all workers and the time around add up to
// it, and few workers with few packets each would measure how long threads sleep.
//
// Plane xdp: the time of the kernel's program (modes sum and table, no checksums), on frames and
// without an interface, beside the two other planes with the same work; needs root.
//
// Plane veth: user space and the kernel's program on the same network, a pair of virtual interfaces
// between two namespaces, for the same packets, each of one frame; needs root. ns_per_packet is
// then the processor time of the aggregator's own threads and its program, and
// process_ns_per_packet that of all threads. The latter includes the workers and the network stack
// on both sides, because the program, and the receiving half of the stack in front of a socket,
// run inside the workers' calls.
//
// JSON lines: goodput_gbps is the payload of packets that entered sums, per second of the clock (of
// the thread's processor time for the state machine alone). gbps_per_core is the same per second of
// the shard's processor time, which includes the kernel's work in the shard's calls (on loopback
// also the workers' receiving side).

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/io/server.h"
#include "datapath/base/check.h"
#include "tests/bench/aggregation/simulated_workers.h"

#ifdef WEIR_XDP
#include <linux/bpf.h>

#include "datapath/aggregation/xdp/xdp_offload.h"
#include "tests/datapath/aggregation/xdp/frame.h"
#endif

namespace weir::aggregation {
namespace {

struct BenchOptions {
  bool xdp = false;
  bool veth = false;
  std::string protocol = "all";
  double seconds = 1;
  std::vector<double> workers = {2, 4, 8, 16};
  std::vector<double> loss = {0, 0.001, 0.01, 0.05};
  int slots = 0;  // of a lease; 0: kInFlight packets of all workers are in flight
};

// 16 times 59 packets of 256 lanes, which a kernel takes as one message.
constexpr int kInFlight = 944;

// For virtual interfaces with a program, which queue 256 frames and drop the others.
constexpr int kInFlightVeth = 128;

int SlotsOf(int workers, const BenchOptions& options) {
  const int in_flight = options.veth ? kInFlightVeth : kInFlight;
  return options.slots > 0 ? options.slots : std::clamp(in_flight / workers, 1, 512);
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
  const Lease lease = MakeLease(protocol, workers, kSlots, !options.xdp);
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

// ---- in the kernel

#ifdef WEIR_XDP
/// Does the same as MeasureStateMachine, packet by packet; the kernel reports the time of each.
bool MeasureKernel(const Protocol& protocol, int workers, const BenchOptions& options) {
  constexpr int kSlots = 16;
  auto loaded = XdpPlane::Load({});
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", Message(loaded.status()).c_str());
    return false;
  }
  XdpPlane& plane = **loaded;
  const Lease lease = MakeLease(protocol, workers, kSlots, false);
  std::vector<SourceAddress> sources;
  for (int w = 0; w < workers; ++w) sources.push_back(1000 + static_cast<SourceAddress>(w));
  WEIR_CHECK(plane.Grant(lease, sources, kKernelAddress).ok());
  std::vector<SlotPacket> packets;
  for (int i = 0; i < kSlots * workers; ++i) {
    packets.emplace_back(lease, static_cast<uint16_t>(i / workers), static_cast<uint64_t>(i));
  }
  NullSink sink;
  Duration spent = {}, replies = {};
  uint64_t count = 0;
  const TimePoint start = RealClock().Now();
  for (uint32_t round = 0; ToSeconds(RealClock().Now() - start) < options.seconds; ++round) {
    for (size_t i = 0; i < packets.size(); ++i) {
      packets[i].SetRound(round);
      const SourceAddress source = sources[i % sources.size()];
      const auto run = plane.RunForTest(FrameOf(source, kKernelAddress, packets[i].bytes));
      WEIR_CHECK(run.ok());
      spent += run->time;
      ++count;
    }
    const TimePoint before = RealClock().Now();
    plane.SendReplies(&sink);
    replies += RealClock().Now() - before;
  }
  const auto counters = plane.Counters();
  WEIR_CHECK(counters.ok() && counters->packets.completed * sources.size() == count);
  const double bits = static_cast<double>(count * packets[0].payload_bytes() * 8);
  auto row = Row("xdp", protocol, workers, 0);
  row["elements"] = counters->packets.completed * lease.lanes;
  row["goodput_gbps"] = bits / ToSeconds(spent) * 1e-9;
  row["ns_per_packet"] = ToSeconds(spent) * 1e9 / static_cast<double>(count);
  // The work of the loading program for workers whose frame did not complete the round, without the
  // sending.
  row["reply_ns_per_packet"] = ToSeconds(replies) * 1e9 / static_cast<double>(count);
  Print(row);
  return true;
}
#else
bool MeasureKernel(const Protocol&, int, const BenchOptions&) {
  std::fprintf(stderr, "this build has no aggregator in the kernel\n");
  return false;
}
#endif

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
  const auto grant = (*server)->Grant(
      {.job = "bench",
       .terms = MakeLease(protocol, workers, SlotsOf(workers, options), !options.xdp),
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

#ifdef WEIR_XDP
// ---- over a pair of virtual interfaces

double ProcessorSeconds(int who) {
  rusage used = {};
  WEIR_CHECK(getrusage(who, &used) == 0);
  const auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Nanoseconds spent in the program that this process loaded last, as the kernel counts them.
double ProgramNanoseconds() {
  long newest = -1;
  double found = 0;
  for (int fd = 0; fd < 256; ++fd) {
    std::ifstream info(StrCat("/proc/self/fdinfo/", fd));
    long id = -1;
    double run_ns = 0;
    std::string key;
    for (double value = 0; info >> key;) {
      if (key == "prog_id:" && info >> value) id = static_cast<long>(value);
      if (key == "run_time_ns:" && info >> value) run_ns = value;
    }
    if (id > newest) {
      newest = id;
      found = run_ns;
    }
  }
  return found;
}

bool Shell(const std::string& commands) { return std::system(commands.c_str()) == 0; }

/// Packets that entered sums, on either plane.
double Summed(AggregatorServer* server, bool kernel) {
  AggregatorCounters packets = CountersOf(server).packets;
  if (kernel) {
    const auto offload = server->Offload();
    WEIR_CHECK(offload.ok() && offload->has_value());
    packets = (*offload)->counters.packets;
  }
  return static_cast<double>(packets.added + packets.completed);
}

/// Runs in a thread that has its own namespace; `senders` are in the other one.
void MeasureVeth(const Protocol& protocol, bool kernel, SimulatedWorkers* senders,
                 const BenchOptions& options) {
  const auto server = AggregatorServer::Start({.listen = "10.78.0.1"});
  WEIR_CHECK(server.ok());
  if (kernel) {
    auto offload = XdpOffload::Start(
        {.interfaces = {"near0"}, .mode = XdpAttachMode::kNative, .socket = (*server)->socket()});
    WEIR_CHECK(offload.ok());
    (*server)->UseOffload(std::move(*offload));
  }
  const int workers = static_cast<int>(senders->addresses().size());
  const auto grant =
      (*server)->Grant({.job = "bench",
                        .terms = MakeLease(protocol, workers, SlotsOf(workers, options), false),
                        .workers = senders->addresses()});
  WEIR_CHECK(grant.ok() && grant->offloaded == kernel);
  senders->Attach(*grant);
  senders->RunUntil(RealClock().Now() + std::chrono::milliseconds(100));  // warm
  const double summed_before = Summed(server->get(), kernel);
  const double program_before = kernel ? ProgramNanoseconds() : 0;
  const double all_before = ProcessorSeconds(RUSAGE_SELF);
  const double own_before = ProcessorSeconds(RUSAGE_THREAD);
  const TimePoint start = RealClock().Now();
  senders->RunUntil(start + FromSeconds(options.seconds));
  const double seconds = ToSeconds(RealClock().Now() - start);
  const double senders_s = ProcessorSeconds(RUSAGE_THREAD) - own_before;
  const double all_s = ProcessorSeconds(RUSAGE_SELF) - all_before;
  const double program_s = kernel ? (ProgramNanoseconds() - program_before) * 1e-9 : 0;
  const double packets = Summed(server->get(), kernel) - summed_before;
  const SlotPacket example(grant->lease, 0, 0);
  auto row = Row(kernel ? "xdp_veth" : "software_veth", protocol, workers, 0);
  row["elements"] = packets / workers * grant->lease.lanes;
  row["goodput_gbps"] = packets * static_cast<double>(example.payload_bytes()) * 8e-9 / seconds;
  row["ns_per_packet"] = (all_s - senders_s + program_s) * 1e9 / packets;
  row["program_ns_per_packet"] =
      kernel ? nlohmann::ordered_json(program_s * 1e9 / packets) : nullptr;
  row["process_ns_per_packet"] = all_s * 1e9 / packets;
  Print(row);
}

/// One plane, in two namespaces that end with their threads and sockets.
void MeasureInNamespaces(const Protocol& protocol, int workers, bool kernel,
                         const BenchOptions& options) {
  std::latch born(1), wired(1), bound(1), done(1);
  pid_t far = 0;
  std::unique_ptr<SimulatedWorkers> senders;
  std::unique_ptr<XdpPlane> passes;
  std::thread peer([&] {
    WEIR_CHECK(unshare(CLONE_NEWNET) == 0);
    far = gettid();
    born.count_down();
    wired.wait();
    WEIR_CHECK(Shell("ip addr add 10.78.0.2/24 dev far0 && ip link set far0 up"));
    // A driver accepts sent frames only if the other end has a program, too. That costs time for
    // every received frame, so user space gets such a program as well.
    auto plane = XdpPlane::Load({.limits = {.slots = 64, .slots_per_job = 64, .leases = 4}});
    WEIR_CHECK(plane.ok() && (*plane)->Attach("far0", XdpAttachMode::kNative).ok());
    passes = std::move(*plane);
    senders = std::make_unique<SimulatedWorkers>(
        workers, UdpPortOptions{.listen = "10.78.0.2:0", .rows = false});
    bound.count_down();
    done.wait();
  });
  std::thread aggregator([&] {
    WEIR_CHECK(unshare(CLONE_NEWNET) == 0);
    born.wait();
    WEIR_CHECK(Shell(StrCat("ip link add near0 type veth peer name far0 netns ", far,
                            " && ip addr add 10.78.0.1/24 dev near0 && ip link set near0 up")));
    wired.count_down();
    bound.wait();
    MeasureVeth(protocol, kernel, senders.get(), options);
    done.count_down();
  });
  peer.join();
  aggregator.join();
}

bool MeasureBothOverVeth(const BenchOptions& options) {
  if (geteuid() != 0) {
    std::fprintf(stderr, "plane veth needs root\n");
    return false;
  }
  bpf_attr wanted = {};
  wanted.enable_stats.type = BPF_STATS_RUN_TIME;
  const mesh::UniqueFd stats(
      static_cast<int>(syscall(__NR_bpf, BPF_ENABLE_STATS, &wanted, sizeof wanted)));
  if (!stats) {
    std::fprintf(stderr, "the kernel does not say how long its programs run\n");
    return false;
  }
  for (const double workers : options.workers) {
    for (const bool kernel : {false, true}) {
      MeasureInNamespaces(kProtocols[0], static_cast<int>(workers), kernel, options);
    }
  }
  return true;
}
#else
bool MeasureBothOverVeth(const BenchOptions&) {
  std::fprintf(stderr, "this build has no aggregator in the kernel\n");
  return false;
}
#endif

/// Whether such a job can get a lease: 16 levels of up to 15, times the workers, must fit into
/// eight bits.
bool FitsJob(const Protocol& protocol, double workers) {
  return protocol.mode != PacketMode::kTable || workers <= 17;
}

int MeasureBesideKernel(const BenchOptions& options) {
  for (const double count : options.workers) {
    const int workers = static_cast<int>(count);
    for (const Protocol& protocol : {kProtocols[0], kProtocols[2]}) {
      if (!FitsJob(protocol, workers)) continue;
      if (!MeasureKernel(protocol, workers, options)) return 1;
      MeasureStateMachine(protocol, workers, options);
      MeasureSoftware(protocol, workers, 0, options);
    }
  }
  return 0;
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
    if (flag == "--plane" && i + 1 < argc) {
      options->xdp = std::string(argv[i + 1]) == "xdp";
      options->veth = std::string(argv[i + 1]) == "veth";
      if (!options->xdp && !options->veth && std::string(argv[i + 1]) != "all") return false;
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
                 "usage: aggregation_bench [--plane all|xdp|veth] [--protocol "
                 "all|switchml|omnireduce|thc|fpisa|fpisa_approximate] [--seconds S] "
                 "[--workers 2,4,8,16] [--loss 0,0.01] [--slots 1..512]\n");
    return 2;
  }
  if (options.veth) return MeasureBothOverVeth(options) ? 0 : 1;
  if (options.xdp) return MeasureBesideKernel(options);
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
