#pragma once
// How a rank proves to agents and to the controller that it belongs to a run, without giving them
// the run's key: from the key it derives an Ed25519 key pair (RFC 8032), and it signs what its
// hello claims together with a challenge of the agent. Agents and the controller see the public
// key, which names the run, and signatures, which they can check and cannot make. A shared secret,
// or a MAC that the agent remembers, would let each of them speak for the run elsewhere. Bytes:
// proto/WIRE.md section 2.

#include <cstdint>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

inline constexpr size_t kJobKeyBytes = 32;
inline constexpr size_t kChallengeDigits = 32;
inline constexpr size_t kPublicKeyDigits = 64;
inline constexpr size_t kSignatureDigits = 128;

/// What a rank claims of itself, and to whom.
struct RankStatement {
  std::string_view job;
  std::string_view node;  // of the agent that asks, as its challenge names it
  uint32_t rank = 0;
  uint32_t world = 0;
  uint64_t epoch = 0;
  std::string_view challenge;  // kChallengeDigits hexadecimal digits
};

/// A proof as it travels in a hello; every member but `node` is lower-case hexadecimal.
struct RankProof {
  std::string public_key;  // kPublicKeyDigits; the same for all ranks of a run
  std::string node;        // RankStatement::node
  std::string challenge;   // RankStatement::challenge
  std::string signature;   // kSignatureDigits
};

/// What people call a run's key by: the first 16 digits of its public key, empty without one. It
/// tells keys apart and proves nothing. Thread-safe.
std::string KeyId(std::string_view public_key);

/// A fresh challenge of 128 random bits. kUnavailable: the system has no randomness to give.
StatusOr<std::string> NewChallenge();

/// Signs `statement` with the key pair of the run whose key is `job_key` (kJobKeyBytes bytes).
/// Deterministic; thread-safe; about 0.1 ms. kInvalidArgument: the key's size or the challenge's
/// form; kUnavailable: the cryptographic library failed.
StatusOr<RankProof> ProveRank(std::string_view job_key, const RankStatement& statement);

/// Whether the holder of the run's key that belongs to `proof.public_key` made exactly `statement`.
/// Trusts nothing in either; thread-safe; about 0.1 ms. kInvalidArgument: a member's form, a node
/// or challenge that differs from the statement's, or a signature of something else.
Status CheckRankProof(const RankStatement& statement, const RankProof& proof);

/// 32 lower-case hexadecimal digits that only a holder of `secret` can tell for `purpose`.
/// kUnavailable: the cryptographic library failed.
StatusOr<std::string> DeriveToken(std::string_view secret, std::string_view purpose);

/// True if equal; the time depends on the lengths only.
bool ConstantTimeEquals(std::string_view a, std::string_view b);

}  // namespace weir
