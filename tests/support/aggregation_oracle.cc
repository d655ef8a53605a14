// SPDX-License-Identifier: Apache-2.0
// The aggregator in software under a line protocol, so that tests of other data planes, in any
// language, can ask it for the right answer to a packet.
//
//   grant ID EPOCH COOKIE MODE WORKERS SLOTS LANES COLUMNS SUM_BITS LEVELS    -> ok
//       workers' addresses are 1000 plus their numbers; LEVELS: 16 numbers with commas, or -
//   packet SOURCE HEX     -> one line "to ADDRESS HEX" per reply, then ok
//   counters              -> NAME=COUNT ..., then ok
//   traces                -> the steps of SumTraces(), then ok
// A wrong line is answered by "error" and the reason. The program ends with its input.

#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "tests/datapath/aggregation/trace_suite.h"

namespace weir::aggregation {
namespace {

constexpr uint64_t kFirstAddress = 1000;

StatusOr<std::vector<std::byte>> FromHex(const std::string& text) {
  std::vector<std::byte> bytes;
  if (text.size() % 2 != 0) return InvalidArgument("an odd number of digits");
  for (size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    if (std::sscanf(text.substr(i, 2).c_str(), "%2x", &value) != 1) {
      return InvalidArgument("not hexadecimal");
    }
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

/// Prints replies in the order in which they are sent.
class Printer : public ReplySink {
 public:
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    std::printf("to %" PRIu64 " ", to);
    for (const std::byte octet : packet) std::printf("%02x", std::to_integer<unsigned>(octet));
    std::printf("\n");
  }
};

Status Grant(std::istringstream* words, Aggregator* aggregator) {
  Lease lease;
  int mode = 0, columns = 0;
  std::string levels;
  *words >> lease.id >> lease.epoch >> lease.cookie >> mode >> lease.workers >> lease.slots >>
      lease.lanes >> columns >> lease.sum_bits >> levels;
  if (words->fail()) return InvalidArgument("grant: a word is missing");
  lease.mode = static_cast<PacketMode>(mode);
  lease.columns = static_cast<uint8_t>(columns);
  lease.checked = false;
  std::istringstream list(levels == "-" ? "" : levels);
  for (std::string level; std::getline(list, level, ',');) {
    lease.levels.push_back(static_cast<uint8_t>(std::stoi(level)));
  }
  std::vector<SourceAddress> workers;
  for (int w = 0; w < lease.workers; ++w) workers.push_back(kFirstAddress + static_cast<size_t>(w));
  const StatusOr<SlotRange> granted = aggregator->Grant(lease, workers);
  return granted.ok() ? OkStatus() : granted.status();
}

Status OnPacket(std::istringstream* words, Aggregator* aggregator) {
  uint64_t source = 0;
  std::string digits;
  *words >> source >> digits;
  if (digits == "-") digits.clear();
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::byte> packet, FromHex(digits));
  Printer printer;
  aggregator->OnPacket(source, packet, TimePoint{}, &printer);
  return OkStatus();
}

void PrintCounters(const AggregatorCounters& c) {
  std::printf("added=%" PRIu64 " completed=%" PRIu64 " served=%" PRIu64 " noticed=%" PRIu64
              " duplicate=%" PRIu64 " stale=%" PRIu64 " early=%" PRIu64 " malformed=%" PRIu64
              " unknown=%" PRIu64 " foreign=%" PRIu64 "\n",
              c.added, c.completed, c.served, c.noticed, c.duplicate, c.stale, c.early, c.malformed,
              c.unknown, c.foreign);
}

void PrintTraces() {
  for (const Trace& trace : SumTraces()) {
    std::printf("trace %d %u %s\n", trace.workers, trace.slots, trace.name.c_str());
    for (const TraceStep& s : trace.steps) {
      std::printf("step worker=%d slot=%u round=%u value=%u epoch=%u lease=%u cookie=%" PRIu64
                  " operation=%u offset=%u exponent=%u source=%" PRIu64
                  " flags=%u longer=%d grant_epoch=%u answer=%d\n",
                  s.worker, s.slot, s.round, s.value, s.epoch, s.lease, s.cookie, s.operation,
                  s.offset, s.exponent, s.source, s.flags, s.longer, s.grant_epoch,
                  static_cast<int>(s.answer));
    }
  }
}

Status Run(const std::string& line, Aggregator* aggregator) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "grant") return Grant(&words, aggregator);
  if (command == "packet") return OnPacket(&words, aggregator);
  if (command == "counters") {
    PrintCounters(aggregator->counters());
    return OkStatus();
  }
  if (command == "traces") {
    PrintTraces();
    return OkStatus();
  }
  return InvalidArgument("expected grant, packet, counters or traces");
}

}  // namespace
}  // namespace weir::aggregation

int main() {
  weir::aggregation::Aggregator aggregator({});
  std::string line;
  while (std::getline(std::cin, line)) {
    const weir::Status status = weir::aggregation::Run(line, &aggregator);
    if (status.ok()) {
      std::printf("ok\n");
    } else {
      std::printf("error %s\n", weir::Message(status).c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}
