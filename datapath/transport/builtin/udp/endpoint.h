#pragma once
// One rank's UDP socket and the links over it: the thin shell around Link that touches the network.

#include <atomic>
#include <memory>
#include <vector>

#include "datapath/transport/builtin/udp/link.h"
#include "datapath/transport/builtin/udp/socket.h"
#include "datapath/transport/mesh/byte_stream.h"

namespace weir::udp {

/// A connection id names the rank at the other end in its lower half-word; the rest is a secret.
inline int RankOf(uint64_t connection) { return static_cast<int>(connection & 0xffff); }
inline uint64_t MakeConnection(int rank, uint64_t number) {
  return (number & ~uint64_t{0xffff}) | static_cast<uint64_t>(rank);
}

/// A handshake that came.
struct Caller {
  Handshake handshake;
  mesh::SocketAddress from;
};

/// What the network reported about a handshake that was sent there.
struct Unreachable {
  mesh::SocketAddress to;
  int error = 0;
};

/// Thread-safe: the rank's own thread and its attendant drive it by turns.
class Endpoint {
 public:
  Endpoint(DatagramSocket socket, int world);

  int fd() const { return fd_; }
  int family() const { return family_; }

  // ---- connecting

  /// Sends one datagram, best effort.
  void Send(const mesh::SocketAddress& to, std::span<const std::byte> datagram);
  /// What came since the last call; only until StopListening, and at most kCallersMax.
  std::vector<Caller> TakeCallers();
  std::vector<Unreachable> TakeUnreachable();
  static constexpr size_t kCallersMax = 256;
  /// From now on strangers find nobody.
  void StopListening();
  /// See DatagramSocket.
  size_t PathBytes(const mesh::SocketAddress& to);

  /// Makes the link to `rank`, in the place of an earlier one.
  void AddLink(int rank, const mesh::SocketAddress& address, const Link::Options& options);
  void DropLink(int rank);
  /// The peer's connection id; 0 when there is no link.
  uint64_t PeerConnection(int rank) const;
  bool Confirmed(int rank) const;
  /// It ended without the end of its stream.
  bool Cut(int rank) const;
  std::string AddressOf(int rank) const;

  // ---- driving

  /// Takes what came, minds the time, sends what may leave.
  void Drive(TimePoint now);
  /// The same unless `busy`, which is looked at when no other thread drives.
  void DriveUnless(const std::atomic<bool>& busy, TimePoint now);
  /// When Drive has something to do even if nothing comes, at the latest.
  TimePoint NextTimer(TimePoint now);
  /// Sends what reading made due.
  void Flush(TimePoint now);
  /// Everything that was written arrived, or never can.
  bool Drained() const;

  // ---- the streams; as ByteStream

  ssize_t Write(int rank, std::span<const iovec> parts);
  ssize_t Read(int rank, std::span<const iovec> parts);
  void CloseWrite(int rank);
  bool Readable(int rank) const;
  bool Writable(int rank) const;
  bool HungUp(int rank) const;
  PathSample Sample(int rank) const;
  /// Datagrams that no link took. For tests and messages.
  uint64_t ignored() const;

 private:
  struct Channel {
    mesh::SocketAddress address;
    std::unique_ptr<Link> link;
  };
  // What the kernel had no room for.
  struct Held {
    mesh::SocketAddress to;
    std::vector<std::byte> bytes;
    size_t segment = 0;
  };

  void DriveLocked(TimePoint now) WEIR_REQUIRES(mutex_);
  void OnDatagram(const mesh::SocketAddress& from, std::span<const std::byte> datagram, bool marked,
                  TimePoint now) WEIR_REQUIRES(mutex_);
  void TakeErrors() WEIR_REQUIRES(mutex_);
  void OnError(const mesh::SocketAddress& to, int error, uint32_t mtu,
               std::span<const std::byte> quoted) WEIR_REQUIRES(mutex_);
  bool SendHeld() WEIR_REQUIRES(mutex_);
  void FlushLocked(TimePoint now) WEIR_REQUIRES(mutex_);
  /// False: the kernel has no room.
  bool FlushChannel(Channel& channel, TimePoint now) WEIR_REQUIRES(mutex_);
  size_t FillBatch(Link& link, TimePoint now, size_t* segment) WEIR_REQUIRES(mutex_);
  const Link* LinkTo(int rank) const WEIR_REQUIRES(mutex_) { return channels_[rank].link.get(); }

  const int fd_, family_;
  mutable Mutex mutex_;
  DatagramSocket socket_ WEIR_GUARDED_BY(mutex_);
  std::vector<Channel> channels_ WEIR_GUARDED_BY(mutex_);  // by rank
  bool listening_ WEIR_GUARDED_BY(mutex_) = true;
  std::vector<Caller> callers_ WEIR_GUARDED_BY(mutex_);
  std::vector<Unreachable> unreachable_ WEIR_GUARDED_BY(mutex_);
  std::vector<std::byte> batch_ WEIR_GUARDED_BY(mutex_);
  Held held_ WEIR_GUARDED_BY(mutex_);
  size_t first_ WEIR_GUARDED_BY(mutex_) = 0;  // whose turn it is to send first
  bool dirty_ WEIR_GUARDED_BY(mutex_) = false;
  uint64_t ignored_ WEIR_GUARDED_BY(mutex_) = 0;
};

/// The stream to one peer.
class LinkStream : public mesh::ByteStream {
 public:
  /// `endpoint` outlives it and has a link to `rank`.
  LinkStream(Endpoint& endpoint, int rank) : endpoint_(endpoint), rank_(rank) {}
  ssize_t Write(std::span<const iovec> parts) override { return endpoint_.Write(rank_, parts); }
  ssize_t Read(std::span<const iovec> parts) override { return endpoint_.Read(rank_, parts); }
  void CloseWrite() override { endpoint_.CloseWrite(rank_); }
  /// The socket is the endpoint's.
  Status Register(mesh::EventSet&, uint32_t) override { return OkStatus(); }
  bool Readable() override { return endpoint_.Readable(rank_); }
  bool Writable() override { return endpoint_.Writable(rank_); }
  PathSample Sample(int) const override { return endpoint_.Sample(rank_); }
  /// Once, when nothing more will come.
  bool TakeHangUp() { return !told_ && (told_ = endpoint_.HungUp(rank_)); }

 private:
  Endpoint& endpoint_;
  const int rank_;
  bool told_ = false;
};

}  // namespace weir::udp
