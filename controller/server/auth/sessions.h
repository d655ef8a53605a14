// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sessions of people at the page, and the codes that begin one. Pure: the caller gives the time.
// Only hashes are kept, in memory: a restart of the controller ends all sessions.

#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/server/auth/principals.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// The rights that a listener grants to callers without credentials. Only listeners that no other
/// machine reaches grant anything, unless --insecure is set.
struct LocalRights {
  std::optional<Role> role = {};
  bool agent = false;     // for every node
  std::string user = {};  // who calls, where that is known to be another user of this machine
};

/// How the person of a session proved who they are. It is looked up again for every request, so
/// that a session ends with the entry of the token file.
struct Proof {
  std::optional<Sha256Hash> token = {};
  std::vector<std::string> certificate = {};
  LocalRights local = {};
};

/// The secrets of a new session's owner: the value of the cookie, which browsers send by
/// themselves, and that of the header Weir-CSRF, which only the page itself can send.
struct SessionSecrets {
  std::string cookie, csrf;
};

class Sessions {
 public:
  static constexpr Duration kSessionMax = std::chrono::hours(12);
  static constexpr Duration kCodeMax = std::chrono::minutes(10);
  static constexpr size_t kMax = 1024;  // of each; the oldest goes first

  /// kInternal: no random numbers.
  StatusOr<SessionSecrets> Begin(const Proof& proof, TimePoint now);
  /// Null: no such session, or it is over. `csrf`: must fit unless `reads_only`.
  StatusOr<const Proof*> Find(std::string_view cookie, std::string_view csrf, bool reads_only,
                              TimePoint now);
  void End(std::string_view cookie);

  /// A code that begins one session.
  StatusOr<std::string> MakeCode(const Proof& proof, TimePoint now);
  /// Nothing: no such code; it has been used, or it is too old.
  std::optional<Proof> TakeCode(std::string_view code, TimePoint now);

 private:
  struct Entry {
    Sha256Hash hash, csrf;
    Proof proof;
    TimePoint end;
  };
  static void Insert(std::list<Entry>* entries, Entry entry);
  static std::list<Entry>::iterator Find(std::list<Entry>* entries, std::string_view secret,
                                         TimePoint now);

  std::list<Entry> sessions_, codes_;  // oldest first
};

}  // namespace weir
