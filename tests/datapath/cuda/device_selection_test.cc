// SPDX-License-Identifier: Apache-2.0
// Selectors on the device over many steps, with the state that remembers thresholds: their attempts
// hit, find too many or too few, and meet ties and numbers that are not finite, as on the host.

#include <gtest/gtest.h>

#include <limits>

#include "tests/datapath/cuda/device_rig.h"

namespace weir::cuda {
namespace {

using test::Caller;

struct Steps {
  int bits;
  double ratio;
  size_t n;
  std::string_view codec = "top_k";
};

/// The gradient of a step. Its scale jumps, so that the last step's threshold misses.
std::vector<float> GradientOf(size_t n, int step) {
  std::vector<float> g = weir::test::NormalVector(n, 100 + step);
  const float scales[] = {1, 1.1f, 0.9f, 200, 1, 0.004f, 1, 1, 1e-20f, 1e20f};
  for (float& v : g) v *= scales[step % 10];
  if (step % 10 == 6) {  // ties
    for (size_t i = 0; i < n; ++i) g[i] = i % 3 == 0 ? -2.0f : 2.0f;
  }
  if (step % 10 == 7) {  // few that are not zero, close to each other
    for (size_t i = 0; i < n; ++i) g[i] = i / 8 % 200 == 3 ? g[i] : 0;
  }
  if (step == 12) g[n / 3] = std::numeric_limits<float>::quiet_NaN();
  return g;
}

void RunSteps(const Steps& steps, Stream stream) {
  const DeviceCodec& codec = *FindDeviceCodec(steps.codec);
  const size_t n = steps.n;
  // The tensors are selected from as a whole, or each for itself.
  const std::vector<TensorShape> shape = {{1, n / 3}, {1, 0}, {1, 1}, {7, 3}, {1, n - n / 3 - 22}};
  EncodeContext context;
  context.shape = shape;
  context.params = {.ratio = steps.ratio, .bits = steps.bits};
  const std::unique_ptr<CodecState> host_state = codec.host().NewState(n, context);
  std::vector<float> residual(n, 0.0f), device_residual(n, 0.0f);
  Caller caller(codec, context, n, stream);
  const std::unique_ptr<CodecState> device_state = codec.host().NewState(n, context);
  caller.call().context.state = device_state.get();
  std::vector<float> momentum(n, 0.0f), next_momentum(n);
  std::optional<test::OnDevice<float>> device_momentum(std::span<const float>{momentum});
  std::optional<test::OnDevice<float>> next_device_momentum(n);
  for (int step = 0; step < 20; ++step) {
    SCOPED_TRACE(testing::Message() << steps.codec << ", step " << step << ", n " << n << ", bits "
                                    << steps.bits << ", ratio " << steps.ratio);
    const std::vector<float> g = GradientOf(n, step);
    context.state = host_state.get();
    GradientStatistics statistics;
    context.statistics = &statistics;
    if (codec.host().Traits().needs_momentum) {
      context.momentum = {momentum, next_momentum};
      caller.call().context.momentum = {device_momentum->span(), next_device_momentum->span()};
    }
    std::vector<std::byte> expected;
    std::vector<float> rest(n);
    const EncodeResult result =
        weir::test::FeedbackOrDie(codec.host(), g, residual, rest, context, &expected);
    const auto encoded = caller.Encode(g, device_residual, /*feedback=*/true, step % 2 == 0);
    ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
    ASSERT_EQ(result.non_finite, encoded->result.non_finite);
    ASSERT_EQ(expected, encoded->payload);
    if (result.non_finite) continue;
    ASSERT_EQ(test::Patterns(rest), test::Patterns(encoded->rest));
    EXPECT_EQ(statistics.bins(), encoded->statistics.bins());
    EXPECT_NEAR(encoded->result.energy_lost, result.energy_lost,
                1e-5 * result.energy_lost + 1e-6 * result.energy_in);
    residual = rest;
    device_residual = encoded->rest;
    if (codec.host().Traits().needs_momentum) {
      ASSERT_EQ(test::Patterns(next_momentum), test::Patterns(next_device_momentum->Read()));
      std::swap(momentum, next_momentum);
      std::swap(device_momentum, next_device_momentum);
    }

    std::vector<float> sum(n, 0.5f), device_sum = sum;
    ASSERT_TRUE(codec.host().DecodeAdd(expected, context, 0.5f, sum).ok());
    ASSERT_TRUE(caller.DecodeAdd(expected, 0.5f, device_sum).ok());
    EXPECT_EQ(caller.fault(), UINT64_MAX);
    ASSERT_EQ(test::Patterns(sum), test::Patterns(device_sum));
  }
  // All but the energy of the histogram, see README.md.
  constexpr ptrdiff_t kEnergyAt = 25;
  std::vector<std::byte> host_saved = host_state->Save(), device_saved = device_state->Save();
  ASSERT_EQ(host_saved.size(), device_saved.size());
  for (auto* saved : {&host_saved, &device_saved}) {
    std::fill_n(saved->begin() + kEnergyAt, sizeof(double), std::byte{0});
  }
  EXPECT_TRUE(host_saved == device_saved);
}

TEST(DeviceSelectionTest, ManyStepsAreThoseOfTheHost) {
  std::vector<Stream> streams = {Stream{}};
  if (DeviceName().value() == "host") streams.push_back(Stream{kBackwards});
  for (const Stream stream : streams) {
    for (const int bits : {16, 8, 4}) {
      for (const double ratio : {0.002, 0.05, 0.6}) {
        for (const size_t n : {1500u, 30001u}) RunSteps({bits, ratio, n}, stream);
      }
    }
    RunSteps({16, 0.03, 120000}, stream);  // sampled
  }
}

/// Also thresholds from moments, because means of this many elements are rounded alike.
TEST(DeviceSelectionTest, ManyStepsOfEverySelectorAreThoseOfTheHost) {
  size_t selectors = 0;
  for (const DeviceCodec* codec : DeviceCodecs()) {
    const CodecTraits& traits = codec->host().Traits();
    if (!traits.indices_coded || traits.name == "top_k") continue;
    ++selectors;
    for (const CodecSetting& setting : traits.settings) {
      for (const size_t n : {1500u, 30001u}) RunSteps({setting.bits, 0.03, n, traits.name}, {});
    }
    RunSteps({traits.settings.front().bits, 0.2, 120000, traits.name}, {});  // sampled
  }
  EXPECT_GE(selectors, 13u);
}

/// The ratio of dgc falls with its steps, and so do the bounds of a selection.
TEST(DeviceSelectionTest, AWarmUpIsThatOfTheHost) {
  const DeviceCodec& codec = *FindDeviceCodec("dgc");
  constexpr size_t kSize = 4000;
  EncodeContext context;
  context.params.ratio = 0.001;
  const auto host_state = codec.host().NewState(kSize, context);
  const auto device_state = codec.host().NewState(kSize, context);
  Caller caller(codec, context, kSize);
  caller.call().context.state = device_state.get();
  size_t first = 0, last = 0;
  for (int step = 0; step < 260; ++step) {
    const std::vector<float> x = weir::test::NormalVector(kSize, step);
    context.state = host_state.get();
    const weir::test::Encoded expected = weir::test::EncodeOrDie(codec.host(), x, context);
    const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
    ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
    ASSERT_EQ(expected.payload, encoded->payload) << step;
    (step == 0 ? first : last) = expected.payload.size();
  }
  EXPECT_GT(first, 20 * last);
}

TEST(DeviceSelectionTest, EveryCodingOfPositionsIsThatOfTheHost) {
  const DeviceCodec& codec = *FindDeviceCodec("top_k");
  std::vector<float> clustered(40000, 0.0f);
  for (size_t i = 0; i < 100; ++i) clustered[i / 50 * 30000 + 77 + i % 50] = 1.0f + i;
  const std::vector<float> spread = weir::test::NormalVector(40000, 5);
  const struct {
    const std::vector<float>& x;
    double ratio;
    int coding;
  } cases[] = {{spread, 0.6, 1}, {clustered, 0.0025, 2}, {spread, 0.01, 3}};
  for (const auto& [x, ratio, coding] : cases) {
    EncodeContext context;
    context.params.ratio = ratio;
    const weir::test::Encoded expected = weir::test::EncodeOrDie(codec.host(), x, context);
    Caller caller(codec, context, x.size());
    const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
    ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
    EXPECT_EQ(static_cast<int>(encoded->payload.at(0)), coding);
    ASSERT_EQ(expected.payload, encoded->payload);
    std::vector<float> sum(x.size(), 0.0f), device_sum = sum;
    ASSERT_TRUE(codec.host().DecodeAdd(expected.payload, context, 1.0f, sum).ok());
    ASSERT_TRUE(caller.DecodeAdd(expected.payload, 1.0f, device_sum).ok());
    EXPECT_EQ(caller.fault(), UINT64_MAX);
    EXPECT_EQ(test::Patterns(sum), test::Patterns(device_sum));
  }
}

/// Payloads of each coding, damaged: the device finds a fault where the host does.
TEST(DeviceSelectionTest, RefusesDamageOfEveryCoding) {
  const DeviceCodec& codec = *FindDeviceCodec("top_k");
  std::vector<float> clustered(40000, 0.0f);
  for (size_t i = 0; i < 100; ++i) clustered[i / 50 * 30000 + 77 + i % 50] = 1.0f + i;
  const std::vector<float> spread = weir::test::NormalVector(700, 5);
  const struct {
    const std::vector<float>& x;
    double ratio;
  } cases[] = {{spread, 0.6}, {clustered, 0.0025}, {spread, 0.03}};
  Random random(7);
  for (const auto& [x, ratio] : cases) {
    EncodeContext context;
    context.params.ratio = ratio;
    const std::vector<std::byte> sound = weir::test::EncodeOrDie(codec.host(), x, context).payload;
    const auto index_bytes = static_cast<uint8_t>(sound.at(8));
    for (int turn = 0; turn < 600; ++turn) {
      std::vector<std::byte> payload = sound;
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << ", turn " << turn);
      if (turn % 3 == 0) {
        // An octet more or less of positions, in a header that says so.
        const bool at_end = random.Below(4) == 0;
        const size_t at = 12 + (at_end ? index_bytes - 1 : random.Below(index_bytes));
        if (random.Below(2) == 0) {
          const auto octet = static_cast<std::byte>(at_end ? 0 : random.Below(256));
          payload.insert(payload.begin() + at + 1, octet);
          payload[8] = static_cast<std::byte>(index_bytes + 1);
        } else {
          payload.erase(payload.begin() + at);
          payload[8] = static_cast<std::byte>(index_bytes - 1);
        }
      } else {
        payload[random.Below(payload.size())] = static_cast<std::byte>(random.Below(256));
      }
      std::vector<float> expected(x.size(), 1.0f), decoded = expected;
      const Status host_status = codec.host().DecodeAdd(payload, context, 0.5f, expected);
      Caller caller(codec, context, x.size());
      const Status status = caller.DecodeAdd(payload, 0.5f, decoded);
      const bool accepted = status.ok() && caller.fault() == UINT64_MAX;
      ASSERT_EQ(host_status.ok(), accepted) << ToString(host_status);
      if (accepted) {
        EXPECT_EQ(test::Patterns(expected), test::Patterns(decoded));
      }
    }
  }
}

/// A payload with more elements than the ratio permits would not fit the workspace.
TEST(DeviceSelectionTest, RefusesMoreElementsThanTheRatioPermits) {
  const DeviceCodec& codec = *FindDeviceCodec("top_k");
  const std::vector<float> x = weir::test::NormalVector(4000, 5);
  EncodeContext context;
  context.params.ratio = 0.2;
  const std::vector<std::byte> payload = weir::test::EncodeOrDie(codec.host(), x, context).payload;
  context.params.ratio = 0.05;
  Caller caller(codec, context, x.size());
  std::vector<float> sum(x.size(), 0.0f);
  const Status status = caller.DecodeAdd(payload, 1.0f, sum);
  EXPECT_TRUE(!status.ok() || caller.fault() != UINT64_MAX);
  EXPECT_EQ(sum, std::vector<float>(x.size(), 0.0f));
}

}  // namespace
}  // namespace weir::cuda
