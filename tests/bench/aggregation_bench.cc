// What summing packets costs: the state machine alone, and the software aggregator with its
// sockets, fed over loopback by workers that only send and count.
//
//   aggregation_bench [--plane all|xdp] [--protocol all|NAME] [--seconds S] [--workers 2,4,8,16]
//                     [--loss 0,0.01] [--slots N]
//
// Plane xdp: what the kernel's program takes (modes sum and table, no checksums), on frames and
// without an interface, beside the other two doing the same; needs root.
//
// JSON lines: goodput_gbps is the payload of packets that entered sums, per second of the clock;
// gbps_per_core the same per second of the shard's processor time, to which what the kernel does
// inside the shard's calls counts (on loopback that includes the workers' receiving side).

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/io/server.h"
#include "datapath/base/check.h"
#include "datapath/base/random.h"

#ifdef WEIR_XDP
#include "datapath/aggregation/xdp/xdp_plane.h"
#include "tests/datapath/aggregation/xdp/frame.h"
#endif

namespace weir::aggregation {
namespace {

struct BenchOptions {
  bool xdp = false;
  std::string protocol = "all";
  double seconds = 1;
  std::vector<double> workers = {2, 4, 8, 16};
  std::vector<double> loss = {0, 0.001, 0.01, 0.05};
  int slots = 64;
};

struct Protocol {
  const char* name;
  PacketMode mode;
  uint16_t lanes;
  bool exact_floats = true;
};
constexpr Protocol kProtocols[] = {{"switchml", PacketMode::kSum, 256},
                                   {"omnireduce", PacketMode::kSparse, 64},
                                   {"thc", PacketMode::kTable, 1024},
                                   {"fpisa", PacketMode::kFloat, 256},
                                   {"fpisa_approximate", PacketMode::kFloat, 256, false}};

Lease MakeLease(const Protocol& protocol, int workers, int slots, bool checked) {
  Lease lease{.id = 1,
              .epoch = 1,
              .cookie = 42,
              .mode = protocol.mode,
              .workers = workers,
              .slots = static_cast<uint16_t>(slots),
              .lanes = protocol.lanes,
              .checked = checked};
  if (protocol.mode == PacketMode::kSparse) lease.columns = 4;
  if (protocol.mode == PacketMode::kTable) {
    lease.sum_bits = 8;
    for (int i = 0; i < 16; ++i) lease.levels.push_back(static_cast<uint8_t>(i));
  }
  return lease;
}

/// A worker's packet of one slot, whose round can be changed.
struct SlotPacket {
  PacketHeader header;
  bool checked;
  std::vector<std::byte> bytes;

  SlotPacket(const Lease& lease, uint16_t slot, uint64_t seed)
      : header(RequestHeader(lease)), checked(lease.checked) {
    header.slot = slot;
    if (lease.mode == PacketMode::kTable) header.detail = static_cast<uint32_t>(lease.sum_bits);
    if (lease.mode == PacketMode::kSparse) header.detail = (1u << lease.columns) - 1;
    bytes.resize(kPacketHeaderBytes + PayloadBytes(header));
    Random random(seed);
    for (size_t i = kPacketHeaderBytes; i < bytes.size(); ++i) {
      // Small in the octets that count most, so that neither integers nor floats overflow.
      bytes[i] = static_cast<std::byte>(i % 4 == 0 ? 0 : random.Below(256));
    }
    SetRound(0);
  }
  void SetRound(uint32_t round) {
    header.round = round;
    header.offset = round;
    header.checksum = 0;
    header.flags &= static_cast<uint8_t>(~kPacketChecked);
    EncodePacketHeader(header, std::span(bytes).first<kPacketHeaderBytes>());
    if (checked) SealPacket(bytes);
  }
  size_t payload_bytes() const { return bytes.size() - kPacketHeaderBytes; }
};

struct NullSink : ReplySink {
  uint64_t replies = 0;
  void Send(SourceAddress, std::span<const std::byte>) override { ++replies; }
  void SendToAll(std::span<const SourceAddress>, std::span<const std::byte>) override { ++replies; }
};

void Print(nlohmann::ordered_json row) {
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json Row(const char* plane, const Protocol& protocol, int workers, double loss) {
  return {{"plane", plane}, {"protocol", protocol.name}, {"workers", workers}, {"loss", loss}};
}

// ---- the state machine alone

void MeasureStateMachine(const Protocol& protocol, int workers, const BenchOptions& options) {
  constexpr uint32_t kRounds = 4;  // the packets of a pass stay within a second-level cache or so
  constexpr int kSlots = 16;
  const Lease lease = MakeLease(protocol, workers, kSlots, !options.xdp);
  std::vector<SlotPacket> packets;
  std::vector<SourceAddress> sources;
  for (int w = 0; w < workers; ++w) sources.push_back(1000 + static_cast<SourceAddress>(w));
  for (uint32_t round = 0; round < kRounds; ++round) {
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
    const TimePoint start = RealClock().Now();
    for (size_t i = 0; i < packets.size(); ++i) {
      aggregator.OnPacket(sources[i % sources.size()], packets[i].bytes, start, &sink);
    }
    spent += RealClock().Now() - start;
    count += packets.size();
    ++passes;
    WEIR_CHECK(aggregator.counters().completed == kRounds * kSlots);
  }
  const double bits = static_cast<double>(count * packets[0].payload_bytes() * 8);
  auto row = Row("state_machine", protocol, workers, 0);
  row["elements"] = passes * kRounds * kSlots * lease.lanes * std::max<uint8_t>(lease.columns, 1);
  row["goodput_gbps"] = bits / ToSeconds(spent) * 1e-9;
  row["ns_per_packet"] = ToSeconds(spent) * 1e9 / static_cast<double>(count);
  Print(row);
}

// ---- in the kernel

#ifdef WEIR_XDP
/// As MeasureStateMachine, packet by packet; the kernel tells how long each took.
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
    plane.SendReplies(Duration::zero(), &sink);
    replies += RealClock().Now() - before;
  }
  const auto counters = plane.Counters();
  WEIR_CHECK(counters.ok() && counters->packets.completed * sources.size() == count);
  const double bits = static_cast<double>(count * packets[0].payload_bytes() * 8);
  auto row = Row("xdp", protocol, workers, 0);
  row["elements"] = counters->packets.completed * lease.lanes;
  row["goodput_gbps"] = bits / ToSeconds(spent) * 1e-9;
  row["ns_per_packet"] = ToSeconds(spent) * 1e9 / static_cast<double>(count);
  // What the loading program does for the workers whose frame did not complete the round, but for
  // the sending.
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

uint32_t Field(std::span<const std::byte> packet, size_t at, size_t octets) {
  uint32_t value = 0;
  for (size_t i = 0; i < octets; ++i)
    value = value << 8 | std::to_integer<uint32_t>(packet[at + i]);
  return value;
}

/// All workers of a job in one thread. Each sends the next round of a slot when it has the reply to
/// the one before, and repeats what is not answered in time; what replies say is not looked at.
class SimulatedWorkers {
 public:
  explicit SimulatedWorkers(int workers) {
    for (int w = 0; w < workers; ++w) {
      auto port = UdpPort::Bind({});
      WEIR_CHECK(port.ok());
      addresses_.push_back((*port)->address());
      ports_.push_back(std::move(*port));
    }
  }

  const std::vector<SourceAddress>& addresses() const { return addresses_; }

  void Attach(const LeaseGrant& grant) {
    aggregator_ = grant.address;
    for (size_t w = 0; w < ports_.size(); ++w) {
      slots_.emplace_back();
      for (uint16_t s = 0; s < grant.lease.slots; ++s) {
        slots_.back().push_back({.packet = SlotPacket(grant.lease, s, s)});
      }
      WEIR_CHECK(ports_[w]->Connect(aggregator_).ok());
    }
  }

  void RunUntil(TimePoint deadline) {
    constexpr Duration kRepeat = std::chrono::milliseconds(5);
    std::vector<pollfd> ready;
    for (const auto& port : ports_) ready.push_back({port->fd(), POLLIN, 0});
    TimePoint repeat_at = RealClock().Now();
    while (true) {
      const TimePoint now = RealClock().Now();
      if (now >= deadline) return;
      const bool repeats = now >= repeat_at;
      if (repeats) repeat_at = now + kRepeat;
      for (size_t w = 0; w < ports_.size(); ++w)
        SendDue(w, repeats ? now - kRepeat : TimePoint{}, now);
      if (poll(ready.data(), ready.size(), 1) <= 0) continue;
      for (size_t w = 0; w < ports_.size(); ++w) {
        if (ready[w].revents == 0) continue;
        ports_[w]->Receive(
            [&](SourceAddress, std::span<const std::byte> reply) { OnReply(w, reply); });
      }
    }
  }

 private:
  struct SimulatedSlot {
    SlotPacket packet;
    uint32_t round = 0;
    bool due = true;
    TimePoint sent_at = {};
  };

  void SendDue(size_t w, TimePoint repeat_before, TimePoint now) {
    for (SimulatedSlot& slot : slots_[w]) {
      if (!slot.due && slot.sent_at > repeat_before) continue;
      slot.due = false;
      slot.sent_at = now;
      ports_[w]->Send(aggregator_, slot.packet.bytes);
    }
    ports_[w]->Flush();
  }

  void OnReply(size_t w, std::span<const std::byte> reply) {
    if (reply.size() < kPacketHeaderBytes) return;
    const uint32_t number = Field(reply, 20, 2);
    if (number >= slots_[w].size()) return;
    SimulatedSlot& slot = slots_[w][number];
    if (slot.due || Field(reply, 24, 4) != slot.round) return;
    slot.packet.SetRound(++slot.round);
    slot.due = true;
  }

  SourceAddress aggregator_ = 0;
  std::vector<SourceAddress> addresses_;
  std::vector<std::unique_ptr<UdpPort>> ports_;
  std::vector<std::vector<SimulatedSlot>> slots_;  // by worker
};

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
                        .terms = MakeLease(protocol, workers, options.slots, !options.xdp),
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
  row["gbps_per_core"] = bits / cpu_s * 1e-9;
  row["shard_busy"] = cpu_s / seconds;
  row["repeated"] = after.packets.duplicate + after.packets.served - before.packets.duplicate -
                    before.packets.served;
  row["unsent"] = after.port.unsent - before.port.unsent;
  Print(row);
}

/// Whether such a job may have a lease: 16 levels of up to 15 times the workers fit eight bits.
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
      if (!options->xdp && std::string(argv[i + 1]) != "all") return false;
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
  return *least >= 1 && *most <= static_cast<double>(kWorkersMax) && options->slots >= 1 &&
         options->slots <= 512;
}

int Main(int argc, char** argv) {
  BenchOptions options;
  if (!ParseFlags(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: aggregation_bench [--plane all|xdp] [--protocol "
                 "all|switchml|omnireduce|thc|fpisa|fpisa_approximate] [--seconds S] "
                 "[--workers 2,4,8,16] [--loss 0,0.01] [--slots 1..512]\n");
    return 2;
  }
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
    // What comes next in sparse streams depends on replies, which simulated workers do not read.
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
