// SPDX-License-Identifier: Apache-2.0
#pragma once
// One UDP socket for packets of the aggregation protocols. It moves many datagrams in one system
// call. Where the kernel can segment and join datagrams (GSO, GRO), it sends and receives a row of
// datagrams to one address as one message.

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::aggregation {

struct UdpPortOptions {
  std::string listen = "127.0.0.1:0";  // IPv4; port 0: any free one
  /// Size of the kernel's buffer in each direction. The kernel grants less where the
  /// administrator's limit is lower, and then bursts lose packets.
  int buffer_bytes = 8 << 20;
  /// Without it every packet is a message of its own, as where the kernel cannot segment rows.
  bool rows = true;
};

/// All values only increase.
struct UdpPortCounters {
  uint64_t received = 0;   // datagrams
  uint64_t sent = 0;       // datagrams that the kernel accepted
  uint64_t messages = 0;   // messages in which they left: a row of datagrams is one
  uint64_t unsent = 0;     // datagrams that it did not accept in time; they count as lost
  uint64_t truncated = 0;  // datagrams that are too long for a packet
  uint64_t refused = 0;    // reports that no socket listens at the address of Connect()
};

/// Not thread-safe. Memory: two mebibytes of address space for incoming datagrams, of which only
/// the part that they fill is touched, and one for outgoing ones.
class UdpPort {
 public:
  /// kInvalidArgument: not an IPv4 address. kUnavailable: it cannot be bound; the message has the
  /// cause.
  static StatusOr<std::unique_ptr<UdpPort>> Bind(const UdpPortOptions& options);
  ~UdpPort();
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  /// From now on, only datagrams from `peer` arrive, and refusals by its host are counted.
  /// kUnavailable: there is no route.
  Status Connect(SourceAddress peer);

  /// The address of this port.
  SourceAddress address() const { return address_; }
  int fd() const { return fd_.get(); }

  /// About as many packets as the kernel holds until they are received. More are lost.
  size_t packets_held() const { return packets_held_; }

  /// Calls `sink` for each datagram that has arrived, for at most two mebibytes of them, and
  /// returns whether there were any. The bytes are valid during the call. Never waits.
  using Sink = std::function<void(SourceAddress from, std::span<const std::byte> datagram)>;
  bool Receive(const Sink& sink);

  /// Queues a copy of `packet` for each of `to` (at most kWorkersMax), and flushes when the queue
  /// is full. packet: at most kPacketBytesMax. Each address has a row of its own, so packets to
  /// others in between do not end it. O(size + addresses), for addresses among the 64 that were
  /// used last.
  void Send(std::span<const SourceAddress> to, std::span<const std::byte> packet);
  void Send(SourceAddress to, std::span<const std::byte> packet) { Send({&to, 1}, packet); }

  /// Whether rows leave as one message each. False also where the kernel cannot segment them.
  bool sends_rows() const { return segments_; }
  /// From the next Flush on, every packet is a message of its own, or rows leave again as far as
  /// the kernel can segment them.
  void SendRows(bool rows) { segments_ = rows && can_segment_; }

  /// Passes the queue to the kernel. It waits at most 10 ms in total for room in the kernel's
  /// buffer; what is left then counts as unsent.
  void Flush();

  /// Waits until a datagram has arrived, `wake_fd` (if not negative) is readable or `deadline` has
  /// passed.
  void Wait(TimePoint now, TimePoint deadline, int wake_fd = -1) const;

  const UdpPortCounters& counters() const { return counters_; }

 private:
  /// Packets of one size to one address; only the last one may be shorter.
  struct Row {
    SourceAddress to = 0;
    size_t segment = 0;
    size_t bytes = 0;
    size_t packets = 0;
    bool ended = false;              // later packets to this address have another row
    std::vector<iovec> pieces = {};  // in line_; each is one packet or several that lie in a row
  };
  static constexpr int kSlots = 32;  // datagrams, or joined rows of them, per receiving call
  static constexpr int kBatch = 64;  // messages per sending call

  struct Control;
  struct Incoming;
  struct Outgoing;

  UdpPort(mesh::UniqueFd fd, bool rows);
  void PrepareToReceive(bool rows);
  bool Extends(const Row& row, size_t size) const;
  /// The row that a packet of this size to this address belongs to, which may be a new one.
  Row& RowFor(SourceAddress to, size_t size);
  void AddSinglePackets(const Row& row, TimePoint deadline);
  void AddMessage(SourceAddress to, std::span<iovec> pieces, const Row* row, TimePoint deadline);
  void SendMessages(TimePoint deadline);
  void OnSendError(int error, size_t message);

  mesh::UniqueFd fd_;
  SourceAddress address_ = 0;
  size_t packets_held_ = 0;
  bool connected_ = false;
  bool can_segment_ = false;
  bool segments_ = false;  // whether the kernel segments rows; else every packet is a message
  size_t row_bytes_ = 0;   // the longest row that the interface accepts
  size_t slot_bytes_ = 0;
  std::vector<std::byte> slots_;
  std::vector<std::byte> line_;
  size_t line_size_ = 0;
  std::vector<Row> rows_;  // the first rows_used_ are queued; the others keep their memory
  size_t rows_used_ = 0, row_recent_ = 0;
  std::unique_ptr<Incoming> incoming_;
  std::unique_ptr<Outgoing> outgoing_;
  UdpPortCounters counters_;
};

}  // namespace weir::aggregation
