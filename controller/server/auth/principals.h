// SPDX-License-Identifier: Apache-2.0
#pragma once
// Principals, their rights, and the file that names them. Pure; authenticator.h finds
// out which principal a caller is.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// The rights of a person or program; each role includes those before it.
enum class Role { kViewer = 0, kOperator = 1, kAdmin = 2 };

/// "viewer", "operator" or "admin". Static text.
std::string_view RoleName(Role role);
/// kInvalidArgument lists the names.
StatusOr<Role> ParseRole(std::string_view name);

/// A named caller. An agent has no role, and a person speaks for no node, unless the token file
/// gives both.
struct Principal {
  std::string name;
  std::string proof;                      // "token", "certificate", "session" or "local"
  std::optional<Role> role = {};          // none: it may not call AdminService
  std::vector<std::string> jobs = {"*"};  // patterns of the jobs that it may change
  std::vector<std::string> nodes = {};    // patterns of the nodes that it speaks for; empty: none
};

/// The answer to a caller without credentials.
inline constexpr const char* kTokenExpected = "expected the header 'Authorization: Bearer <token>'";

/// OK if `principal` has `needed` or more. kPermissionDenied names it, its role and what is needed;
/// kUnauthenticated: it has shown nothing that could have a role.
Status RequireRole(const Principal& principal, Role needed);
/// OK if it may change `job`. kPermissionDenied names its patterns.
Status RequireJob(const Principal& principal, std::string_view job);
/// OK if it may change what concerns every job, such as a policy.
Status RequireEveryJob(const Principal& principal);
/// OK if it speaks for `node`.
Status RequireNode(const Principal& principal, std::string_view node);

using Sha256Hash = std::array<unsigned char, 32>;
Sha256Hash HashOf(std::string_view text);

/// The names of the first certificate in `pem`: DNS names and URIs of its subjectAltName or, if it
/// has none of them, the CN of its subject. Names with control characters or NUL are left out.
/// kInvalidArgument: there is no certificate. Source: RFC 6125, section 6.4.4, about the CN.
StatusOr<std::vector<std::string>> NamesOfCertificate(std::string_view pem);

/// Patterns that match exactly these names.
std::vector<std::string> Literally(std::vector<std::string> names);

/// The contents of a token file. Immutable.
class Principals {
 public:
  static constexpr size_t kEntriesMax = 1024;

  /// Lines "NAME ROLES CREDENTIAL [jobs=PATTERNS] [nodes=PATTERNS]", which the README describes.
  /// kInvalidArgument names `origin`, the line and what is expected there. A file without entries
  /// is an error, too, because it must not permit access.
  static StatusOr<Principals> Parse(std::string_view text, std::string_view origin);

  /// Nothing: no entry has this token. The time does not depend on the token.
  std::optional<Principal> FindToken(const Sha256Hash& hash) const;
  /// The first entry for one of a certificate's `names`, or nothing. An agent without nodes= speaks
  /// for the nodes of these names.
  std::optional<Principal> FindCertificate(const std::vector<std::string>& names) const;

  /// A line for each entry, in their order: name, roles, kind of credential, jobs and nodes.
  std::string Text() const;

 private:
  struct Entry {
    Principal principal;
    bool agent = false;
    std::optional<Sha256Hash> token;
    std::string certificate;  // pattern; empty: it has a token
  };
  static StatusOr<Entry> ParseEntry(const std::vector<std::string>& words);

  std::vector<Entry> entries_;
};

}  // namespace weir
