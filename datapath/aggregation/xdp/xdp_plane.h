#pragma once
// The aggregator in the kernel: a program that the network interface runs for every frame, in front
// of the sockets, and the maps by which leases get there. This is what loads, attaches and asks it.

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
  AggregatorLimits limits = {};  // a slot takes 2.2 KiB of the kernel's memory
  /// Of replies to send, 1128 octets each; a power of two, 4096 or more.
  uint32_t ring_bytes = 1u << 21;
};

/// Where the interface runs the program: in its driver, or behind it, where every interface can.
enum class XdpAttachMode { kAny, kNative, kGeneric };

/// "any", "native" or "generic". kInvalidArgument lists them.
StatusOr<XdpAttachMode> ParseXdpAttachMode(std::string_view name);

/// Of all processors; only ever grow.
struct XdpPlaneCounters {
  AggregatorCounters packets;  // without what only programs behind the socket count
  uint64_t passed = 0;         // packets that name a lease here but are none: the socket got them
  uint64_t handed = 0;         // replies that the ring asked for
  uint64_t ring_full = 0;      // and those that it had no room for: as if lost on the way
};

/// What the program made of one frame.
struct XdpTestRun {
  uint32_t action = 0;  // XDP_DROP, XDP_PASS, XDP_TX
  std::vector<std::byte> frame;
  Duration time = {};  // of one run, measured in the kernel
};

/// Leases end and the program leaves its interfaces with this object, or with the process, however
/// it ends. Thread-safe.
class XdpPlane {
 public:
  /// Loads the program. kUnavailable: the kernel or the process may not, with the cause: a missing
  /// capability, or the last lines of the verifier's log. Some 100 ms.
  static StatusOr<std::unique_ptr<XdpPlane>> Load(const XdpPlaneOptions& options);
  ~XdpPlane();
  XdpPlane(const XdpPlane&) = delete;
  XdpPlane& operator=(const XdpPlane&) = delete;

  /// Runs the program for what arrives at an interface, which may be one of several. kNotFound: no
  /// such interface in this network namespace; kUnavailable: its driver or the kernel refuses.
  Status Attach(const std::string& interface, XdpAttachMode mode);

  /// Whether the kernel's program does all that the lease needs: modes sum and table without
  /// cut-off and without checksums. kUnimplemented says what it does not. O(1).
  static Status Fits(const Lease& lease);

  /// As Aggregator::Grant, for packets to `aggregator`; kUnimplemented as Fits; kUnavailable: the
  /// kernel takes no more entries, and then no epoch of the lease stands. O(slots).
  StatusOr<SlotRange> Grant(const Lease& lease, std::span<const SourceAddress> workers,
                            SourceAddress aggregator) WEIR_EXCLUDES(mutex_);
  /// As Aggregator::Revoke.
  Status Revoke(uint16_t id, uint32_t epoch) WEIR_EXCLUDES(mutex_);

  /// As Aggregator's. O(slots) calls of the kernel, O(1).
  std::optional<OpenRound> OldestOpenRound(uint16_t id) WEIR_EXCLUDES(mutex_);
  std::optional<TimePoint> LastUsed(uint16_t id) WEIR_EXCLUDES(mutex_);

  StatusOr<XdpPlaneCounters> Counters() const;

  /// A frame goes back to where it came from, but a result has other recipients, too: gives `sink`
  /// the replies that wait, some thousand at most in a call; it must not call this object. True
  /// when there were some.
  bool SendReplies(ReplySink* sink) WEIR_EXCLUDES(mutex_);
  /// Until replies wait, at most for `wait`. True when some do.
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
  Aggregator ledger_ WEIR_GUARDED_BY(mutex_);  // who holds which slots; no packet comes here
  std::map<uint16_t, Granted> granted_ WEIR_GUARDED_BY(mutex_);
  uint64_t generation_ WEIR_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<ring_buffer, RingDeleter> ring_;
  ReplySink* sink_ WEIR_GUARDED_BY(mutex_) = nullptr;  // during SendReplies
  int taken_ WEIR_GUARDED_BY(mutex_) = 0;
  std::vector<SourceAddress> recipients_ WEIR_GUARDED_BY(mutex_);  // of one reply
  std::vector<mesh::UniqueFd> links_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir::aggregation
