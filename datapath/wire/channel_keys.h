#pragma once
// The key of a job and what two of its ranks derive from it when they meet: proofs that each holds
// the key, and the keys of their connection. Bytes: proto/WIRE.md section 1.
//
// Sources: HKDF (RFC 5869) and HMAC (RFC 2104) with SHA-256, computed by OpenSSL. The pattern, two
// fresh nonces and a proof from each side over all that both have said, is that of TLS 1.3 with a
// pre-shared key and without (EC)DHE (RFC 8446, section 2.2): who learns the key of a job later can
// read what was recorded of it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

inline constexpr size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;
/// What every rank of a job holds, and nobody else.
using JobKey = Secret;
/// Fresh for each connection, from each side.
using Nonce = std::array<std::byte, 32>;

/// What happens to the frames of a connection.
enum class Protection : uint8_t {
  kChecked = 0,        // checksums: no keys
  kAuthenticated = 1,  // a tag under a key behind every frame
  kEncrypted = 2,      // and payloads that only the peer can read
};

/// One direction of one connection.
struct FrameKey {
  Secret key{};
  std::array<std::byte, 4> salt{};  // the first octets of every frame's nonce
};

/// All that a connection needs. "Dialer" is the rank that made the connection.
struct ChannelSecrets {
  Secret acceptor_proof{}, dialer_proof{};
  FrameKey to_acceptor, to_dialer;
  Secret memory{};  // proves who asks to share memory
};

/// kInvalidArgument: `bytes` are not a key's size, or all equal.
StatusOr<JobKey> ToJobKey(std::span<const std::byte> bytes);

/// From the system. kUnavailable: it has no randomness to give.
StatusOr<Nonce> NewNonce();

/// The secrets of the connection on which the dialer said `dialer_hello` and the acceptor
/// `acceptor_hello`, each of which holds its sender's nonce, `dialer` or `acceptor`. Different for
/// any other key or hellos. Thread-safe, some microseconds. kUnavailable: the cryptographic library
/// failed.
StatusOr<ChannelSecrets> DeriveChannel(const JobKey& key, std::span<const std::byte> dialer,
                                       std::span<const std::byte> acceptor,
                                       std::span<const std::byte> dialer_hello,
                                       std::span<const std::byte> acceptor_hello);

/// Shows that its maker holds `secret` and means `bytes`, for the purpose of `label`.
/// kUnavailable: the cryptographic library failed.
StatusOr<Secret> MakeProof(const Secret& secret, std::string_view label,
                           std::span<const std::byte> bytes);

/// In a time that says nothing of where they differ.
bool SameSecret(std::span<const std::byte> a, const Secret& b);

}  // namespace weir
