// SPDX-License-Identifier: Apache-2.0
// The collectives that use an aggregator, with one that the test controls: whatever fails on any
// rank, all ranks end with the same, correct sum in the same operation.

#include <cmath>
#include <limits>
#include <optional>

#include "datapath/base/mutex.h"
#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

constexpr int kRanks = 4;
constexpr size_t kLaneCount = 3001;

/// Adds the lanes of all ranks in rank order and double precision, in which the order hardly
/// matters.
class LaneAdder {
 public:
  explicit LaneAdder(int world) : parts_(static_cast<size_t>(world)) {}

  StatusOr<std::vector<float>> Sum(int rank, std::span<const float> in, TimePoint deadline) {
    MutexLock lock(mutex_);
    parts_[static_cast<size_t>(rank)].emplace(in.begin(), in.end());
    brought_.NotifyAll();
    while (!Complete()) {
      if (!brought_.WaitUntil(mutex_, deadline) && !Complete()) {
        return DeadlineExceeded("the adder waits for another rank");
      }
    }
    std::vector<float> sum(in.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      double exact = 0;
      for (const auto& part : parts_) exact += (*part)[i];
      sum[i] = static_cast<float>(exact);
    }
    return sum;
  }

 private:
  bool Complete() const WEIR_REQUIRES(mutex_) {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& p) { return p.has_value(); });
  }

  Mutex mutex_;
  CondVar brought_;
  std::vector<std::optional<std::vector<float>>> parts_ WEIR_GUARDED_BY(mutex_);
};

enum class Trouble { kNone, kNotReady, kBefore, kAfter, kLacksSome };

class FakeOffload : public LaneOffload {
 public:
  FakeOffload(int rank, LaneAdder* adder, Trouble trouble)
      : rank_(rank), adder_(adder), trouble_(trouble) {}

  bool abandoned() const override { return culprit_ >= 0; }
  StatusOr<uint32_t> Survey(std::span<const std::byte>) override {
    if (trouble_ == Trouble::kNotReady) return Unavailable("no port");
    return said_ == 0 ? static_cast<uint32_t>(100 + rank_) : said_;
  }
  StatusOr<uint64_t> Sum(std::span<const std::byte> lanes, uint32_t greatest,
                         TimePoint deadline) override {
    ++calls_;
    deadline_ = deadline;
    greatest_ = greatest;
    if (trouble_ == Trouble::kBefore) return Unavailable("fails before it sends");
    // A rank that waits in vain notices it soon.
    const TimePoint silent = std::min(deadline, Within(0.05));
    WEIR_ASSIGN_OR_RETURN(sum_, adder_->Sum(rank_, Floats(lanes), silent));
    if (trouble_ == Trouble::kAfter) return Unavailable("fails when the others are done");
    return lanes.size() / 3;
  }
  void Store(std::span<std::byte> lanes, LaneShares*) override {
    EXPECT_EQ(lanes.size(), sum_.size() * sizeof(float));
    std::memcpy(lanes.data(), sum_.data(), lanes.size());
  }
  void Abandon(int culprit) override { culprit_ = culprit; }

  int calls() const { return calls_; }
  int culprit() const { return culprit_; }
  TimePoint deadline() const { return deadline_; }
  uint32_t greatest() const { return greatest_; }
  void Say(uint32_t number) { said_ = number; }

 private:
  const int rank_;
  LaneAdder* const adder_;
  const Trouble trouble_;
  int calls_ = 0;
  int culprit_ = -1;
  TimePoint deadline_{};
  uint32_t greatest_ = 0, said_ = 0;
  std::vector<float> sum_;
};

struct Through {
  std::string collective, fallback;
};

void PrintTo(const Through& through, std::ostream* out) { *out << through.collective; }

/// An offload in which rank kRanks - 1 is left out of the sum's second half. A rank that lacks
/// parts of the result does not know the contributors.
class PartialOffload : public FakeOffload {
 public:
  PartialOffload(int rank, LaneAdder* adder, Trouble trouble)
      : FakeOffload(rank, adder, trouble == Trouble::kLacksSome ? Trouble::kNone : trouble),
        lacks_(trouble == Trouble::kLacksSome) {}

  static LaneShares Shares() {
    return {.run_bytes = kLaneCount / 2 * sizeof(float), .contributors = {15, 7, 7}, .missed = {}};
  }

  bool partial() const override { return true; }
  bool complete() const override { return !lacks_; }
  std::span<std::byte> result() override {
    if (result_.empty()) {
      result_ = std::vector<std::byte>(kLaneCount * sizeof(float));
      if (!lacks_) FakeOffload::Store(result_, nullptr);
    }
    return result_;
  }
  void Store(std::span<std::byte> lanes, LaneShares* shares) override {
    std::memcpy(lanes.data(), result().data(), lanes.size());
    *shares = Shares();
  }

 private:
  const bool lacks_;
  std::vector<std::byte> result_;
};

class OffloadTest : public ::testing::TestWithParam<Through> {
 protected:
  const Collective& collective() const { return **Collectives().Find(GetParam().collective); }

  /// Makes the offloads of one operation; the ranks `troubled` have `trouble`.
  void Prepare(Trouble trouble, std::vector<int> troubled) {
    adder_ = std::make_unique<LaneAdder>(kRanks);
    offloads_.clear();
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool in_trouble = std::count(troubled.begin(), troubled.end(), rank) > 0;
      offloads_.push_back(
          std::make_unique<FakeOffload>(rank, adder_.get(), in_trouble ? trouble : Trouble::kNone));
      in_[rank].offload = offloads_.back().get();
    }
  }

  void SetUp() override {
    for (int rank = 0; rank < kRanks; ++rank) {
      Contribution c;
      for (size_t i = 0; i < kLaneCount; ++i) {
        c.dense.push_back(static_cast<float>(static_cast<int>((i * 7 + rank * 13) % 201) - 100));
      }
      c.lanes = Bytes(c.dense);
      in_.push_back(std::move(c));
    }
  }

  void ExpectSums(const std::vector<Outcome>& out) const {
    std::vector<float> sum(kLaneCount);
    for (const Contribution& c : in_) {
      for (size_t i = 0; i < kLaneCount; ++i) sum[i] += c.dense[i];
    }
    for (const Outcome& each : out) {
      ASSERT_TRUE(each.status.ok()) << each.status;
      EXPECT_EQ(Floats(each.lanes), sum);
    }
  }

  World world_ = MakeWorld("inproc", kRanks);
  std::unique_ptr<LaneAdder> adder_;
  std::vector<std::unique_ptr<FakeOffload>> offloads_;
  std::vector<Contribution> in_;
};

TEST_P(OffloadTest, WhenAllRanksGetTheSumNobodyRunsTheFallback) {
  Prepare(Trouble::kNone, {});
  const TimePoint before = RealClock().Now();
  const auto out = RunAll(world_, collective(), in_, 1 << 20, 20);
  ExpectSums(out);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(out[rank].summed_bytes, 0u) << "the fallback adds";
    EXPECT_EQ(out[rank].report.ran_instead, "");
    EXPECT_EQ(offloads_[rank]->calls(), 1);
    EXPECT_FALSE(offloads_[rank]->abandoned());
    EXPECT_EQ(offloads_[rank]->greatest(), 103u);
    // The other half of the time is left for the fallback.
    EXPECT_LT(ToSeconds(offloads_[rank]->deadline() - before), 11);
    EXPECT_GE(out[rank].report.bytes_sent, kLaneCount * 4 / 3);
    EXPECT_LT(out[rank].report.bytes_sent, kLaneCount * 4 / 3 + 2000);
  }
}

TEST_P(OffloadTest, FailureOfAnyRankMakesAllRunTheFallbackInTheSameOperation) {
  for (const Trouble trouble : {Trouble::kNotReady, Trouble::kBefore, Trouble::kAfter}) {
    for (const std::vector<int>& troubled : {std::vector<int>{0}, {3}, {2, 1}, {0, 1, 2, 3}}) {
      SCOPED_TRACE(StrCat("trouble ", static_cast<int>(trouble), " on ", troubled.size(),
                          " ranks, the first is ", troubled.front()));
      Prepare(trouble, troubled);
      const auto out = RunAll(world_, collective(), in_);
      ExpectSums(out);
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_GT(out[rank].summed_bytes, 0u);
        EXPECT_EQ(offloads_[rank]->calls(), trouble == Trouble::kNotReady ? 0 : 1);
        EXPECT_EQ(offloads_[rank]->culprit(), offloads_[0]->culprit());
      }
      // A rank that receives nothing from one that failed before it sent fails, too.
      const int lowest = *std::min_element(troubled.begin(), troubled.end());
      EXPECT_EQ(offloads_[0]->culprit(), trouble == Trouble::kBefore ? 0 : lowest);
      // The next operation runs only the fallback.
      const auto next = RunAll(world_, collective(), in_);
      ExpectSums(next);
      for (const Outcome& each : next) EXPECT_EQ(each.report.ran_instead, GetParam().fallback);
      for (const auto& offload : offloads_) {
        EXPECT_EQ(offload->calls(), trouble == Trouble::kNotReady ? 0 : 1);
      }
    }
  }
}

TEST_P(OffloadTest, ControlWordAndFlagsOfAnyRankReachAllOnEitherWay) {
  for (const Trouble trouble : {Trouble::kNone, Trouble::kNotReady, Trouble::kAfter}) {
    for (int flagged = 0; flagged < kRanks; ++flagged) {
      Prepare(trouble, {1});
      for (Contribution& c : in_) c.flags = 0;
      in_[0].control = {.version = 9, .step = 1234};
      in_[flagged].flags = kFlagNonFinite;
      const auto out = RunAll(world_, collective(), in_);
      ExpectSums(out);
      for (const Outcome& each : out) {
        EXPECT_EQ(each.control, (ControlWord{.version = 9, .step = 1234}));
        EXPECT_EQ(each.flags, kFlagNonFinite);
      }
    }
  }
}

TEST_P(OffloadTest, NothingFiniteIsLostOnEitherWay) {
  for (const Trouble trouble : {Trouble::kNone, Trouble::kAfter}) {
    Prepare(trouble, {2});
    std::vector<Contribution> in = in_;
    in[1].dense[5] = std::numeric_limits<float>::infinity();
    in[3].dense[6] = std::numeric_limits<float>::quiet_NaN();
    for (Contribution& c : in) c.lanes = Bytes(c.dense);
    for (const Outcome& each : RunAll(world_, collective(), in)) {
      ASSERT_TRUE(each.status.ok()) << each.status;
      const std::vector<float> sum = Floats(each.lanes);
      EXPECT_FALSE(std::isfinite(sum[5]));
      EXPECT_FALSE(std::isfinite(sum[6]));
      EXPECT_TRUE(std::isfinite(sum[7]));
    }
  }
}

// Lanes that one rank cannot round to fixed-point numbers do not end the use of the offload.
TEST_P(OffloadTest, LanesThatARankCannotHandOverAreSummedByTheFallbackAlone) {
  Prepare(Trouble::kNone, {});
  offloads_[2]->Say(LaneOffload::kNotTheseLanes);
  ExpectSums(RunAll(world_, collective(), in_));
  for (const auto& offload : offloads_) {
    EXPECT_EQ(offload->calls(), 0);
    EXPECT_FALSE(offload->abandoned());
  }
  offloads_[2]->Say(0);
  ExpectSums(RunAll(world_, collective(), in_));
  for (const auto& offload : offloads_) EXPECT_EQ(offload->calls(), 1);
}

// A rank that lacks a part gets it from another one, which is not a failure.
TEST_P(OffloadTest, ARankThatLacksPartsGetsThemFromAnother) {
  for (const std::vector<int>& lacking :
       {std::vector<int>{}, {3}, {0}, {0, 1, 2}, {1, 2, 3}, {0, 1, 2, 3}}) {
    for (const bool takes_shares : {true, false}) {
      SCOPED_TRACE(StrCat(lacking.size(), " ranks lack some, shares ", takes_shares));
      adder_ = std::make_unique<LaneAdder>(kRanks);
      offloads_.clear();
      for (int rank = 0; rank < kRanks; ++rank) {
        const bool lacks = std::count(lacking.begin(), lacking.end(), rank) > 0;
        offloads_.push_back(std::make_unique<PartialOffload>(
            rank, adder_.get(), lacks ? Trouble::kLacksSome : Trouble::kNone));
        in_[rank].offload = offloads_.back().get();
        in_[rank].takes_shares = takes_shares;
      }
      const auto out = RunAll(world_, collective(), in_);
      ExpectSums(out);
      const bool nobody_has_all = lacking.size() == kRanks;
      for (int rank = 0; rank < kRanks; ++rank) {
        EXPECT_FALSE(offloads_[rank]->abandoned());
        EXPECT_EQ(offloads_[rank]->calls(), takes_shares ? 1 : 0);
        EXPECT_EQ(out[rank].summed_bytes > 0, nobody_has_all || !takes_shares) << "the fallback";
        const bool partial = takes_shares && !nobody_has_all;
        EXPECT_EQ(out[rank].shares.run_bytes, partial ? PartialOffload::Shares().run_bytes : 0);
        EXPECT_EQ(out[rank].shares.contributors.size(), partial ? 3u : 0u);
      }
    }
  }
}

// One rank has abandoned the offload and the others have not. This bug must not lead to a sum.
TEST_P(OffloadTest, RanksThatDisagreeOnTheOffloadEndWithAnError) {
  Prepare(Trouble::kNone, {});
  in_[2].offload = nullptr;
  for (const Outcome& each : RunAll(world_, collective(), in_, 1 << 20, 2)) {
    EXPECT_FALSE(each.status.ok());
  }
}

class FloatOffloadTest : public OffloadTest {};

TEST_P(FloatOffloadTest, LanesThatAreNoFloatsAreRefused) {
  for (Contribution& c : in_) c.lane_bytes = 2;
  for (const Outcome& each : RunAll(world_, collective(), in_)) {
    EXPECT_FALSE(each.status.ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, FloatOffloadTest,
                         ::testing::Values(Through{"switchml", "ring"},
                                           Through{"omnireduce", "block_mesh"}),
                         [](const auto& param) { return param.param.collective; });
INSTANTIATE_TEST_SUITE_P(Collectives, OffloadTest,
                         ::testing::Values(Through{"switchml", "ring"},
                                           Through{"omnireduce", "block_mesh"},
                                           Through{"thc_table", "ring"}),
                         [](const auto& param) { return param.param.collective; });

}  // namespace
}  // namespace weir::testing
