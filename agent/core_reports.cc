// SPDX-License-Identifier: Apache-2.0
#include "agent/core_reports.h"

namespace weir::agent {

void CoreReports::AddTo(ConnectionId connection, const RankPeer& peer, TimePoint now,
                        v1::StepReport* report) {
  report->clear_cores();
  const auto pid = static_cast<pid_t>(peer.pid);
  pids_[connection] = pid;
  const std::optional<CoreUse> use = meter_.Look(pid, now);
  if (!use.has_value()) return;
  v1::CoreUse& cores = *report->mutable_cores();
  cores.set_wait_ratio(use->wait_ratio);
  cores.set_datapath_wait_ratio(use->datapath_wait_ratio);
  cores.set_steal_ratio(use->steal_ratio);
  cores.set_pressure_ratio(use->pressure_ratio);
}

void CoreReports::Forget(ConnectionId connection) {
  const auto known = pids_.extract(connection);
  if (!known.empty()) meter_.Forget(known.mapped());
}

}  // namespace weir::agent
