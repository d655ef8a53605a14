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

Status Gather(Group& group, Exchange& exchange) {
  const int world = group.size(), rank = group.rank();
  std::vector<std::vector<std::byte>>& gathered = *exchange.gathered;
  gathered.resize(world);
  gathered[rank].assign(exchange.payload.begin(), exchange.payload.end());
  std::vector<PayloadReceiver> receivers;
  receivers.reserve(world);
  for (int distance = 1; distance < world; ++distance) {
    const int peer = (rank + world - distance) % world;
    receivers.emplace_back(group, peer, exchange.payload_bytes_max, &gathered[peer]);
    WEIR_RETURN_IF_ERROR(receivers.back().Start());
  }
  SendQueue sends(group);
  for (size_t k = 0; k < PayloadSegments(group, exchange.payload.size()); ++k) {
    for (int distance = 1; distance < world; ++distance) {
      WEIR_RETURN_IF_ERROR(
          SendPayloadSegment(group, sends, (rank + distance) % world, exchange.payload, k));
    }
  }
  // In turn, as the segments were sent: no stream stands still while another one is read.
  std::vector<bool> done(receivers.size());
  for (size_t open = receivers.size(); open > 0;) {
    for (size_t i = 0; i < receivers.size(); ++i) {
      if (done[i]) continue;
      WEIR_ASSIGN_OR_RETURN(const auto segment, receivers[i].Next());
      done[i] = !segment.has_value();
      open -= done[i];
    }
  }
  return sends.Drain();
}

class SparseAllGather : public Collective {
 public:
  const CollectiveTraits& Traits() const override { return traits_; }

  StatusOr<CollectiveReport> Run(Group& group, Exchange& exchange) const override {
    const uint64_t before = group.bytes_sent();
    if (exchange.gathered == nullptr) {
      return group.Fail(InvalidArgument("expected a place for the gathered payloads, found none"));
    }
    if (exchange.payload_bytes_max != 0 && exchange.payload.size() > exchange.payload_bytes_max) {
      return group.Fail(InvalidArgument(StrCat("payload of rank ", group.rank(),
                                               ": expected at most ", exchange.payload_bytes_max,
                                               " bytes, found ", exchange.payload.size())));
    }
    WEIR_RETURN_IF_ERROR(Gather(group, exchange));
    return CollectiveReport{.bytes_sent = group.bytes_sent() - before};
  }

 private:
  const CollectiveTraits traits_{
      .name = "sparse_all_gather",
      .summary = "direct exchange of payloads of any size between all pairs (Thakur et al. 2005)",
      .form = PayloadForm::kOpaque,
      .cost = {.latency = {.constant = 1}, .payload = {.n_minus_1 = 1}},
      .world_max = 256,
  };
};

}  // namespace

void RegisterSparseAllGather(Registry<Collective>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<SparseAllGather>());
}

}  // namespace weir
