// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of all transports that have one connection per peer and no thread of their own:
// posting, waiting, failing and ending. Classes derived from it provide the connections.

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "datapath/transport/mesh/event_set.h"
#include "datapath/transport/mesh/operation.h"
#include "datapath/transport/mesh/peer.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

inline constexpr Duration kShutdownNoticeMax = std::chrono::milliseconds(200);

/// The parts of a transport that exist before it is connected.
struct MeshParts {
  TransportOptions options;
  TransportAddress address;
  std::unique_ptr<EventSet> events;  // holds `wake`
  UniqueFd wake;                     // an eventfd, for Interrupt and Wake
};

/// The advice for logs and errors about peers that are reached over a network without a key.
inline constexpr std::string_view kKeyAdvice =
    "give all ranks one job key (job_key, WEIR_JOB_KEY_FILE) or ask for 'unauthenticated' by name";

/// Checks rank, world and the options about keys, and makes the set of events. The caller listens
/// and adds the address. kInvalidArgument: the options are wrong; kUnavailable: the system refuses.
StatusOr<MeshParts> MakeMeshParts(const TransportOptions& options);

/// The data of `wake` in the event set. Its events only end a sleep.
inline constexpr uint64_t kWakeIndex = UINT32_MAX;

/// Wait drives every connection of the rank at once, so that sends and receives in all directions
/// progress together and a dead peer is noticed even while the rank waits for another one.
class MeshTransport : public Transport {
 public:
  explicit MeshTransport(MeshParts parts);

  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  const TransportAddress& address() const override { return address_; }
  uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  int unauthenticated_peers() const override {
    return unauthenticated_peers_.load(std::memory_order_relaxed);
  }

  Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override;
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override;
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override;
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override;
  void Wake() override;
  void Abort(std::string_view reason) override;
  void Abandon(std::string_view reason) override;
  void Interrupt() override;

 protected:
  /// Connects to every peer. addresses.size() is the world. An error fails the transport.
  virtual Status Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) = 0;
  /// Null for this rank and for one that is not connected.
  virtual Peer* peer(int rank) = 0;
  /// Moves what can be moved now, of all peers. *progress is set when anything moved.
  virtual Status DriveAll(TimePoint now, bool* progress) = 0;
  /// Waits after DriveAll while `awaited` (null: any operation) is not done, until something may
  /// have happened, at most until `deadline`.
  virtual Status Rest(const Operation* awaited, TimePoint now, TimePoint deadline,
                      bool progress) = 0;
  /// Sends what can be sent now. An error of a peer means that it needs no shutdown notice.
  virtual void DriveShutdownNotice(TimePoint now, bool* progress) = 0;
  /// Waits until more can probably be sent, at most for `timeout`. After an error the notice is
  /// given up.
  virtual Status RestInShutdownNotice(Duration timeout) = 0;
  /// Tells the peers that nothing more will be sent.
  virtual void EndSending() = 0;
  /// Forgets all peers at once, as a crash would.
  virtual void Disconnect() = 0;

  /// Sends a shutdown notice to all connected peers, within `bound`. It is an orderly one if `text`
  /// is empty. Best effort; afterwards nothing can be sent.
  void SendShutdownNotice(std::string_view text, Duration bound);
  /// For destructors of derived classes, while the functions above still work: sends a shutdown
  /// notice if there was none, within `orderly_max` if nothing failed. Returns true if there are
  /// peers.
  bool Leave(Duration orderly_max);

  /// Counts peers that are reached over a network and have proven nothing, and logs a warning.
  void NoteUnauthenticated(int peers);

  const TransportOptions& options() const { return options_; }
  bool orderly() const { return failure_.ok(); }
  bool sent_shutdown_notice() const { return sent_shutdown_notice_; }
  EventSet& events() { return *events_; }
  int wake() const { return wake_.get(); }
  /// The counter to which peers add the bytes that they send.
  std::atomic<uint64_t>* sent() { return &bytes_sent_; }

 private:
  StatusOr<Operation*> NewOperation(int peer);
  Status Fail(Status status);
  StatusOr<std::optional<size_t>> FirstDone(std::span<const Ticket> tickets);
  void Ring();

  const TransportOptions options_;
  const TransportAddress address_;
  const UniqueFd wake_;
  const std::unique_ptr<EventSet> events_;
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> woken_ = false;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<int> unauthenticated_peers_ = 0;
  bool connected_ = false;
  bool sent_shutdown_notice_ = false;
  Status failure_;
  OperationPool operations_;
};

}  // namespace weir::mesh
