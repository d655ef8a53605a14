// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator in the kernel for use by a server, with a thread that sends the replies which the
// kernel's program cannot send.

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "datapath/aggregation/io/lease_offload.h"
#include "datapath/aggregation/io/udp_port.h"
#include "datapath/aggregation/xdp/xdp_plane.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

struct XdpOffloadOptions {
  std::vector<std::string> interfaces;  // 1 .. 64 interfaces through which workers' packets arrive
  XdpAttachMode mode = XdpAttachMode::kAny;
  XdpPlaneOptions plane = {};
  int socket = -1;  // bound to the address to which workers send; it is duplicated
};

/// Thread-safe.
class XdpOffload : public LeaseOffload, private ReplySink {
 public:
  /// kInvalidArgument: no interface; else as XdpPlane::Load and Attach.
  static StatusOr<std::unique_ptr<XdpOffload>> Start(const XdpOffloadOptions& options);
  /// Ends the thread within some 100 ms and detaches the program from the interfaces.
  ~XdpOffload() override;

  bool Takes(const Lease& lease) const override { return XdpPlane::Fits(lease).ok(); }
  StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                            SourceAddress aggregator) override {
    return plane_->Grant(lease, workers, aggregator);
  }
  Status Revoke(uint16_t id, uint32_t epoch) override { return plane_->Revoke(id, epoch); }
  std::optional<OpenRound> OldestOpenRound(uint16_t id) override {
    return plane_->OldestOpenRound(id);
  }
  std::optional<TimePoint> LastUsed(uint16_t id) override { return plane_->LastUsed(id); }

  StatusOr<OffloadCounters> Counters() const override;

 private:
  XdpOffload(std::unique_ptr<XdpPlane> plane, std::unique_ptr<UdpPort> port);
  void Loop();
  void Send(SourceAddress to, std::span<const std::byte> packet) override;
  void SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) override;

  const std::unique_ptr<XdpPlane> plane_;
  const std::unique_ptr<UdpPort> port_;  // used by the thread only
  std::atomic<uint64_t> unsent_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last, because it uses all of the above
};

}  // namespace weir::aggregation
