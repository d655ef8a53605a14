// SPDX-License-Identifier: Apache-2.0
#pragma once
// Round-trip time by UDP echo between agents, and the responder that answers both kinds of latency
// probe on the probe port: UDP echo and plain TCP connects.
//
// Packet, little-endian: u32 magic "WEch", u8 version 1, u8 type (1 request, 2 reply), u16 zero,
// u64 nonce, u64 sequence, zeros up to its size. A reply is the request with type 2. It is never
// longer than the request, so a forged source address gains nothing. Replies are never answered, so
// two responders cannot send to each other for ever.

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "agent/measure/rtt.h"
#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

inline constexpr size_t kEchoPacketBytesMin = 24;
inline constexpr size_t kEchoPacketBytesMax = 512;

/// Answers UDP echo requests and accepts (then closes) TCP connections at one address.
/// Bounds: 512-byte packets, 5,000 replies a second (more are dropped), 16 accepts per wake-up.
class EchoServer {
 public:
  /// Binds both sockets and starts the thread "weir-echo". Port 0: any free port; see port().
  /// kUnavailable when the address cannot be bound.
  static StatusOr<std::unique_ptr<EchoServer>> Start(const SocketAddress& address,
                                                     const Clock& clock);
  /// Stops and joins.
  ~EchoServer();
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;
  uint16_t port() const { return port_; }

 private:
  EchoServer(FileDescriptor udp, FileDescriptor tcp, FileDescriptor wake, uint16_t port,
             const Clock& clock);
  void Serve();
  void AnswerUdp();
  void AcceptTcp();

  FileDescriptor udp_;
  FileDescriptor tcp_;
  FileDescriptor wake_;
  const uint16_t port_;
  const Clock& clock_;
  double reply_tokens_ = 0;
  TimePoint refilled_{};
  std::jthread thread_;
};

struct UdpEchoOptions {
  uint32_t count = 5;                                 // requests per target, 1..64
  Duration interval = std::chrono::milliseconds(20);  // between requests to one target
  Duration timeout = std::chrono::milliseconds(500);  // for the last replies
  size_t packet_bytes = 64;                           // 24..512
  uint64_t nonce = 0;                                 // unguessable; replies must contain it
};

/// Probes every target at once, from one socket per address family. Returns one result per target,
/// in order: the summary, kDeadlineExceeded when no reply came (names the target), kUnavailable
/// when the socket failed, or kAborted when `stop` was requested. At most 1,024 targets; the others
/// get kResourceExhausted. Waits at most count * interval + timeout.
std::vector<StatusOr<RttSummary>> MeasureUdpEcho(std::span<const SocketAddress> targets,
                                                 const UdpEchoOptions& options, const Clock& clock,
                                                 std::stop_token stop);

/// The request packet, for probers that send it themselves (route). `packet_bytes` is clamped to
/// the bounds above.
std::vector<std::byte> MakeEchoRequest(uint64_t nonce, uint64_t sequence, size_t packet_bytes);

/// Returns true and sets the sequence if `packet` is a well-formed reply with `nonce`.
bool ParseEchoReply(std::span<const std::byte> packet, uint64_t nonce, uint64_t* sequence);

}  // namespace weir::agent
