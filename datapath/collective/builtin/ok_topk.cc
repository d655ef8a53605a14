// SPDX-License-Identifier: Apache-2.0
// Ok-Topk: rank j sums the values that all ranks selected in region j, keeps the largest sums and
// sends those to all. In an all-gather of selections every rank receives N-1 of them; here it
// receives about two, whatever N is. Unlike in AR-Topk each rank sends its own positions. Values
// whose sum is dropped stay in the residuals of the ranks that sent them.
//
// Cost: 2 latencies. Every rank sends and receives (N-1)/N of a selection (positions and values)
// twice, as long as regions are balanced and ranks keep as many sums as one rank selects. The
// paper's bound of 6k(N-1)/N words for a target of k also holds: 2k(N-1)/N to the owners, and at
// most 4k(N-1)/N back, since an owner keeps no more than 2k/N. Positions are coded, so fewer bytes
// are sent. Sums are added in the order of the ranks, and every rank, the owner included, decodes
// them from the same bytes.
//
// The threshold of the sums comes from earlier steps: 64 points of every owner's magnitudes are
// sent with the sums of every 32nd step, and when too few were kept. So do the regions, which are
// cut so that each has equally many of the sums that were kept in those steps. Source: Li and
// Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022, algorithms 1
// and 2; deviates: regions follow the kept sums in place of all selections and thresholds a
// summary, so neither costs an exchange of its own, and an owner's cap stands in for the paper's
// data balancing.

#include <algorithm>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"
#include "datapath/collective/sparse_regions.h"

namespace weir {
namespace {

class OkTopkPass {
 public:
  OkTopkPass(Group& group, SparseSumOperand& operand)
      : group_(group), operand_(operand), world_(group.size()), rank_(group.rank()) {}

  Status Run() {
    if (operand_.balance != nullptr) balance_ = *operand_.balance;
    regions_ = SparseRegions(balance_, operand_.elements, world_);
    WEIR_RETURN_IF_ERROR(SumOwnRegion());
    WEIR_RETURN_IF_ERROR(GatherKept());
    if (operand_.balance != nullptr) *operand_.balance = std::move(balance_);
    return OkStatus();
  }

 private:
  Status SumOwnRegion() {
    std::vector<std::vector<std::byte>> payloads;
    payloads.reserve(regions_.size());
    for (const SparseRange& region : regions_)
      payloads.push_back(EncodeSparse(operand_.selected, region));
    const std::vector<std::span<const std::byte>> outgoing(payloads.begin(), payloads.end());
    std::vector<std::vector<std::byte>> incoming;
    const auto add = [&](int from) {
      SparseVector part;
      std::optional<SparseSummary> none;
      const Status status = DecodeSparse(incoming[from], regions_[rank_], &part, &none);
      incoming[from] = {};
      if (!status.ok()) {
        return group_.Fail(
            Annotate(status, StrCat("region ", rank_, " of rank ", group_.NameOf(from))));
      }
      sums_ = AddSparse(sums_, part);
      return OkStatus();
    };
    return PayloadExchange(group_, outgoing, SparseBytesMax(regions_[rank_]), &incoming, add);
  }

  Status GatherKept() {
    const uint64_t target = operand_.kept_target;
    std::optional<SparseSummary> summary;
    if (balance_.summarise) summary = SummaryOf(sums_);
    const SparseVector own = KeepSparse(sums_, balance_, target, world_);
    const std::vector<std::byte> payload = EncodeSparse(own, regions_[rank_], summary);
    std::vector<std::vector<std::byte>> gathered;
    size_t bytes_max = 0;
    for (const SparseRange& region : regions_) {
      bytes_max = std::max(bytes_max, SparseBytesMax(region));
    }
    WEIR_RETURN_IF_ERROR(PayloadAllGather(group_, payload, bytes_max, &gathered));
    SparseVector kept;
    std::vector<SparseSummary> summaries;
    for (int owner = 0; owner < world_; ++owner) {
      std::optional<SparseSummary> spread;
      const Status status = DecodeSparse(gathered[owner], regions_[owner], &kept, &spread);
      if (!status.ok()) {
        return group_.Fail(
            Annotate(status, StrCat("sums of region ", owner, " by rank ", group_.NameOf(owner))));
      }
      if (spread.has_value()) summaries.push_back(*spread);
    }
    LearnSparse(kept, summaries, operand_.elements, target, world_, &balance_);
    operand_.sums = std::move(kept);
    return OkStatus();
  }

  Group& group_;
  SparseSumOperand& operand_;
  const int world_, rank_;
  SparseBalance balance_;
  std::vector<SparseRange> regions_;
  SparseVector sums_;  // of the own region over all ranks
};

}  // namespace

void RegisterOkTopk(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<SparseSumOperand>(
      registry, wire_id,
      {
          .name = "ok_topk",
          .summary = "balanced regions sum selections and keep the largest (Li and Hoefler 2022)",
          .form = "own_selections",
          .cost = {.latency = {.constant = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .index = {.n_minus_1_over_n = 2},
                   .reduce = {.n_minus_1_over_n = 1}},
          .all_pairs = true,
          .world_max = 256,
      },
      [](Group& group, SparseSumOperand& operand, CollectiveReport*) -> Status {
        return OkTopkPass(group, operand).Run();
      });
}

}  // namespace weir
