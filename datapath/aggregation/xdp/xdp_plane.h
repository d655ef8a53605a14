// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator in the kernel: a program that the network interface runs for every frame, before
// the sockets, and the maps that hold its leases. This file loads and attaches the program, changes
// leases and reads counters.

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/lease.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "datapath/transport/mesh/socket.h"

struct bpf_object;
struct ring_buffer;
struct weir_xdp_request;
struct weir_xdp_slot;

namespace weir::aggregation {

struct XdpPlaneOptions {
  AggregatorLimits limits = {};  // a slot takes 2.2 KiB of kernel memory
  /// Size of the ring of replies to send, which take 1128 octets each; a power of two, at least
  /// 4096.
  uint32_t ring_bytes = 1u << 21;
};

/// Where the interface runs the program: in its driver (native), or after it (generic), which every
/// interface supports.
enum class XdpAttachMode { kAny, kNative, kGeneric };

/// Parses "any", "native" or "generic". kInvalidArgument lists them.
StatusOr<XdpAttachMode> ParseXdpAttachMode(std::string_view name);

/// Totals over all processors; they only increase.
struct XdpPlaneCounters {
  AggregatorCounters packets;  // except those that only programs at the socket can count
  uint64_t passed = 0;     // packets for a lease here that it cannot handle; the socket got them
  uint64_t handed = 0;     // replies that the loading program was asked to send
  uint64_t ring_full = 0;  // replies for which the ring had no room; they count as lost
};

/// The result of one run of the program.
struct XdpTestRun {
  uint32_t action = 0;  // XDP_DROP, XDP_PASS, XDP_TX
  std::vector<std::byte> frame;
  Duration time = {};  // of one run, measured by the kernel
};

/// Leases end and the program is detached when this object is destroyed or the process ends,
/// however it ends. Thread-safe.
class XdpPlane {
 public:
  /// Loads the program. kUnavailable: the kernel or the process does not permit it; the message
  /// names a missing capability or has the last lines of the verifier's log. Some 100 ms.
  static StatusOr<std::unique_ptr<XdpPlane>> Load(const XdpPlaneOptions& options);
  ~XdpPlane();
  XdpPlane(const XdpPlane&) = delete;
  XdpPlane& operator=(const XdpPlane&) = delete;

  /// Runs the program for frames that arrive at an interface; several interfaces may be attached.
  /// kNotFound: there is no such interface in this network namespace. kUnavailable: its driver or
  /// the kernel refuses.
  Status Attach(const std::string& interface, XdpAttachMode mode);

  /// Checks whether the kernel's program supports all of the lease: modes sum and table, without
  /// cut-off and without checksums. kUnimplemented names what it does not support. O(1).
  static Status Fits(const Lease& lease);

  /// As Aggregator::Grant, for packets to `aggregator`. Also kUnimplemented as Fits, and
  /// kUnavailable: the kernel takes no more entries; then no epoch of the lease remains in force.
  /// O(slots).
  StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                            SourceAddress aggregator) WEIR_EXCLUDES(mutex_);
  /// As Aggregator::Revoke.
  Status Revoke(uint16_t id, uint32_t epoch) WEIR_EXCLUDES(mutex_);

  /// As in Aggregator. O(slots) and O(1) system calls.
  std::optional<OpenRound> OldestOpenRound(uint16_t id) WEIR_EXCLUDES(mutex_);
  std::optional<TimePoint> LastUsed(uint16_t id) WEIR_EXCLUDES(mutex_);

  StatusOr<XdpPlaneCounters> Counters() const;

  /// Passes to `sink` the replies that are waiting, at most some thousand per call, and returns
  /// whether there were any. They exist because the program can only send a frame back to its
  /// sender, while a result has other recipients, too. The sink must not call this object.
  bool SendReplies(ReplySink* sink) WEIR_EXCLUDES(mutex_);
  /// Waits at most for `wait` until there are replies to send, and returns whether there are any.
  bool AwaitReplies(Duration wait) const;

  /// Runs the program on an Ethernet frame of at most 3,500 octets, without an interface. The first
  /// `repeat` - 1 runs are only timed. kUnavailable: the kernel refuses.
  StatusOr<XdpTestRun> RunForTest(std::span<const std::byte> frame, int repeat = 1) const;

 private:
  struct ObjectDeleter {
    void operator()(bpf_object* object) const;
  };
  struct RingDeleter {
    void operator()(ring_buffer* ring) const;
  };
  struct Granted {
    Lease lease;
    SlotRange range;
    uint64_t generation = 0;
    std::vector<SourceAddress> workers = {};
  };

  explicit XdpPlane(const AggregatorLimits& limits) : ledger_(limits) {}
  Status FindMaps();
  Status Publish(const Granted& granted, SourceAddress aggregator) WEIR_REQUIRES(mutex_);
  void Withdraw(const Granted& granted) WEIR_REQUIRES(mutex_);
  bool ReadSlot(uint32_t index, weir_xdp_slot* slot) const;
  void SendReply(const weir_xdp_request& request, std::span<const std::byte> packet)
      WEIR_REQUIRES(mutex_);
  static int OnRequest(void* self, void* data, size_t size) WEIR_NO_THREAD_SAFETY_ANALYSIS;

  std::unique_ptr<bpf_object, ObjectDeleter> object_;
  int program_ = -1, leases_fd_ = -1, senders_fd_ = -1, slots_fd_ = -1, counters_fd_ = -1;
  mutable Mutex mutex_;
  Aggregator ledger_ WEIR_GUARDED_BY(mutex_);  // slots and owners; it gets no packets
  std::map<uint16_t, Granted> granted_ WEIR_GUARDED_BY(mutex_);
  uint64_t generation_ WEIR_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<ring_buffer, RingDeleter> ring_;
  ReplySink* sink_ WEIR_GUARDED_BY(mutex_) = nullptr;  // during SendReplies
  int taken_ WEIR_GUARDED_BY(mutex_) = 0;
  std::vector<SourceAddress> recipients_ WEIR_GUARDED_BY(mutex_);  // of the current reply
  std::vector<mesh::UniqueFd> links_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir::aggregation
