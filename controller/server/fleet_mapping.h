// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fleet's structs as messages and back; those of jobs are in controller/messages/mapping.h.
// Numbers from agents are made finite here.

#include <optional>

#include "controller/fleet/fleet_host.h"
#include "controller/fleet/policy_change.h"
#include "controller/job/effective_policy.h"
#include "datapath/base/clock.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/agent.pb.h"

namespace weir {

NodeGreeting ToModel(const v1::NodeHello& hello);
v1::NodeHello ToProto(const NodeGreeting& said);
/// Returns nothing if a number is not finite.
std::optional<NcclSums> ToModel(const v1::NcclSummary& summary);
/// `source`: the node that measured. Returns nothing if the measurement failed.
std::optional<LinkReport> ToModel(const std::string& source, const v1::LinkSample& sample);
v1::ControllerMessage ToProto(const AgentOrder& order);

v1::Node ToProto(const NodeView& node);
v1::Link ToProto(const NodeTable::LinkEnds& ends, const LinkState& link, TimePoint now);
v1::Event ToProto(const FleetEvent& event);
v1::Policy ToProto(const PolicyEntry& entry);
v1::PolicyDifference ToProto(const PolicyDifference& difference);
v1::PolicyEffect ToProto(const PolicyEffect& effect);

}  // namespace weir
