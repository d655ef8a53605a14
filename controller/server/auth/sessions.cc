// SPDX-License-Identifier: Apache-2.0
#include "controller/server/auth/sessions.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>

namespace weir {
namespace {

StatusOr<std::string> NewSecret() {
  std::array<unsigned char, 32> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return Internal("OpenSSL gives no random numbers");
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

void Sessions::Insert(std::list<Entry>* entries, Entry entry) {
  if (entries->size() >= kMax) entries->pop_front();
  entries->push_back(std::move(entry));
}

std::list<Sessions::Entry>::iterator Sessions::Find(std::list<Entry>* entries,
                                                    std::string_view secret, TimePoint now) {
  entries->remove_if([now](const Entry& entry) { return entry.end <= now; });
  const Sha256Hash hash = HashOf(secret);
  return std::find_if(entries->begin(), entries->end(), [&](const Entry& entry) {
    return CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0;
  });
}

StatusOr<SessionSecrets> Sessions::Begin(const Proof& proof, TimePoint now) {
  SessionSecrets secrets;
  WEIR_ASSIGN_OR_RETURN(secrets.cookie, NewSecret());
  WEIR_ASSIGN_OR_RETURN(secrets.csrf, NewSecret());
  Insert(&sessions_, {HashOf(secrets.cookie), HashOf(secrets.csrf), proof, now + kSessionMax});
  return secrets;
}

StatusOr<const Proof*> Sessions::Find(std::string_view cookie, std::string_view csrf,
                                      bool reads_only, TimePoint now) {
  const auto found = Find(&sessions_, cookie, now);
  if (found == sessions_.end()) return nullptr;
  const Sha256Hash hash = HashOf(csrf);
  if (!reads_only && CRYPTO_memcmp(found->csrf.data(), hash.data(), hash.size()) != 0) {
    return MakeStatus(StatusCode::kPermissionDenied,
                      "the header Weir-CSRF does not belong to the session");
  }
  return &found->proof;
}

void Sessions::End(std::string_view cookie) {
  const Sha256Hash hash = HashOf(cookie);
  sessions_.remove_if([&](const Entry& entry) { return entry.hash == hash; });
}

StatusOr<std::string> Sessions::MakeCode(const Proof& proof, TimePoint now) {
  WEIR_ASSIGN_OR_RETURN(const std::string code, NewSecret());
  Insert(&codes_, {HashOf(code), {}, proof, now + kCodeMax});
  return code;
}

std::optional<Proof> Sessions::TakeCode(std::string_view code, TimePoint now) {
  const auto found = Find(&codes_, code, now);
  if (found == codes_.end()) return std::nullopt;
  Proof proof = found->proof;
  codes_.erase(found);
  return proof;
}

}  // namespace weir
