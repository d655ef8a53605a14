// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bearer tokens in files: that of a client, and those that a server accepts. The controller's own
// file has roles, too (controller/server/auth).

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "deploy/program/file_state.h"
#include "deploy/program/wrong_tokens.h"

namespace weir {

/// The only word of the file, which must be a token of 16 to 512 visible characters.
/// kInvalidArgument names the file and what was found.
StatusOr<std::string> ReadTokenFile(const std::string& path);

/// The tokens that a server accepts, read again when their file changes. A changed file with an
/// error leaves the tokens as they are, and is logged. Thread-safe.
class TokenFile {
 public:
  static constexpr size_t kTokensMax = 64;

  /// Lines "TOKEN" or "NAME TOKEN", so that each client can have its own, and an old and a new one
  /// are valid together for a while; empty lines and those that begin with "#" are skipped. A token
  /// has 16 to 512 visible characters, a name is of letters, digits and . _ - and without one it is
  /// "token". kInvalidArgument names the file, the line and what was found; a file without tokens
  /// is an error. `part` names the server in the log and outlives the result, as `clock` does.
  static StatusOr<std::unique_ptr<TokenFile>> Open(std::string path, const char* part,
                                                   const Clock& clock = RealClock());

  /// The name of the token in "Bearer TOKEN", which came from the address `peer`.
  /// kUnauthenticated: there is none, or it is unknown; kResourceExhausted: see WrongTokens. The
  /// time does not depend on the token. One look at the file.
  StatusOr<std::string> Find(std::string_view authorization, const std::string& peer)
      WEIR_EXCLUDES(mutex_);
  /// The tokens themselves, for callers that prove one without showing it. One look at the file.
  std::vector<std::string> Tokens() WEIR_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::string name, token;
    bool used = false;  // it was right before
  };

  TokenFile(std::string path, const char* part, const Clock& clock)
      : path_(std::move(path)), part_(part), wrong_(part, clock) {}
  static StatusOr<std::vector<Entry>> Read(const std::string& path);
  void Refresh() WEIR_REQUIRES(mutex_);

  const std::string path_;
  const char* const part_;
  Mutex mutex_;
  FileState seen_ WEIR_GUARDED_BY(mutex_) = {};
  std::vector<Entry> entries_ WEIR_GUARDED_BY(mutex_);
  WrongTokens wrong_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
