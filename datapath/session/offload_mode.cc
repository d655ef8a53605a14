#include "datapath/session/offload_mode.h"

#include <algorithm>
#include <cstring>
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

// A sum waits for the rank whose packet was lost, so every rank has to send again several times
// before any other calls it silence. Without the low ceiling one stall would be everybody's sample,
// their time-outs would follow it, and the next loss would last as long as the silence.
constexpr aggregation::TimeoutLimits kTimeouts = {.first = std::chrono::milliseconds(50),
                                                  .min = std::chrono::milliseconds(1),
                                                  .max = std::chrono::milliseconds(60)};

std::span<const float> Floats(std::span<const std::byte> lanes) {
  return {reinterpret_cast<const float*>(lanes.data()), lanes.size() / sizeof(float)};
}

std::span<float> Floats(std::span<std::byte> lanes) {
  return {reinterpret_cast<float*>(lanes.data()), lanes.size() / sizeof(float)};
}

/// SwitchML: the worker sums in place, so it gets a copy.
class SumMode : public OffloadMode {
 public:
  SumMode(const Lease& terms, int rank) : worker_(terms, kTimeouts, rank) {}

  StatusOr<uint32_t> Survey(std::span<const std::byte>) override { return 0; }

  Status Begin(std::span<const std::byte> lanes, uint32_t, uint32_t operation,
               TimePoint deadline) override {
    const std::span<const float> in = Floats(lanes);
    if (in.size() > room_.size()) room_.resize(in.size());
    sum_ = std::span(room_).first(in.size());
    std::copy(in.begin(), in.end(), sum_.begin());
    return worker_.Begin(sum_, operation, deadline);
  }

  aggregation::Worker& worker() override { return worker_; }
  uint64_t bytes_sent() const override { return sum_.size_bytes(); }
  void Store(std::span<std::byte> lanes) override {
    std::memcpy(lanes.data(), sum_.data(), sum_.size_bytes());
  }

 private:
  aggregation::SumWorker worker_;
  std::vector<float> room_;
  std::span<float> sum_;
};

/// OmniReduce: the scale of the whole is what the ranks agree on first.
class SparseMode : public OffloadMode {
 public:
  SparseMode(const Lease& terms, int rank)
      : worker_(terms, kTimeouts, rank), block_lanes_(terms.lanes) {}

  StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) override {
    survey_ = aggregation::SurveyBlocks(Floats(lanes), block_lanes_);
    // No grid holds what is not finite, and blocks have 32-bit numbers.
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
  void Store(std::span<std::byte> lanes) override { sums_.Store(block_lanes_, Floats(lanes)); }

 private:
  aggregation::SparseWorker worker_;
  const size_t block_lanes_;
  aggregation::BlockSurvey survey_;
  aggregation::BlockSums sums_;
  uint64_t blocks_before_ = 0;
};

/// THC: lanes as the codec thc makes them.
class TableMode : public OffloadMode {
 public:
  TableMode(const Lease& terms, int rank)
      : worker_(terms, kTimeouts, rank), lane_bytes_(static_cast<size_t>(terms.sum_bits) / 8) {}

  StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) override {
    return worker_.Carries(lanes) ? 0 : LaneOffload::kNotTheseLanes;
  }

  Status Begin(std::span<const std::byte> lanes, uint32_t, uint32_t operation,
               TimePoint deadline) override {
    if (lanes.size() > room_.size()) room_.resize(lanes.size());
    sums_ = std::span(room_).first(lanes.size());
    return worker_.Begin(lanes, sums_, operation, deadline);
  }

  aggregation::Worker& worker() override { return worker_; }
  uint64_t bytes_sent() const override { return sums_.size() / lane_bytes_ / 2; }
  void Store(std::span<std::byte> lanes) override {
    std::memcpy(lanes.data(), sums_.data(), sums_.size());
  }

 private:
  aggregation::TableLanesWorker worker_;
  const size_t lane_bytes_;
  std::vector<std::byte> room_;
  std::span<std::byte> sums_;
};

}  // namespace

StatusOr<std::unique_ptr<OffloadMode>> MakeOffloadMode(const Lease& terms, int rank) {
  if (terms.mode == PacketMode::kSum) return std::make_unique<SumMode>(terms, rank);
  if (terms.mode == PacketMode::kSparse) return std::make_unique<SparseMode>(terms, rank);
  if (terms.mode == PacketMode::kTable) {
    // Lanes are levels minus half the greatest.
    const int greatest = *std::max_element(terms.levels.begin(), terms.levels.end());
    if (greatest % 2 != 0 || terms.cutoff != Duration::zero()) {
      return InvalidArgument(StrCat("table: expected an even greatest level and no cut-off, found ",
                                    greatest, " and ", ToSeconds(terms.cutoff), " s"));
    }
    return std::make_unique<TableMode>(terms, rank);
  }
  return Unimplemented(StrCat("mode '", std::string(aggregation::ModeName(terms.mode)),
                              "' carries no lanes of a collective"));
}

}  // namespace weir
