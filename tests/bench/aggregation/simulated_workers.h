// SPDX-License-Identifier: Apache-2.0
// Workers that send and count but do not compute, all in one thread, for aggregation_bench.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "datapath/aggregation/io/server.h"
#include "datapath/aggregation/io/udp_port.h"
#include "datapath/aggregation/packet.h"
#include "datapath/aggregation/round_trip.h"
#include "datapath/base/check.h"
#include "datapath/base/random.h"

namespace weir::aggregation {

struct Protocol {
  const char* name;
  PacketMode mode;
  uint16_t lanes;
  bool exact_floats = true;
};
inline constexpr Protocol kProtocols[] = {{"switchml", PacketMode::kSum, 256},
                                          {"omnireduce", PacketMode::kSparse, 64},
                                          {"thc", PacketMode::kTable, 1024},
                                          {"fpisa", PacketMode::kFloat, 256},
                                          {"fpisa_approximate", PacketMode::kFloat, 256, false}};

inline Lease MakeLease(const Protocol& protocol, int workers, int slots, bool checked) {
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
      // The most significant octets are small, so that neither integers nor floats overflow.
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

inline uint32_t Field(std::span<const std::byte> packet, size_t at, size_t octets) {
  uint32_t value = 0;
  for (size_t i = 0; i < octets; ++i)
    value = value << 8 | std::to_integer<uint32_t>(packet[at + i]);
  return value;
}

/// All workers of a job in one thread. Each sends the next round of a slot when it has the reply to
/// the previous one, and repeats packets without a timely answer, as a worker does. The contents of
/// replies are ignored.
class SimulatedWorkers {
 public:
  explicit SimulatedWorkers(int workers, const UdpPortOptions& options = {}) {
    for (int w = 0; w < workers; ++w) {
      auto port = UdpPort::Bind(options);
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
    constexpr Duration kLookEvery = std::chrono::milliseconds(1);
    std::vector<pollfd> ready;
    for (const auto& port : ports_) ready.push_back({port->fd(), POLLIN, 0});
    TimePoint repeat_at = RealClock().Now();
    while (true) {
      const TimePoint now = RealClock().Now();
      if (now >= deadline) return;
      const bool repeats = now >= repeat_at;
      if (repeats) repeat_at = now + kLookEvery;
      for (size_t w = 0; w < ports_.size(); ++w)
        SendDue(w, repeats ? now - round_trip_.timeout() : TimePoint{}, now);
      if (poll(ready.data(), ready.size(), 1) <= 0) continue;
      const TimePoint came = RealClock().Now();
      for (size_t w = 0; w < ports_.size(); ++w) {
        if (ready[w].revents == 0) continue;
        ports_[w]->Receive(
            [&](SourceAddress, std::span<const std::byte> reply) { OnReply(w, reply, came); });
      }
    }
  }

 private:
  struct SimulatedSlot {
    SlotPacket packet;
    uint32_t round = 0;
    bool due = true;
    bool repeated = false;
    TimePoint sent_at = {};
  };

  void SendDue(size_t w, TimePoint repeat_before, TimePoint now) {
    for (SimulatedSlot& slot : slots_[w]) {
      if (!slot.due && slot.sent_at > repeat_before) continue;
      slot.repeated = !slot.due;
      slot.due = false;
      slot.sent_at = now;
      ports_[w]->Send(aggregator_, slot.packet.bytes);
    }
    ports_[w]->Flush();
  }

  void OnReply(size_t w, std::span<const std::byte> reply, TimePoint now) {
    if (reply.size() < kPacketHeaderBytes) return;
    const uint32_t number = Field(reply, 20, 2);
    if (number >= slots_[w].size()) return;
    SimulatedSlot& slot = slots_[w][number];
    if (slot.due || Field(reply, 24, 4) != slot.round) return;
    if (!slot.repeated) round_trip_.OnSample(now - slot.sent_at);
    slot.packet.SetRound(++slot.round);
    slot.due = true;
  }

  SourceAddress aggregator_ = 0;
  // One estimate for all workers, where real workers have one each: a time-out that is too short
  // for a busy machine makes the aggregator answer twice.
  RoundTripEstimate round_trip_{{.min = std::chrono::milliseconds(5)}};
  std::vector<SourceAddress> addresses_;
  std::vector<std::unique_ptr<UdpPort>> ports_;
  std::vector<std::vector<SimulatedSlot>> slots_;  // by worker
};

}  // namespace weir::aggregation
