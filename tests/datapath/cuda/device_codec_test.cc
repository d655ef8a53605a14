// SPDX-License-Identifier: Apache-2.0
// Every device codec against the host codec of the same name: bytes, residuals and decoded sums bit
// for bit, statistics, edge cases. On the host, everything runs in both orders of Team, too.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "datapath/codec/select/threshold_codec.h"
#include "tests/datapath/cuda/device_rig.h"
#include "tests/support/sanitized.h"

namespace weir::cuda {
namespace {

using test::Caller;
using test::DeviceEncoded;
using weir::test::Draw;
using weir::test::SevenDistributions;

constexpr size_t kSizes[] = {0,    1,    2,    7,    15,   16,   17,    31,    64,
                             100,  511,  512,  513,  1023, 1024, 1025,  1040,  2047,
                             2048, 2049, 2560, 4095, 6200, 9000, 65535, 65536, 70001};

struct Setting {
  const DeviceCodec* codec;
  int bits;
};

std::vector<Setting> Settings() {
  std::vector<Setting> all;
  for (const DeviceCodec* codec : DeviceCodecs()) {
    if (codec->host().Traits().rounds > 1) continue;  // device_low_rank_test.cc
    std::vector<int> seen;
    for (const CodecSetting& setting : codec->host().Traits().settings) {
      if (std::find(seen.begin(), seen.end(), setting.bits) != seen.end()) continue;
      seen.push_back(setting.bits);
      all.push_back({codec, setting.bits});
    }
  }
  return all;
}

/// The names between backticks in the part of the README after `begin` and before `end`.
std::set<std::string> NamesInReadme(const std::string& begin, const std::string& end) {
  std::ifstream file(std::string(WEIR_TEST_SOURCE_DIR) + "/../datapath/cuda/README.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t from = text.find(begin), to = text.find(end, from);
  EXPECT_NE(to, std::string::npos) << begin << " ... " << end;
  std::set<std::string> names;
  for (size_t at = text.find('`', from); at < to; at = text.find('`', at + 1)) {
    const size_t close = text.find('`', at + 1);
    names.insert(text.substr(at + 1, close - at - 1));
    at = close;
  }
  return names;
}

TEST(DeviceCodecsTest, TheReadmeSaysWhatRunsWhere) {
  std::set<std::string> there, here;
  for (const Codec* codec : Codecs().All()) {
    const std::string& name = codec->Traits().name;
    (FindDeviceCodec(name) != nullptr ? there : here).insert(name);
  }
  EXPECT_EQ(NamesInReadme("\nOn the device: ", "\n\n"), there);
  const std::set<std::string> listed = NamesInReadme("\nOn the host, after a copy:", "\n## ");
  for (const std::string& name : here) EXPECT_TRUE(listed.contains(name)) << name;
}

std::vector<Stream> Streams() {
  if (DeviceName().value() != "host") return {Stream{}};
  static const StatusOr<OwnStream> deferring = OwnStream::Make();
  return {Stream{}, Stream{kBackwards}, deferring->get()};
}

class DeviceCodecTest : public testing::TestWithParam<Setting> {
 protected:
  const DeviceCodec& device() const { return *GetParam().codec; }
  const Codec& host() const { return device().host(); }
  EncodeContext Context(std::span<const float> x, int world, double ratio = 0.05) const {
    EncodeContext context = weir::test::ContextFor(host(), x, world, ratio, GetParam().bits);
    context.rank = world - 1;
    return context;
  }
  /// Whether a threshold comes from moments. Where magnitudes are hardly spread, it follows from
  /// how their sums are rounded.
  bool Estimates() const {
    const auto* const codec = dynamic_cast<const ThresholdCodec*>(&host());
    return codec != nullptr && codec->AsksForTails();
  }
  bool AddsOnTheHost() const { return host().Traits().name == "qsgd:levels=exponential"; }
  int WorldFor(int wanted) const {
    return host().Validate({.ratio = 1, .bits = GetParam().bits}, wanted).ok() ? wanted : 1;
  }
};

/// The statistics and the result of both sides, and the bytes.
void ExpectEqual(const weir::test::Encoded& host, const GradientStatistics& statistics,
                 const DeviceEncoded& device) {
  ASSERT_EQ(host.result.non_finite, device.result.non_finite);
  EXPECT_EQ(host.payload, device.payload);
  if (host.result.non_finite) return;
  const double energy = host.result.energy_in;
  EXPECT_NEAR(device.result.energy_in, energy, 1e-9 * energy);
  EXPECT_NEAR(device.result.energy_lost, host.result.energy_lost,
              1e-5 * host.result.energy_lost + 1e-6 * energy);
  EXPECT_EQ(statistics.bins(), device.statistics.bins());
  EXPECT_EQ(statistics.count(), device.statistics.count());
  EXPECT_EQ(statistics.max_abs(), device.statistics.max_abs());
}

TEST_P(DeviceCodecTest, EncodesTheBytesOfTheHost) {
  const auto distributions = SevenDistributions();
  size_t turn = 0;
  for (const size_t n : kSizes) {
    for (const Stream stream : Streams()) {
      const std::vector<float> x = Draw(distributions[turn++ % distributions.size()], n, n + 1);
      SCOPED_TRACE(testing::Message() << "n " << n << ", turn " << turn);
      EncodeContext context = Context(x, WorldFor(3));
      GradientStatistics statistics;
      context.statistics = &statistics;
      const weir::test::Encoded expected = weir::test::EncodeOrDie(host(), x, context);
      Caller caller(device(), context, n, stream);
      const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
      ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
      ExpectEqual(expected, statistics, *encoded);
    }
  }
}

TEST_P(DeviceCodecTest, FeedbackIsThatOfTheHostBitForBit) {
  const auto distributions = SevenDistributions();
  size_t turn = 3;
  for (const size_t n : kSizes) {
    for (const Stream stream : Streams()) {
      const std::vector<float> g = Draw(distributions[turn++ % distributions.size()], n, n + 2);
      const std::vector<float> r = weir::test::NormalVector(n, n + 3, 0.3);
      std::vector<float> e(n);
      for (size_t i = 0; i < n; ++i) e[i] = g[i] + r[i];
      SCOPED_TRACE(testing::Message() << "n " << n << ", turn " << turn);
      EncodeContext context = Context(e, WorldFor(2));
      GradientStatistics statistics;
      context.statistics = &statistics;
      weir::test::Encoded expected;
      std::vector<float> rest(n);
      expected.result = weir::test::FeedbackOrDie(host(), g, r, rest, context, &expected.payload);
      for (const bool in_place : {false, true}) {
        Caller caller(device(), context, n, stream);
        const auto encoded = caller.Encode(g, r, /*feedback=*/true, in_place);
        ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
        ExpectEqual(expected, statistics, *encoded);
        EXPECT_EQ(test::Patterns(rest), test::Patterns(encoded->rest)) << "in place: " << in_place;
      }
    }
  }
}

TEST_P(DeviceCodecTest, DecodesAndAddsAsTheHost) {
  const auto distributions = SevenDistributions();
  size_t turn = 5;
  for (const size_t n : kSizes) {
    const std::vector<float> x = Draw(distributions[turn++ % distributions.size()], n, n + 4);
    SCOPED_TRACE(testing::Message() << "n " << n);
    const int world = WorldFor(3);
    EncodeContext context = Context(x, world);
    std::vector<std::byte> payload = weir::test::EncodeOrDie(host(), x, context).payload;
    Caller caller(device(), context, n);
    if (host().Traits().form == PayloadForm::kLanes) {
      context.rank = 0;
      const std::vector<std::byte> other = weir::test::EncodeOrDie(host(), x, context).payload;
      std::vector<std::byte> expected = payload;
      host().Accumulate(context, expected, other);
      const test::OnDevice<std::byte> sum{std::span<const std::byte>(payload)},
          addend{std::span<const std::byte>(other)};
      const Status added = device().Accumulate(caller.call(), sum.span(), addend.span());
      if (added.code() == StatusCode::kUnimplemented) {  // sums are made on the host
        EXPECT_TRUE(AddsOnTheHost());
        payload = expected;
      } else {
        ASSERT_TRUE(added.ok());
        payload = sum.Read();
        EXPECT_EQ(expected, payload);
      }
    }
    std::vector<float> expected = weir::test::NormalVector(n, 77), decoded = expected;
    ASSERT_TRUE(host().DecodeAdd(payload, context, 0.25f, expected).ok());
    for (const Stream stream : Streams()) {
      Caller decoder(device(), context, n, stream);
      std::vector<float> sum = decoded;
      const Status status = decoder.DecodeAdd(payload, 0.25f, sum);
      ASSERT_TRUE(status.ok()) << ToString(status);
      EXPECT_EQ(decoder.fault(), UINT64_MAX);
      EXPECT_EQ(test::Patterns(expected), test::Patterns(sum));
    }
  }
}

TEST_P(DeviceCodecTest, EdgeValuesAreThoseOfTheHost) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float least = std::numeric_limits<float>::min(), most = std::numeric_limits<float>::max();
  const std::vector<std::vector<float>> patterns = {{0.0f},
                                                    {-0.0f},
                                                    {0.0f, -0.0f},
                                                    {tiny, -tiny, 0.0f},
                                                    {least, -least, 3 * tiny},
                                                    {1.0f},
                                                    {-1.0f},
                                                    {1.0f, -1.0f},
                                                    {1.0f, -1.0f, 0.5f, 0.0f},
                                                    {most, 1.0f, -most},
                                                    {most},
                                                    {1e30f, 1e-30f, 0.0f, -1.0f},
                                                    {0x1p-101f, 0x1p-120f}};
  size_t others = 0;  // payloads that hold another selection
  for (const size_t n : {1u, 5u, 33u, 2048u, 3000u}) {
    for (size_t p = 0; p < patterns.size(); ++p) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", pattern " << p);
      std::vector<float> x(n);
      for (size_t i = 0; i < n; ++i) x[i] = patterns[p][i % patterns[p].size()];
      const std::vector<float> zeros(n, 0.0f);
      EncodeContext context = Context(x, 1, 0.3);
      GradientStatistics statistics;
      context.statistics = &statistics;
      weir::test::Encoded expected;
      std::vector<float> rest(n);
      expected.result =
          weir::test::FeedbackOrDie(host(), x, zeros, rest, context, &expected.payload);
      Caller caller(device(), context, n);
      const auto encoded = caller.Encode(x, zeros, /*feedback=*/true);
      ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
      ASSERT_EQ(expected.result.non_finite, encoded->result.non_finite);
      if (Estimates() && expected.payload != encoded->payload) {
        ++others;
        std::vector<float> sum = encoded->rest;
        ASSERT_TRUE(host().DecodeAdd(encoded->payload, context, 1.0f, sum).ok());
        EXPECT_EQ(sum, x);
        continue;
      }
      EXPECT_EQ(expected.payload, encoded->payload);
      EXPECT_EQ(test::Patterns(rest), test::Patterns(encoded->rest));
      EXPECT_EQ(statistics.bins(), encoded->statistics.bins());
    }
  }
  EXPECT_LE(others, 3u);
}

TEST_P(DeviceCodecTest, NonFiniteInputSendsZerosAndSaysSo) {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (const size_t n : {1u, 100u, 5000u}) {
    for (const float value : bad) {
      std::vector<float> x = weir::test::NormalVector(n, n);
      EncodeContext context = Context(x, 1);
      x[n / 2] = value;
      const weir::test::Encoded expected = weir::test::EncodeOrDie(host(), x, context);
      Caller caller(device(), context, n);
      const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
      ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
      EXPECT_TRUE(encoded->result.non_finite);
      EXPECT_TRUE(encoded->statistics.non_finite());
      EXPECT_EQ(expected.payload, encoded->payload);
    }
  }
}

TEST_P(DeviceCodecTest, MaximaAreThoseOfTheHost) {
  if (host().Traits().shared_metadata != SharedMetadata::kMax) return;
  for (const size_t n : kSizes) {
    const std::vector<float> g = weir::test::NormalVector(n, n), r = weir::test::NormalVector(n, 1);
    const EncodeContext context = Context(g, 1);
    const SharedMax expected = host().LocalMax(g, r, context);
    Caller caller(device(), context, n);
    const test::OnDevice<float> on_device{std::span<const float>(g)},
        residual{std::span<const float>(r)}, maxima(device().MaxCount(n));
    ASSERT_TRUE(
        device().LocalMax(on_device.span(), residual.span(), caller.call(), maxima.data()).ok());
    const std::vector<float> found = maxima.Read();
    ASSERT_EQ(expected.values().size(), found.size());
    // Means are rounded sums, whose last bit follows the order of additions.
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected.values()[i], 1.2e-7 * expected.values()[i]);
    }
  }
}

TEST_P(DeviceCodecTest, NonFiniteMaximaSendZerosAndSaySo) {
  if (host().Traits().shared_metadata != SharedMetadata::kMax) return;
  const std::vector<float> x = weir::test::NormalVector(3000, 9);
  EncodeContext context = Context(x, 1);
  context.shared_max.values().back() = std::numeric_limits<float>::infinity();
  const weir::test::Encoded expected = weir::test::EncodeOrDie(host(), x, context);
  Caller caller(device(), context, x.size());
  const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
  ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
  EXPECT_TRUE(encoded->result.non_finite);
  EXPECT_EQ(expected.payload, encoded->payload);
}

/// Damaged payloads, decoded by both sides: the device finds a fault where the host does, and then
/// they agree on the sum. Buffers have their exact sizes, so a sanitizer sees what reads past them.
TEST_P(DeviceCodecTest, RefusesWhatTheHostRefuses) {
  Random random(GetParam().bits + 11);
  size_t refused = 0;
  for (int turn = 0; turn < 400 / weir::test::kFewer; ++turn) {
    const size_t n = random.Below(turn % 4 == 0 ? 9000 : 400);
    const std::vector<float> x = weir::test::NormalVector(n, turn);
    const EncodeContext context = Context(x, 1, 0.02 + 0.6 * random.Uniform());
    std::vector<std::byte> payload = weir::test::EncodeOrDie(host(), x, context).payload;
    for (uint64_t change = random.Below(4); change > 0 && !payload.empty(); --change) {
      const uint64_t kind = random.Below(8);
      // Headers come first, so they are hit more often.
      const size_t at =
          random.Below(turn % 2 == 0 ? payload.size() : std::min<size_t>(payload.size(), 24));
      if (kind == 0) payload.resize(at);
      if (kind == 1) payload.push_back(std::byte{0});
      if (kind == 2) payload[at] = std::byte{0xFF};
      if (kind == 3) payload[at] = std::byte{0};
      if (kind > 3) payload[at] ^= static_cast<std::byte>(1u << random.Below(8));
    }
    SCOPED_TRACE(testing::Message() << "turn " << turn << ", n " << n);
    std::vector<float> expected(n, 1.0f), decoded(n, 1.0f);
    const Status host_status = host().DecodeAdd(payload, context, 0.5f, expected);
    Caller caller(device(), context, n, Streams().back());
    const Status status = caller.DecodeAdd(payload, 0.5f, decoded);
    const bool accepted = status.ok() && caller.fault() == UINT64_MAX;
    ASSERT_EQ(host_status.ok(), accepted)
        << ToString(host_status) << " against " << ToString(status) << ", " << caller.fault();
    refused += !accepted;
    if (accepted) {
      EXPECT_EQ(test::Patterns(expected), test::Patterns(decoded));
    } else if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    } else {
      EXPECT_LE(caller.fault(), payload.size());
    }
  }
  EXPECT_GT(refused, 20u / weir::test::kFewer);
}

/// Both ways between the device and the golden payload of this name.
void ExpectGolden(const DeviceCodec& device, const std::string& name, std::span<const float> x,
                  const EncodeContext& context) {
  const std::string golden = test::GoldenPayload(name);
  ASSERT_FALSE(golden.empty()) << name;
  for (const Stream stream : Streams()) {
    Caller caller(device, context, x.size(), stream);
    const auto encoded = caller.Encode(x, {}, /*feedback=*/false);
    ASSERT_TRUE(encoded.ok()) << ToString(encoded.status());
    EXPECT_EQ(golden, weir::test::Hex(encoded->payload)) << name;

    const std::vector<std::byte> payload = weir::test::BytesOfHex(golden);
    std::vector<float> expected(x.size(), 0.5f), decoded = expected;
    ASSERT_TRUE(device.host().DecodeAdd(payload, context, 0.25f, expected).ok());
    ASSERT_TRUE(caller.DecodeAdd(payload, 0.25f, decoded).ok());
    EXPECT_EQ(test::Patterns(expected), test::Patterns(decoded)) << name;
  }
}

TEST_P(DeviceCodecTest, EncodesAndDecodesTheGoldenBytes) {
  const std::vector<float> x = weir::test::GoldenInput(203);
  ExpectGolden(device(), weir::test::GoldenName(host(), GetParam().bits), x,
               weir::test::GoldenContext(host(), x, GetParam().bits));
}

TEST(DeviceCodecsTest, EncodeAndDecodeTheGoldenBitmap) {
  const std::vector<float> x = weir::test::GoldenInput(203);
  const DeviceCodec& codec = *FindDeviceCodec("top_k");
  ExpectGolden(codec, "top_k_bitmap", x, weir::test::ContextFor(codec.host(), x, 3, 0.6));
}

TEST_P(DeviceCodecTest, RefusesWrongCalls) {
  const std::vector<float> x = weir::test::NormalVector(100, 1);
  const EncodeContext context = Context(x, 1);
  const test::OnDevice<float> g{std::span<const float>(x)};
  const size_t bytes = host().MaxEncodedBytes(x.size(), context);
  const test::OnDevice<std::byte> out(bytes + 16);
  const PassOperands operands{.gradient = g.span()};
  const auto encode = [&](const std::function<void(DeviceCall&)>& change, std::span<std::byte> to) {
    Caller caller(device(), context, x.size());
    change(caller.call());
    return device().Encode(operands, caller.call(), to);
  };
  EXPECT_TRUE(encode([](DeviceCall&) {}, out.span().first(bytes)).ok());
  EXPECT_FALSE(encode([](DeviceCall&) {}, out.span().first(bytes - 1)).ok());
  EXPECT_FALSE(encode([](DeviceCall&) {}, out.span().subspan(1)).ok());
  EXPECT_FALSE(encode([](DeviceCall& call) { call.context.world = 0; }, out.span()).ok());
  EXPECT_FALSE(encode([](DeviceCall& call) { call.workspace = {}; }, out.span()).ok());
  EXPECT_FALSE(encode([](DeviceCall& call) { call.outcome = nullptr; }, out.span()).ok());

  const std::vector<std::byte> payload = weir::test::EncodeOrDie(host(), x, context).payload;
  Caller caller(device(), context, x.size());
  std::vector<float> sum(x.size(), 0.0f);
  EXPECT_EQ(caller.DecodeAdd(std::span(payload).first(3), 1, sum).code(), StatusCode::kDataLoss);
  caller.call().fault = nullptr;
  EXPECT_EQ(caller.DecodeAdd(payload, 1, sum).code(), StatusCode::kInvalidArgument);
  const std::span<std::byte> lanes = out.span();
  EXPECT_FALSE(device().Accumulate(caller.call(), lanes.first(8), lanes.subspan(8, 4)).ok());
  if (host().LaneBytes(context) > 1) {
    EXPECT_FALSE(device().Accumulate(caller.call(), lanes.first(8), lanes.subspan(9, 8)).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceCodecTest, testing::ValuesIn(Settings()),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return weir::test::IdentifierOf(
                                      setting.param.codec->host().Traits().name) +
                                  "_" + std::to_string(setting.param.bits);
                         });

}  // namespace
}  // namespace weir::cuda
