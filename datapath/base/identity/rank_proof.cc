// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/identity/rank_proof.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>

namespace weir {
namespace {

constexpr std::string_view kIdentityLabel = "weir rank identity 1";
constexpr std::string_view kStatementLabel = "weir rank hello 1";
constexpr size_t kSignatureBytes = kSignatureDigits / 2;

using Bytes32 = std::array<unsigned char, 32>;
using KeyPointer = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using DigestPointer = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

Status LibraryFailed(std::string_view what) {
  return Unavailable(StrCat("the cryptographic library failed: ", what));
}

const unsigned char* Raw(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

std::string ToHex(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Accepts only lower-case digits, so that one value has one text.
StatusOr<std::string> FromHex(std::string_view what, std::string_view text, size_t digits) {
  const auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() != digits ||
      !std::all_of(text.begin(), text.end(), [&](char c) { return value(c) >= 0; })) {
    return InvalidArgument(StrCat(what, ": expected ", digits,
                                  " lower-case hexadecimal digits, found ", text.size(),
                                  " characters"));
  }
  std::string bytes(digits / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(value(text[2 * i]) << 4 | value(text[2 * i + 1]));
  }
  return bytes;
}

void AppendNumber(uint64_t value, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) *out += static_cast<char>(value >> (8 * i));
}

void AppendText(std::string_view text, std::string* out) {
  AppendNumber(text.size(), 4, out);
  *out += text;
}

// Strings are preceded by their length, so that no two statements have the same bytes.
StatusOr<std::string> Canonical(const RankStatement& statement) {
  WEIR_ASSIGN_OR_RETURN(const std::string challenge,
                        FromHex("challenge", statement.challenge, kChallengeDigits));
  std::string bytes(kStatementLabel);
  AppendText(statement.job, &bytes);
  AppendText(statement.node, &bytes);
  AppendNumber(statement.rank, 4, &bytes);
  AppendNumber(statement.world, 4, &bytes);
  AppendNumber(statement.epoch, 8, &bytes);
  return bytes + challenge;
}

// HKDF with SHA-256 (RFC 5869), without a salt.
StatusOr<Bytes32> Derive(std::string_view key, std::string_view label) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      kdf ? EVP_KDF_CTX_new(kdf.get()) : nullptr, EVP_KDF_CTX_free);
  std::string digest = "SHA256", secret(key), info(label);
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  Bytes32 out;
  const bool derived =
      context && EVP_KDF_derive(context.get(), out.data(), out.size(), parameters) == 1;
  OPENSSL_cleanse(secret.data(), secret.size());
  if (!derived) return LibraryFailed("HKDF");
  return out;
}

}  // namespace

std::string KeyId(std::string_view public_key) {
  constexpr size_t kKeyIdDigits = 16;
  return std::string(public_key.substr(0, kKeyIdDigits));
}

StatusOr<std::string> NewChallenge() {
  std::array<unsigned char, kChallengeDigits / 2> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return Unavailable("the system has no randomness to give");
  }
  return ToHex(bytes);
}

StatusOr<RankProof> ProveRank(std::string_view job_key, const RankStatement& statement) {
  if (job_key.size() != kJobKeyBytes) {
    return InvalidArgument(
        StrCat("job key: expected ", kJobKeyBytes, " bytes, found ", job_key.size()));
  }
  WEIR_ASSIGN_OR_RETURN(const std::string bytes, Canonical(statement));
  WEIR_ASSIGN_OR_RETURN(Bytes32 seed, Derive(job_key, kIdentityLabel));
  const KeyPointer key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()),
      EVP_PKEY_free);
  OPENSSL_cleanse(seed.data(), seed.size());
  Bytes32 public_key;
  size_t public_bytes = public_key.size();
  std::array<unsigned char, kSignatureBytes> signature;
  size_t signature_bytes = signature.size();
  const DigestPointer context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!key || !context ||
      EVP_PKEY_get_raw_public_key(key.get(), public_key.data(), &public_bytes) != 1 ||
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), signature.data(), &signature_bytes, Raw(bytes), bytes.size()) !=
          1 ||
      signature_bytes != signature.size()) {
    return LibraryFailed("Ed25519");
  }
  return RankProof{ToHex(public_key), std::string(statement.node), std::string(statement.challenge),
                   ToHex(signature)};
}

Status CheckRankProof(const RankStatement& statement, const RankProof& proof) {
  if (proof.node != statement.node || proof.challenge != statement.challenge) {
    return InvalidArgument("the proof answers another challenge, or another node's");
  }
  WEIR_ASSIGN_OR_RETURN(const std::string bytes, Canonical(statement));
  WEIR_ASSIGN_OR_RETURN(const std::string public_key,
                        FromHex("public key", proof.public_key, kPublicKeyDigits));
  WEIR_ASSIGN_OR_RETURN(const std::string signature,
                        FromHex("signature", proof.signature, kSignatureDigits));
  const KeyPointer key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, Raw(public_key), public_key.size()),
      EVP_PKEY_free);
  const DigestPointer context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!key || !context ||
      EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1) {
    return LibraryFailed("Ed25519");
  }
  if (EVP_DigestVerify(context.get(), Raw(signature), signature.size(), Raw(bytes), bytes.size()) !=
      1) {
    return InvalidArgument("the signature is not of this hello by the key that it names");
  }
  return OkStatus();
}

StatusOr<std::string> DeriveToken(std::string_view secret, std::string_view purpose) {
  WEIR_ASSIGN_OR_RETURN(const Bytes32 token, Derive(secret, purpose));
  return ToHex(std::span(token).first(16));
}

StatusOr<std::string> ProveToken(std::string_view token, std::string_view node,
                                 std::string_view challenge) {
  return DeriveToken(token, StrCat("weir agent token 1 ", challenge, " ", node));
}

bool ConstantTimeEquals(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace weir
