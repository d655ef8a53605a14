#pragma once
// How two ranks prove to each other that they hold the job's key before there is a connection. A
// request of the connection manager carries too little for both: the dialer says hello, is rejected
// with the acceptor's hello and proof, and asks a second time with its own proof. So nobody gets a
// queue pair without having proven to hold the key. It knows nothing of verbs, so tests drive it
// without a device. Bytes: proto/WIRE.md section 1.

#include <vector>

#include "datapath/base/clock.h"
#include "datapath/transport/builtin/verbs/hello.h"
#include "datapath/wire/frame_seal.h"

namespace weir::verbs {

/// What a dialer makes of a challenge.
struct Challenged {
  Hello acceptor;
  bool is_stranger = false;  // its proof is wrong, and nothing that it said may be believed
  Secret proof = {};         // of the dialer, for the second request
  FrameChannel channel;      // none of a stranger
};

/// `said` is the dialer's hello. kDataLoss: malformed; kUnavailable: the cryptographic library
/// failed. Thread-safe, some microseconds.
StatusOr<Challenged> TakeChallenge(const JobKey& key, const Hello& said,
                                   std::span<const std::byte> challenge);

/// The dialers from which an acceptor awaits a proof. They have proven nothing and take nobody's
/// place. Their number is bounded: the one that waits longest makes room. Not thread-safe.
class PendingPeers {
 public:
  PendingPeers(const JobKey& key, size_t peers_max) : key_(key), peers_max_(peers_max) {}

  /// Challenges the dialer at `endpoint` that said `said`, with this rank's hello `own`, whose
  /// nonce is fresh. A hello that comes twice, because what answered it was lost, gets the same
  /// answer. kUnavailable: the cryptographic library failed.
  StatusOr<Challenge> Ask(const Hello& said, const Hello& own, std::string endpoint, TimePoint now);

  struct Proven {
    Hello hello;
    FrameChannel channel;
  };
  /// Who makes a second request. Once it has proven itself it is pending no more. kNotFound: none
  /// that was asked; kFailedPrecondition: why it is refused, with the rank that it claims to be;
  /// kUnavailable: the cryptographic library failed.
  StatusOr<Proven> Check(std::span<const std::byte> request);

  /// Forgets those who were asked 30 s ago. Returns who of them gave no proof, for a log.
  std::vector<std::string> Expire(TimePoint now);

 private:
  struct PendingPeer {
    Hello said;
    std::string endpoint;
    TimePoint ends;
    ChannelSecrets secrets;
    Challenge challenge;
    bool refused = false;  // gave a wrong proof, of which somebody was told
  };

  const JobKey& key_;
  const size_t peers_max_;
  std::vector<PendingPeer> pending_;
};

}  // namespace weir::verbs
