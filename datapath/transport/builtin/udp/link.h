#pragma once
// One link: a reliable stream of bytes each way between two ranks, out of datagrams that may be
// lost, repeated, late or corrupt. No input or output and no clock of its own, so that tests drive
// it through any network they can think of.

#include "datapath/transport/builtin/udp/receiver.h"
#include "datapath/transport/builtin/udp/sender.h"
#include "datapath/transport/transport.h"

namespace weir::udp {

/// Not thread-safe. Memory: both buffers, and what Sender and Receiver bound.
class Link {
 public:
  struct Options {
    uint64_t own_connection = 0;   // how the peer's packets are addressed
    uint64_t peer_connection = 0;  // and ours
    size_t send_bytes = 1 << 20;
    size_t receive_bytes = 1 << 20;
    uint64_t peer_window = 1 << 20;  // of its hello
    size_t datagram_bytes = kDatagramBytesMin;
  };
  Link(const Options& options, TimePoint now);

  // ---- the stream; as ByteStream

  ssize_t Write(std::span<const iovec> parts);
  ssize_t Read(std::span<const iovec> parts);
  void CloseWrite() { sender_.Close(); }
  bool readable() const { return receiver_.readable() > 0; }
  bool writable() const { return error_ != 0 || sender_.room() * 4 >= options_.send_bytes; }
  /// Nothing more will come: the end has, or the link is cut.
  bool hung_up() const { return receiver_.complete() || error_ != 0; }
  /// Nothing more will come although the stream has not ended.
  bool cut() const { return error_ != 0 && !receiver_.complete(); }
  /// All that was written arrived at the peer, the end if there is one; or never can, or the peer
  /// has ended its stream and needs nothing any more.
  bool drained() const { return error_ != 0 || receiver_.complete() || sender_.drained(); }

  // ---- the network

  /// A datagram whose prefix names own_connection. False when it was ignored: malformed, a
  /// duplicate, beyond what it may be.
  bool OnDatagram(std::span<const std::byte> datagram, TimePoint now, bool marked = false);
  /// Writes the next datagram that may leave, at most datagram_bytes(); its size, 0 when there is
  /// none. `out` has room for kDatagramBytesMax.
  size_t NextDatagram(TimePoint now, std::span<std::byte> out);
  void OnTimer(TimePoint now);
  /// When OnTimer or NextDatagram has something to do; the end of time when nothing will.
  TimePoint NextTimer(TimePoint now);
  /// The link is cut: `error` is an errno. An end that came stays an end.
  void Cut(int error) { error_ = error_ == 0 ? error : error_; }
  /// Datagrams of more than so many bytes do not get through.
  void OnTooLong(size_t bytes_max);

  size_t datagram_bytes() const { return sender_.datagram_bytes(); }
  const Options& options() const { return options_; }
  /// The peer has sent a packet, so it knows that the link is there.
  bool confirmed() const { return confirmed_; }
  /// Reading made room that the peer should know of.
  bool owes_window() const { return receiver_.owes_window(); }
  /// Leaves with the next datagram, to be answered.
  void Ping() { sender_.AskForPing(); }
  /// Datagrams that OnDatagram ignored.
  uint64_t ignored() const { return ignored_; }
  PathSample Sample(int peer) const;

 private:
  bool settled() const { return receiver_.complete() && sender_.drained(); }
  TimePoint PingAt() const;

  const Options options_;
  Sender sender_;
  Receiver receiver_;
  int error_ = 0;
  bool confirmed_ = false;
  TimePoint last_received_, last_ping_;
  uint64_t ignored_ = 0;
};

}  // namespace weir::udp
