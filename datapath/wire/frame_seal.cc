// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/frame_seal.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "datapath/base/check.h"

namespace weir {
namespace {

using frame_seal_internal::Context;

// OpenSSL takes lengths as int.
constexpr size_t kCallBytesMax = 1u << 30;

unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

StatusOr<Context> MakeContext(const FrameKey& key, bool seals) {
  Context context(EVP_CIPHER_CTX_new());
  if (!context || EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, Raw(key.key.data()),
                                    nullptr, seals ? 1 : 0) != 1) {
    return Unavailable("the cryptographic library has no AES-256-GCM");
  }
  return context;
}

// Sets the nonce of the next frame and keeps the key. The number is big-endian, as GCM's counters
// are.
void SetNonce(EVP_CIPHER_CTX* context, const std::array<std::byte, 4>& salt, uint64_t number) {
  std::array<std::byte, 12> nonce;
  std::copy(salt.begin(), salt.end(), nonce.begin());
  for (size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<std::byte>(number >> (8 * (7 - i)));
  WEIR_CHECK(EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, Raw(nonce.data()), -1) == 1);
}

// Where `out` is null, the bytes are only authenticated. OpenSSL fails here only for lack of
// memory, and none is allocated for AES-GCM.
void Feed(EVP_CIPHER_CTX* context, const std::byte* from, std::byte* out, size_t bytes) {
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kCallBytesMax);
    int written = 0;
    WEIR_CHECK(EVP_CipherUpdate(context, out == nullptr ? nullptr : Raw(out), &written, Raw(from),
                                static_cast<int>(piece)) == 1);
    from += piece;
    if (out != nullptr) out += piece;
    bytes -= piece;
  }
}

}  // namespace

void frame_seal_internal::FreeContext::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

// ---- sealing

FrameSealer::FrameSealer(Context context, const FrameKey& key, bool encrypts, uint64_t first)
    : context_(std::move(context)), salt_(key.salt), encrypts_(encrypts), next_(first) {}

StatusOr<FrameSealer> FrameSealer::Create(const FrameKey& key, bool encrypts, uint64_t first) {
  WEIR_ASSIGN_OR_RETURN(Context context, MakeContext(key, true));
  return FrameSealer(std::move(context), key, encrypts, first);
}

void FrameSealer::Seal(std::span<const std::byte> header, std::span<const std::byte> payload,
                       std::span<std::byte> sealed, FrameTag* tag) {
  WEIR_CHECK(!encrypts_ || sealed.size() == payload.size());
  EVP_CIPHER_CTX* const context = context_.get();
  SetNonce(context, salt_, next_++);
  Feed(context, header.data(), nullptr, header.size());
  Feed(context, payload.data(), encrypts_ ? sealed.data() : nullptr, payload.size());
  unsigned char rest[16];  // GCM never writes any
  int size = 0;
  WEIR_CHECK(EVP_CipherFinal_ex(context, rest, &size) == 1 && size == 0);
  WEIR_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kFrameTagBytes, tag->data()) == 1);
}

void FrameSealer::TakeBackTo(uint64_t next) {
  WEIR_CHECK(next <= next_);
  next_ = next;
}

// ---- opening

FrameOpener::FrameOpener(Context context, const FrameKey& key, bool encrypted, uint64_t first)
    : context_(std::move(context)), key_(key), encrypted_(encrypted), next_(first) {}

StatusOr<FrameOpener> FrameOpener::Create(const FrameKey& key, bool encrypted, uint64_t first) {
  WEIR_ASSIGN_OR_RETURN(Context context, MakeContext(key, false));
  return FrameOpener(std::move(context), key, encrypted, first);
}

void FrameOpener::Begin(std::span<const std::byte> header) {
  SetNonce(context_.get(), key_.salt, next_++);
  Feed(context_.get(), header.data(), nullptr, header.size());
}

void FrameOpener::Update(std::span<std::byte> payload) {
  Feed(context_.get(), payload.data(), encrypted_ ? payload.data() : nullptr, payload.size());
}

bool FrameOpener::Finish(std::span<const std::byte, kFrameTagBytes> tag) {
  FrameTag expected;
  std::copy(tag.begin(), tag.end(), expected.begin());
  WEIR_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kFrameTagBytes,
                                 expected.data()) == 1);
  unsigned char rest[16];
  int size = 0;
  return EVP_CipherFinal_ex(context_.get(), rest, &size) == 1;
}

StatusOr<FrameOpener> FrameOpener::Ahead(uint64_t frames) const {
  return Create(key_, encrypted_, next_ + frames);
}

StatusOr<FrameChannel> MakeFrameChannel(const ChannelSecrets& secrets, bool dialer,
                                        Protection protection) {
  WEIR_CHECK(protection != Protection::kChecked);
  const bool encrypts = protection == Protection::kEncrypted;
  const FrameKey& out = dialer ? secrets.to_acceptor : secrets.to_dialer;
  const FrameKey& in = dialer ? secrets.to_dialer : secrets.to_acceptor;
  WEIR_ASSIGN_OR_RETURN(FrameSealer sealer, FrameSealer::Create(out, encrypts));
  WEIR_ASSIGN_OR_RETURN(FrameOpener opener, FrameOpener::Create(in, encrypts));
  return FrameChannel{std::make_unique<FrameSealer>(std::move(sealer)),
                      std::make_unique<FrameOpener>(std::move(opener))};
}

}  // namespace weir
