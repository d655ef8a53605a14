#pragma once
// Makes the full mesh: higher ranks dial lower ones, both ends say who they are and, where the job
// has a key, prove that they hold it; strangers are told why they are refused.

#include <memory>
#include <string>
#include <vector>

#include "datapath/transport/mesh/hello.h"
#include "datapath/transport/mesh/roll_call.h"

namespace weir::mesh {

/// Whether two ranks could share memory: each says which node's it has. The answer to a dialer of
/// the same node carries the name of the rendezvous socket where that rank asks for it
/// (builtin/shm).
struct Neighbourhood {
  uint32_t node = 0;       // 0: none
  std::string rendezvous;  // kRendezvousNameBytes
};

/// The connections of one pair of ranks.
using Sockets = std::vector<UniqueFd>;

/// One run of Connect. Not thread-safe. The connections of a pair are made one after the other:
/// first all pairs have their first one, then all a second, and so on.
class Rendezvous {
 public:
  /// `listener` is this rank's listening socket; `wake` becomes readable on Interrupt. Both outlive
  /// it. `own` is told to peers.
  Rendezvous(const TransportOptions& options, int listener, int wake, Neighbourhood own = {});
  ~Rendezvous();

  /// Connected sockets by rank, options.connections each and none for the own one. Refused dials
  /// fail at once with the refuser's reason (kFailedPrecondition); kDeadlineExceeded names the
  /// missing ranks and what was tried; kAborted on interrupt; kUnavailable when a connected rank
  /// aborts meanwhile; kResourceExhausted when there was no descriptor or memory for 3 s.
  StatusOr<std::vector<Sockets>> Run(const std::vector<TransportAddress>& addresses,
                                     TimePoint deadline);
  /// After Run: what rank `rank` said; the name of its rendezvous socket when this rank dialed it
  /// and both nodes are one.
  const Neighbourhood& neighbour(int rank) const;
  /// After Run: what seals the frames of the pair, over all its connections; none without a key.
  /// The caller may take it.
  FrameChannel& channel(int rank) { return channels_[rank]; }
  /// After Run, with a key: what both ranks, and nobody else, hold for shared memory.
  const Secret& memory_secret(int rank) const { return memory_secrets_[rank]; }

 private:
  struct Link;         // the way to one rank
  struct PendingPeer;  // accepted, has not said who it is

  StatusOr<std::vector<UniqueFd>> RunOne(const std::vector<TransportAddress>& addresses,
                                         TimePoint deadline);
  Status Missing() const;
  void NoteScarcity(std::string what, TimePoint now);
  Status CheckScarcity(TimePoint now);
  Status Round(TimePoint now, TimePoint deadline);
  Status StartDue(TimePoint now);
  Status OnLink(int rank, short events, TimePoint now);
  Status OnReply(int rank, TimePoint now);
  Status OnAnswer(int rank, TimePoint now);
  void Retry(int rank, std::string why, TimePoint now);
  Status OnStrangersAnswer(int rank);
  StatusOr<Hello> OwnHello(uint32_t called, int connection, const std::string& rendezvous) const;
  void Keep(int rank, Neighbourhood said, const Secret& memory);
  void Accept(TimePoint now);
  void OnPendingPeer(PendingPeer& pending);
  std::string OnHello(PendingPeer& pending);
  std::string OnProof(PendingPeer& pending);
  std::string Answer(PendingPeer& pending);
  void Admit(PendingPeer& pending);
  std::string Judge(const Hello& hello) const;
  std::string JudgePlace(const Hello& hello) const;
  void Refuse(PendingPeer& pending, const std::string& why);
  Status CheckEstablished(int rank);

  const TransportOptions& options_;
  const int listener_, wake_;
  const Neighbourhood own_;
  RollCall roll_;
  std::vector<Link> links_;
  std::vector<PendingPeer> pending_;
  int connection_ = 0;              // the one that all pairs make now
  std::vector<PendingPeer> early_;  // at most one per rank: those who make the next one already
  std::vector<Neighbourhood> neighbours_;
  // By rank, of the first connections.
  std::vector<FrameChannel> channels_;
  std::vector<Secret> memory_secrets_;
  std::string scarcity_;  // of descriptors or memory, since then; empty: there is none
  TimePoint scarce_since_{}, scarce_seen_{};
  TimePoint accept_at_{};
};

}  // namespace weir::mesh
