// SPDX-License-Identifier: Apache-2.0
#pragma once
// How two ranks prove to each other that they hold the job's key before there is a connection. A
// request of the connection manager carries too little for both: the dialer says hello, is rejected
// with the acceptor's hello and proof, and asks a second time with its own proof. So only callers
// that have proven to hold the key get a queue pair. It does not depend on verbs, so tests drive it
// without a device. Bytes: proto/WIRE.md section 1.

#include <vector>

#include "datapath/base/clock.h"
#include "datapath/transport/builtin/verbs/hello.h"
#include "datapath/wire/frame_seal.h"

namespace weir::verbs {

/// The dialer's result of checking a challenge.
struct Challenged {
  Hello acceptor;
  bool is_stranger = false;  // its proof is wrong, and nothing that it said may be believed
  Secret proof = {};         // of the dialer, for the second request
  FrameChannel channel;      // empty for a stranger
};

/// `said` is the dialer's hello. kDataLoss: malformed; kUnavailable: the cryptographic library
/// failed. Thread-safe, some microseconds.
StatusOr<Challenged> TakeChallenge(const JobKey& key, const Hello& said,
                                   std::span<const std::byte> challenge);

/// The dialers from which an acceptor awaits a proof. They have proven nothing and do not count as
/// ranks. Their number is bounded: the one that has waited longest makes room. Not thread-safe.
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
  /// Finds the dialer of a second request. Once it has proven itself it is not pending any more.
  /// kNotFound: no such dialer was challenged; kFailedPrecondition: why it is refused, with the
  /// rank that it claims to be; kUnavailable: the cryptographic library failed.
  StatusOr<Proven> Check(std::span<const std::byte> request);

  /// Forgets dialers that were challenged 30 s ago. Returns those that gave no proof, for the log.
  std::vector<std::string> Expire(TimePoint now);

 private:
  struct PendingPeer {
    Hello said;
    std::string endpoint;
    TimePoint ends;
    ChannelSecrets secrets;
    Challenge challenge;
    bool refused = false;  // gave a wrong proof, which was reported
  };

  const JobKey& key_;
  const size_t peers_max_;
  std::vector<PendingPeer> pending_;
};

}  // namespace weir::verbs
