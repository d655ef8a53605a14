#pragma once
// The Collective interface: how the contributions of all ranks become one result on every rank.
// A collective runs on a Group and knows nothing of plans; what it costs is data.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/registry.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"
#include "datapath/collective/group.h"
#include "datapath/collective/sparse_regions.h"

namespace weir {

/// a + b*(N-1) + c*(N-1)/N + d*ceil(log2 N) + e*N: how a cost feature grows with the world size.
struct WorldFunction {
  double constant = 0, n_minus_1 = 0, n_minus_1_over_n = 0, log2_n = 0, n = 0;
  double At(int world) const;
};

/// Predicted time = latency * alpha + payload * beta * payload_bytes + index * beta * index_bytes
///                + reduce * gamma * payload_bytes,
/// alpha: one-way message latency (s); beta: 1/bandwidth (s/byte); gamma: reduction cost (s/byte).
/// Features describe the implemented algorithm, not the textbook's.
struct CollectiveCost {
  WorldFunction latency{};  // sequential message latencies
  WorldFunction payload{};  // times the payload crosses the busiest link
  WorldFunction index{};    // HoldsIndicesOnly: times the index payload crosses it
  WorldFunction reduce{};   // times the payload is summed on the busiest rank
};

/// What steps within nodes add to CollectiveCost, as functions of the ranks of the fullest node:
/// there the latency and bandwidth are those between ranks of one node.
struct WithinNodeCost {
  WorldFunction latency{}, payload{}, reduce{};
};

/// A collective by nodes (Group::nodes) works within nodes first and last. Its CollectiveCost is
/// then of the steps between nodes, N the number of nodes and the busiest link a node's; where all
/// nodes hold p ranks each rank sums a p-th of it. With every rank on a node of its own nothing is
/// added. All-gathers (kOpaque) have one payload for each rank: between nodes p times their payload
/// function, within nodes n times.
struct NodeCost {
  bool by_node = false;
  WithinNodeCost even, uneven;  // all nodes hold equally many ranks, or not
};

/// Of a collective that leaves out blocks in which everything is zero: the payload feature times
/// 1 - own_share - union_share + own_share D_w + union_share D_u, with the shares D_w of blocks in
/// which one rank, and D_u of those in which any rank holds something.
struct BlockTraits {
  uint32_t elements = 0;  // of float32 in a block; 0: it leaves out nothing
  double own_share = 0, union_share = 0;
};

struct CollectiveTraits {
  std::string name;
  std::string summary;  // one line with the source
  PayloadForm form = PayloadForm::kLanes;
  bool own_values = false;  // kSharedIndex: each rank sends its own selection, see Exchange
  CollectiveCost cost;
  NodeCost node_cost = {};
  // Each rank exchanges alike with every other at once. Where p ranks share a node, its interface
  // carries p (N-p)/(N-1) times what cost says of one rank's.
  bool all_pairs = false;
  // Otherwise: who sends to whom, so that planners know what ranks of one node share of its
  // interface (controller/model/node_share.cc). "doubling": with rank xor 2^k; "circulant": as
  // circulant.h; "bruck": 2^k back; "trees": as tree.cc; "star": with rank 0; "broadcast": down a
  // binomial tree; "pairs": as all_pairs. Empty: to the next alone, or by nodes.
  // A new pattern needs its walk there; one that is not known there counts as if nothing is shared.
  std::string payload_pattern = {}, index_pattern = {};
  BlockTraits blocks = {};
  // The payload is cut into shards of Group::shards, each summed by its rank and sent on in
  // segments of about so many bytes: with smaller shards the two phases do not overlap. 0: shards
  // are even.
  uint32_t shard_segment_bytes = 0;
  bool walks_ring = false;           // payloads go along Group::RankAtRingPlace, to the next alone
  int world_min = 1, world_max = 0;  // 0: any
  std::string lease_mode = {};       // of the aggregator's slots that it needs; empty: none
};

struct LaneShares;

/// One rank's contribution to one operation, and where the result goes. Which part is used follows
/// from the collective's PayloadForm.
struct Exchange {
  // kLanes: summed in place; on success holds the sum over all ranks, identical on every rank.
  std::span<std::byte> lanes;
  size_t lane_bytes = 4;
  std::function<void(std::span<std::byte> sum, std::span<const std::byte> addend)> accumulate;
  LaneShares* shares = nullptr;  // kTableLanes: where sums may leave ranks out, whose they are

  // kOpaque: own payload in; on success one payload per rank, in rank order (own included).
  std::span<const std::byte> payload;
  size_t payload_bytes_max = 0;  // bound that every rank's payload (HoldsIndicesOnly: index
                                 // payload) respects; 0: kFramePayloadBytesMax
  std::vector<std::vector<std::byte>>* gathered = nullptr;

  // kRegions: the bucket is cut into one region for each rank. Own payloads of all regions in, an
  // empty one for a region without elements; payload_bytes_max holds for each. Of its own region
  // the rank is handed every rank's payload, its own included, in rank order, and then encodes
  // their sum. On success `gathered` holds those encoded sums in the order of regions, the same
  // bytes on every rank, the owner included.
  std::span<const std::span<const std::byte>> regions;
  std::function<Status(int from, std::span<const std::byte> payload)> add_region;
  std::function<StatusOr<std::span<const std::byte>>()>
      encode_sum;  // valid until Run returns; flags that it announces at the group reach all ranks

  // kNodeSums, kNodeShards: `lanes` are the float32 elements. Ranks of a node add theirs exactly
  // and exchange parts of the node's sum across nodes. `node_parts` are consecutive spans that make
  // up the lanes, NodePartsOf (node_parts.h) many, the first the largest; part i is that of the
  // rank at place i of its node. Once the part holds its node's sum, encode_sum encodes it and
  // leaves zeros there; then add_region adds, by ascending rank of the job, what each node's
  // payload of the part decodes to, the own one included. Neither is called for a part without
  // elements. On success `lanes` hold the total of what the payloads decode to, the same bits on
  // every rank. payload_bytes_max holds for the payload of every part.
  std::span<const std::span<std::byte>> node_parts;

  // kSharedIndex: every rank offers its own selection and its squared norm; the chosen rank's
  // indices are broadcast, or those of all gathered, and the values at them summed. On success
  // `indices` and `values` (sum over ranks) are identical on every rank.
  std::function<StatusOr<std::span<const std::byte>>()>
      select;  // own index payload; called where it is needed
  double norm_squared = 0;
  uint64_t step = 0;  // round-robin choice
  std::function<Status(std::span<const std::byte> index_payload)>
      open;  // decodes, fills `values` from own data
  std::function<Status(std::span<const std::vector<std::byte>> index_payloads)>
      open_all;  // as open, of the union of all ranks' selections; in rank order
  std::vector<float>* values = nullptr;
  // With Traits().own_values every rank is handed its own selection by `open`, which fills
  // `indices`, ascending and below `elements`, too. The sum at an index is of those ranks alone
  // that selected it. On success both hold about `kept_target` of the sums, the largest.
  std::vector<uint32_t>* indices = nullptr;
  size_t elements = 0, kept_target = 0;
  SparseBalance* balance = nullptr;  // of the bucket, equal on all ranks and updated; null: none
};

/// What one run did.
struct CollectiveReport {
  uint64_t bytes_sent = 0;
  int leader = -1;  // kSharedIndex: the rank whose indices were used
  std::string_view ran_instead =
      {};  // the collective whose algorithm did all the work; static text
};

/// Stateless and thread-safe. Any world size in Traits(), any size >= 0 including different opaque
/// sizes per rank.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual const CollectiveTraits& Traits() const = 0;

  /// Runs one operation; every rank of the group calls it with the same parameters. On error the
  /// exchange's buffers are unspecified and the group is failed. Errors are the transport's, plus
  /// kInternal naming both sides when plan, operation or bucket disagree.
  virtual StatusOr<CollectiveReport> Run(Group& group, Exchange& exchange) const = 0;
};

/// Every collective of this build: builtin_collectives.def. Thread-safe.
const Registry<Collective>& Collectives();

}  // namespace weir
