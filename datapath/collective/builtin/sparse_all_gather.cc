// Sparse all-gather: every rank sends its payload, of any size, directly to every other rank.
//
// Cost: 1 latency; N-1 copies of the own payload leave, and the payloads of N-1 ranks reach, every
// rank; nothing is summed here, since decoding adds. Source: the direct exchange of Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA
// 19(1), 2005, section 4.1, with all messages posted at once: the ring sends as many bytes with N-1
// latencies, recursive doubling with log2 N.

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

class SparseAllGather : public Collective {
 public:
  const CollectiveTraits& Traits() const override { return traits_; }

  StatusOr<CollectiveReport> Run(Group& group, Exchange& exchange) const override {
    const uint64_t before = group.bytes_sent();
    WEIR_ASSIGN_OR_RETURN(auto* gathered, GatheredOf(group, exchange));
    WEIR_RETURN_IF_ERROR(
        PayloadAllGather(group, exchange.payload, exchange.payload_bytes_max, gathered));
    return CollectiveReport{.bytes_sent = group.bytes_sent() - before};
  }

 private:
  const CollectiveTraits traits_{
      .name = "sparse_all_gather",
      .summary = "direct exchange of payloads of any size between all pairs (Thakur et al. 2005)",
      .form = PayloadForm::kOpaque,
      .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
      .all_pairs = true,
      .world_max = 256,
  };
};

}  // namespace

void RegisterSparseAllGather(Registry<Collective>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<SparseAllGather>());
}

}  // namespace weir
