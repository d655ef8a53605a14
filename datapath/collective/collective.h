#pragma once
// The Collective interface: how the contributions of all ranks become one result on every rank.
// A collective runs on a Group and knows nothing of plans, codecs or exchange forms but the name of
// the form that it serves; what it costs is data.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/registry.h"
#include "datapath/base/status.h"
#include "datapath/collective/group.h"
#include "datapath/collective/operands.h"

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
  WorldFunction index{};    // forms with indices apart: times the index payload crosses it
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
/// added. All-gathers (form "opaque") have one payload for each rank: between nodes p times their
/// payload function, within nodes n times.
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
  std::string form;     // the exchange form that it serves, see datapath/exchange/exchange.h
  CollectiveCost cost;
  NodeCost node_cost = {};
  // Each rank exchanges alike with every other at once. Where p ranks share a node, its interface
  // carries p (N-p)/(N-1) times what cost says of one rank's.
  bool all_pairs = false;
  // Otherwise: who sends to whom, so that planners know what ranks of one node share of its
  // interface (controller/model/node_share.cc). "doubling": with rank xor 2^k; "circulant": as
  // circulant.h; "bruck": 2^k back; "trees": as tree.cc; "star": with rank 0; "broadcast": down a
  // binomial tree; "pairs": as all_pairs. Empty: to the next alone, or by nodes.
  // A new pattern needs its schedule there; an unknown one counts as if nothing is shared.
  std::string payload_pattern = {}, index_pattern = {};
  BlockTraits blocks = {};
  // The payload is cut into shards of Group::shards, each summed by its rank and sent on in
  // segments of about so many bytes: with smaller shards the two phases do not overlap. 0: shards
  // are even.
  uint32_t shard_segment_bytes = 0;
  bool uses_ring_order = false;  // payloads follow Group::RankAtRingPlace, to the next rank only
  int world_min = 1, world_max = 0;  // 0: any
  std::string lease_mode = {};       // of the aggregator's slots that it needs; empty: none
};

/// What one run did.
struct CollectiveReport {
  uint64_t bytes_sent = 0;
  int leader = -1;  // of a shared index: the rank whose indices were used
  std::string_view ran_instead =
      {};  // the collective whose algorithm did all the work; static text
};

/// What is known of a collective whatever it works on. Stateless and thread-safe. Any world size in
/// Traits(), any size >= 0 including different opaque sizes per rank.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual const CollectiveTraits& Traits() const = 0;
};

/// A collective that works on operands of one type, which is that of the exchange forms it serves
/// (operands.h has the builtin ones).
template <typename Operand>
class CollectiveOn final : public Collective {
 public:
  /// The algorithm, on an operand that is complete. Fills what it has to report beside bytes_sent.
  using Algorithm = Status (*)(Group& group, Operand& operand, CollectiveReport* report);

  CollectiveOn(CollectiveTraits traits, Algorithm algorithm)
      : traits_(std::move(traits)), algorithm_(algorithm) {}
  const CollectiveTraits& Traits() const override { return traits_; }

  /// Runs one operation; every rank of the group calls it with the same parameters. On error the
  /// operand's buffers are unspecified and the group is failed. Errors are the transport's, plus
  /// kInternal naming both sides when plan, operation or bucket disagree, and kInvalidArgument for
  /// an operand that is not complete.
  StatusOr<CollectiveReport> Run(Group& group, Operand& operand) const {
    const uint64_t before = group.bytes_sent();
    CollectiveReport report;
    WEIR_RETURN_IF_ERROR(PrepareOperand(group, operand));
    WEIR_RETURN_IF_ERROR(algorithm_(group, operand, &report));
    report.bytes_sent = group.bytes_sent() - before;
    return report;
  }

 private:
  const CollectiveTraits traits_;
  const Algorithm algorithm_;
};

/// What a registrar of builtin/ does.
template <typename Operand>
void AddCollective(Registry<Collective>& registry, uint8_t wire_id, CollectiveTraits traits,
                   typename CollectiveOn<Operand>::Algorithm algorithm) {
  registry.Add(wire_id, std::make_unique<CollectiveOn<Operand>>(std::move(traits), algorithm));
}

/// Runs `collective` on `operand`; kInternal (after failing the group) when it works on operands of
/// another type, which only a plug-in with a wrong form in its traits brings about.
template <typename Operand>
StatusOr<CollectiveReport> RunCollective(const Collective& collective, Group& group,
                                         Operand& operand) {
  const auto* const typed = dynamic_cast<const CollectiveOn<Operand>*>(&collective);
  if (typed != nullptr) return typed->Run(group, operand);
  return group.Fail(
      Internal(StrCat("collective '", collective.Traits().name, "' of form '",
                      collective.Traits().form, "' does not work on the operand of that form")));
}

/// Every collective of this build: builtin_collectives.def. Thread-safe.
const Registry<Collective>& Collectives();

}  // namespace weir
