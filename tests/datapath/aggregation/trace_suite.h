// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers that any aggregator must give to given packets, as data: the software one and programs
// in switches run the same traces.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/packet.h"

namespace weir::aggregation {

/// A datagram that left the aggregator.
struct Emission {
  SourceAddress to = 0;
  std::vector<std::byte> packet;
};

/// An aggregator under test. A worker's address is 1000 plus its number.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  /// Grants the lease to its workers, as Aggregator::Grant does.
  virtual void Grant(const Lease& lease) = 0;
  /// Returns all datagrams that it sends in answer.
  virtual std::vector<Emission> OnPacket(SourceAddress source,
                                         std::span<const std::byte> datagram) = 0;
};

enum class Answer { kNothing, kToSender, kToAll, kMismatch };

inline constexpr uint64_t kTraceCookie = 0xC00C1E;
inline constexpr uint16_t kTraceLease = 5;
inline constexpr uint16_t kTraceLanes = 4;

/// One packet. Lane i holds value * (i + 1) modulo 2^32.
struct TraceStep {
  int worker = 0;
  uint16_t slot = 0;
  uint32_t round = 0;
  uint32_t value = 0;
  Answer answer = Answer::kNothing;
  uint32_t sum = 0;  // where there is an answer: its value
  uint32_t epoch = 1;
  uint16_t lease = kTraceLease;
  uint64_t cookie = kTraceCookie;
  uint32_t operation = 0;
  uint32_t offset = 0;
  uint16_t exponent = 0;
  uint16_t answer_exponent = 0;
  SourceAddress source = 0;  // 0: the worker's
  uint8_t flags = 0;
  int longer = 0;            // octets appended, or, below 0, cut off
  uint32_t grant_epoch = 0;  // not 0: no packet, the lease is granted again
};

struct Trace {
  std::string name;
  int workers = 2;
  uint16_t slots = 2;
  std::vector<TraceStep> steps;
};

/// Traces of an orderly network, without loss, duplicates or reordering.
inline std::vector<Trace> OrderlyTraces() {
  constexpr Answer kAll = Answer::kToAll;
  return {
      {"basic", 2, 2, {{0, 0, 0, 3}, {1, 0, 0, 4, kAll, 7}}},
      {"the other set first",
       2,
       2,
       {{0, 0, 1, 3}, {1, 0, 1, 4}, {0, 0, 0, 3}, {1, 0, 0, 4, kAll, 7}}},
      {"both sets",
       2,
       2,
       {{0, 0, 0, 1}, {1, 0, 0, 2, kAll, 3}, {1, 0, 1, 10}, {0, 0, 1, 20, kAll, 30}}},
      {"two slots interleaved",
       2,
       2,
       {{0, 0, 0, 1}, {1, 1, 0, 50}, {1, 0, 0, 2, kAll, 3}, {0, 1, 0, 60, kAll, 110}}},
      {"a slot is used again",
       2,
       1,
       {{0, 0, 0, 1},
        {1, 0, 0, 2, kAll, 3},
        {0, 0, 1, 4},
        {1, 0, 1, 5, kAll, 9},
        {0, 0, 2, 6},
        {1, 0, 2, 7, kAll, 13},
        {0, 0, 3, 8},
        {1, 0, 3, 9, kAll, 17}}},
  };
}

/// Packets that are repeated, early or late.
inline std::vector<Trace> DuplicateTraces() {
  constexpr Answer kAll = Answer::kToAll, kOne = Answer::kToSender;
  return {
      {"a duplicate in mid-reduction",
       2,
       1,
       {{0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}, {1, 0, 0, 2, kAll, 3}}},
      {"a duplicate after completion goes to its sender",
       2,
       1,
       {{0, 0, 0, 1}, {1, 0, 0, 2, kAll, 3}, {0, 0, 0, 1, kOne, 3}, {1, 0, 0, 2, kOne, 3}}},
      {"a duplicate of the other set while the next is open",
       2,
       1,
       {{0, 0, 0, 1},
        {1, 0, 0, 2, kAll, 3},
        {0, 0, 1, 4},
        {1, 0, 0, 2, kOne, 3},
        {1, 0, 1, 5, kAll, 9}}},
      {"a duplicate of the sender's own earlier set",
       2,
       1,
       {{0, 0, 0, 1},
        {1, 0, 0, 2, kAll, 3},
        {0, 0, 1, 4},
        {0, 0, 0, 1, kOne, 3},
        {1, 0, 1, 5, kAll, 9},
        {0, 0, 2, 6},
        {1, 0, 2, 7, kAll, 13}}},
      {"a late duplicate after the flip",
       2,
       1,
       {{0, 0, 0, 1},
        {1, 0, 0, 1, kAll, 2},
        {0, 0, 1, 10},
        {1, 0, 1, 10, kAll, 20},
        {1, 0, 2, 100},
        {0, 0, 0, 1},
        {1, 0, 0, 1},
        {0, 0, 2, 100, kAll, 200}}},
      {"a round ahead of time",
       2,
       1,
       {{0, 0, 0, 1}, {0, 0, 1, 5}, {1, 0, 2, 5}, {1, 0, 0, 2, kAll, 3}}},
  };
}

/// Packets of other epochs, jobs and senders.
inline std::vector<Trace> ForeignTraces() {
  constexpr Answer kAll = Answer::kToAll;
  return {
      {"a stale epoch",
       2,
       1,
       {{0, 0, 0, 1},
        {.grant_epoch = 2},
        {.worker = 1, .value = 2},
        {.worker = 0, .value = 5, .epoch = 2},
        {.worker = 0, .value = 1},
        {.worker = 1, .value = 6, .answer = kAll, .sum = 11, .epoch = 2}}},
      {"an epoch that is not granted yet", 2, 1, {{.worker = 0, .value = 1, .epoch = 2}}},
      {"another job",
       2,
       1,
       {{0, 0, 0, 1}, {.worker = 1, .value = 2, .lease = kTraceLease + 1}, {1, 0, 0, 2, kAll, 3}}},
      {"a wrong cookie",
       2,
       1,
       {{0, 0, 0, 1}, {.worker = 1, .value = 2, .cookie = 1}, {1, 0, 0, 2, kAll, 3}}},
      {"a stranger",
       2,
       1,
       {{0, 0, 0, 1}, {.worker = 1, .value = 2, .source = 9999}, {1, 0, 0, 2, kAll, 3}}},
      {"a stranger asks for a result",
       2,
       1,
       {{0, 0, 0, 1}, {1, 0, 0, 2, kAll, 3}, {.worker = 1, .value = 2, .source = 9999}}},
      {"a slot beyond the lease", 2, 2, {{0, 2, 0, 1}, {1, 2, 0, 1}, {0, 65535, 0, 1}}},
  };
}

/// Packets that contradict themselves or others, and numbers at their limits.
inline std::vector<Trace> MalformedTraces() {
  constexpr Answer kAll = Answer::kToAll;
  constexpr uint32_t kTop = 0x7FFFFFFF;
  return {
      {"bad lengths",
       2,
       1,
       {{0, 0, 0, 1},
        {.worker = 1, .value = 2, .longer = -1},
        {.worker = 1, .value = 2, .longer = 4},
        {.worker = 1, .value = 2, .longer = -20},
        {.worker = 1, .value = 2, .longer = -60},
        {1, 0, 0, 2, kAll, 3}}},
      {"a reply sent to the aggregator", 1, 1, {{.worker = 0, .value = 1, .flags = kPacketReply}}},
      {"another operation",
       2,
       1,
       {{0, 0, 0, 1},
        {.worker = 1, .value = 2, .answer = Answer::kMismatch, .operation = 1},
        {1, 0, 0, 2, kAll, 3}}},
      {"another offset",
       2,
       1,
       {{0, 0, 0, 1},
        {.worker = 1, .value = 2, .answer = Answer::kMismatch, .offset = 1},
        {1, 0, 0, 2, kAll, 3}}},
      {"the greatest exponent wins",
       2,
       1,
       {{.worker = 0, .value = 1, .exponent = 9},
        {.worker = 1, .value = 1, .answer = kAll, .sum = 2, .exponent = 7, .answer_exponent = 9},
        {.worker = 1, .round = 1, .value = 1, .exponent = 3},
        {.worker = 0, .round = 1, .value = 1, .answer = kAll, .sum = 2, .answer_exponent = 3}}},
      {"sums at the limits of a lane", 2, 1, {{0, 0, 0, kTop}, {1, 0, 0, 0u - kTop, kAll, 0}}},
      {"sums wrap modulo 2^32", 2, 1, {{0, 0, 0, kTop}, {1, 0, 0, 2, kAll, kTop + 2}}},
  };
}

/// Three rounds in worlds of every size.
inline std::vector<Trace> WorldTraces() {
  std::vector<Trace> all;
  for (int workers = 1; workers <= static_cast<int>(kWorkersMax); ++workers) {
    Trace trace{.name = "a world of " + std::to_string(workers), .workers = workers, .steps = {}};
    for (uint32_t round = 0; round < 3; ++round) {
      uint32_t sum = 0;
      for (int i = 0; i < workers; ++i) {
        const int worker = (i * 7 + static_cast<int>(round)) % workers;
        // Multiples of 7 do not reach all workers of such a world.
        const int number = workers % 7 == 0 ? i : worker;
        const uint32_t value = static_cast<uint32_t>(number) * 1000 + round;
        sum += value;
        const bool last = i + 1 == workers;
        trace.steps.push_back({.worker = number,
                               .slot = 1,
                               .round = round,
                               .value = value,
                               .answer = last ? Answer::kToAll : Answer::kNothing,
                               .sum = last ? sum : 0});
      }
    }
    all.push_back(std::move(trace));
  }
  return all;
}

/// All traces of mode kSum.
inline std::vector<Trace> SumTraces() {
  std::vector<Trace> all;
  for (auto* part : {OrderlyTraces, DuplicateTraces, ForeignTraces, MalformedTraces, WorldTraces}) {
    for (Trace& trace : part()) all.push_back(std::move(trace));
  }
  return all;
}

inline Lease TraceLease(const Trace& trace, uint32_t epoch) {
  return {.id = kTraceLease,
          .epoch = epoch,
          .cookie = kTraceCookie,
          .mode = PacketMode::kSum,
          .workers = trace.workers,
          .slots = trace.slots,
          .lanes = kTraceLanes,
          .checked = false};
}

inline std::vector<std::byte> TracePacket(const TraceStep& step) {
  const PacketHeader header = {.flags = step.flags,
                               .lease = step.lease,
                               .epoch = step.epoch,
                               .cookie = step.cookie,
                               .slot = step.slot,
                               .lanes = kTraceLanes,
                               .round = step.round,
                               .operation = step.operation,
                               .offset = step.offset,
                               .exponent = step.exponent};
  uint32_t lanes[kTraceLanes];
  for (uint32_t i = 0; i < kTraceLanes; ++i) lanes[i] = step.value * (i + 1);
  std::vector<std::byte> packet(kPacketHeaderBytes + sizeof lanes);
  EncodePacketHeader(header, std::span(packet).first<kPacketHeaderBytes>());
  StoreLanes(lanes, false, std::span(packet).subspan(kPacketHeaderBytes));
  packet.resize(static_cast<size_t>(static_cast<int>(packet.size()) + step.longer));
  return packet;
}

/// Empty if `emission` is the answer that the step requires, otherwise the difference. Flags that a
/// data plane need not set are ignored.
inline std::string CheckEmission(const TraceStep& step, const Emission& emission, int workers) {
  const StatusOr<Packet> packet = DecodePacket(emission.packet);
  if (!packet.ok()) return "not a packet: " + Message(packet.status());
  const PacketHeader& h = packet->header;
  const bool notice = (h.flags & kPacketNotice) != 0;
  if ((h.flags & kPacketReply) == 0) return "not a reply";
  if (h.slot != step.slot || h.round != step.round || h.lease != step.lease ||
      h.epoch != step.epoch || h.cookie != step.cookie || h.operation != step.operation ||
      h.offset != step.offset) {
    return "a reply to " + Describe(h);
  }
  if (step.answer == Answer::kMismatch) {
    return notice && h.detail == static_cast<uint32_t>(Notice::kMismatch) ? "" : "not a mismatch";
  }
  if (notice) return "a notice";
  if (h.contributions != workers) return "of " + std::to_string(h.contributions) + " workers";
  if (h.exponent != step.answer_exponent) return "exponent " + std::to_string(h.exponent);
  uint32_t lanes[kTraceLanes];
  LoadLanes(packet->payload, false, lanes);
  for (uint32_t i = 0; i < kTraceLanes; ++i) {
    if (lanes[i] != step.sum * (i + 1)) {
      return "lane " + std::to_string(i) + " is " + std::to_string(lanes[i]);
    }
  }
  return "";
}

/// Runs one trace on a fresh plane. Empty when all answers are right, else the first that is not.
inline std::string RunTrace(const Trace& trace, DataPlane* plane) {
  plane->Grant(TraceLease(trace, 1));
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const TraceStep& step = trace.steps[i];
    if (step.grant_epoch != 0) {
      plane->Grant(TraceLease(trace, step.grant_epoch));
      continue;
    }
    const std::string where = trace.name + ", step " + std::to_string(i) + ": ";
    const SourceAddress source =
        step.source != 0 ? step.source : 1000 + static_cast<SourceAddress>(step.worker);
    const std::vector<Emission> sent = plane->OnPacket(source, TracePacket(step));
    size_t expected = 1;
    if (step.answer == Answer::kNothing) expected = 0;
    if (step.answer == Answer::kToAll) expected = static_cast<size_t>(trace.workers);
    if (sent.size() != expected) {
      return where + std::to_string(sent.size()) + " answers instead of " +
             std::to_string(expected);
    }
    for (size_t e = 0; e < sent.size(); ++e) {
      const SourceAddress to = step.answer == Answer::kToAll ? 1000 + e : source;
      if (sent[e].to != to) return where + "sent to " + std::to_string(sent[e].to);
      const std::string wrong = CheckEmission(step, sent[e], trace.workers);
      if (!wrong.empty()) return where + wrong;
    }
  }
  return "";
}

}  // namespace weir::aggregation
