// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of several controllers may act. Only the leader decides, writes to the store and speaks to
// agents; the others stand by.

#include <cstdint>
#include <optional>
#include <string>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// The addresses by which others reach a controller.
struct ControllerAddress {
  std::string grpc;  // host:port, for agents and weirctl
  std::string http;  // http(s)://host:port
};

/// One time of leading. Terms grow from leader to leader, and no two controllers have the same.
struct Tenure {
  uint64_t term = 0;
  TimePoint until{};  // it ends then, unless it is renewed before
};

struct LeadershipView {
  bool leads = false;
  std::optional<ControllerAddress> leader;  // nothing: none is known
  Status store;                             // why the shared store cannot be used; OK: it can
  int64_t revision = 0;    // grows with every change of the store; standbys know it
  uint64_t changes = 0;    // times that this controller began or ceased to lead
  double store_bytes = 0;  // that the store takes on its disk; 0: not known
};

/// Thread-safe.
class Leadership {
 public:
  virtual ~Leadership() = default;
  /// The present tenure of this controller; nothing: it stands by. Reads the clock, so it is right
  /// also in a process that was stopped and has just woken up. O(1), no I/O.
  virtual std::optional<Tenure> tenure() const = 0;
  virtual LeadershipView view() const = 0;
  /// Ends the tenure of that term, so that another controller can lead; this one competes again
  /// after a while.
  virtual void Resign(uint64_t term, const std::string& why) = 0;
};

}  // namespace weir
