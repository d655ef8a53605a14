// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/key_exchange.h"

#include <algorithm>

namespace weir::verbs {
namespace {
// Long enough for some of the connection manager's attempts, which are 4 s and more apart.
constexpr Duration kPendingMax = std::chrono::seconds(30);

StatusOr<ChannelSecrets> Derive(const JobKey& key, const Hello& dialer, const Hello& acceptor) {
  return DeriveChannel(key, dialer.nonce, acceptor.nonce, EncodeHello(dialer),
                       EncodeHello(acceptor));
}

std::string ClaimOf(const Hello& hello) {
  return StrCat("(it claims to be rank ", hello.rank, ")");
}
}  // namespace

StatusOr<Challenged> TakeChallenge(const JobKey& key, const Hello& said,
                                   std::span<const std::byte> challenge) {
  WEIR_ASSIGN_OR_RETURN(const DecodedChallenge decoded, DecodeChallenge(challenge));
  WEIR_ASSIGN_OR_RETURN(const ChannelSecrets secrets, Derive(key, said, decoded.acceptor));
  Challenged challenged;
  challenged.acceptor = decoded.acceptor;
  challenged.proof = secrets.dialer_proof;
  challenged.is_stranger = !SameSecret(decoded.proof, secrets.acceptor_proof);
  if (challenged.is_stranger) return challenged;
  WEIR_ASSIGN_OR_RETURN(challenged.channel, MakeFrameChannel(secrets, true, said.protection));
  return challenged;
}

StatusOr<Challenge> PendingPeers::Ask(const Hello& said, const Hello& own, std::string endpoint,
                                      TimePoint now) {
  const Request request = EncodeHello(said);
  for (const PendingPeer& pending : pending_) {
    if (EncodeHello(pending.said) == request) return pending.challenge;
  }
  WEIR_ASSIGN_OR_RETURN(const ChannelSecrets secrets, Derive(key_, said, own));
  const Challenge challenge = EncodeChallenge(own, secrets.acceptor_proof);
  if (pending_.size() >= peers_max_) pending_.erase(pending_.begin());
  pending_.push_back({said, std::move(endpoint), now + kPendingMax, secrets, challenge, false});
  return challenge;
}

StatusOr<PendingPeers::Proven> PendingPeers::Check(std::span<const std::byte> request) {
  WEIR_ASSIGN_OR_RETURN(const DecodedProof decoded, DecodeProof(request));
  Status status = NotFound("no challenge is open that this proof answers");
  for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
    if (pending->said.nonce != decoded.nonce) continue;
    const Hello hello = pending->said;
    if (!SameSecret(decoded.proof, pending->secrets.dialer_proof)) {
      pending->refused = true;
      status = FailedPrecondition(StrCat("does not hold the job's key ", ClaimOf(hello)));
      continue;
    }
    // Keys must never be used for two connections, even if this one fails.
    const ChannelSecrets secrets = pending->secrets;
    pending_.erase(pending);
    WEIR_ASSIGN_OR_RETURN(FrameChannel channel, MakeFrameChannel(secrets, false, hello.protection));
    return Proven{hello, std::move(channel)};
  }
  return status;
}

std::vector<std::string> PendingPeers::Expire(TimePoint now) {
  std::vector<std::string> expired;
  std::erase_if(pending_, [&](const PendingPeer& pending) {
    if (now < pending.ends) return false;
    if (!pending.refused) {
      expired.push_back(StrCat(pending.endpoint, ": no proof within 30 s ", ClaimOf(pending.said)));
    }
    return true;
  });
  return expired;
}

}  // namespace weir::verbs
