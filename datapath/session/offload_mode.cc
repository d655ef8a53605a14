// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/offload_mode.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "datapath/aggregation/quantise.h"
#include "datapath/aggregation/sparse_worker.h"
#include "datapath/aggregation/sum_worker.h"
#include "datapath/aggregation/table_lanes_worker.h"
#include "datapath/collective/offload.h"

namespace weir {
namespace {

using aggregation::Lease;
using aggregation::PacketMode;

// A sum waits for the rank whose packet was lost, so a rank has to be able to resend several times
// before the others take the pause for silence. Without the low ceiling, all ranks would measure
// one stall as a round trip and raise their time-outs to it, and the next loss would then last as
// long as the limit for silence.
constexpr aggregation::TimeoutLimits kTimeouts = {.first = std::chrono::milliseconds(50),
                                                  .min = std::chrono::milliseconds(1),
                                                  .max = std::chrono::milliseconds(60)};

std::span<const float> Floats(std::span<const std::byte> lanes) {
  return {reinterpret_cast<const float*>(lanes.data()), lanes.size() / sizeof(float)};
}

std::span<float> Floats(std::span<std::byte> lanes) {
  return {reinterpret_cast<float*>(lanes.data()), lanes.size() / sizeof(float)};
}

/// SwitchML. Lanes do not change before all sums have arrived, because the fallback may need them.
class SumMode : public OffloadMode {
 public:
  SumMode(const Lease& terms, int rank) : worker_(terms, kTimeouts, rank) {}

  StatusOr<uint32_t> Survey(std::span<const std::byte>) override { return 0; }

  Status Begin(std::span<const std::byte> lanes, uint32_t, uint32_t operation,
               TimePoint deadline) override {
    const std::span<const float> in = Floats(lanes);
    if (in.size() > room_.size()) room_.resize(in.size());
    sum_ = std::span(room_).first(in.size());
    return worker_.Begin(in, sum_, operation, deadline);
  }

  aggregation::Worker& worker() override { return worker_; }
  uint64_t bytes_sent() const override { return sum_.size_bytes(); }
  void Store(std::span<std::byte> lanes, LaneShares*) override {
    std::memcpy(lanes.data(), sum_.data(), sum_.size_bytes());
  }

 private:
  aggregation::SumWorker worker_;
  std::vector<float> room_;
  std::span<float> sum_;
};

/// OmniReduce. The ranks first agree on one scale for all blocks.
class SparseMode : public OffloadMode {
 public:
  SparseMode(const Lease& terms, int rank)
      : worker_(terms, kTimeouts, rank), block_lanes_(terms.lanes) {}

  StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) override {
    survey_ = aggregation::SurveyBlocks(Floats(lanes), block_lanes_);
    // Fixed-point numbers cannot hold NaN or infinity, and block numbers have 32 bits.
    const bool fits = survey_.code != aggregation::kExponentNonFinite &&
                      survey_.non_zero.size() < aggregation::kNoBlock;
    return fits ? survey_.code : LaneOffload::kNotTheseLanes;
  }

  Status Begin(std::span<const std::byte> lanes, uint32_t greatest, uint32_t operation,
               TimePoint deadline) override {
    blocks_before_ = worker_.blocks_sent();
    return worker_.Begin(Floats(lanes), survey_, static_cast<uint16_t>(greatest), &sums_, operation,
                         deadline);
  }

  aggregation::Worker& worker() override { return worker_; }
  uint64_t bytes_sent() const override {
    return (worker_.blocks_sent() - blocks_before_) * block_lanes_ * sizeof(float);
  }
  void Store(std::span<std::byte> lanes, LaneShares*) override {
    sums_.Store(block_lanes_, Floats(lanes));
  }

 private:
  aggregation::SparseWorker worker_;
  const size_t block_lanes_;
  aggregation::BlockSurvey survey_;
  aggregation::BlockSums sums_;
  uint64_t blocks_before_ = 0;
};

/// THC, for lanes that the codec thc encodes. The result holds the sums and, where ranks may be
/// left out, behind them the set of contributors of each packet, in the host's byte order, which is
/// the same for all ranks of a job.
class TableMode : public OffloadMode {
 public:
  TableMode(const Lease& terms, int rank)
      : worker_(terms, kTimeouts, rank),
        rank_(rank),
        partial_(terms.cutoff > Duration::zero()),
        lane_bytes_(static_cast<size_t>(terms.sum_bits) / 8) {}

  StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) override {
    return worker_.Carries(lanes) ? 0 : LaneOffload::kNotTheseLanes;
  }

  Status Begin(std::span<const std::byte> lanes, uint32_t, uint32_t operation,
               TimePoint deadline) override {
    lanes_bytes_ = lanes.size();
    const size_t packets =
        (lanes.size() + worker_.packet_lane_bytes() - 1) / worker_.packet_lane_bytes();
    sets_at_ = (lanes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
    const size_t bytes = sets_at_ + packets * sizeof(uint64_t);
    if (bytes > room_.size()) room_.resize(bytes);
    result_ = std::span(room_).first(bytes);
    const auto padding = result_.subspan(lanes.size(), sets_at_ - lanes.size());
    std::fill(padding.begin(), padding.end(), std::byte(0));
    sets_taken_ = false;
    return worker_.Begin(lanes, result_.first(lanes.size()), operation, deadline);
  }

  aggregation::Worker& worker() override { return worker_; }
  uint64_t bytes_sent() const override { return lanes_bytes_ / lane_bytes_ / 2; }

  bool complete() const override {
    const auto sets = worker_.contributors();
    return std::find(sets.begin(), sets.end(), uint64_t{0}) == sets.end();
  }

  std::span<std::byte> result() override {
    if (!std::exchange(sets_taken_, true)) {
      const auto sets = std::as_bytes(worker_.contributors());
      std::copy(sets.begin(), sets.end(), result_.begin() + static_cast<ptrdiff_t>(sets_at_));
    }
    return result_;
  }

  void Store(std::span<std::byte> lanes, LaneShares* shares) override {
    if (partial_) {
      const std::span<const std::byte> sets = result().subspan(sets_at_);
      shares->run_bytes = worker_.packet_lane_bytes();
      shares->contributors.resize(sets.size() / sizeof(uint64_t));
      std::copy(sets.begin(), sets.end(),
                std::as_writable_bytes(std::span(shares->contributors)).begin());
      KeepMissed(lanes, shares);
    }
    std::memcpy(lanes.data(), result_.data(), lanes.size());
  }

 private:
  void KeepMissed(std::span<const std::byte> lanes, LaneShares* shares) const {
    for (size_t run = 0; run < shares->contributors.size(); ++run) {
      if ((shares->contributors[run] >> rank_ & 1) != 0) continue;
      shares->missed.resize(lanes.size());
      const size_t at = run * shares->run_bytes;
      const auto own = lanes.subspan(at, std::min(shares->run_bytes, lanes.size() - at));
      std::copy(own.begin(), own.end(), shares->missed.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  aggregation::TableLanesWorker worker_;
  const int rank_;
  const bool partial_;
  const size_t lane_bytes_;
  size_t lanes_bytes_ = 0, sets_at_ = 0;
  bool sets_taken_ = false;  // from the worker into the result
  std::vector<std::byte> room_;
  std::span<std::byte> result_;
};

}  // namespace

StatusOr<std::unique_ptr<OffloadMode>> MakeOffloadMode(const Lease& terms, int rank) {
  if (terms.mode == PacketMode::kSum) return std::make_unique<SumMode>(terms, rank);
  if (terms.mode == PacketMode::kSparse) return std::make_unique<SparseMode>(terms, rank);
  if (terms.mode == PacketMode::kTable) {
    // A lane holds its level minus half of the greatest level.
    const int greatest = *std::max_element(terms.levels.begin(), terms.levels.end());
    if (greatest % 2 != 0) {
      return InvalidArgument(StrCat("table: expected an even greatest level, found ", greatest));
    }
    return std::make_unique<TableMode>(terms, rank);
  }
  return Unimplemented(StrCat("mode '", std::string(aggregation::ModeName(terms.mode)),
                              "' carries no lanes of a collective"));
}

}  // namespace weir
