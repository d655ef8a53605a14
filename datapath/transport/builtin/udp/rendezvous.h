#pragma once
// Makes the mesh: higher ranks ask lower ones, prove their address with a cookie, and both learn
// how the other wants to be addressed. Nothing is kept of an asker before it proved its address.

#include <memory>
#include <vector>

#include "datapath/transport/builtin/udp/cookie.h"
#include "datapath/transport/builtin/udp/endpoint.h"
#include "datapath/transport/mesh/connection.h"
#include "datapath/transport/mesh/roll_call.h"

namespace weir::udp {

/// The connections of a rank, by rank of the peer; none for the own one.
struct Peers {
  std::vector<std::unique_ptr<LinkStream>> streams;
  std::vector<std::unique_ptr<mesh::Connection>> connections;

  /// Moves what can be moved to and from one peer.
  Status Drive(int rank, TimePoint now, bool* progress, std::atomic<uint64_t>* sent);
};

/// Each end's buffers of one link, in bytes.
struct LinkBuffers {
  size_t send = 0;
  size_t receive = 0;
};
LinkBuffers BuffersOf(const TransportOptions& options);

/// One run of Connect. Not thread-safe.
class Rendezvous {
 public:
  /// All outlive it. `wake` becomes readable on Interrupt.
  Rendezvous(const TransportOptions& options, const std::array<uint64_t, 2>& secret,
             Endpoint* endpoint, Peers* peers, int wake);

  /// Fills `peers`. Refused askers fail at once with the refuser's reason (kFailedPrecondition);
  /// kDeadlineExceeded names the missing ranks and what was tried; kAborted on interrupt;
  /// kUnavailable when a connected rank aborts meanwhile. On errors those that were reached stay in
  /// `peers`.
  Status Run(const std::vector<TransportAddress>& addresses, TimePoint deadline);

 private:
  // An attempt to reach a lower rank.
  struct Dial {
    uint64_t connection = 0;
    uint64_t cookie = 0;
    TimePoint next_hello{}, ends{};
    Duration interval{};
  };

  Status Round(TimePoint now, TimePoint deadline);
  Status StartDue(TimePoint now);
  void SayHello(int rank, TimePoint now);
  Status OnCaller(const Caller& caller, TimePoint now);
  void OnHello(const Caller& caller, TimePoint now);
  Status OnReply(const Caller& caller, TimePoint now);
  void Refuse(const Caller& caller, std::string why);
  void Answer(int rank, const Caller& caller);
  void OnUnreachable(const Unreachable& report, TimePoint now);
  Status CheckPeers(TimePoint now);
  void AddPeer(int rank, const Caller& caller, uint64_t own_connection);
  void Retry(int rank, std::string why, TimePoint now);
  Handshake Own(DatagramType type, uint64_t connection, uint32_t called) const;

  const TransportOptions& options_;
  const CookieJar jar_;
  Random random_;
  Endpoint* const endpoint_;
  Peers* const peers_;
  const int wake_;
  mesh::RollCall roll_;
  std::vector<Dial> dials_;
  std::vector<uint64_t> own_connections_;
};

}  // namespace weir::udp
