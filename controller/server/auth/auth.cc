// SPDX-License-Identifier: Apache-2.0
#include "controller/server/auth/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <fstream>
#include <sstream>

namespace weir {
namespace {

constexpr size_t kTokensMax = 1024;
constexpr std::string_view kHashPrefix = "sha256:";
constexpr std::string_view kBearer = "Bearer ";

std::array<unsigned char, 32> Sha256(std::string_view text) {
  std::array<unsigned char, 32> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return hash;
}

bool ParseHex(std::string_view hex, std::array<unsigned char, 32>* hash) {
  if (hex.size() != 64) return false;
  for (size_t i = 0; i < 32; ++i) {
    unsigned value = 0;
    for (const char c : hex.substr(2 * i, 2)) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return false;
      value = value * 16 + static_cast<unsigned>(digit);
    }
    (*hash)[i] = static_cast<unsigned char>(value);
  }
  return true;
}

std::optional<Role> ParseRole(std::string_view name) {
  for (const Role role : {Role::kViewer, Role::kOperator, Role::kAdmin}) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kOperator:
      return "operator";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

Authenticator Authenticator::Open() {
  Authenticator authenticator;
  authenticator.open_ = true;
  return authenticator;
}

StatusOr<Authenticator> Authenticator::FromFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(StrCat("cannot read token file '", path, "'"));
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return Parse(text, path);
}

StatusOr<Authenticator> Authenticator::Parse(std::string_view text, std::string_view origin) {
  Authenticator authenticator;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string role_name, token, extra;
    if (!(words >> role_name)) continue;
    const auto role = ParseRole(role_name);
    if (!role.has_value()) {
      return InvalidArgument(StrCat(origin, ":", number, ": unknown role '", role_name,
                                    "'; valid: viewer, operator, admin"));
    }
    if (!(words >> token) || (words >> extra)) {
      return InvalidArgument(StrCat(origin, ":", number, ": expected a role and one token"));
    }
    Token entry{*role, Sha256(token)};
    if (token.starts_with(kHashPrefix) &&
        !ParseHex(token.substr(kHashPrefix.size()), &entry.hash)) {
      return InvalidArgument(
          StrCat(origin, ":", number, ": expected 64 lowercase hexadecimal digits after sha256:"));
    }
    if (authenticator.tokens_.size() >= kTokensMax) {
      return InvalidArgument(StrCat(origin, ": more than ", kTokensMax, " tokens"));
    }
    authenticator.tokens_.push_back(entry);
  }
  if (authenticator.tokens_.empty()) return InvalidArgument(StrCat(origin, ": holds no token"));
  return authenticator;
}

StatusOr<Role> Authenticator::Authenticate(std::string_view authorization) const {
  if (open_) return Role::kAdmin;
  if (!authorization.starts_with(kBearer)) {
    return MakeStatus(StatusCode::kUnauthenticated,
                      "expected the header 'Authorization: Bearer <token>'");
  }
  const auto hash = Sha256(authorization.substr(kBearer.size()));
  std::optional<Role> role;
  for (const Token& token : tokens_) {
    // The loop does not stop early, so that its duration does not depend on the token.
    if (CRYPTO_memcmp(token.hash.data(), hash.data(), hash.size()) == 0) role = token.role;
  }
  if (!role.has_value()) return MakeStatus(StatusCode::kUnauthenticated, "unknown token");
  return *role;
}

Status Authenticator::Authorize(std::string_view authorization, Role needed) const {
  WEIR_ASSIGN_OR_RETURN(const Role role, Authenticate(authorization));
  if (role >= needed) return OkStatus();
  return MakeStatus(StatusCode::kPermissionDenied,
                    StrCat("needs role ", RoleName(needed), ", the token has ", RoleName(role)));
}

}  // namespace weir
