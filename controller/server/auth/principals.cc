// SPDX-License-Identifier: Apache-2.0
#include "controller/server/auth/principals.h"

#include <fnmatch.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>
#include <sstream>

namespace weir {
namespace {

constexpr size_t kNameMax = 64;
constexpr std::string_view kHash = "sha256:";
constexpr std::string_view kCertificate = "cert:";

bool Matches(const std::vector<std::string>& patterns, std::string_view text) {
  const std::string name(text);
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "none" : text;
}

std::optional<Sha256Hash> ParseHash(std::string_view hex) {
  Sha256Hash hash{};
  if (hex.size() != 2 * hash.size()) return std::nullopt;
  for (size_t i = 0; i < hash.size(); ++i) {
    unsigned value = 0;
    for (const char c : hex.substr(2 * i, 2)) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + static_cast<unsigned>(digit);
    }
    hash[i] = static_cast<unsigned char>(value);
  }
  return hash;
}

// A pattern that only `name` matches.
std::string Literally(std::string_view name) {
  std::string pattern;
  for (const char c : name) {
    if (std::string_view("*?[\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Status Denied(std::string message) {
  return MakeStatus(StatusCode::kPermissionDenied, std::move(message));
}

std::string Described(const Principal& principal) {
  return StrCat(principal.name, " (", principal.proof, ")");
}

bool IsPlain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != 0x7f;
  });
}

std::string TextOf(const ASN1_STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
}

std::vector<std::string> AlternativeNames(const X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> list(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; list != nullptr && i < sk_GENERAL_NAME_num(list.get()); ++i) {
    int type = 0;
    const void* value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(list.get(), i), &type);
    if (type != GEN_DNS && type != GEN_URI) continue;
    std::string name = TextOf(static_cast<const ASN1_STRING*>(value));
    if (IsPlain(name)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

std::vector<std::string> Literally(std::vector<std::string> names) {
  for (std::string& name : names) name = Literally(std::string_view(name));
  return names;
}

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

StatusOr<Role> ParseRole(std::string_view name) {
  for (const Role role : {Role::kViewer, Role::kOperator, Role::kAdmin}) {
    if (RoleName(role) == name) return role;
  }
  return InvalidArgument(
      StrCat("unknown role '", name, "'; valid: viewer, operator, admin, and agent for nodes"));
}

Status RequireRole(const Principal& principal, Role needed) {
  if (principal.role.has_value() && *principal.role >= needed) return OkStatus();
  if (principal.proof == "local") {
    return MakeStatus(
        StatusCode::kUnauthenticated,
        StrCat("needs role ", RoleName(needed), ", and callers without credentials have ",
               principal.role.has_value() ? RoleName(*principal.role) : "none", " here",
               principal.name == "local" ? "" : StrCat(" (this is ", principal.name, ")"),
               ": send the header 'Authorization: Bearer <token>', or begin a session with "
               "weirctl page"));
  }
  return Denied(StrCat("needs role ", RoleName(needed), ", ", Described(principal), " has ",
                       principal.role.has_value() ? RoleName(*principal.role) : "none"));
}

Status RequireJob(const Principal& principal, std::string_view job) {
  if (Matches(principal.jobs, job)) return OkStatus();
  return Denied(StrCat(Described(principal), " may change the jobs ", Join(principal.jobs),
                       ", not '", job.substr(0, kNameMax), "'"));
}

Status RequireEveryJob(const Principal& principal) {
  if (std::find(principal.jobs.begin(), principal.jobs.end(), "*") != principal.jobs.end()) {
    return OkStatus();
  }
  return Denied(StrCat(Described(principal), " may change the jobs ", Join(principal.jobs),
                       ", and this concerns every job"));
}

Status RequireNode(const Principal& principal, std::string_view node) {
  if (Matches(principal.nodes, node)) return OkStatus();
  return Denied(StrCat(Described(principal), " speaks for the nodes ", Join(principal.nodes),
                       ", not for '", node.substr(0, kNameMax), "'"));
}

Sha256Hash HashOf(std::string_view text) {
  Sha256Hash hash{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return hash;
}

StatusOr<std::vector<std::string>> NamesOfCertificate(std::string_view pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free);
  if (certificate == nullptr) {
    ERR_clear_error();
    return InvalidArgument("expected a certificate in PEM");
  }
  std::vector<std::string> names = AlternativeNames(certificate.get());
  if (!names.empty()) return names;
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) {
    std::string name = TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    if (IsPlain(name)) names.push_back(std::move(name));
  }
  return names;
}

StatusOr<Principals::Entry> Principals::ParseEntry(const std::vector<std::string>& words) {
  if (words.size() < 3) {
    return InvalidArgument(
        "expected NAME ROLES CREDENTIAL [jobs=PATTERNS] [nodes=PATTERNS], where the credential is "
        "sha256:HEX of a token or cert:NAME of a certificate");
  }
  Entry entry;
  entry.principal.name = words[0];
  if (words[0].size() > kNameMax) {
    return InvalidArgument(StrCat("expected a name of at most ", kNameMax, " bytes"));
  }
  for (const std::string& name : Split(words[1])) {
    if (name == "agent") {
      entry.agent = true;
      continue;
    }
    WEIR_ASSIGN_OR_RETURN(const Role role, ParseRole(name));
    entry.principal.role = std::max(role, entry.principal.role.value_or(role));
  }
  const std::string_view credential = words[2];
  if (credential.starts_with(kHash)) {
    entry.token = ParseHash(credential.substr(kHash.size()));
    if (!entry.token.has_value()) {
      return InvalidArgument("expected 64 lowercase hexadecimal digits after sha256:");
    }
    entry.principal.proof = "token";
  } else if (credential.starts_with(kCertificate) && credential.size() > kCertificate.size()) {
    entry.certificate = credential.substr(kCertificate.size());
    entry.principal.proof = "certificate";
  } else {
    // The text is not shown, because it may be a token.
    return InvalidArgument(
        "expected sha256:HEX of a token (printf %s TOKEN | sha256sum) or cert:NAME of a "
        "certificate");
  }
  for (size_t i = 3; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word.starts_with("jobs=")) {
      entry.principal.jobs = Split(word.substr(5));
    } else if (word.starts_with("nodes=") && entry.agent) {
      entry.principal.nodes = Split(word.substr(6));
    } else {
      return InvalidArgument(
          StrCat("unknown '", word, "'; valid: jobs=PATTERNS, and nodes=PATTERNS of an agent"));
    }
  }
  if (entry.agent && entry.token.has_value() && entry.principal.nodes.empty()) {
    return InvalidArgument("an agent with a token needs nodes=PATTERNS");
  }
  return entry;
}

StatusOr<Principals> Principals::Parse(std::string_view text, std::string_view origin) {
  Principals principals;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream stream(line.substr(0, line.find('#')));
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty()) continue;
    auto entry = ParseEntry(words);
    if (!entry.ok()) {
      return InvalidArgument(StrCat(origin, ":", number, ": ", Message(entry.status())));
    }
    if (principals.entries_.size() >= kEntriesMax) {
      return InvalidArgument(StrCat(origin, ": more than ", kEntriesMax, " entries"));
    }
    principals.entries_.push_back(*std::move(entry));
  }
  if (principals.entries_.empty()) return InvalidArgument(StrCat(origin, ": holds no entry"));
  return principals;
}

std::string Principals::Text() const {
  std::string text;
  const auto list = [&text](const char* key, const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) {
      text += StrCat(&pattern == patterns.data() ? key : ",", pattern);
    }
  };
  for (const Entry& entry : entries_) {
    text += entry.principal.name;
    if (entry.principal.role.has_value()) text += StrCat(" ", RoleName(*entry.principal.role));
    if (entry.agent) text += " agent";
    text += entry.token.has_value() ? " token" : StrCat(" cert:", entry.certificate);
    list(" jobs=", entry.principal.jobs);
    list(" nodes=", entry.principal.nodes);
    text += "\n";
  }
  return text;
}

std::optional<Principal> Principals::FindToken(const Sha256Hash& hash) const {
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.token.has_value() &&
        CRYPTO_memcmp(entry.token->data(), hash.data(), hash.size()) == 0) {
      found = &entry;
    }
  }
  if (found == nullptr) return std::nullopt;
  return found->principal;
}

std::optional<Principal> Principals::FindCertificate(const std::vector<std::string>& names) const {
  for (const Entry& entry : entries_) {
    if (entry.certificate.empty()) continue;
    const bool ours = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return fnmatch(entry.certificate.c_str(), name.c_str(), 0) == 0;
    });
    if (!ours) continue;
    Principal principal = entry.principal;
    if (entry.agent && principal.nodes.empty()) principal.nodes = Literally(names);
    return principal;
  }
  return std::nullopt;
}

}  // namespace weir
