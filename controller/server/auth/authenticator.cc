// SPDX-License-Identifier: Apache-2.0
#include "controller/server/auth/authenticator.h"

#include <fstream>
#include <iterator>

#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr size_t kFileBytesMax = 1u << 20;

Status Unauthenticated(std::string message) {
  return MakeStatus(StatusCode::kUnauthenticated, std::move(message));
}

std::string OtherUserMessage(const std::string& user) {
  return StrCat(kTokenExpected,
                "; without one, only root and the controller's own user are trusted "
                "here, and this is ",
                user, " (--trust-loopback trusts every user)");
}

}  // namespace

StatusOr<Principals> Authenticator::Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(StrCat("cannot read token file '", path, "'"));
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kFileBytesMax) {
    return InvalidArgument(StrCat(path, ": more than ", kFileBytesMax, " bytes"));
  }
  return Principals::Parse(text, path);
}

StatusOr<std::unique_ptr<Authenticator>> Authenticator::FromFile(const std::string& path,
                                                                 const Clock& clock) {
  auto authenticator = std::make_unique<Authenticator>(clock);
  authenticator->path_ = path;
  MutexLock lock(authenticator->mutex_);
  authenticator->seen_ = StateOf(path);
  WEIR_ASSIGN_OR_RETURN(authenticator->principals_, Read(path));
  return authenticator;
}

void Authenticator::Refresh() {
  if (path_.empty()) return;
  const FileState now = StateOf(path_);
  if (now == seen_) return;
  seen_ = now;
  auto read = Read(path_);
  if (!read.ok()) {
    Log(LogLevel::kError, "auth",
        StrCat("the changed token file is invalid, the previous entries stay in use: ",
               Message(read.status())));
    if (changed_) changed_(principals_.Text(), read.status());
    return;
  }
  if (changed_) changed_(principals_.Text(), read->Text());
  principals_ = *std::move(read);
  used_.clear();
  Log(LogLevel::kInfo, "auth", StrCat("token file ", path_, " was read again"));
}

StatusOr<Sha256Hash> Authenticator::CheckToken(const Credentials& credentials) {
  if (!credentials.authorization.starts_with(kBearer)) return Unauthenticated(kTokenExpected);
  const Sha256Hash hash = HashOf(credentials.authorization.substr(kBearer.size()));
  if (!used_.contains(hash)) WEIR_RETURN_IF_ERROR(wrong_.Check(credentials.peer));
  if (!principals_.FindToken(hash).has_value()) return wrong_.Refuse(credentials.peer);
  used_.insert(hash);
  return hash;
}

StatusOr<Proof> Authenticator::ProofOf(const Credentials& credentials) {
  Proof proof;
  // Without a token file no token is right or wrong.
  if (!credentials.authorization.empty() && !path_.empty()) {
    WEIR_ASSIGN_OR_RETURN(proof.token, CheckToken(credentials));
    return proof;
  }
  if (credentials.has_certificate) {
    proof.certificate = credentials.certificate;
    if (proof.certificate.empty()) proof.certificate = {""};
    return proof;
  }
  proof.local = credentials.local;
  return proof;
}

StatusOr<Principal> Authenticator::PrincipalOf(const Proof& proof) {
  if (proof.token.has_value()) {
    auto found = principals_.FindToken(*proof.token);
    if (!found.has_value()) return Unauthenticated("the token is no longer known");
    return *std::move(found);
  }
  if (!proof.certificate.empty()) {
    if (auto found = principals_.FindCertificate(proof.certificate); found.has_value()) {
      return *std::move(found);
    }
    const std::string& name = proof.certificate.front();
    return Principal{.name = name.empty() ? "unnamed" : name,
                     .proof = "certificate",
                     .nodes = Literally(proof.certificate)};
  }
  if (!proof.local.role.has_value() && !proof.local.agent) {
    return Unauthenticated(proof.local.user.empty() ? kTokenExpected
                                                    : OtherUserMessage(proof.local.user));
  }
  Principal local{.name = "local", .proof = "local", .role = proof.local.role};
  if (!proof.local.user.empty()) local.name = proof.local.user;
  if (proof.local.agent) local.nodes = {"*"};
  return local;
}

StatusOr<Caller> Authenticator::Identify(const Credentials& credentials) {
  MutexLock lock(mutex_);
  Refresh();
  if (credentials.authorization.empty() && !credentials.session.empty()) {
    WEIR_ASSIGN_OR_RETURN(const Proof* const proof,
                          sessions_.Find(credentials.session, credentials.csrf,
                                         credentials.reads_only, clock_.Now()));
    if (proof != nullptr) {
      WEIR_ASSIGN_OR_RETURN(Principal principal, PrincipalOf(*proof));
      principal.proof = "session";
      return Caller{std::move(principal), *proof, credentials.origin()};
    }
  }
  WEIR_ASSIGN_OR_RETURN(Proof proof, ProofOf(credentials));
  WEIR_ASSIGN_OR_RETURN(Principal principal, PrincipalOf(proof));
  return Caller{std::move(principal), std::move(proof), credentials.origin()};
}

StatusOr<Session> Authenticator::Begin(const Proof& proof) {
  Session session;
  WEIR_ASSIGN_OR_RETURN(session.principal, PrincipalOf(proof));
  WEIR_ASSIGN_OR_RETURN(session.secrets, sessions_.Begin(proof, clock_.Now()));
  return session;
}

StatusOr<Session> Authenticator::BeginSession(const Credentials& credentials) {
  MutexLock lock(mutex_);
  Refresh();
  WEIR_ASSIGN_OR_RETURN(const Proof proof, ProofOf(credentials));
  return Begin(proof);
}

StatusOr<Session> Authenticator::BeginSession(std::string_view code, const std::string& peer) {
  MutexLock lock(mutex_);
  Refresh();
  WEIR_RETURN_IF_ERROR(wrong_.Check(peer));
  const auto proof = sessions_.TakeCode(code, clock_.Now());
  if (!proof.has_value()) {
    (void)wrong_.Refuse(peer);
    return Unauthenticated("unknown code; weirctl page makes another one");
  }
  return Begin(*proof);
}

void Authenticator::EndSession(std::string_view cookie) {
  MutexLock lock(mutex_);
  sessions_.End(cookie);
}

StatusOr<std::string> Authenticator::MakeCode(const Caller& caller) {
  MutexLock lock(mutex_);
  return sessions_.MakeCode(caller.evidence, clock_.Now());
}

}  // namespace weir
