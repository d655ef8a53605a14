// Sums that an aggregator made without some ranks, see LaneShares.
//
// A run of lanes whose sum holds k of N ranks is delivered times N / k: the mean over those that
// came, as if the others had sent it, too. What came too late is no other gradient's: it goes back
// into its rank's residual whole and is sent again with the next one, so of the lanes themselves
// (before that factor) nothing is lost or counted twice. Source: Li et al., "THC", NSDI 2024,
// section 6.
//
// Lanes decode linearly and a lane of 0 is nothing, so runs are told apart by blanking the others:
// one pass for each number of contributors, in ascending order, with the same operands on every
// rank, so with the same bits.

#include <algorithm>
#include <bit>
#include <set>

#include "datapath/session/operation.h"

namespace weir {
namespace {

size_t ShareCount(uint64_t contributors) {
  return static_cast<size_t>(std::popcount(contributors));
}

}  // namespace

Status OperationStages::KeepMissed(Operation& op) const {
  if (op.shares.missed.empty()) return OkStatus();
  if (!op.residual.has_value()) return Internal("a rank that was left out has no residual");
  const std::span<float> residual = op.residual->next;
  WEIR_RETURN_IF_ERROR(op.codec->DecodeAdd(op.shares.missed, op.context, 1, residual));
  double kept = 0;
  for (const float value : residual) kept += static_cast<double>(value) * value;
  op.residual_energy = kept;
  if (op.energy_in > 0) op.gain = std::clamp(1 - kept / op.energy_in, 0.0, 1.0);
  return OkStatus();
}

Status OperationStages::DecodeShares(Operation& op) const {
  const std::span<const std::byte> lanes = op.payload.bytes().first(op.payload_bytes);
  std::set<size_t> counts;
  for (const uint64_t set : op.shares.contributors) counts.insert(ShareCount(set));
  std::vector<std::byte> runs;
  for (const size_t count : counts) {
    std::span<const std::byte> operand = lanes;
    if (counts.size() > 1) {
      runs.assign(lanes.begin(), lanes.end());
      for (size_t run = 0; run < op.shares.contributors.size(); ++run) {
        if (ShareCount(op.shares.contributors[run]) == count) continue;
        const auto at = std::span(runs).subspan(run * op.shares.run_bytes);
        const auto other = at.first(std::min(op.shares.run_bytes, at.size()));
        std::fill(other.begin(), other.end(), std::byte(0));
      }
      operand = runs;
    }
    const auto share = static_cast<float>(count) / static_cast<float>(options_.world);
    WEIR_RETURN_IF_ERROR(op.codec->DecodeAdd(operand, op.context, op.scale / share, op.gradient));
  }
  return OkStatus();
}

}  // namespace weir
