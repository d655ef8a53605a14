#pragma once
// The worker's side of a lease: a window of packets, one per slot, with rounds, time-outs and
// replies. Pure: the caller owns socket and clock. What packets carry, and which one follows which
// reply, is a subclass's business.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/packet.h"
#include "datapath/aggregation/round_trip.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// Only ever grow.
struct WorkerCounters {
  uint64_t sent = 0;
  uint64_t resent = 0;
  uint64_t replies = 0;
  uint64_t malformed = 0;   // datagrams that are no packet of this lease
  uint64_t unexpected = 0;  // replies that this worker does not wait for (any more)
  uint64_t expired = 0;     // packets whose round ended without them, result unknown
};

/// Not thread-safe. Memory: O(slots). The loop around it, until done():
///
///   OnTimer(now); while (packet = NextPacket(now), not empty) send; wait for a datagram or
///   NextTimer(); OnPacket(datagram, now).
class Worker {
 public:
  /// lease: valid. rank: for messages.
  Worker(const Lease& lease, const TimeoutLimits& limits, int rank);
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// For callers who know that all workers have begun, so that silence is not theirs: from now on
  /// an operation also ends when no reply has come for `floor` or eight smoothed round trips
  /// (before any measurement: eight first time-outs), whichever is longer. Where rounds may end
  /// without some workers and replies have come before, that is no error: what is missing counts as
  /// lost (AcceptLoss), since it may be this worker's own packets that do not get through.
  void EndWhenSilent(Duration floor) { silence_floor_ = floor; }

  /// No operation runs, or the last one has ended. After an error the lease is spent: the whole job
  /// needs a new epoch, since the others' rounds have moved on.
  bool done() const { return !status_.ok() || waiting_ == 0; }
  /// kDeadlineExceeded: names slot and round that waits. kUnavailable: silence, as asked for.
  /// kFailedPrecondition: the others sum something else. kDataLoss: a reply is impossible.
  const Status& status() const { return status_; }

  /// The next datagram to send; empty: none now. Valid until the next call. O(lanes).
  std::span<const std::byte> NextPacket(TimePoint now);

  /// A datagram from the aggregator. Foreign and repeated ones are counted. O(lanes).
  void OnPacket(std::span<const std::byte> datagram, TimePoint now);

  /// When OnTimer has something to do. O(slots).
  std::optional<TimePoint> NextTimer() const;

  /// Puts packets whose time is out in line to be sent again, and ends an operation at its
  /// deadline. O(slots).
  void OnTimer(TimePoint now);

  const WorkerCounters& counters() const { return counters_; }
  const RoundTripEstimate& round_trip() const { return round_trip_; }
  const Lease& lease() const { return lease_; }

 protected:
  /// Starts an operation, whose first packets are then launched. operation: counted alike on all
  /// workers. kFailedPrecondition: one runs, or the lease is spent.
  Status Start(uint32_t operation, TimePoint deadline);

  /// Puts packet `index` in line as the next round of `slot`, which waits for nothing. Indices are
  /// the subclass's; all workers launch the same number of packets per slot.
  void Launch(size_t slot, uint64_t index);

  bool Waiting(size_t slot) const { return flights_[slot].waiting; }

  /// Fills in packet `index`: payload has PayloadBytes of the header as it is on return; the offset
  /// is `index` unless set. Called again, for the same bytes, when it is sent again.
  virtual void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) = 0;
  /// The reply to packet `index`, the first one to come. The slot is free: this may launch further
  /// packets. An error ends the operation.
  virtual Status Accept(uint64_t index, const Packet& packet) = 0;
  /// The round of packet `index` ended without this worker, and the result is lost; else as Accept.
  virtual Status AcceptLoss(uint64_t index);
  /// Counts all that is missing of the operation as lost, so that the next one can begin with the
  /// rounds that the others have. False: it cannot.
  virtual bool GiveUp() { return false; }

  /// The round of the packet that is launched next in `slot`.
  uint32_t NextRound(size_t slot) const { return next_rounds_[slot]; }
  /// What waits in `slot` does so no more, and the next packet there is of round `next_round`.
  void SkipTo(size_t slot, uint32_t next_round);

  int rank() const { return rank_; }
  size_t slots() const { return flights_.size(); }

 private:
  struct Flight {
    uint64_t index = 0;
    uint32_t round = 0;
    uint32_t offset = 0;
    TimePoint sent_at = {}, expires_at = {};
    bool waiting = false;  // sent or in line
    bool in_line = false;
    bool sent = false;
    bool resent = false;
  };

  void Queue(size_t slot);
  /// When a packet that was sent, and has no reply, counts as lost.
  TimePoint LostAt(const Flight& flight) const;
  void OnReply(const Packet& packet, TimePoint now);
  void Fail(const Status& status);
  /// Which flight waits, and how much was answered before.
  std::string DescribeWait() const;
  std::optional<TimePoint> SilentAt() const;

  const Lease lease_;
  const int rank_;
  const Duration first_timeout_;
  RoundTripEstimate round_trip_;
  Duration silence_floor_ = Duration::zero();  // 0: silence ends nothing
  std::optional<TimePoint> heard_at_;          // of this operation: its first timer, then replies
  TimePoint overtaken_at_ = {};  // the newest packet that was sent once and answered went out then
  Status status_;
  uint32_t operation_ = 0;
  TimePoint deadline_;
  uint64_t answered_ = 0;              // packets of this operation
  size_t waiting_ = 0;                 // flights
  std::vector<Flight> flights_;        // by slot
  std::vector<uint32_t> next_rounds_;  // by slot, in this epoch
  std::vector<uint16_t> line_;         // slots with something to send: a ring, each at most once
  size_t line_head_ = 0, line_size_ = 0;
  std::vector<std::byte> buffer_;
  WorkerCounters counters_;
};

/// A worker whose operation is a row of packets, spread over the slots in turn: packet i takes slot
/// i modulo the slots after packet i - slots. Memory: one bit per packet.
class ChunkWorker : public Worker {
 public:
  using Worker::Worker;

 protected:
  struct Plan {
    uint32_t operation = 0;
    uint64_t packets = 0;
    // Packet i needs the reply to packet i - lag, too; at most the slots. 0: needs none.
    uint64_t lag = 0;
    TimePoint deadline;
  };
  /// As Start, and launches. kInvalidArgument: a lag beyond the slots, 2^32 packets.
  Status StartChunks(const Plan& plan);

  /// As Accept, AcceptLoss; launch nothing.
  virtual Status AcceptChunk(uint64_t index, const Packet& packet) = 0;
  virtual Status AcceptChunkLoss(uint64_t index) { return Worker::AcceptLoss(index); }

 private:
  Status Accept(uint64_t index, const Packet& packet) final;
  Status AcceptLoss(uint64_t index) final;
  bool GiveUp() final;
  void LaunchIfReady(uint64_t index);
  void LaunchAfter(uint64_t index);

  Plan plan_;
  std::vector<bool> received_;
  std::vector<uint32_t> first_rounds_;  // of the operation, by slot
};

}  // namespace weir::aggregation
