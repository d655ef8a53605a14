#pragma once
// Makes the full mesh: higher ranks dial lower ones, requests and answers carry hellos, and refused
// callers are told why.

#include <string>
#include <vector>

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
  Status Round(TimePoint now, TimePoint deadline);
  Status StartDue(TimePoint now);
  Status OnEvent(const ConnectionEvent& event, TimePoint now);
  Status OnDialed(const ConnectionEvent& event, TimePoint now);
  Status Ask(int rank, TimePoint now);
  Status OnAnswer(const ConnectionEvent& event, TimePoint now);
  Status OnRejected(const ConnectionEvent& event, TimePoint now);
  void OnRequest(const ConnectionEvent& event, TimePoint now);
  std::string Judge(const ConnectionEvent& event, Hello* hello) const;
  Status Answer(const ConnectionEvent& event, const Hello& hello);
  void Refuse(rdma_cm_id* id, const std::string& why);
  Status CheckLost(TimePoint now);
  void Retry(int rank, std::string why, TimePoint now);
  Hello OwnHello(uint32_t called) const;

  const TransportOptions& options_;
  const TransportAddress& own_;
  Mesh* const mesh_;
  const int wake_;
  mesh::RollCall roll_;
};

}  // namespace weir::verbs
