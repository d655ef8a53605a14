#pragma once
// What collectives work on: one rank's contribution to one operation, and where the result goes.
// One struct for each kind of contribution; each exchange form hands one of them to its collective.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/collective/sparse_regions.h"

namespace weir {

class Group;
struct LaneShares;

/// One payload for each rank, in rank order.
using Gathered = std::vector<std::vector<std::byte>>;

/// Lanes that are summed in place, with the sum of two equal-sized runs of whole lanes. On success
/// `bytes` hold the sum over all ranks, identical on every rank.
struct Lanes {
  std::span<std::byte> bytes;
  size_t lane_bytes = 4;
  std::function<void(std::span<std::byte> sum, std::span<const std::byte> addend)> accumulate;
  LaneShares* shares =
      nullptr;  // where sums may leave ranks out, whose they are; null: they may not
};

/// The own payload in; on success one payload for each rank (own included) in `gathered`.
struct GatherOperand {
  std::span<const std::byte> payload;
  size_t payload_bytes_max =
      0;  // bound that every rank's payload respects; 0: kFramePayloadBytesMax
  Gathered* gathered = nullptr;
};

/// Every rank offers its own selection and its squared norm; the chosen rank's indices are
/// broadcast and the values at them summed. On success `values` (sum over ranks) are identical on
/// every rank.
struct SharedIndexOperand {
  std::span<const std::byte> selection;  // own index payload
  size_t selection_bytes_max = 0;        // bound of every rank's; 0: kFramePayloadBytesMax
  double norm_squared = 0;
  uint64_t step = 0;  // for those who choose ranks in turn
  // Decodes the chosen selection and fills `values` from own data.
  std::function<Status(std::span<const std::byte> selection)> open;
  std::vector<float>* values = nullptr;
};

/// As SharedIndexOperand, but the selections of all ranks together serve all.
struct UnionIndexOperand {
  std::span<const std::byte> selection;
  size_t selection_bytes_max = 0;
  // Of the selections of all ranks, in rank order.
  std::function<Status(std::span<const std::vector<std::byte>> selections)> open;
  std::vector<float>* values = nullptr;
};

/// Every rank sends its own selection with its values; the sum at an index is of those ranks alone
/// that selected it. On success `sums` hold about `kept_target` of the sums, the largest, identical
/// on every rank.
struct SparseSumOperand {
  SparseVector selected;  // ascending indices below `elements`
  size_t elements = 0, kept_target = 0;
  SparseBalance* balance = nullptr;  // of the bucket, equal on all ranks and updated; null: none
  SparseVector sums;
};

/// Where sums are encoded between two operations, which of them it is.
enum class SumRound {
  kAdd,         // makes the sum
  kDistribute,  // hands the encoded sum to all ranks
};

/// The bucket is cut into one region for each rank. kAdd: of its own region a rank is handed every
/// rank's payload, its own included, in rank order. kDistribute: on success `gathered` holds every
/// rank's `sum` in the order of regions, the same bytes on every rank, the owner included.
struct RegionOperand {
  SumRound round = SumRound::kAdd;
  size_t payload_bytes_max = 0;  // of any payload; 0: kFramePayloadBytesMax
  // kAdd: own ones of all regions; empty ones for regions without elements.
  std::span<const std::span<const std::byte>> payloads;
  std::function<Status(int from, std::span<const std::byte> payload)> add;
  // kDistribute: the payload of the own region's sum.
  std::span<const std::byte> sum;
  Gathered* gathered = nullptr;
};

/// Ranks of a node add their float32 `lanes` exactly and exchange parts of the node's sum across
/// nodes. `parts` are consecutive spans that make up the lanes, NodePartsOf (node_parts.h) many,
/// the first the largest; part i is that of the rank at place i of its node. kAdd leaves the node's
/// sum in the own part, and nothing that the caller could use in the others; no message leaves the
/// node. kDistribute takes `sum`, the payload of the own part (none for a part without elements),
/// in which zeros are by now, and `add` adds, by ascending rank of the job, what each node's
/// payload of the part decodes to, the own one included. On success `lanes` hold the total of what
/// the payloads decode to, the same bits on every rank.
struct NodeSumOperand {
  SumRound round = SumRound::kAdd;
  Lanes lanes;
  std::span<const std::span<std::byte>> parts;
  size_t payload_bytes_max = 0;    // of the payload of every part
  std::span<const std::byte> sum;  // kDistribute
  std::function<Status(int from, std::span<const std::byte> payload)> add;
};

/// kInvalidArgument (after failing the group, so that no rank waits) when the operand is not
/// complete. For a GatherOperand also puts the own payload in its place among the gathered ones.
Status PrepareOperand(Group& group, const Lanes& lanes);
Status PrepareOperand(Group& group, GatherOperand& operand);
Status PrepareOperand(Group& group, const SharedIndexOperand& operand);
Status PrepareOperand(Group& group, const UnionIndexOperand& operand);
Status PrepareOperand(Group& group, const SparseSumOperand& operand);
Status PrepareOperand(Group& group, const RegionOperand& operand);
Status PrepareOperand(Group& group, const NodeSumOperand& operand);

}  // namespace weir
