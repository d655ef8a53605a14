#pragma once
// Makes the full mesh: higher ranks dial lower ones, both ends say who they are, strangers are told
// why they are refused.

#include <memory>
#include <string>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/tcp/socket.h"

namespace weir::tcp {

/// One run of Connect. Not thread-safe.
class Rendezvous {
 public:
  /// `listener` is this rank's listening socket; `wake` becomes readable on Interrupt. Both outlive
  /// it.
  Rendezvous(const TransportOptions& options, int listener, int wake);
  ~Rendezvous();

  /// Connected sockets by rank, none for the own one. Refused dials fail at once with the refuser's
  /// reason (kFailedPrecondition); kDeadlineExceeded names the missing ranks and what was tried;
  /// kAborted on interrupt; kUnavailable when a connected rank aborts meanwhile.
  StatusOr<std::vector<UniqueFd>> Run(const std::vector<TransportAddress>& addresses,
                                      TimePoint deadline);

 private:
  struct Link;   // the way to one rank
  struct Guest;  // accepted, has not said who it is

  Status Round(TimePoint now, TimePoint deadline);
  Status StartDue(TimePoint now);
  Status OnLink(int rank, short events, TimePoint now);
  Status OnReply(int rank, TimePoint now);
  void Retry(Link& link, std::string why, TimePoint now);
  void Accept(TimePoint now);
  void OnGuest(size_t index);
  std::string Judge(const Guest& guest, int* rank);
  void Refuse(Guest& guest, const std::string& why);
  Status CheckEstablished(int rank);
  Status Missing() const;
  bool Complete() const;

  const TransportOptions& options_;
  const int listener_, wake_;
  Random random_;
  std::vector<TransportAddress> addresses_;
  std::vector<Link> links_;
  std::vector<Guest> guests_;
  int refused_ = 0;
  std::string last_refusal_;
};

}  // namespace weir::tcp
