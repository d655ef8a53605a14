// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a rank proves to agents and to the controller that it belongs to a run, without revealing the
// run's key. It derives an Ed25519 key pair (RFC 8032) from the key and signs the claims of its
// hello together with a challenge of the agent. Agents and the controller get the public key, which
// identifies the run, and signatures, which they can check but not make. With a shared secret or a
// MAC instead, each of them could impersonate the run elsewhere. Bytes: proto/WIRE.md section 2.

#include <cstdint>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

inline constexpr size_t kJobKeyBytes = 32;
inline constexpr size_t kChallengeDigits = 32;
inline constexpr size_t kPublicKeyDigits = 64;
inline constexpr size_t kSignatureDigits = 128;

/// The claims of a rank, and the agent to which it makes them.
struct RankStatement {
  std::string_view job;
  std::string_view node;  // of the agent, as its challenge names it
  uint32_t rank = 0;
  uint32_t world = 0;
  uint64_t epoch = 0;
  std::string_view challenge;  // kChallengeDigits hexadecimal digits
};

/// A proof as it is sent in a hello. Every member except `node` is lower-case hexadecimal.
struct RankProof {
  std::string public_key;  // kPublicKeyDigits; the same for all ranks of a run
  std::string node;        // RankStatement::node
  std::string challenge;   // RankStatement::challenge
  std::string signature;   // kSignatureDigits
};

/// A short name of a run's key for people: the first 16 digits of its public key, empty without
/// one. It distinguishes keys and proves nothing. Thread-safe.
std::string KeyId(std::string_view public_key);

/// A new challenge of 128 random bits. kUnavailable: the system has no randomness to give.
StatusOr<std::string> NewChallenge();

/// Signs `statement` with the key pair of the run whose key is `job_key` (kJobKeyBytes bytes).
/// Deterministic; thread-safe; about 0.1 ms. kInvalidArgument: the size of the key or the form of
/// the challenge is wrong. kUnavailable: the cryptographic library failed.
StatusOr<RankProof> ProveRank(std::string_view job_key, const RankStatement& statement);

/// Checks that the holder of the run's key for `proof.public_key` signed exactly `statement`.
/// Trusts nothing in either; thread-safe; about 0.1 ms. kInvalidArgument: a member has a wrong
/// form, node or challenge differ from the statement's, or the signature is for something else.
Status CheckRankProof(const RankStatement& statement, const RankProof& proof);

/// 32 lower-case hexadecimal digits that only a holder of `secret` can compute for `purpose`.
/// kUnavailable: the cryptographic library failed.
StatusOr<std::string> DeriveToken(std::string_view secret, std::string_view purpose);

/// The answer of a holder of an agent's token to a challenge, so that the token itself crosses no
/// network: DeriveToken of the token and of node and challenge, as proto/WIRE.md section 2 says.
/// `node`, `challenge`: as the agent sent them. Errors as those of DeriveToken.
StatusOr<std::string> ProveToken(std::string_view token, std::string_view node,
                                 std::string_view challenge);

/// Returns true if both are equal. The time depends only on the lengths.
bool ConstantTimeEquals(std::string_view a, std::string_view b);

}  // namespace weir
