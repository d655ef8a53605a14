// SPDX-License-Identifier: Apache-2.0
#pragma once
// The worker's side of a lease: a window of packets, one per slot, with rounds, time-outs and
// replies. Pure: the caller owns socket and clock. Subclasses decide what packets carry and which
// packet follows which reply.
//
// The window is that of TCP (RFC 5681, section 3.1) in packets, at most the slots, with which it
// begins: a time-out halves it, and it grows by one for each reply, and from half of the window at
// which the last time-out came, by one for each window of replies. Otherwise workers that send more
// in a time-out than the aggregator handles would make it busy with repetitions for ever. Deviates:
// a time-out counts only if most of what was sent again since the last one was answered twice, or
// nothing was answered at all. Any other is a loss, which says nothing about the aggregator's load.

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

/// All values only increase.
struct WorkerCounters {
  uint64_t sent = 0;
  uint64_t resent = 0;
  uint64_t replies = 0;
  uint64_t malformed = 0;   // datagrams that are not packets of this lease
  uint64_t unexpected = 0;  // replies that this worker does not wait for
  uint64_t expired = 0;     // packets whose round ended without them and whose result is unknown
};

/// Not thread-safe. Memory: O(slots). The caller repeats this loop until done():
///
///   OnTimer(now); while (packet = NextPacket(now), not empty) send; wait for a datagram or
///   NextTimer(); OnPacket(datagram, now).
class Worker {
 public:
  /// lease: valid. rank: used in messages.
  Worker(const Lease& lease, const TimeoutLimits& limits, int rank);
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// To be called when all workers are known to have begun, so that silence is not theirs. From now
  /// on an operation also ends when no reply has come for `floor` or for eight smoothed round trips
  /// (before any measurement: eight first time-outs), whichever is longer. Where rounds may end
  /// without some workers and replies have come before, this is no error: the missing packets count
  /// as lost (AcceptLoss), because it may be only this worker's own packets that do not get
  /// through.
  void EndWhenSilent(Duration floor) { silence_floor_ = floor; }

  /// Returns whether no operation runs or the last one has ended. After an error the lease cannot
  /// be used further: the whole job needs a new epoch, because the other workers' rounds have
  /// advanced.
  bool done() const { return !status_.ok() || waiting_ == 0; }
  /// kDeadlineExceeded names a slot and round that is waiting. kUnavailable: silence, after
  /// EndWhenSilent. kFailedPrecondition: the other workers sum something else. kDataLoss: a reply
  /// is impossible.
  const Status& status() const { return status_; }

  /// The next datagram to send, or empty if there is none now. Valid until the next call. O(lanes).
  std::span<const std::byte> NextPacket(TimePoint now);

  /// Handles a datagram from the aggregator. Foreign and repeated ones are only counted. O(lanes).
  void OnPacket(std::span<const std::byte> datagram, TimePoint now);

  /// The time at which OnTimer must be called next. O(slots).
  std::optional<TimePoint> NextTimer() const;

  /// Queues packets whose time-out has passed to be sent again, and ends an operation at its
  /// deadline. O(slots).
  void OnTimer(TimePoint now);

  const WorkerCounters& counters() const { return counters_; }
  const RoundTripEstimate& round_trip() const { return round_trip_; }
  const Lease& lease() const { return lease_; }

 protected:
  /// Starts an operation; the subclass then launches its first packets. operation: the same number
  /// on all workers. kFailedPrecondition: an operation is running, or the lease had an error.
  Status Start(uint32_t operation, TimePoint deadline);

  /// Queues packet `index` as the next round of `slot`, which must not be waiting. The subclass
  /// defines indices; all workers launch the same number of packets per slot.
  void Launch(size_t slot, uint64_t index);

  bool Waiting(size_t slot) const { return flights_[slot].waiting; }

  /// Fills in packet `index`. `payload` has PayloadBytes of the header as it is on return. The
  /// offset is `index` unless it is set. It is called again when the packet is sent again, and must
  /// give the same bytes.
  virtual void Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) = 0;
  /// Handles the first reply to packet `index`. The slot is free, so this may launch further
  /// packets. An error ends the operation.
  virtual Status Accept(uint64_t index, const Packet& packet) = 0;
  /// Like Accept, where the round of packet `index` ended without this worker and the result is
  /// lost.
  virtual Status AcceptLoss(uint64_t index);
  /// Counts everything missing of the operation as lost, so that the next one can begin with the
  /// rounds that the other workers have. Returns false if that is impossible.
  virtual bool GiveUp() { return false; }

  /// The round of the next packet to be launched in `slot`.
  uint32_t NextRound(size_t slot) const { return next_rounds_[slot]; }
  /// Ends the wait of `slot`, whose next packet has round `next_round`.
  void SkipTo(size_t slot, uint32_t next_round);

  int rank() const { return rank_; }
  size_t slots() const { return flights_.size(); }

 private:
  struct Flight {
    uint64_t index = 0;
    uint32_t round = 0;
    uint32_t offset = 0;
    TimePoint sent_at = {}, expires_at = {};
    bool waiting = false;  // sent or queued
    bool in_line = false;
    bool sent = false;
    bool resent = false;
  };

  void Queue(size_t slot);
  void EndWait(Flight* flight);
  /// A packet was not answered in time. O(1).
  void OnExpiry(TimePoint now);
  void GrowWindow();
  /// The time after which a sent packet without a reply counts as lost.
  TimePoint LostAt(const Flight& flight) const;
  void OnReply(const Packet& packet, TimePoint now);
  void Fail(const Status& status);
  /// Describes a waiting flight and how many packets were answered before.
  std::string DescribeWait() const;
  std::optional<TimePoint> SilentAt() const;

  const Lease lease_;
  const int rank_;
  const Duration first_timeout_;
  RoundTripEstimate round_trip_;
  Duration silence_floor_ = Duration::zero();  // 0: silence ends nothing
  std::optional<TimePoint> heard_at_;  // start of this operation's timer, then its last reply
  TimePoint overtaken_at_ = {};        // send time of the newest answered packet that was sent once
  Status status_;
  uint32_t operation_ = 0;
  TimePoint deadline_;
  uint64_t answered_ = 0;      // packets of this operation
  size_t waiting_ = 0;         // flights
  size_t under_way_ = 0;       // flights that are waiting and not in line
  double window_, threshold_;  // of packets under way; where the window begins to grow slowly
  uint64_t resent_at_expiry_ = 0, unexpected_at_expiry_ = 0, replies_at_expiry_ = 0;
  std::vector<Flight> flights_;        // by slot
  std::vector<uint32_t> next_rounds_;  // by slot, in this epoch
  std::vector<uint16_t> line_;         // ring of slots with something to send, each at most once
  size_t line_head_ = 0, line_size_ = 0;
  std::vector<std::byte> buffer_;
  WorkerCounters counters_;
};

/// A worker whose operation is a sequence of packets, spread over the slots in turn: packet i uses
/// slot i modulo the slots, after packet i - slots. Memory: one bit per packet.
class ChunkWorker : public Worker {
 public:
  using Worker::Worker;

 protected:
  struct Plan {
    uint32_t operation = 0;
    uint64_t packets = 0;
    // Packet i also needs the reply to packet i - lag. At most the number of slots; 0: none.
    uint64_t lag = 0;
    TimePoint deadline;
  };
  /// Does Start and launches the first packets. kInvalidArgument: the lag is above the number of
  /// slots, or there are 2^32 packets or more.
  Status StartChunks(const Plan& plan);

  /// As Accept and AcceptLoss, but these must launch nothing.
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
