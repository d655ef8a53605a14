// SPDX-License-Identifier: Apache-2.0
#pragma once
// Authorisation of callers. Tokens are compared by their SHA-256, in constant time, and never kept
// in clear.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

enum class Role { kViewer = 0, kOperator = 1, kAdmin = 2 };

std::string_view RoleName(Role role);

/// The tokens of one controller. Thread-safe after construction.
class Authenticator {
 public:
  /// Makes every caller an admin: for loopback and --insecure.
  static Authenticator Open();
  /// Lines "role token" or "role sha256:<64 hexadecimal digits>"; role is viewer, operator or
  /// admin; '#' begins a comment. kInvalidArgument names the line; kNotFound: unreadable.
  static StatusOr<Authenticator> FromFile(const std::string& path);
  static StatusOr<Authenticator> Parse(std::string_view text, std::string_view origin);

  /// The role that `authorization` ("Bearer <token>") carries. kUnauthenticated: none or unknown;
  StatusOr<Role> Authenticate(std::string_view authorization) const;
  /// OK when `authorization` carries `needed` or more; kPermissionDenied says which role is needed.
  Status Authorize(std::string_view authorization, Role needed) const;
  bool open() const { return open_; }

 private:
  struct Token {
    Role role;
    std::array<unsigned char, 32> hash;
  };
  bool open_ = false;
  std::vector<Token> tokens_;
};

}  // namespace weir
