#pragma once
// The tag behind every frame of an authenticated connection, in one direction: AES-256-GCM (NIST
// SP 800-38D) over header and payload, which are only authenticated (GMAC) or, with encryption,
// hide the payload. The nonce of a frame is a salt of the connection and the frame's number, which
// both sides count: a frame that is changed, left out, repeated or moved does not verify.
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

/// Seals the frames of one direction, one after the other. Not thread-safe.
class FrameSealer {
 public:
  /// `first` is the number of the first frame. kUnavailable: the cryptographic library has no
  /// AES-256-GCM.
  static StatusOr<FrameSealer> Create(const FrameKey& key, bool encrypts, uint64_t first = 0);

  bool encrypts() const { return encrypts_; }
  /// The tag of the next frame. With encryption `sealed` becomes its payload as it travels: as long
  /// as `payload`, without overlap; else it is left alone. O(n), no allocation.
  void Seal(std::span<const std::byte> header, std::span<const std::byte> payload,
            std::span<std::byte> sealed, FrameTag* tag);

  /// The number of the next frame.
  uint64_t next() const { return next_; }
  /// Takes sealed frames back, of which no byte has left this process: no number may ever seal two
  /// frames that somebody sees.
  void TakeBackTo(uint64_t next);

 private:
  FrameSealer(frame_seal_internal::Context context, const FrameKey& key, bool encrypts,
              uint64_t first);

  frame_seal_internal::Context context_;
  std::array<std::byte, 4> salt_;
  bool encrypts_;
  uint64_t next_;
};

/// Opens what a FrameSealer sealed, piece by piece while the bytes are in the cache. Nothing may be
/// believed before Finish said true. Not thread-safe.
class FrameOpener {
 public:
  /// As FrameSealer::Create.
  static StatusOr<FrameOpener> Create(const FrameKey& key, bool encrypted, uint64_t first = 0);

  /// Begins the next frame; one that was begun before is forgotten.
  void Begin(std::span<const std::byte> header);
  /// The next bytes of its payload, which are decrypted in place. O(n), no allocation.
  void Update(std::span<std::byte> payload);
  /// Whether the frame is what the peer sealed.
  bool Finish(std::span<const std::byte, kFrameTagBytes> tag);

  /// Another one for a frame behind the next `frames` ones, whatever becomes of this one.
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

/// Both directions of a connection; none without a key.
struct FrameChannel {
  std::unique_ptr<FrameSealer> sealer;
  std::unique_ptr<FrameOpener> opener;
};

/// One end of the connection that `secrets` belong to. `protection` is not kChecked. kUnavailable
/// as FrameSealer::Create.
StatusOr<FrameChannel> MakeFrameChannel(const ChannelSecrets& secrets, bool dialer,
                                        Protection protection);

}  // namespace weir
