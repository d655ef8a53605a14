// SPDX-License-Identifier: Apache-2.0
// Sums of lanes: the payloads of all ranks add lane by lane without decoding, and the sum is
// decoded once. There are three forms: the lanes of any codec; the float32 elements themselves,
// which the network sums in the caller's buffer; and levels of a table, which an aggregator sums.
//
// An aggregator may sum without some ranks; see LaneShares. A run of lanes whose sum has k of N
// ranks is delivered times N / k, that is as if the missing ranks had sent the mean of the others.
// The late contribution of a missing rank goes back into its residual as a whole and is sent again
// with its next gradient. So nothing of the lanes themselves (before that factor) is lost or
// counted twice. Source: Li et al., "THC", NSDI 2024, section 6.

#include <algorithm>
#include <bit>
#include <set>

#include "datapath/collective/offload.h"
#include "datapath/exchange/coded_exchange.h"

namespace weir {
namespace {

size_t ShareCount(uint64_t contributors) {
  return static_cast<size_t>(std::popcount(contributors));
}

class LaneExchange : public CodedExchange {
 public:
  using CodedExchange::CodedExchange;

  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    // Raw lanes are sent from the caller's buffer.
    return MemoryOfCopies(codec, elements, context, IsRawFloat(codec.Traits()) ? 0 : 1);
  }

 protected:
  Status EncodeFirst() override {
    if (!in_place_) return CodedExchange::EncodeFirst();
    outcome_.payload_bytes = gradient_.size_bytes();
    return in_.sample ? Sample(GradientStatistics()) : OkStatus();
  }

  Status MovePayloads(Group& group) override {
    Lanes lanes;
    lanes.bytes = in_place_
                      ? std::as_writable_bytes(gradient_)
                      : payload_.bytes().subspan(round_at_, outcome_.payload_bytes - round_at_);
    lanes.lane_bytes = codec().LaneBytes(context_);
    lanes.accumulate = [this](std::span<std::byte> sum, std::span<const std::byte> addend) {
      codec().Accumulate(context_, sum, addend);
    };
    lanes.shares = &shares_;
    WEIR_ASSIGN_OR_RETURN(const CollectiveReport report,
                          RunCollective(in_.collective, group, lanes));
    outcome_.ran_instead = report.ran_instead;
    return KeepMissed();
  }

  Status Decode() override {
    if (in_place_) {
      outcome_.non_finite = !ScaleFinite(gradient_, scale_);
      return OkStatus();
    }
    const auto sum = payload_.bytes().first(outcome_.payload_bytes);
    if (shares_.run_bytes == 0) return DecodeLanes(sum);
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    WEIR_RETURN_IF_ERROR(DecodeShares(sum));
    codec().Finish(context_, scale_, gradient_);
    outcome_.non_finite = !ScaleFinite(gradient_, 1);
    return OkStatus();
  }

 private:
  // Returns the lanes of this rank that are in no sum to its residual.
  Status KeepMissed() {
    if (shares_.missed.empty()) return OkStatus();
    if (!residual_.has_value()) return Internal("a rank that was left out has no residual");
    const std::span<float> residual = residual_->next;
    WEIR_RETURN_IF_ERROR(codec().DecodeAdd(shares_.missed, context_, 1, residual));
    double kept = 0;
    for (const float value : residual) kept += static_cast<double>(value) * value;
    outcome_.residual_energy = kept;
    if (outcome_.energy_in > 0) {
      outcome_.gain = std::clamp(1 - kept / outcome_.energy_in, 0.0, 1.0);
    }
    return OkStatus();
  }

  // gradient += scale times the sum, where each run is multiplied by world over contributors.
  // Decoding is linear, and a lane of 0 adds nothing. So there is one pass for each number of
  // contributors, in which all other runs are set to zero. Passes are in ascending order with the
  // same operands on every rank, so all ranks get the same bits.
  Status DecodeShares(std::span<const std::byte> lanes) {
    std::set<size_t> counts;
    for (const uint64_t set : shares_.contributors) counts.insert(ShareCount(set));
    std::vector<std::byte> runs;
    for (const size_t count : counts) {
      std::span<const std::byte> operand = lanes;
      if (counts.size() > 1) {
        runs.assign(lanes.begin(), lanes.end());
        for (size_t run = 0; run < shares_.contributors.size(); ++run) {
          if (ShareCount(shares_.contributors[run]) == count) continue;
          const auto at = std::span(runs).subspan(run * shares_.run_bytes);
          const auto other = at.first(std::min(shares_.run_bytes, at.size()));
          std::fill(other.begin(), other.end(), std::byte(0));
        }
        operand = runs;
      }
      const auto share = static_cast<float>(count) / static_cast<float>(env_.world);
      WEIR_RETURN_IF_ERROR(codec().DecodeAdd(operand, context_, scale_ / share, gradient_));
    }
    return OkStatus();
  }

  const bool in_place_ = IsRawFloat(codec().Traits());
  LaneShares shares_;
};

class FloatLaneExchange : public LaneExchange {
 public:
  using LaneExchange::LaneExchange;
  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    ExchangeMemory memory = MemoryOfCopies(codec, elements, context, 0);
    memory.payload_bytes = elements * sizeof(float);  // the sum, which is made separately
    return memory;
  }
};

class TableLaneExchange : public LaneExchange {
 public:
  using LaneExchange::LaneExchange;
  static ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                 const EncodeContext& context) {
    return MemoryOfCopies(codec, elements, context, 2);  // the sum, which is made separately
  }
};

}  // namespace

void RegisterLanes(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<LaneExchange>>(
                       ExchangeTraits{.name = "lanes",
                                      .summary = "lanes of all ranks add without decoding",
                                      .payload = PayloadForm::kLanes,
                                      .on_devices = true}));
}

void RegisterFloatLanes(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<FloatLaneExchange>>(
                       ExchangeTraits{.name = "float_lanes",
                                      .summary = "lanes that are the float32 elements themselves",
                                      .payload = PayloadForm::kLanes,
                                      .need = CodecNeed::kRawFloat}));
}

void RegisterTableLanes(Registry<ExchangeForm>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<FormOfExchange<TableLaneExchange>>(
                       ExchangeTraits{.name = "table_lanes",
                                      .summary = "lanes that are levels of a table",
                                      .payload = PayloadForm::kLanes,
                                      .need = CodecNeed::kTable}));
}

}  // namespace weir
