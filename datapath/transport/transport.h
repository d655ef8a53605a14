// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Transport interface: framed messages between the ranks of one job. It moves bytes and reports
// which rank failed. It does not depend on collectives, codecs or plans.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/registry.h"
#include "datapath/base/status.h"
#include "datapath/transport/arrivals.h"
#include "datapath/wire/channel_keys.h"
#include "datapath/wire/frame.h"

namespace weir {

/// Where a rank listens: "10.0.0.1:29500" for tcp; for verbs such an address of an RDMA device, or
/// "mlx5_0:29500", or "mlx5_0/3:29500" with a GID index. Each transport defines its own form.
using TransportAddress = std::string;

struct TransportOptions;

/// One option that can follow a transport's name, as in "tcp:connections=4".
struct TransportOption {
  std::string_view key;
  std::string_view expected;  // the valid values, for errors and documentation
  std::string_view meaning;
  /// Writes `value` into the options. Returns false, and writes nothing, if it is not valid.
  bool (*parse)(std::string_view value, TransportOptions* options);
};

struct TransportTraits {
  std::string name;
  bool lossless = true;  // delivers every byte in order or reports failure
  bool crosses_hosts = true;
  bool needs_device = false;  // Create is kUnavailable, naming the device, where there is none
  std::span<const TransportOption> options = {};  // all that ParseTransport accepts after the name
};

/// The effect of fault injection on one outgoing frame.
enum class FrameFault : uint8_t {
  kNone,
  kCorrupt,     // the payload no longer matches its checksum on the wire
  kDisconnect,  // every connection is cut without a shutdown notice, as by a crash
};

struct TransportOptions {
  uint64_t job = 0;  // hash of the job's name: connections of other jobs are refused
  int rank = 0;
  int world = 1;
  TransportAddress listen = "127.0.0.1:0";
  std::string congestion_control;  // empty: the system's, reno within a host
  int send_buffer_bytes = 0;       // 0: the system's; of shared memory: a ring's size
  int receive_buffer_bytes = 0;
  /// How long a wait polls the device before it sleeps, if the transport can. This lowers latency
  /// and occupies a core. 0: it sleeps at once.
  Duration busy_poll{};
  /// For TCP connections of tcp and auto: the number of connections per pair of ranks, among which
  /// the bytes are distributed in turn. It helps where one connection does not fill the link. Equal
  /// on all ranks.
  int connections = 1;
  /// For the same connections: the most bytes per second that the kernel sends to one peer; 0: no
  /// limit.
  uint64_t pacing_bytes_per_s = 0;
  /// For the same connections: frames of at least so many bytes are sent from the caller's memory
  /// without a copy, if the kernel and the device can (MSG_ZEROCOPY); 0: none are.
  size_t zero_copy_bytes_min = 0;
  /// For the same connections: how long a host, whether its process is alive or not, may answer
  /// neither data nor probes. It is given up after ten of its usual round trips (smoothed plus four
  /// deviations), but not before this time. Every waiting rank then gets an error, whatever its
  /// deadline. 0: the kernel's 40 s.
  Duration host_silence_min = std::chrono::seconds(10);
  /// For sessions: ranks of a node move what is in the memory of their devices among themselves by
  /// NCCL. Transports ignore it.
  bool nccl = false;
  /// The key of the job. Ranks prove to each other that they hold it before they trust anything
  /// else that they receive, and every frame has a tag that only they can make. Frames in shared
  /// memory have none, because the kernel passes that memory between processes of one user. Either
  /// all ranks have the key or none has. Without one a rank connects to others over loopback and
  /// shared memory only.
  std::optional<JobKey> job_key;
  /// With a key: only the receiving rank can read payloads. Equal on all ranks.
  bool encrypt = false;
  /// Without a key: permits connections over a network. Anybody on that network can then take part
  /// in the job and change its results.
  bool unauthenticated = false;
  /// Fault injection (fault.h): asked once per PostSend, by the calling thread. Empty: no faults.
  std::function<FrameFault(int peer)> frame_fault;
};

inline constexpr int kConnectionsMax = 16;

/// The facts that the kernel or device reports about the path to one peer. Zero means unknown.
struct PathSample {
  int peer = -1;
  std::string medium = {};  // what carries the bytes: "tcp", "shm" or "verbs"
  double rtt_s = 0, rtt_min_s = 0, rtt_deviation_s = 0;
  double delivery_rate_bytes_per_s = 0;
  bool application_limited = true;  // the rate says nothing about the path
  uint64_t bytes_acked = 0, bytes_received = 0;
  double busy_s = 0, receive_window_limited_s = 0, send_buffer_limited_s = 0;
  uint32_t congestion_window_bytes = 0;
  uint64_t retransmits = 0;
};

/// Shared memory through which all ranks of a job on one host pass bytes to each other: each rank
/// writes its own staging buffer and reads the others'. All have the same size, in whole pages.
/// Messages say when a buffer may be written and read; they order memory accesses, too.
struct StagingBuffers {
  std::span<std::byte> own;
  std::vector<std::span<const std::byte>> of;  // by rank, including this one
};

/// Names a posted operation. 0 is never issued.
using Ticket = uint64_t;

/// One rank's end of a full mesh. Data calls come from one thread at a time; Samples, Interrupt and
/// Wake are thread-safe. Messages between two ranks arrive in the order sent. The caller keeps
/// posted buffers alive and unchanged until Wait has returned their ticket, Abort has returned or
/// the transport is destroyed. A failure alone does not free them: Abort, or else the destructor,
/// sends a shutdown notice to the peers, and before it the rest of a frame that was sent in part.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual const TransportAddress& address() const = 0;  // where peers reach this rank

  /// Connects to every other rank. addresses[r] is the address of rank r; this rank's entry is
  /// ignored. Every rank calls it. kDeadlineExceeded names the ranks that are missing;
  /// kInvalidArgument: wrong count of addresses.
  virtual Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) = 0;

  /// Queues one frame to `peer`. Fills payload size, checksum and source rank of `header`.
  /// Returns at once. kUnavailable naming the rank when the peer is known to be gone;
  /// kResourceExhausted beyond kPostedMax posted operations.
  virtual StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                                    std::span<const std::byte> payload) = 0;

  /// Receives the next frame from `peer` into `buffer`. A longer payload is kDataLoss.
  virtual StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) = 0;

  /// Drives all posted operations until `ticket` is done. For receives returns the verified header.
  /// kUnavailable: any connected rank died (named) or sent an abort (its text); kDataLoss:
  /// malformed or corrupt frame (peer named); kDeadlineExceeded names the peer waited for. After an
  /// error the transport is failed: every later call returns the same error.
  virtual StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) = 0;

  /// Drives all posted operations until one of `tickets` is done, and returns its index; returns
  /// nullopt after Wake or at `deadline`. For threads that serve several operations and take them
  /// in the order in which they end. The ticket stays posted, and Wait on it returns at once.
  /// Errors are those of Wait with two exceptions. A deadline, which may have passed already, does
  /// not fail the transport. The tickets of a peer that closed its connection in order are never
  /// done. O(tickets) each time that it looks.
  virtual StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                                  TimePoint deadline) = 0;

  /// Makes a WaitAny in progress, or else the next one, return soon without an error. Thread-safe.
  virtual void Wake() = 0;

  /// The staging buffers of all ranks; null, on all ranks alike, if there are none. Valid once
  /// connected and as long as the transport lives, even if peers leave or die.
  virtual const StagingBuffers* staging() const { return nullptr; }

  /// Tells every live peer that this rank fails the current operation, so that they can name the
  /// guilty rank, then fails the transport locally. Best effort, for at most 200 ms.
  virtual void Abort(std::string_view reason) = 0;

  /// As Abort, for a caller whose posted buffers may no longer exist because an exception destroyed
  /// them: it neither reads nor writes them. A frame that was sent in part is not completed, so its
  /// receiver sees the connection end and does not learn the reason.
  virtual void Abandon(std::string_view reason) = 0;

  /// Makes a Wait in progress return kAborted soon. Thread-safe.
  virtual void Interrupt() = 0;

  /// Peers that are reached over a network and have proven nothing. Thread-safe.
  virtual int unauthenticated_peers() const { return 0; }

  /// One sample per connected peer. Thread-safe.
  virtual std::vector<PathSample> Samples() const = 0;

  /// How fast payloads came since the last call, from peers on other hosts. Thread-safe.
  virtual std::vector<ArrivalSample> TakeArrivals() { return {}; }

  /// Bytes handed to the network or to peers' memory by messages since Connect, headers included;
  /// what ranks pass through staging buffers is not counted. Thread-safe.
  virtual uint64_t bytes_sent() const = 0;
};

inline constexpr int kPostedMax = 4096;

/// Creates transports of one kind.
class TransportFactory {
 public:
  virtual ~TransportFactory() = default;
  virtual const TransportTraits& Traits() const = 0;
  /// Binds and listens. kUnavailable or kInvalidArgument names the address and the cause;
  /// kResourceExhausted: the system grants too little locked memory or the device too few entries.
  virtual StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const = 0;
};

/// Every transport of this build, from builtin_transports.def. Thread-safe.
const Registry<TransportFactory>& Transports();

}  // namespace weir
