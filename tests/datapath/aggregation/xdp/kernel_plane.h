// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator in the kernel behind the interface of the trace suite: every packet is a frame
// that the kernel runs the program on, without an interface.

#include <gtest/gtest.h>
#include <linux/bpf.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "datapath/aggregation/xdp/xdp_plane.h"
#include "tests/datapath/aggregation/lossy_world.h"
#include "tests/datapath/aggregation/trace_suite.h"
#include "tests/datapath/aggregation/xdp/frame.h"

namespace weir::aggregation {

/// Empty if the frame can be sent as it is, otherwise its error.
inline std::string CheckReplyFrame(std::span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) return "too short";
  if (GetBig(frame, 0, 6) != 0x020000000001 || GetBig(frame, 6, 6) != 0x020000000009) {
    return "stations are not turned round";
  }
  if (GetBig(frame, 16, 2) != frame.size() - 14 || GetBig(frame, 38, 2) != frame.size() - 34) {
    return "lengths";
  }
  uint64_t sum = 0;
  for (size_t at = 14; at < 34; at += 2) sum += GetBig(frame, at, 2);
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  if (sum != 0xFFFF) return "checksum of the IP header";
  if (GetBig(frame, 40, 2) != 0) return "checksum of the datagram";
  return "";
}

/// Fails the test when a reply is malformed as a frame. Packets that the program leaves to the
/// socket go to an aggregator without leases.
class KernelPlane : public DataPlane, private ReplySink {
 public:
  /// epochs: is added to the epochs of leases and packets and subtracted from those of replies, so
  /// that one loaded program serves several tests that begin with the same epoch.
  explicit KernelPlane(XdpPlane* plane, uint32_t epochs = 0) : plane_(plane), epochs_(epochs) {}

  void Grant(const Lease& granted) override {
    Lease lease = granted;
    lease.epoch += epochs_;
    const auto range = plane_->Grant(lease, AddressesOf(lease.workers), kKernelAddress);
    ASSERT_TRUE(range.ok()) << range.status();
  }

  std::vector<Emission> OnPacket(SourceAddress source, std::span<const std::byte> packet) override {
    sent_.clear();
    std::vector<std::byte> datagram(packet.begin(), packet.end());
    Shift(datagram, epochs_);
    const auto run = plane_->RunForTest(FrameOf(source, kKernelAddress, datagram));
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) return {};
    time_ += run->time;
    if (run->action == XDP_PASS) behind_.OnPacket(source, datagram, TimePoint{}, this);
    if (run->action == XDP_TX) {
      const std::span<const std::byte> frame = run->frame;
      EXPECT_EQ(CheckReplyFrame(frame), "");
      EXPECT_EQ(GetBig(frame, 26, 4) << 16 | GetBig(frame, 34, 2), kKernelAddress);
      Send(GetBig(frame, 30, 4) << 16 | GetBig(frame, 36, 2), frame.subspan(kFrameHeaderBytes));
    }
    plane_->SendReplies(this);
    std::sort(sent_.begin(), sent_.end(),
              [](const Emission& a, const Emission& b) { return a.to < b.to; });
    return sent_;
  }

  AggregatorCounters Counters() const {
    const auto counters = plane_->Counters();
    EXPECT_TRUE(counters.ok()) << counters.status();
    AggregatorCounters all = counters.ok() ? counters->packets : AggregatorCounters{};
    all.malformed += behind_.counters().malformed;
    all.unknown += behind_.counters().unknown;
    all.foreign += behind_.counters().foreign;
    return all;
  }

  Duration time() const { return time_; }

 private:
  static void Shift(std::span<std::byte> packet, uint32_t epochs) {
    if (packet.size() >= 12) PutBig(packet, 8, 4, GetBig(packet, 8, 4) + epochs);
  }
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    sent_.push_back({.to = to, .packet = {packet.begin(), packet.end()}});
    Shift(sent_.back().packet, 0u - epochs_);
  }

  XdpPlane* const plane_;
  const uint32_t epochs_;
  Aggregator behind_{AggregatorLimits{}};
  std::vector<Emission> sent_;
  Duration time_ = {};
};

/// Loads the program with few slots, which is quick. Null, with the reason, if the kernel or the
/// process does not permit it.
inline std::unique_ptr<XdpPlane> LoadOrWhy(std::string* why) {
  auto plane = XdpPlane::Load({.limits = {.slots = 64, .slots_per_job = 64, .leases = 4}});
  if (plane.ok()) return std::move(*plane);
  *why = Message(plane.status());
  return nullptr;
}

}  // namespace weir::aggregation
