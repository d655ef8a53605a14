#pragma once
// One UDP socket: many datagrams in one system call where the kernel can, errors by the peer they
// came from.

#include <functional>
#include <span>
#include <vector>

#include "datapath/transport/mesh/socket.h"

namespace weir::udp {

/// True when both name the same host and port.
bool SameAddress(const mesh::SocketAddress& a, const mesh::SocketAddress& b);

/// Not thread-safe.
class DatagramSocket {
 public:
  /// Bound to options.listen, never fragmenting; *bound is its address. kInvalidArgument: bad
  /// address; kUnavailable: cannot bind.
  static StatusOr<DatagramSocket> Bind(const TransportOptions& options, TransportAddress* bound);

  int fd() const { return fd_.get(); }
  int family() const { return family_; }
  /// What the kernel segments on the way out and joins on the way in, if it can: looked for at run
  /// time.
  bool segments() const { return segments_; }
  bool joins() const { return joins_; }

  /// Gives each datagram that is there to `sink`, at most about a mebibyte; `marked`: a queue on
  /// the way was filling up (ECN). True when there may be more.
  using Sink = std::function<void(const mesh::SocketAddress& from, std::span<std::byte> datagram,
                                  bool marked)>;
  bool Receive(const Sink& sink);

  enum class Outcome { kSent, kBlocked, kTooLong, kFailed };
  /// Sends `bytes` as datagrams of `segment` bytes each, the last may be shorter. kFailed: they are
  /// lost, as if on the way.
  Outcome Send(const mesh::SocketAddress& to, std::span<const std::byte> bytes, size_t segment);

  /// Takes what the network reported, once a call above met an error: `error` about datagrams to
  /// `to`, of which the first bytes are quoted. EMSGSIZE: `mtu` is what the path bears, 0 if
  /// unknown.
  using ErrorSink = std::function<void(const mesh::SocketAddress& to, int error, uint32_t mtu,
                                       std::span<const std::byte> quoted)>;
  void TakeErrors(const ErrorSink& sink);

  /// The longest datagram that the route to `to` bears as far as the kernel knows, in bytes without
  /// headers, within kDatagramBytesMin .. kDatagramBytesMax.
  size_t PathBytes(const mesh::SocketAddress& to) const;
  /// The same for an MTU.
  size_t BytesOfMtu(size_t mtu) const;

 private:
  explicit DatagramSocket(mesh::UniqueFd fd, int family);
  Outcome SendSegmented(const mesh::SocketAddress& to, std::span<const std::byte> bytes,
                        size_t segment, int* error);
  Outcome SendEach(const mesh::SocketAddress& to, std::span<const std::byte> bytes, size_t segment,
                   int* error);

  mesh::UniqueFd fd_;
  int family_;
  bool segments_ = false, joins_ = false;
  bool reported_ = false;  // the queue of errors may hold some
  size_t slot_bytes_ = 0;
  std::vector<std::byte> slots_;
};

/// Most bytes that one Send takes.
inline constexpr size_t kBatchBytesMax = 64000;

}  // namespace weir::udp
