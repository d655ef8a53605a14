// SPDX-License-Identifier: Apache-2.0
// The ranks of a new mesh learn before their first step which of them share a node, and whether the
// callers of all can sum. Where all ranks of a node ask for it, its devices form a group.

#include <algorithm>
#include <array>

#include "datapath/base/log.h"
#include "datapath/collective/node_places.h"
#include "datapath/collective/primitives.h"
#include "datapath/session/session.h"

namespace weir {
namespace {

// Flags that a rank sends beside its node.
constexpr int32_t kCallerSums = 1;  // its caller can sum over a group of its own
constexpr int32_t kWantsGroup = 2;  // its device is to be in a group

// How often to look whether the group is formed, which takes seconds.
constexpr Duration kJoinPause = std::chrono::milliseconds(1);

}  // namespace

Status Session::LearnNodes(Group& group) {
  // A rank's node has the number of the lowest rank that it reaches through shared memory. All
  // ranks use the same list.
  int32_t node = options_.rank;
  for (const PathSample& path : transport_->Samples()) {
    if (path.medium == "shm") node = std::min(node, path.peer);
  }
  const int32_t own_flags =
      (options_.caller_sums ? kCallerSums : 0) | (options_.link_devices ? kWantsGroup : 0);
  const std::array<int32_t, 2> own = {node, own_flags};
  std::vector<std::array<int32_t, 2>> all(static_cast<size_t>(options_.world));
  WEIR_RETURN_IF_ERROR(
      SmallAllGather(group, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all))));
  std::vector<bool> wanted, callers_sum;
  nodes_.clear();
  for (const auto& [of_rank, flags] : all) {
    nodes_.push_back(of_rank);
    wanted.push_back((flags & kWantsGroup) != 0);
    callers_sum.push_back((flags & kCallerSums) != 0);
  }
  stages_->SetNodes(nodes_);
  WEIR_RETURN_IF_ERROR(AgreeOnCallers(callers_sum));
  return options_.link_devices ? LinkDevices(group, wanted) : OkStatus();
}

Status Session::AgreeOnCallers(const std::vector<bool>& able) {
  const auto unable = std::ranges::find(able, false);
  callers_sum_ = unable == able.end();
  const std::shared_ptr<const Plan> plan = ActivePlan();
  if (callers_sum_ || plan->version == 0) return OkStatus();
  PlanLimits limits;
  limits.job = options_.job;
  limits.world = options_.world;
  limits.local_steps = options_.local_steps;
  return Annotate(ValidatePlan(*plan, limits), StrCat("rank ", unable - able.begin()));
}

Status Session::LinkDevices(Group& group, const std::vector<bool>& wanted) {
  const NodePlaces places = NodePlacesOf(nodes_, options_.rank, options_.world);
  if (places.node.size() == 1) return OkStatus();
  const auto without = std::ranges::find_if(
      places.node, [&](int rank) { return !wanted[static_cast<size_t>(rank)]; });
  if (without != places.node.end()) {
    Log(LogLevel::kWarning, "session",
        StrCat(name_, ": rank ", *without, " has no nccl=on, so the ranks of its node exchange ",
               "what is on devices through the host's memory"));
    return OkStatus();
  }
  const auto fail = [&group](const Status& status) {
    return group.Fail(Annotate(status, "nccl=on"));
  };
  const GroupPart node(group, places.node, 0);
  DeviceGroupId id = {};
  if (places.place == 0) {
    const StatusOr<DeviceGroupId> made = options_.device->NewGroupId();
    if (!made.ok()) return fail(made.status());
    id = *made;
  }
  WEIR_RETURN_IF_ERROR(BroadcastSmall(group, 0, id));
  StatusOr<std::unique_ptr<DeviceGroup>> joined =
      options_.device->Join(id, places.place, group.size());
  if (!joined.ok()) return fail(joined.status());
  for (;;) {
    const StatusOr<bool> done = (*joined)->IsDone();
    if (!done.ok()) return fail(done.status());
    if (*done) break;
    WEIR_RETURN_IF_ERROR(group.Pause(
        kJoinPause, "nccl=on: not all devices of the node have joined their group in time"));
  }
  device_group_ = *std::move(joined);
  Log(LogLevel::kInfo, "session",
      StrCat(name_, ": the devices of the ", group.size(), " ranks of this node exchange by NCCL"));
  return OkStatus();
}

}  // namespace weir
