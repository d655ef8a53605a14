// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tag behind every frame of an authenticated connection, for one direction: AES-256-GCM (NIST
// SP 800-38D). Header and payload are authenticated (GMAC); with encryption the payload is
// encrypted, too. The nonce of a frame is a salt of the connection and the number of the frame,
// which both sides count, so a frame that was changed, left out, repeated or moved does not verify.
// Bytes: proto/WIRE.md section 1.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "datapath/base/status.h"
#include "datapath/wire/channel_keys.h"

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace weir {

inline constexpr size_t kFrameTagBytes = 16;
using FrameTag = std::array<std::byte, kFrameTagBytes>;

namespace frame_seal_internal {
struct FreeContext {
  void operator()(evp_cipher_ctx_st* context) const;
};
using Context = std::unique_ptr<evp_cipher_ctx_st, FreeContext>;
}  // namespace frame_seal_internal

/// Seals the frames of one direction, in order. Not thread-safe.
class FrameSealer {
 public:
  /// `first` is the number of the first frame. kUnavailable: the cryptographic library has no
  /// AES-256-GCM.
  static StatusOr<FrameSealer> Create(const FrameKey& key, bool encrypts, uint64_t first = 0);

  bool encrypts() const { return encrypts_; }
  /// Writes the tag of the next frame to `tag`. With encryption the ciphertext goes to `sealed`,
  /// which is as long as `payload` and does not overlap it; without, `sealed` is not used. O(n), no
  /// allocation.
  void Seal(std::span<const std::byte> header, std::span<const std::byte> payload,
            std::span<std::byte> sealed, FrameTag* tag);

  /// The number of the next frame.
  uint64_t next() const { return next_; }
  /// Sets the number of the next frame back. The frames after it must not have left this process in
  /// any part, because no number may ever seal two frames that somebody sees.
  void TakeBackTo(uint64_t next);

 private:
  FrameSealer(frame_seal_internal::Context context, const FrameKey& key, bool encrypts,
              uint64_t first);

  frame_seal_internal::Context context_;
  std::array<std::byte, 4> salt_;
  bool encrypts_;
  uint64_t next_;
};

/// Verifies, and with encryption decrypts, what a FrameSealer sealed, piece by piece while the
/// bytes are in the cache. Nothing of a frame may be used before Finish has returned true. Not
/// thread-safe.
class FrameOpener {
 public:
  /// As FrameSealer::Create.
  static StatusOr<FrameOpener> Create(const FrameKey& key, bool encrypted, uint64_t first = 0);

  /// Begins the next frame; an unfinished one is dropped.
  void Begin(std::span<const std::byte> header);
  /// Takes the next bytes of the frame's payload and decrypts them in place. O(n), no allocation.
  void Update(std::span<std::byte> payload);
  /// Returns true if header and payload are what the peer sealed.
  bool Finish(std::span<const std::byte, kFrameTagBytes> tag);

  /// A separate opener whose first frame comes after the next `frames` ones of this opener.
  /// kUnavailable as Create.
  StatusOr<FrameOpener> Ahead(uint64_t frames) const;

 private:
  FrameOpener(frame_seal_internal::Context context, const FrameKey& key, bool encrypted,
              uint64_t first);

  frame_seal_internal::Context context_;
  FrameKey key_;
  bool encrypted_;
  uint64_t next_;
};

/// Both directions of a connection; both null where the job has no key.
struct FrameChannel {
  std::unique_ptr<FrameSealer> sealer;
  std::unique_ptr<FrameOpener> opener;
};

/// One end of the connection with `secrets`. `protection` is not kChecked. kUnavailable as
/// FrameSealer::Create.
StatusOr<FrameChannel> MakeFrameChannel(const ChannelSecrets& secrets, bool dialer,
                                        Protection protection);

}  // namespace weir
