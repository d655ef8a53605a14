// SPDX-License-Identifier: Apache-2.0
#pragma once
// The messages to the agent: weir.v1.NcclReport of proto/weir/v1/rank.proto as JSON. Pure.

#include <string>
#include <vector>

#include "datapath/nccl/plugin/profile.h"
#include "datapath/nccl/plugin/tuner.h"

namespace weir::nccl::plugin {

/// The state of all tuners of the process. `table_error`: why the agent's newest table was refused.
std::string EncodeTuners(const std::vector<TunerState>& tuners, const std::string& table_error,
                         bool agent_steers);

/// The sums of one communicator since it was made.
std::string EncodeProfile(const Profile& profile);

}  // namespace weir::nccl::plugin
