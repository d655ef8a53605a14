// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of nodes (node_parts.h) whose elements are in the memory of devices: moved within the node
// by the devices themselves, or, where not all of its ranks have theirs there, through copies in
// the host's memory. Both give the same bits.

#include <span>
#include <vector>

#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/group.h"

namespace weir {

using Parts = std::span<const std::span<std::byte>>;

/// Whether `own` is true for all ranks of the group: a message to each of them, which also shows
/// that all have begun this operation, so that devices can wait for each other.
StatusOr<bool> AllOnDevices(Group& group, bool own);

/// Leaves at rank i the sum of part i: its own contribution first, then those of the others by
/// ascending rank, as in node_parts.cc. The group is the node's ranks, which are those of
/// Group::devices, and AllOnDevices was true. Errors fail the group: those of DeviceGroup and
/// Group::Pause. Takes memory of the device for the other ranks' contributions to the own part.
Status ReducePartsByDevices(Group& group, const NodeSumOperand& operand);
/// Copies each part from its owner to all ranks; otherwise the same.
Status GatherPartsByDevices(Group& group, const NodeSumOperand& operand);

/// Returns `status` after failing the group with it if it is an error.
Status FailOnError(Group& group, const Status& status);

/// A copy of the lanes in the host's memory. Not thread-safe. Errors are those of Device.
class HostParts {
 public:
  /// The operand outlives this.
  explicit HostParts(const NodeSumOperand& operand);
  /// Lanes and parts in the host's memory.
  const Lanes& lanes() const { return lanes_; }
  Parts parts() const { return parts_; }
  Status ReadAll();
  /// Copies the part of `place`, if there is one, from or to the device.
  Status ReadPart(int place);
  Status WritePart(int place);
  /// Copies the parts of all others to the device.
  Status WriteOthers(int place);

 private:
  const NodeSumOperand& operand_;
  ScratchBuffer memory_;
  Lanes lanes_;
  std::vector<std::span<std::byte>> parts_;
};

}  // namespace weir
