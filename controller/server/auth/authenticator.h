// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the principal of a caller from what it shows: a token, a verified certificate, or only that
// it reached a listener of this machine. Rereads the token file when it changes, and bounds what
// wrong tokens cost.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "controller/server/auth/principals.h"
#include "controller/server/auth/sessions.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "deploy/program/file_state.h"
#include "deploy/program/wrong_tokens.h"

namespace weir {

/// The origin of a request.
struct Origin {
  std::string peer = {};        // address without port; "unix" for a socket
  std::string request_id = {};  // access_log.h
};

/// The credentials that a caller shows.
struct Credentials {
  std::string peer = {};                      // its address without port; "unix" for a socket
  std::string request_id = {};                // access_log.h
  std::string_view authorization = {};        // "Bearer <token>"; empty: none
  std::vector<std::string> certificate = {};  // names of its verified certificate
  bool has_certificate = false;
  std::string_view session = {}, csrf = {};  // cookie, and header Weir-CSRF
  bool reads_only = false;                   // the request changes nothing
  LocalRights local = {};                    // of the listener

  Origin origin() const { return {peer, request_id}; }
};

/// A principal who calls.
struct Caller : Principal {
  Proof evidence = {};
  Origin from = {};
};

/// A session that has begun.
struct Session {
  Principal principal;
  SessionSecrets secrets;
};

/// Thread-safe.
class Authenticator {
 public:
  /// Without a token file: tokens are ignored.
  explicit Authenticator(const Clock& clock = RealClock()) : clock_(clock), wrong_("auth", clock) {}
  /// kInvalidArgument names file and line; kNotFound: unreadable.
  static StatusOr<std::unique_ptr<Authenticator>> FromFile(const std::string& path,
                                                           const Clock& clock = RealClock());

  /// Told when the changed file was read: what its entries said before (Principals::Text), and say
  /// now or why they are not used.
  using FileChange =
      std::function<void(const std::string& before, const StatusOr<std::string>& after)>;
  /// `changed` is called on any thread, and may not call this object. To be set before the first
  /// call of the others.
  void OnFileChange(FileChange changed) { changed_ = std::move(changed); }

  /// The caller's principal. A token counts before a certificate, and a wrong token is never
  /// ignored. A certificate without an entry speaks for the nodes of its names and has no role.
  /// kUnauthenticated: nothing that is known; kResourceExhausted: too many wrong tokens came from
  /// this address.
  StatusOr<Caller> Identify(const Credentials& credentials) WEIR_EXCLUDES(mutex_);

  /// Begins a session of the caller. Errors as those of Identify.
  StatusOr<Session> BeginSession(const Credentials& credentials) WEIR_EXCLUDES(mutex_);
  /// Begins the session that `code` is for. kUnauthenticated: no such code, or it has been used.
  StatusOr<Session> BeginSession(std::string_view code, const std::string& peer)
      WEIR_EXCLUDES(mutex_);
  void EndSession(std::string_view cookie) WEIR_EXCLUDES(mutex_);
  /// A code that begins one session with the caller's own rights, within Sessions::kCodeMax.
  StatusOr<std::string> MakeCode(const Caller& caller) WEIR_EXCLUDES(mutex_);

 private:
  static StatusOr<Principals> Read(const std::string& path);
  void Refresh() WEIR_REQUIRES(mutex_);
  /// By what the caller proves itself; the errors of Identify.
  StatusOr<Proof> ProofOf(const Credentials& credentials) WEIR_REQUIRES(mutex_);
  StatusOr<Principal> PrincipalOf(const Proof& proof) WEIR_REQUIRES(mutex_);
  StatusOr<Sha256Hash> CheckToken(const Credentials& credentials) WEIR_REQUIRES(mutex_);
  StatusOr<Session> Begin(const Proof& proof) WEIR_REQUIRES(mutex_);

  const Clock& clock_;
  std::string path_;  // empty: no file
  FileChange changed_;
  Mutex mutex_;
  FileState seen_ WEIR_GUARDED_BY(mutex_) = {};
  Principals principals_ WEIR_GUARDED_BY(mutex_);
  Sessions sessions_ WEIR_GUARDED_BY(mutex_);
  std::set<Sha256Hash> used_
      WEIR_GUARDED_BY(mutex_);  // tokens that were right since the file changed
  WrongTokens wrong_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
