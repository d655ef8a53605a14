// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operands of collectives: one rank's contribution to one operation, and where the result goes.
// There is one struct for each kind of contribution, and each exchange form uses one of them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/collective/sparse_regions.h"

namespace weir {

class DeviceBucket;
class Group;
struct LaneShares;

/// One payload for each rank, in rank order.
using Gathered = std::vector<std::vector<std::byte>>;

/// Lanes that are summed in place. `accumulate` adds two equal-sized runs of whole lanes. On
/// success `bytes` hold the sum over all ranks, identical on every rank.
struct Lanes {
  std::span<std::byte> bytes;
  size_t lane_bytes = 4;
  std::function<void(std::span<std::byte> sum, std::span<const std::byte> addend)> accumulate;
  LaneShares* shares = nullptr;  // tells which ranks each sum includes; null: sums must include all
};

/// Takes this rank's payload. On success `gathered` has one payload for each rank, this one
/// included.
struct GatherOperand {
  std::span<const std::byte> payload;
  size_t payload_bytes_max = 0;  // upper bound of every rank's payload; 0: kFramePayloadBytesMax
  Gathered* gathered = nullptr;
};

/// Every rank offers its selection and its squared norm. The chosen rank's indices are broadcast,
/// and the values at them are summed. On success `values` (the sum over all ranks) are identical on
/// every rank.
struct SharedIndexOperand {
  std::span<const std::byte> selection;  // this rank's index payload
  size_t selection_bytes_max = 0;        // bound of every rank's; 0: kFramePayloadBytesMax
  double norm_squared = 0;
  uint64_t step = 0;  // for collectives that choose the ranks in turn
  // Decodes the chosen selection and fills `values` with this rank's values.
  std::function<Status(std::span<const std::byte> selection)> open;
  std::vector<float>* values = nullptr;
};

/// As SharedIndexOperand, but all ranks use the union of all selections.
struct UnionIndexOperand {
  std::span<const std::byte> selection;
  size_t selection_bytes_max = 0;
  // Decodes the selections of all ranks, which are in rank order, and fills `values`.
  std::function<Status(std::span<const std::vector<std::byte>> selections)> open;
  std::vector<float>* values = nullptr;
};

/// Every rank sends its own selection with its values. The sum at an index includes only the ranks
/// that selected it. On success `sums` hold about `kept_target` sums, the largest ones, identical
/// on every rank.
struct SparseSumOperand {
  SparseVector selected;  // ascending indices below `elements`
  size_t elements = 0, kept_target = 0;
  SparseBalance* balance = nullptr;  // the bucket's, equal on all ranks; updated; null: none
  SparseVector sums;
};

/// Which of two operations this is, for sums that are encoded between the two.
enum class SumRound {
  kAdd,         // computes the sum
  kDistribute,  // sends the encoded sum to all ranks
};

/// The bucket is cut into one region for each rank. In kAdd `add` gets every rank's payload of this
/// rank's own region, in rank order, including its own payload. After kDistribute `gathered` holds
/// every rank's `sum` in the order of regions, the same bytes on every rank, the owner included.
struct RegionOperand {
  SumRound round = SumRound::kAdd;
  size_t payload_bytes_max = 0;  // bound of any payload; 0: kFramePayloadBytesMax
  // kAdd: this rank's payloads of all regions, empty for regions without elements.
  std::span<const std::span<const std::byte>> payloads;
  std::function<Status(int from, std::span<const std::byte> payload)> add;
  // kDistribute: the payload of the sum of this rank's own region.
  std::span<const std::byte> sum;
  Gathered* gathered = nullptr;
};

/// Ranks of a node add their float32 `lanes` exactly and exchange encoded parts of the node's sum
/// across nodes. `parts` are consecutive spans that make up the lanes. There are NodePartsOf
/// (node_parts.h) of them, the first is the largest, and part i belongs to the rank at place i of
/// its node. kAdd leaves the node's sum in the rank's own part and unspecified values in the other
/// parts; it sends no message to another node. For kDistribute the caller sets its own part to
/// zeros and gives its payload as `sum` (empty for a part without elements). `add` then adds the
/// decoded payloads of that part of all nodes, this one included, by ascending rank of the job. On
/// success `lanes` hold the total of the decoded payloads, the same bits on every rank.
struct NodeSumOperand {
  SumRound round = SumRound::kAdd;
  Lanes lanes;
  std::span<const std::span<std::byte>> parts;
  size_t payload_bytes_max = 0;    // bound of the payload of every part
  std::span<const std::byte> sum;  // kDistribute
  std::function<Status(int from, std::span<const std::byte> payload)> add;
  // If set, `lanes` and `parts` are in the memory of this bucket's device, and replace_sum is
  // called in place of `add`, once: it sets the own part to the sum of the payloads of ranks
  // `from`.
  DeviceBucket* device = nullptr;
  std::function<Status(std::span<const int> from,
                       std::span<const std::span<const std::byte>> payloads)>
      replace_sum;
  // Whether the lanes of all ranks of the node are on the devices of Group::devices, so that these
  // move them. kAdd sets it, and kDistribute is given the same value.
  bool by_devices = false;
};

/// Goes beside the sums that callers make over process groups of their own. In: whether this rank
/// met NaN or infinity. Out: whether any rank did, the same on every rank.
struct CallerSumOperand {
  bool non_finite = false;
};

/// Checks that the operand is complete. kInvalidArgument (after failing the group, so that no rank
/// waits): it is not. Also copies the own payload of a GatherOperand to its place in `gathered`.
Status PrepareOperand(Group& group, const Lanes& lanes);
Status PrepareOperand(Group& group, GatherOperand& operand);
Status PrepareOperand(Group& group, const SharedIndexOperand& operand);
Status PrepareOperand(Group& group, const UnionIndexOperand& operand);
Status PrepareOperand(Group& group, const SparseSumOperand& operand);
Status PrepareOperand(Group& group, const RegionOperand& operand);
Status PrepareOperand(Group& group, const NodeSumOperand& operand);
Status PrepareOperand(Group& group, const CallerSumOperand& operand);

}  // namespace weir
