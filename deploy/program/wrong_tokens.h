// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bounds what wrong tokens cost a server: how many of one address are read, and how often the log
// mentions them.

#include <cstdint>
#include <map>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// Not thread-safe.
class WrongTokens {
 public:
  /// Wrong tokens of one address within a window before further ones are refused unread.
  static constexpr int kMax = 20;
  static constexpr Duration kWindow = std::chrono::seconds(10);
  static constexpr size_t kPeersMax = 4096;  // addresses that are counted one by one

  /// `part` names the server in the log and outlives this.
  WrongTokens(const char* part, const Clock& clock) : part_(part), clock_(clock) {}

  /// kResourceExhausted: too many wrong tokens came from this address. Tokens that are known to be
  /// right need no check, so that nobody can lock out others at the same address.
  Status Check(const std::string& peer);
  /// Counts a wrong token; the log says so once a window. Returns kUnauthenticated.
  Status Refuse(const std::string& peer);

 private:
  void BeginWindow();

  const char* const part_;
  const Clock& clock_;
  std::map<std::string, int> wrong_;  // of this window, by address
  TimePoint window_end_{};
  uint64_t unlogged_ = 0;
};

}  // namespace weir
