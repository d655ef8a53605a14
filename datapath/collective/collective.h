// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Collective interface: how the contributions of all ranks become one result on every rank.
// A collective runs on a Group. It does not depend on plans, codecs or exchange forms except for
// the name of the form that it serves. Its cost is described by data.

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

/// The cost that steps within nodes add to CollectiveCost, as functions of the number of ranks on
/// the fullest node. Their latency and bandwidth are those between ranks of one node.
struct WithinNodeCost {
  WorldFunction latency{}, payload{}, reduce{};
};

/// The cost of a collective by nodes (Group::nodes), which has steps within nodes and steps between
/// nodes. Its CollectiveCost is that of the steps between nodes, where N is the number of nodes and
/// the busiest link is a node's; if all nodes have p ranks, each rank sums a p-th of it. If every
/// rank is alone on its node, the steps within nodes add nothing. All-gathers (form "opaque") have
/// one payload for each rank, so their payload functions count p times between n nodes and n times
/// within them.
struct NodeCost {
  bool by_node = false;
  WithinNodeCost even, uneven;  // if all nodes have equally many ranks, and if not
};

/// For a collective that does not send blocks of zeros: its payload feature is multiplied by
/// 1 - own_share - union_share + own_share D_w + union_share D_u. D_w is the share of blocks that
/// are not zero on one rank, and D_u the share of those that are not zero on any of the ranks.
struct BlockTraits {
  uint32_t elements = 0;  // float32 elements in a block; 0: all blocks are sent
  double own_share = 0, union_share = 0;
};

struct CollectiveTraits {
  std::string name;
  std::string summary;  // one line with the source
  std::string form;     // the exchange form that it serves, see datapath/exchange/exchange.h
  CollectiveCost cost;
  NodeCost node_cost = {};
  // Whether each rank exchanges equally much with every other at once. If p ranks share a node, its
  // interface then carries p (N-p)/(N-1) times what `cost` gives for one rank.
  bool all_pairs = false;
  // Otherwise, which ranks send to each other, so that planners can compute the load of an
  // interface that ranks of one node share (controller/model/node_share.cc). "doubling": with rank
  // xor 2^k; "circulant": as circulant.h; "bruck": 2^k back; "trees": as tree.cc; "star": with rank
  // 0; "broadcast": down a binomial tree; "pairs": as all_pairs. Empty: to the next rank only, or
  // by nodes. A new pattern needs its schedule there; an unknown one counts as if nothing is
  // shared.
  std::string payload_pattern = {}, index_pattern = {};
  BlockTraits blocks = {};
  // If not 0, the payload is cut into the shards of Group::shards, each of which is summed by its
  // rank and sent in segments of about this size. With smaller shards the two phases do not
  // overlap. 0: shards are even.
  uint32_t shard_segment_bytes = 0;
  bool uses_ring_order = false;  // payloads follow Group::RankAtRingPlace, to the next rank only
  int world_min = 1, world_max = 0;  // 0: any
  std::string lease_mode = {};  // mode of the lease on an aggregator that it needs; empty: none
  // The session's caller makes the sum, over a process group of its own. `cost` is the prior for
  // it, and running the collective moves only what the ranks have to know beside it.
  bool by_caller = false;
};

/// The result of one run, for statistics.
struct CollectiveReport {
  uint64_t bytes_sent = 0;
  int leader = -1;  // for a shared index: the rank whose indices were used
  std::string_view ran_instead =
      {};  // the collective whose algorithm did all the work; static text
};

/// The part of a collective that does not depend on its operand. Stateless and thread-safe.
/// Supports any world size that Traits() permit and any size >= 0, including opaque payloads whose
/// sizes differ between ranks.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual const CollectiveTraits& Traits() const = 0;
};

/// A collective that works on operands of one type, which the exchange form that it serves defines
/// (operands.h has the builtin ones).
template <typename Operand>
class CollectiveOn final : public Collective {
 public:
  /// The algorithm, for an operand that is complete. Fills the report except for bytes_sent.
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

/// Registers a collective, for the registrars of builtin/.
template <typename Operand>
void AddCollective(Registry<Collective>& registry, uint8_t wire_id, CollectiveTraits traits,
                   typename CollectiveOn<Operand>::Algorithm algorithm) {
  registry.Add(wire_id, std::make_unique<CollectiveOn<Operand>>(std::move(traits), algorithm));
}

/// Runs `collective` on `operand`. kInternal (after failing the group): it works on operands of
/// another type, which happens only if a plug-in has a wrong form in its traits.
template <typename Operand>
StatusOr<CollectiveReport> RunCollective(const Collective& collective, Group& group,
                                         Operand& operand) {
  const auto* const typed = dynamic_cast<const CollectiveOn<Operand>*>(&collective);
  if (typed != nullptr) return typed->Run(group, operand);
  return group.Fail(
      Internal(StrCat("collective '", collective.Traits().name, "' of form '",
                      collective.Traits().form, "' does not work on the operand of that form")));
}

/// Every collective of this build, from builtin_collectives.def. Thread-safe.
const Registry<Collective>& Collectives();

}  // namespace weir
