// SPDX-License-Identifier: Apache-2.0
// Tensors of more than 2^31 bytes: one pass of every codec. What counts positions, bytes or lanes
// in 32 bits fails here and nowhere else. Takes 7 GiB and minutes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "tests/datapath/codec/codec_test_support.h"

namespace weir {
namespace {

constexpr size_t kElements = (size_t{1} << 29) + (size_t{3} << 20) + 1009;  // past 2^31 bytes
constexpr size_t kWindow = size_t{1} << 20;
constexpr double kFreeGiBMin = 10;

double AvailableGiB() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    double kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib / (1 << 20);
  }
  return 0;
}

/// Normal numbers with a period that no power of two divides, so that every window is alike and no
/// two windows of a codec's blocks are equal.
std::vector<float> MakeLargeInput() {
  constexpr size_t kPeriod = 1'000'003;
  std::vector<float> x(kElements);
  const std::vector<float> period = test::NormalVector(kPeriod, 3, 0.01);
  for (size_t at = 0; at < kElements; at += kPeriod) {
    std::copy_n(period.begin(), std::min(kPeriod, kElements - at),
                x.begin() + static_cast<ptrdiff_t>(at));
  }
  return x;
}

const std::vector<float>& LargeInput() {
  static const std::vector<float> x = MakeLargeInput();
  return x;
}

/// The part of a window's energy that the decoded values miss.
double Loss(std::span<const float> x, std::span<const float> decoded) {
  double lost = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    lost += std::pow(static_cast<double>(x[i]) - static_cast<double>(decoded[i]), 2);
  }
  return lost / test::SquaredNorm(x);
}

class LargeCodecTest : public testing::TestWithParam<std::string> {};

TEST_P(LargeCodecTest, EveryPartOfALargeTensorIsTreatedAlike) {
  static const double free = AvailableGiB();
  if (free < kFreeGiBMin) {
    GTEST_SKIP() << free << " GiB of memory are free, " << kFreeGiBMin << " are needed";
  }
  const Codec& codec = test::FindCodec(GetParam());
  const std::vector<float>& x = LargeInput();
  // Codecs that cut the tensor into rows or ranks take time in proportion to the ratio.
  const bool in_steps = codec.Traits().size_in_steps;
  const EncodeContext context = test::ContextFor(codec, x, 1, in_steps ? 1e-5 : 0.1);
  std::vector<std::byte> payload;
  double lost = 0;
  {
    // Without EncodeOrDie: its copies of the input would not fit.
    payload.resize(codec.MaxEncodedBytes(kElements, context));
    EncodeContext round = context;
    size_t at = 0;
    for (round.round = 0; round.round < codec.Traits().rounds; ++round.round) {
      round.previous = std::span(payload).first(at);
      const auto result = codec.Encode(x, round, std::span(payload).subspan(at));
      ASSERT_TRUE(result.ok()) << ToString(result.status());
      ASSERT_FALSE(result->non_finite);
      at += result->bytes;
      lost = result->energy_in > 0 ? result->energy_lost / result->energy_in : 0;
    }
    payload.resize(at);
  }
  const auto decoded = test::DecodeFor(codec, payload, context, x);
  ASSERT_TRUE(decoded.ok()) << ToString(decoded.status());
  const std::span<const float> in(x), out(*decoded);
  if (in_steps) {  // rows are not alike: what was lost in all must be what was said
    EXPECT_NEAR(Loss(in, out), lost, 1e-6);
    return;
  }
  // The first window, the last, and the one that ends where 32-bit byte positions turn negative.
  for (const size_t at : {size_t{0}, (size_t{1} << 29) - kWindow / 2, kElements - kWindow}) {
    const double loss = Loss(in.subspan(at, kWindow), out.subspan(at, kWindow));
    EXPECT_NEAR(loss, lost, 0.05 * lost + 1e-9) << "window at " << at;
    if (codec.Traits().uses_ratio) {  // what little is kept does not show in the loss
      EXPECT_NEAR(1 - loss, 1 - lost, 0.15 * (1 - lost)) << "window at " << at;
    }
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Codec* codec : Codecs().All()) names.push_back(codec->Traits().name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, LargeCodecTest, testing::ValuesIn(Names()),
                         [](const auto& info) { return test::IdentifierOf(info.param); });

}  // namespace
}  // namespace weir
