// SPDX-License-Identifier: Apache-2.0
#pragma once
// The key of a job, and what two of its ranks derive from it when they connect: proofs that each
// holds the key, and the keys of their connection. Bytes: proto/WIRE.md section 1.
//
// Sources: HKDF (RFC 5869) and HMAC (RFC 2104) with SHA-256, computed by OpenSSL. The pattern is
// that of TLS 1.3 with a pre-shared key and without (EC)DHE (RFC 8446, section 2.2): two fresh
// nonces, and a proof from each side over everything both have sent. There is no forward secrecy:
// anyone who learns the key of a job later can decrypt recorded traffic.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

inline constexpr size_t kSecretBytes = 32;
using Secret = std::array<std::byte, kSecretBytes>;
/// A secret that every rank of a job holds, and nobody else.
using JobKey = Secret;
/// A random value that each side makes for each connection.
using Nonce = std::array<std::byte, 32>;

/// How the frames of a connection are protected.
enum class Protection : uint8_t {
  kChecked = 0,        // checksums without a key
  kAuthenticated = 1,  // a tag under a key follows every frame
  kEncrypted = 2,      // in addition, only the peer can read payloads
};

/// The key of one direction of one connection.
struct FrameKey {
  Secret key{};
  std::array<std::byte, 4> salt{};  // the first octets of every frame's nonce
};

/// All secrets of a connection. The dialer is the rank that opened it, the acceptor the other.
struct ChannelSecrets {
  Secret acceptor_proof{}, dialer_proof{};
  FrameKey to_acceptor, to_dialer;
  Secret memory{};  // proves a rank's identity when the pair attaches to shared memory
};

/// Turns `bytes` into a key. kInvalidArgument: there are not kSecretBytes of them, or all are
/// equal.
StatusOr<JobKey> ToJobKey(std::span<const std::byte> bytes);

/// A nonce from the system's random source. kUnavailable: the source has none to give.
StatusOr<Nonce> NewNonce();

/// Derives the secrets of the connection on which the dialer sent `dialer_hello` and the acceptor
/// `acceptor_hello`, each with its sender's nonce, `dialer` or `acceptor`, in it. Another key or
/// other hellos give other secrets. Thread-safe, some microseconds. kUnavailable: the cryptographic
/// library failed.
StatusOr<ChannelSecrets> DeriveChannel(const JobKey& key, std::span<const std::byte> dialer,
                                       std::span<const std::byte> acceptor,
                                       std::span<const std::byte> dialer_hello,
                                       std::span<const std::byte> acceptor_hello);

/// HMAC-SHA256 over `label` and `bytes` under `secret`: proves that the sender holds the secret and
/// sent `bytes` for the purpose that `label` names. kUnavailable: the cryptographic library failed.
StatusOr<Secret> MakeProof(const Secret& secret, std::string_view label,
                           std::span<const std::byte> bytes);

/// Compares in constant time, so that the time does not reveal where they differ.
bool SameSecret(std::span<const std::byte> a, const Secret& b);

}  // namespace weir
