// Re-encoding all-reduce: rank j decodes and sums region j of every rank, encodes the sum again and
// sends it to all. Where an all-gather of opaque payloads brings N-1 of them to every rank, this
// brings two parts in N, and every rank decodes two buckets' worth and not N. The second encoding
// loses, too; whoever supplies the callbacks may keep an aggregate residual for it at the owner.
//
// Cost: 2 latencies; (N-1)/N of a payload leaves, and reaches, every rank twice. Inside of it every
// rank decodes one bucket's worth of elements and encodes one N-th of them. The order of additions
// is that of the ranks, and the owner takes its region from the same bytes as everyone. Source:
// Tang, Yu, Lian, Zhang, Liu, "DoubleSqueeze: parallel stochastic gradient descent with double-pass
// error-compensated compression", ICML 2019, algorithm 1, with its server spread over all ranks as
// in Tang et al., "1-bit Adam", ICML 2021, section 4 (all-to-all, then all-gather).

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// What both phases rely on. Errors fail the group.
Status CheckRegions(Group& group, const Exchange& exchange) {
  if (!exchange.add_region || !exchange.encode_sum || exchange.gathered == nullptr) {
    return group.Fail(
        InvalidArgument("expected add_region, encode_sum and gathered, found one missing"));
  }
  if (exchange.regions.size() != static_cast<size_t>(group.size())) {
    return group.Fail(InvalidArgument(
        StrCat("expected ", group.size(), " regions, found ", exchange.regions.size())));
  }
  for (size_t region = 0; region < exchange.regions.size(); ++region) {
    const size_t bytes = exchange.regions[region].size();
    if (exchange.payload_bytes_max == 0 || bytes <= exchange.payload_bytes_max) continue;
    return group.Fail(InvalidArgument(StrCat("payload of rank ", group.rank(), ", region ", region,
                                             ": expected at most ", exchange.payload_bytes_max,
                                             " bytes, found ", bytes)));
  }
  return OkStatus();
}

class Reencode : public Collective {
 public:
  const CollectiveTraits& Traits() const override { return traits_; }

  StatusOr<CollectiveReport> Run(Group& group, Exchange& exchange) const override {
    const uint64_t before = group.bytes_sent();
    WEIR_RETURN_IF_ERROR(CheckRegions(group, exchange));
    const size_t bytes_max = exchange.payload_bytes_max;
    std::vector<std::vector<std::byte>> parts;
    const auto add = [&](int from) {
      const Status status = exchange.add_region(from, parts[from]);
      if (status.ok()) return OkStatus();
      return group.Fail(Annotate(status, StrCat("region ", group.rank(), " of rank ", from)));
    };
    WEIR_RETURN_IF_ERROR(PayloadExchange(group, exchange.regions, bytes_max, &parts, add));
    StatusOr<std::span<const std::byte>> sum = exchange.encode_sum();
    if (!sum.ok()) {
      return group.Fail(Annotate(sum.status(), StrCat("the sum of region ", group.rank())));
    }
    WEIR_RETURN_IF_ERROR(PayloadAllGather(group, *sum, bytes_max, exchange.gathered));
    return CollectiveReport{.bytes_sent = group.bytes_sent() - before};
  }

 private:
  const CollectiveTraits traits_{
      .name = "reencode",
      .summary = "owners decode, sum and encode regions again (DoubleSqueeze, Tang et al. 2019)",
      .form = PayloadForm::kRegions,
      .cost = {.latency = {.constant = 2}, .payload = {.n_minus_1_over_n = 2}},
      .all_pairs = true,
      .world_max = 256,
  };
};

}  // namespace

void RegisterReencode(Registry<Collective>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<Reencode>());
}

}  // namespace weir
