// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the full mesh: higher ranks dial lower ones, both ends tell their ranks and, if the job has
// a key, prove that they hold it. Refused callers are told why.

#include <memory>
#include <string>
#include <vector>

#include "datapath/transport/mesh/hello.h"
#include "datapath/transport/mesh/roll_call.h"

namespace weir::mesh {

/// A rank's message to others about shared memory. It holds the node that the rank is on and, only
/// in the answer to a dialer of the same node, the name of its rendezvous socket (builtin/shm).
struct Neighbourhood {
  uint32_t node = 0;       // 0: none
  std::string rendezvous;  // kRendezvousNameBytes
};

/// The connections of one pair of ranks.
using Sockets = std::vector<UniqueFd>;

/// One run of Connect. Not thread-safe. The connections of a pair are made one after the other:
/// first all pairs get their first one, then all their second, and so on.
class Rendezvous {
 public:
  /// `listener` is this rank's listening socket; `wake` becomes readable on Interrupt. Both outlive
  /// it. Peers are told `own`.
  Rendezvous(const TransportOptions& options, int listener, int wake, Neighbourhood own = {});
  ~Rendezvous();

  /// Returns connected sockets by rank, options.connections each and none for this rank. A dial
  /// that a rank refuses fails at once with its reason (kFailedPrecondition); kDeadlineExceeded
  /// names the missing ranks and what was tried; kAborted: interrupted; kUnavailable: a connected
  /// rank aborted meanwhile; kResourceExhausted: there was no descriptor or memory for 3 s.
  StatusOr<std::vector<Sockets>> Run(const std::vector<TransportAddress>& addresses,
                                     TimePoint deadline);
  /// After Run: what rank `rank` told of itself. It has the name of a rendezvous socket if this
  /// rank dialed it and both are on one node.
  const Neighbourhood& neighbour(int rank) const;
  /// After Run: seals the frames of the pair over all its connections; empty without a key. The
  /// caller may move it away.
  FrameChannel& channel(int rank) { return channels_[rank]; }
  /// After Run, with a key: the secret that only these two ranks have, for shared memory.
  const Secret& memory_secret(int rank) const { return memory_secrets_[rank]; }

 private:
  struct Link;         // the connection to one lower rank
  struct PendingPeer;  // was accepted and has not finished the handshake

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
  int connection_ = 0;              // the number of the connection that all pairs make now
  std::vector<PendingPeer> early_;  // at most one per rank: peers that already make the next one
  std::vector<Neighbourhood> neighbours_;
  // By rank, from the first connections.
  std::vector<FrameChannel> channels_;
  std::vector<Secret> memory_secrets_;
  std::string scarcity_;  // what is scarce, descriptors or memory; empty: nothing is
  TimePoint scarce_since_{}, scarce_seen_{};
  TimePoint accept_at_{};
};

}  // namespace weir::mesh
