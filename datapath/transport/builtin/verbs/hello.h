// SPDX-License-Identifier: Apache-2.0
#pragma once
// The data that the connection manager carries before there is a connection: the ranks at both
// ends, how much memory each side offers, and the proofs that they hold the job's key. Bytes:
// proto/WIRE.md section 1.

#include <array>
#include <cstdint>
#include <span>

#include "datapath/base/status.h"
#include "datapath/wire/channel_keys.h"

namespace weir::verbs {

/// The receive memory that one side of a connection gives the other.
struct Window {
  uint32_t slot_bytes = 0;  // one message fits in one slot
  uint32_t slots = 0;       // data messages that may be in flight without an answer
};

inline constexpr uint32_t kSlotBytesMin = 4096;  // an abort frame fits
inline constexpr uint32_t kSlotBytesMax = 1 << 20;
inline constexpr uint32_t kSlotsMin = 4;
inline constexpr uint32_t kSlotsMax = 1024;

/// As long as fits into a hello.
using HelloNonce = std::array<std::byte, 16>;

/// The sender, and the rank that the sender expects at the other end.
struct Hello {
  uint64_t job = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t expected_peer = 0;  // UINT32_MAX: the sender accepts
  Window window;
  Protection protection = Protection::kChecked;  // of frames, as the sender wants it
  HelloNonce nonce = {};                         // fresh; 0 without a key
};

/// The size of all requests, which over RoCE carry no more.
inline constexpr size_t kRequestBytes = 56;
using Request = std::array<std::byte, kRequestBytes>;
inline constexpr size_t kChallengeBytes = kRequestBytes + kSecretBytes;
using Challenge = std::array<std::byte, kChallengeBytes>;
/// The longest text of an answer that refuses.
inline constexpr size_t kRefusalBytesMax = 148;

/// The decoders ignore what follows, because connection managers pad.
Request EncodeHello(const Hello& hello);
/// kDataLoss: too short, another magic, version or kind, a wrong checksum, an unknown protection, a
/// window outside of the bounds above.
StatusOr<Hello> DecodeHello(std::span<const std::byte> bytes);

/// The private data of the rejection that asks a dialer, after its hello, to prove that it holds
/// the key.
Challenge EncodeChallenge(const Hello& acceptor, const Secret& proof);
/// Whether the private data of a rejection are a challenge. If not, they are a text.
bool IsChallenge(std::span<const std::byte> bytes);
struct DecodedChallenge {
  Hello acceptor;
  Secret proof;
};
/// kDataLoss as DecodeHello.
StatusOr<DecodedChallenge> DecodeChallenge(std::span<const std::byte> bytes);

/// The second request of a dialer: `nonce` is that of its hello.
Request EncodeProof(const HelloNonce& nonce, const Secret& proof);
/// Whether a request has the form of a proof. If not, it is a hello or from an unrelated program.
bool IsProof(std::span<const std::byte> bytes);
struct DecodedProof {
  HelloNonce nonce;
  Secret proof;
};
/// kDataLoss: too short.
StatusOr<DecodedProof> DecodeProof(std::span<const std::byte> bytes);

}  // namespace weir::verbs
