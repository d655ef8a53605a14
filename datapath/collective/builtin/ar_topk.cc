// AR-Topk: one rank's indices serve all, so the values at them can be summed by an ordinary
// all-reduce. STAR takes the index-giving rank in turn, VAR the one with the largest gradient norm.
//
// Cost: a binomial broadcast of the indices, ceil(log2 N) latencies and as many index payloads out
// of the giver's NIC; then a ring over the values, see ring.cc. VAR first gathers one double from
// every rank, one latency more. Source: Tyagi, Swany, "Flexible communication for optimal
// distributed learning over unpredictable networks", arXiv 2312.02493, AR-Topk STAR and VAR,
// equation 4a. Deviates: the norm is this step's, not a moving average, and the cost counts the
// index payload as encoded, not 4 bytes an index.

#include <cmath>
#include <limits>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

constexpr CollectiveCost kStarCost = {.latency = {.n_minus_1 = 2, .log2_n = 1},
                                      .payload = {.n_minus_1_over_n = 2},
                                      .index = {.log2_n = 1},
                                      .reduce = {.n_minus_1_over_n = 1}};

StatusOr<CollectiveReport> RunWithLeader(Group& group, Exchange& exchange, int leader) {
  if (!exchange.select || !exchange.open || exchange.values == nullptr) {
    return group.Fail(InvalidArgument("expected select, open and values, found one missing"));
  }
  std::vector<std::byte> received;
  std::span<const std::byte> indices;
  if (group.rank() == leader) {
    StatusOr<std::span<const std::byte>> own = exchange.select();
    if (!own.ok()) return group.Fail(Annotate(own.status(), "selecting indices"));
    indices = *own;
  }
  WEIR_RETURN_IF_ERROR(
      BinomialBroadcast(group, leader, indices, exchange.payload_bytes_max, &received));
  if (group.rank() != leader) indices = received;
  if (Status status = exchange.open(indices); !status.ok()) {
    return group.Fail(Annotate(status, StrCat("opening the indices of rank ", leader)));
  }
  WEIR_RETURN_IF_ERROR(RingAllReduce(group, FloatLanes(*exchange.values)));
  return CollectiveReport{.bytes_sent = group.bytes_sent(), .leader = leader};
}

class ArTopkStar : public Collective {
 public:
  const CollectiveTraits& Traits() const override { return traits_; }

  StatusOr<CollectiveReport> Run(Group& group, Exchange& exchange) const override {
    const uint64_t before = group.bytes_sent();
    const int leader = static_cast<int>(exchange.step % static_cast<uint64_t>(group.size()));
    WEIR_ASSIGN_OR_RETURN(CollectiveReport report, RunWithLeader(group, exchange, leader));
    report.bytes_sent = group.bytes_sent() - before;
    return report;
  }

 private:
  const CollectiveTraits traits_{
      .name = "ar_topk_star",
      .summary = "indices from the ranks in turn, ring over the values (Tyagi and Swany 2023)",
      .form = PayloadForm::kSharedIndex,
      .cost = kStarCost,
      .index_pattern = "broadcast",
      .walks_ring = true,
  };
};

class ArTopkVar : public Collective {
 public:
  const CollectiveTraits& Traits() const override { return traits_; }

  StatusOr<CollectiveReport> Run(Group& group, Exchange& exchange) const override {
    const uint64_t before = group.bytes_sent();
    std::vector<double> norms(group.size());
    WEIR_RETURN_IF_ERROR(SmallAllGather(group, std::as_bytes(std::span(&exchange.norm_squared, 1)),
                                        std::as_writable_bytes(std::span(norms))));
    int leader = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (int rank = 0; rank < group.size(); ++rank) {  // ties and NaN keep the lower rank
      if (norms[rank] > largest) {
        largest = norms[rank];
        leader = rank;
      }
    }
    WEIR_ASSIGN_OR_RETURN(CollectiveReport report, RunWithLeader(group, exchange, leader));
    report.bytes_sent = group.bytes_sent() - before;
    return report;
  }

 private:
  static CollectiveCost Cost() {
    CollectiveCost cost = kStarCost;
    cost.latency.constant += 1;
    return cost;
  }
  const CollectiveTraits traits_{
      .name = "ar_topk_var",
      .summary =
          "indices from the rank of largest norm, ring over the values (Tyagi and Swany 2023)",
      .form = PayloadForm::kSharedIndex,
      .cost = Cost(),
      .index_pattern = "broadcast",
      .walks_ring = true,
  };
};

}  // namespace

void RegisterArTopkStar(Registry<Collective>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<ArTopkStar>());
}

void RegisterArTopkVar(Registry<Collective>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<ArTopkVar>());
}

}  // namespace weir
