// SPDX-License-Identifier: Apache-2.0
#pragma once
// Looks up the address of a host with a bound on the waiting time: the system's own lookup may take
// half a minute and cannot be cancelled.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// One lookup that runs in the background. Not thread-safe.
class PendingLookup {
 public:
  virtual ~PendingLookup() = default;  // does not wait for the lookup
  using Answer = StatusOr<std::vector<std::string>>;
  /// Waits at most `at_most` for the numeric addresses, best first, at least one; null: no answer
  /// yet. kUnavailable: there is no such name, or no name server. Must not be called again after an
  /// answer.
  virtual std::optional<Answer> Wait(Duration at_most) = 0;
};

using StartLookup = std::function<std::unique_ptr<PendingLookup>(const std::string& host)>;

/// Uses the system's files and name servers (getaddrinfo_a). Thread-safe. If a lookup is abandoned
/// while it waits for a name server, its memory is not freed.
std::unique_ptr<PendingLookup> StartSystemLookup(const std::string& host);

/// The address of one host, which is looked up again from time to time. At most one lookup at a
/// time. Not thread-safe.
class NameLookup {
 public:
  static constexpr double kFreshS = 30;  // an address is used for this long

  NameLookup(std::string host, StartLookup start, const Clock& clock);

  /// The numeric address; a numeric host needs no lookup. kDeadlineExceeded: no answer yet, but a
  /// later call may return it; other errors as PendingLookup. A known address stays in use while no
  /// name server answers.
  StatusOr<std::string> Address(Duration at_most);

  /// Reports that the address did not answer. The next address of the host is used, or a new lookup
  /// starts.
  void Failed();

 private:
  const std::string host_;
  const StartLookup start_;
  const Clock& clock_;
  const bool numeric_;
  std::unique_ptr<PendingLookup> pending_;
  std::vector<std::string> addresses_;  // the first is used
  TimePoint found_at_{};
};

}  // namespace weir
