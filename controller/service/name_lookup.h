// SPDX-License-Identifier: Apache-2.0
#pragma once
// The address behind a host's name, without ever waiting longer for a name server than one wants
// to: the system's own lookup may take half a minute and cannot be told to stop.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// One lookup that goes on by itself. Not thread-safe.
class PendingLookup {
 public:
  virtual ~PendingLookup() = default;  // does not wait for it
  using Answer = StatusOr<std::vector<std::string>>;
  /// Waits at most so long for the numeric addresses, best first, at least one; null: no answer
  /// yet. kUnavailable: there is no such name, or no name server. Not called again after an answer.
  virtual std::optional<Answer> Wait(Duration at_most) = 0;
};

using StartLookup = std::function<std::unique_ptr<PendingLookup>(const std::string& host)>;

/// By the system's files and name servers (getaddrinfo_a). Thread-safe. Memory of a lookup that is
/// given up while a name server is waited for stays with the system.
std::unique_ptr<PendingLookup> StartSystemLookup(const std::string& host);

/// The address of one host, looked up again now and then. At most one lookup at a time. Not
/// thread-safe.
class NameLookup {
 public:
  static constexpr double kFreshS = 30;  // an address is used for so long

  NameLookup(std::string host, StartLookup start, const Clock& clock);

  /// Numeric; a host that is numeric itself needs no lookup. kDeadlineExceeded: no answer yet, and
  /// a later call may find it; otherwise as PendingLookup. An address that is known is used on
  /// while nobody answers.
  StatusOr<std::string> Address(Duration at_most);

  /// Nobody answered there: the next of its addresses, if any, else they are looked up again.
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
