#pragma once
// What every transport does that has one connection per peer and no thread of its own: posting,
// waiting, failing and ending. What the connections are made of derives from it.

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

/// What a transport has before it is connected.
struct MeshParts {
  TransportOptions options;
  TransportAddress address;
  std::unique_ptr<EventSet> events;  // holds `wake`
  UniqueFd wake;                     // an eventfd, for Interrupt and Wake
};

/// What helps against peers who are reached over a network and have proven nothing.
inline constexpr std::string_view kKeyAdvice =
    "give all ranks one job key (job_key, WEIR_JOB_KEY_FILE) or ask for 'unauthenticated' by name";

/// Checks rank, world and what the options say of keys, and makes the set of events; the address is
/// left to whoever listens. kInvalidArgument, kUnavailable.
StatusOr<MeshParts> MakeMeshParts(const TransportOptions& options);

/// The data of `wake`, whose events say nothing by themselves.
inline constexpr uint64_t kWakeIndex = UINT32_MAX;

/// Wait drives every connection of the rank at once, so sends and receives in all directions
/// progress together and a dead peer is noticed whoever is being waited for.
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
  /// Reaches every peer. addresses.size() is the world. An error fails the transport.
  virtual Status Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) = 0;
  /// None for the own rank and for one that was not reached.
  virtual Peer* peer(int rank) = 0;
  /// Moves what can be moved now, of all peers. *progress is set when anything moved.
  virtual Status DriveAll(TimePoint now, bool* progress) = 0;
  /// After DriveAll, while `awaited` (none: any operation) is not done: until something may have
  /// happened, at most until `deadline`.
  virtual Status Rest(const Operation* awaited, TimePoint now, TimePoint deadline,
                      bool progress) = 0;
  /// Moves what is still to be sent. Errors mean that a peer needs no shutdown notice any more.
  virtual void DriveShutdownNotice(TimePoint now, bool* progress) = 0;
  /// Until more can be sent, about. An error gives up.
  virtual Status RestInShutdownNotice(Duration timeout) = 0;
  /// Tells the peers that nothing more will be sent.
  virtual void EndSending() = 0;
  /// Forgets all peers at once, as a crash would.
  virtual void Disconnect() = 0;

  /// Sends a shutdown notice to all connected peers, for at most `bound`; with an empty text it is
  /// an orderly one. Best effort; afterwards nothing can be sent.
  void SendShutdownNotice(std::string_view text, Duration bound);
  /// For destructors, before what the hooks need is gone: a shutdown notice if there was none, at
  /// most for `orderly_max` when nothing failed. True when there are peers.
  bool Leave(Duration orderly_max);

  /// Counts peers who are reached over a network and have proven nothing, and logs that there are.
  void NoteUnauthenticated(int peers);

  const TransportOptions& options() const { return options_; }
  bool orderly() const { return failure_.ok(); }
  bool sent_shutdown_notice() const { return sent_shutdown_notice_; }
  EventSet& events() { return *events_; }
  int wake() const { return wake_.get(); }
  /// What peers count their sent bytes with.
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
