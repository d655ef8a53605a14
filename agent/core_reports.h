// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adds to the reports of ranks how long their threads wait for cores.

#include <map>

#include "agent/measure/core_use.h"
#include "agent/rank_claims.h"
#include "datapath/base/clock.h"
#include "weir/v1/rank.pb.h"

namespace weir::agent {

/// Not thread-safe.
class CoreReports {
 public:
  /// Sets `report.cores` for the process of `peer`, whatever the rank wrote there: a rank does not
  /// know its host's other work. Of a rank in another process namespace only the host's shares are
  /// known.
  void AddTo(ConnectionId connection, const RankPeer& peer, TimePoint now, v1::StepReport* report);
  /// The connection has ended.
  void Forget(ConnectionId connection);

 private:
  CoreUseMeter meter_;
  std::map<ConnectionId, pid_t> pids_;
};

}  // namespace weir::agent
