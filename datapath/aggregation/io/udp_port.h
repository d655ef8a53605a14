#pragma once
// One UDP socket for packets of the aggregation protocols: many datagrams in one system call, and
// rows of datagrams to one address as one, where the kernel cuts and joins them (GSO, GRO).

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
  /// Of the kernel, each way. It grants less where its administrator allows less: then bursts lose.
  int buffer_bytes = 8 << 20;
  /// Off: every packet is a message of its own, as where the kernel cannot cut rows.
  bool rows = true;
};

/// Only ever grow.
struct UdpPortCounters {
  uint64_t received = 0;   // datagrams
  uint64_t sent = 0;       // datagrams that the kernel took
  uint64_t unsent = 0;     // datagrams that it did not take in time: as if lost on the way
  uint64_t truncated = 0;  // datagrams too long for a packet
  uint64_t refused = 0;    // reports that nobody listens at the address of Connect()
};

/// Not thread-safe. Memory: two mebibytes of address space for what comes in, of which only what
/// datagrams filled is touched, and one for what goes out.
class UdpPort {
 public:
  /// kInvalidArgument: no IPv4 address; kUnavailable: it cannot be bound, with the cause.
  static StatusOr<std::unique_ptr<UdpPort>> Bind(const UdpPortOptions& options);
  /// A line of its own to a bound IPv4 socket of which somebody else receives. kUnavailable: `fd`
  /// is none.
  static StatusOr<std::unique_ptr<UdpPort>> ForSending(mesh::UniqueFd fd);
  ~UdpPort();
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  /// From now on only datagrams from `peer` arrive, and refusals of its host are noticed.
  /// kUnavailable: no route.
  Status Connect(SourceAddress peer);

  /// Where datagrams for this port go.
  SourceAddress address() const { return address_; }
  int fd() const { return fd_.get(); }

  /// Gives each datagram that is there to `sink`, at most two mebibytes; true when some came. The
  /// bytes are valid during the call. Never waits.
  using Sink = std::function<void(SourceAddress from, std::span<const std::byte> datagram)>;
  bool Receive(const Sink& sink);

  /// Puts a copy of `packet` in line for each of `to` (at most kWorkersMax); flushes when the line
  /// is full. packet: at most kPacketBytesMax.
  void Send(std::span<const SourceAddress> to, std::span<const std::byte> packet);
  void Send(SourceAddress to, std::span<const std::byte> packet) { Send({&to, 1}, packet); }

  /// Hands what stands in line to the kernel; waits for room in its buffer for at most 10 ms in
  /// all, then what is left counts as unsent.
  void Flush();

  /// Waits until a datagram is there, `wake_fd` (if not negative) is readable or `deadline` has
  /// come.
  void Wait(TimePoint now, TimePoint deadline, int wake_fd = -1) const;

  const UdpPortCounters& counters() const { return counters_; }

 private:
  /// Packets of one size in a row for the same addresses; only the last may be shorter.
  struct Row {
    size_t to = 0, to_count = 0;  // in addresses_
    size_t at = 0, size = 0;      // in line_
    size_t segment = 0;
    size_t packets = 0;
  };
  static constexpr int kSlots = 32;  // datagrams, or joined ones, of one receiving call
  static constexpr int kBatch = 64;  // messages of one sending call

  struct Control;
  struct Incoming;
  struct Outgoing;

  UdpPort(mesh::UniqueFd fd, bool rows);
  void PrepareToReceive(bool rows);
  bool Extends(const Row& row, std::span<const SourceAddress> to, size_t size) const;
  void AddMessage(const Row& row, SourceAddress to, TimePoint deadline);
  void SendMessages(TimePoint deadline);
  void OnSendError(int error, size_t message);

  mesh::UniqueFd fd_;
  SourceAddress address_ = 0;
  bool connected_ = false;
  bool segments_ = false;  // the kernel cuts; else every packet is a message
  size_t row_bytes_ = 0;   // of a row that the interface takes whole
  size_t slot_bytes_ = 0;
  std::vector<std::byte> slots_;
  std::vector<std::byte> line_;
  size_t line_size_ = 0;
  std::vector<SourceAddress> addresses_;
  std::vector<Row> rows_;
  std::unique_ptr<Incoming> incoming_;
  std::unique_ptr<Outgoing> outgoing_;
  UdpPortCounters counters_;
};

}  // namespace weir::aggregation
