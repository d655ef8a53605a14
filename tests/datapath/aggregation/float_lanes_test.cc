// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/float_lanes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "datapath/aggregation/float_worker.h"
#include "datapath/base/random.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
float Value(uint32_t bits) { return std::bit_cast<float>(bits); }

std::vector<float> Interesting(uint64_t seed, int count) {
  Random random(seed);
  std::vector<float> all = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest()};
  for (int i = 0; i < count; ++i) {
    const float x = Value(static_cast<uint32_t>(random.Next()));
    if (std::isfinite(x)) all.push_back(x);
    all.push_back(static_cast<float>(random.Normal()));
  }
  return all;
}

/// The exponent field from which a float's unit in the last place follows.
int Scale(float x) {
  if (x == 0 || std::abs(x) < std::numeric_limits<float>::min()) return 1;
  return std::ilogb(x) + 127;
}

/// The paper's addition by arithmetic on numbers instead of bits: both operands in units of
/// 2^(greater exponent - 150), rounded down.
struct ReferenceLane {
  int exponent = 1;
  double mantissa = 0;

  static ReferenceLane Of(float x) {
    return {Scale(x), std::ldexp(static_cast<double>(x), 150 - Scale(x))};
  }
  // Shifts beyond the register give the sign, which rounding down does as well.
  static double Shifted(double mantissa, int by) { return std::floor(std::ldexp(mantissa, -by)); }

  void AddExact(const ReferenceLane& addend) {
    const int greater = std::max(exponent, addend.exponent);
    mantissa =
        Shifted(mantissa, greater - exponent) + Shifted(addend.mantissa, greater - addend.exponent);
    exponent = greater;
  }
  void AddApproximate(const ReferenceLane& addend) {
    if (addend.exponent <= exponent) {
      AddExact(addend);
    } else if (addend.exponent - exponent <= 7) {
      mantissa += std::ldexp(addend.mantissa, addend.exponent - exponent);
    } else {
      *this = addend;
    }
  }
  /// Towards zero to 24 bits, as the packed number is.
  float Packed() const {
    if (mantissa == 0) return 0.0f;
    const double exact = std::ldexp(mantissa, exponent - 150);
    int unit = std::ilogb(mantissa) - 23;
    unit = std::max(unit, 1 - exponent);
    const double cut = std::trunc(std::ldexp(mantissa, -unit));
    const double value = std::ldexp(cut, unit + exponent - 150);
    if (std::abs(exact) >= std::ldexp(1.0, 128)) {
      return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(mantissa));
    }
    return static_cast<float>(value);
  }
};

TEST(FloatLanesTest, PacksWhatItUnpacked) {
  for (const float x : Interesting(1, 5000)) {
    const float again = Value(PackFloat(UnpackFloat(Bits(x))));
    EXPECT_EQ(again, x);
  }
}

TEST(FloatLanesTest, ExactSumsAreThoseOfTheReference) {
  const std::vector<float> all = Interesting(2, 3000);
  Random random(3);
  for (int round = 0; round < 3000; ++round) {
    FloatLane lane = UnpackFloat(Bits(all[random.Below(all.size())]));
    ReferenceLane reference = ReferenceLane::Of(Value(PackFloat(lane)));
    for (int i = 0; i < 63; ++i) {
      const float x = all[random.Below(all.size())];
      ASSERT_TRUE(AddFloatExact(UnpackFloat(Bits(x)), &lane));
      reference.AddExact(ReferenceLane::Of(x));
      ASSERT_EQ(lane.exponent, reference.exponent);
      ASSERT_EQ(lane.mantissa, reference.mantissa);
    }
    ASSERT_EQ(Value(PackFloat(lane)), reference.Packed());
  }
}

TEST(FloatLanesTest, ApproximateSumsAreThoseOfTheReferenceUntilTheyOverflow) {
  const std::vector<float> all = Interesting(4, 3000);
  Random random(5);
  int overflows = 0;
  for (int round = 0; round < 3000; ++round) {
    FloatLane lane = UnpackFloat(Bits(all[random.Below(all.size())]));
    ReferenceLane reference = ReferenceLane::Of(Value(PackFloat(lane)));
    for (int i = 0; i < 20; ++i) {
      const float x = all[random.Below(all.size())];
      const bool fits = AddFloatApproximate(UnpackFloat(Bits(x)), &lane);
      reference.AddApproximate(ReferenceLane::Of(x));
      ASSERT_EQ(fits, std::abs(reference.mantissa + 0.5) < 2147483648.0);
      if (!fits) {
        ++overflows;
        break;
      }
      ASSERT_EQ(lane.exponent, reference.exponent);
      ASSERT_EQ(lane.mantissa, reference.mantissa);
      ASSERT_EQ(Value(PackFloat(lane)), reference.Packed());
    }
  }
  EXPECT_GT(overflows, 0);
}

TEST(FloatLanesTest, TheApproximationLosesWhatTheExactSumKeeps) {
  // 1, then 2^8: eight bits above, beyond the head-room.
  FloatLane exact = UnpackFloat(Bits(1.0f)), approximate = exact;
  AddFloatExact(UnpackFloat(Bits(256.0f)), &exact);
  AddFloatApproximate(UnpackFloat(Bits(256.0f)), &approximate);
  EXPECT_EQ(Value(PackFloat(exact)), 257.0f);
  EXPECT_EQ(Value(PackFloat(approximate)), 256.0f);
  // Seven more bits fit, but not twice.
  approximate = UnpackFloat(Bits(1.0f));
  EXPECT_TRUE(AddFloatApproximate(UnpackFloat(Bits(128.0f)), &approximate));
  EXPECT_EQ(Value(PackFloat(approximate)), 129.0f);
  EXPECT_FALSE(AddFloatApproximate(UnpackFloat(Bits(128.0f)), &approximate));
}

TEST(FloatLanesTest, A128EqualAddendsFitAndThe129thDoesNot) {
  const float x = 1.9999999f;  // all bits of the mantissa set
  FloatLane lane = UnpackFloat(Bits(x));
  for (int i = 1; i < 128; ++i) ASSERT_TRUE(AddFloatExact(UnpackFloat(Bits(x)), &lane)) << i;
  EXPECT_EQ(Value(PackFloat(lane)), 128 * x);
  EXPECT_FALSE(AddFloatExact(UnpackFloat(Bits(x)), &lane));
}

TEST(FloatLanesTest, NonFiniteAddendsMakeTheLaneNan) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const auto add : {AddFloatExact, AddFloatApproximate}) {
      FloatLane lane = UnpackFloat(Bits(1.0f));
      add(UnpackFloat(Bits(bad)), &lane);
      add(UnpackFloat(Bits(2.0f)), &lane);
      EXPECT_TRUE(std::isnan(Value(PackFloat(lane))));
      lane = UnpackFloat(Bits(bad));
      add(UnpackFloat(Bits(std::numeric_limits<float>::max())), &lane);
      EXPECT_TRUE(std::isnan(Value(PackFloat(lane))));
    }
  }
}

TEST(FloatWorkerTest, AllWorkersGetTheSameBitsNearTheSum) {
  const Lease lease = {
      .id = 1, .epoch = 1, .mode = PacketMode::kFloat, .workers = 6, .slots = 3, .lanes = 8};
  LossyWorld world(lease, BadNetwork(6));
  Random random(7);
  std::vector<std::vector<float>> data(6, std::vector<float>(100));
  std::vector<double> sum(100), greatest(100);
  for (auto& row : data) {
    for (size_t i = 0; i < 100; ++i) {
      row[i] = static_cast<float>(random.Normal());
      sum[i] += row[i];
      greatest[i] = std::max(greatest[i], std::abs(static_cast<double>(row[i])));
    }
  }
  std::vector<std::unique_ptr<FloatWorker>> workers;
  std::vector<Worker*> all;
  for (size_t w = 0; w < 6; ++w) {
    workers.push_back(std::make_unique<FloatWorker>(lease, kFastTimeouts, static_cast<int>(w)));
    all.push_back(workers[w].get());
    ASSERT_TRUE(workers[w]->Begin(data[w], 0, world.now() + std::chrono::seconds(9)).ok());
  }
  world.Run(all);
  for (size_t w = 0; w < 6; ++w) {
    ASSERT_TRUE(workers[w]->status().ok()) << workers[w]->status();
    EXPECT_EQ(data[w], data[0]);
  }
  for (size_t i = 0; i < 100; ++i) {
    // Each of the shifts and the last truncation lose less than one unit of the greatest exponent,
    // and the sum's own exponent may be three bits higher.
    const double unit = std::ldexp(1.0, std::ilogb(greatest[i]) - 23);
    EXPECT_NEAR(data[0][i], sum[i], (12 + 8) * unit);
  }
}

TEST(FloatWorkerTest, AnAggregatorAddsExactlyOrAsASwitchThatCannotShift) {
  const Lease lease = {
      .id = 1, .epoch = 1, .mode = PacketMode::kFloat, .workers = 2, .slots = 1, .lanes = 8};
  for (const bool exact : {true, false}) {
    LossyWorld world(lease, {}, exact);
    FloatWorker first(lease, kFastTimeouts, 0), second(lease, kFastTimeouts, 1);
    std::vector<float> small = {1}, large = {1024};  // ten bits apart, more than are free
    ASSERT_TRUE(first.Begin(small, 0, world.now() + std::chrono::seconds(9)).ok());
    ASSERT_TRUE(second.Begin(large, 0, world.now() + std::chrono::seconds(9)).ok());
    const std::vector<Worker*> both = {&first, &second};
    world.Run(both);
    ASSERT_TRUE(first.status().ok() && second.status().ok());
    EXPECT_EQ(small[0], exact ? 1025 : 1024);
    EXPECT_EQ(large, small);
  }
}

}  // namespace
}  // namespace weir::aggregation
