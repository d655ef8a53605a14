// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes the full mesh: higher ranks dial lower ones, requests and answers carry hellos and, where
// the job has a key, proofs, and refused callers are told why.

#include <optional>
#include <string>
#include <vector>

#include "datapath/transport/builtin/verbs/key_exchange.h"
#include "datapath/transport/builtin/verbs/mesh.h"
#include "datapath/transport/mesh/roll_call.h"

namespace weir::verbs {

/// One run of Connect. Not thread-safe.
class Rendezvous {
 public:
  /// `own` is where this rank listens; `wake` becomes readable on Interrupt. All outlive it.
  Rendezvous(const TransportOptions& options, const TransportAddress& own, Mesh* mesh, int wake);

  /// Runs until every peer of the mesh has its stream. Refused dials fail at once with the
  /// refuser's reason (kFailedPrecondition); kDeadlineExceeded names the missing ranks and what was
  /// tried; kAborted on interrupt; kUnavailable when a connected rank aborts meanwhile.
  Status Run(const std::vector<TransportAddress>& addresses, TimePoint deadline);

 private:
  // The way to a lower rank, from one retry to the next.
  struct Attempt {
    Hello said;
    std::optional<Challenged> challenged;  // with a key, once it has answered with a proof
  };

  Status Round(TimePoint now, TimePoint deadline);
  Status StartDue(TimePoint now);
  Status Dial(int rank, TimePoint now);
  Status OnEvent(const ConnectionEvent& event, TimePoint now);
  Status OnDialed(const ConnectionEvent& event, TimePoint now);
  Status SendRequest(int rank, TimePoint now);
  Status OnAnswer(const ConnectionEvent& event, TimePoint now);
  Status OnChallenge(const ConnectionEvent& event, TimePoint now);
  Status OnRejected(const ConnectionEvent& event, TimePoint now);
  Status StrangerAt(int rank) const;
  void OnRequest(const ConnectionEvent& event, TimePoint now);
  void OnProof(const ConnectionEvent& event, TimePoint now);
  std::string Judge(const ConnectionEvent& event, const Hello& hello) const;
  void Ask(const ConnectionEvent& event, const Hello& hello, TimePoint now);
  void Admit(const ConnectionEvent& event, const Hello& hello, FrameChannel channel, TimePoint now);
  Status Answer(const ConnectionEvent& event, const Hello& hello, FrameChannel channel);
  void Refuse(rdma_cm_id* id, const std::string& why);
  Status CheckLost(TimePoint now);
  void Retry(int rank, std::string why, TimePoint now);
  StatusOr<Hello> OwnHello(uint32_t called) const;

  const TransportOptions& options_;
  const TransportAddress& own_;
  Mesh* const mesh_;
  const int wake_;
  mesh::RollCall roll_;
  std::vector<Attempt> attempts_;        // by rank
  std::optional<PendingPeers> pending_;  // with a key
};

}  // namespace weir::verbs
