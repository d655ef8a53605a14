// SPDX-License-Identifier: Apache-2.0
#include "datapath/wire/channel_keys.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace weir {
namespace {

constexpr std::string_view kChannelLabel = "weir channel 1";

void Append(std::vector<std::byte>* to, std::span<const std::byte> bytes) {
  to->insert(to->end(), bytes.begin(), bytes.end());
}
void Append(std::vector<std::byte>* to, std::string_view text) {
  Append(to, std::as_bytes(std::span(text)));
}

OSSL_PARAM Octets(const char* name, std::span<const std::byte> bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()),
                                           bytes.size());
}

// HKDF with SHA-256: extract and expand.
Status Hkdf(std::span<const std::byte> key, std::span<const std::byte> salt,
            std::span<const std::byte> info, std::span<std::byte> out) {
  using Kdf = std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)>;
  using Context = std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)>;
  const Kdf kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const Context context(kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr, EVP_KDF_CTX_free);
  std::string digest = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      Octets(OSSL_KDF_PARAM_KEY, key), Octets(OSSL_KDF_PARAM_SALT, salt),
      Octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  if (!context || EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(out.data()),
                                 out.size(), parameters) != 1) {
    return Unavailable("the cryptographic library has no HKDF");
  }
  return OkStatus();
}

}  // namespace

StatusOr<JobKey> ToJobKey(std::span<const std::byte> bytes) {
  if (bytes.size() != kSecretBytes) {
    return InvalidArgument(
        StrCat("job key: expected ", kSecretBytes, " bytes, found ", bytes.size()));
  }
  if (std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == bytes[0]; })) {
    return InvalidArgument("job key: expected random bytes, found equal ones");
  }
  JobKey key;
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

StatusOr<Nonce> NewNonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return Unavailable("the system has no randomness to give");
  }
  return nonce;
}

StatusOr<ChannelSecrets> DeriveChannel(const JobKey& key, std::span<const std::byte> dialer,
                                       std::span<const std::byte> acceptor,
                                       std::span<const std::byte> dialer_hello,
                                       std::span<const std::byte> acceptor_hello) {
  std::vector<std::byte> salt, info;
  Append(&salt, dialer);
  Append(&salt, acceptor);
  Append(&info, kChannelLabel);
  Append(&info, dialer_hello);
  Append(&info, acceptor_hello);
  ChannelSecrets secrets;
  std::span<std::byte> parts[] = {
      secrets.acceptor_proof, secrets.dialer_proof,     secrets.to_acceptor.key,
      secrets.to_dialer.key,  secrets.to_acceptor.salt, secrets.to_dialer.salt,
      secrets.memory};
  std::array<std::byte, 5 * kSecretBytes + 2 * 4> all;
  WEIR_RETURN_IF_ERROR(Hkdf(key, salt, info, all));
  const std::byte* from = all.data();
  for (const std::span<std::byte> part : parts) {
    std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
  OPENSSL_cleanse(all.data(), all.size());
  return secrets;
}

StatusOr<Secret> MakeProof(const Secret& secret, std::string_view label,
                           std::span<const std::byte> bytes) {
  std::vector<std::byte> message;
  Append(&message, label);
  Append(&message, bytes);
  Secret proof;
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &size) == nullptr ||
      size != proof.size()) {
    return Unavailable("the cryptographic library has no HMAC with SHA-256");
  }
  return proof;
}

bool SameSecret(std::span<const std::byte> a, const Secret& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), b.size()) == 0;
}

}  // namespace weir
