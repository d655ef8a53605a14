// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/measure/codec_timing.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/random.h"
#include "datapath/codec/codec.h"

namespace weir {
namespace {

constexpr size_t kElements = 1 << 18;
constexpr int kRepetitions = 3;  // after one that warms caches and pages; the median counts
// Far apart, so that the cost of a kept element stands out from the cost of a scanned one.
constexpr double kRatioHigh = 0.1, kRatioLow = 0.01;

struct Seconds {
  double encode = 0, decode = 0;
};

/// Runs one codec at one ratio on shared input.
class Workbench {
 public:
  Workbench() : gradient_(kElements), residual_(kElements), sum_(kElements) {
    Random random(1);
    for (float& x : gradient_) x = static_cast<float>(random.Normal());
  }

  std::optional<Seconds> Time(const Codec& codec, double ratio) {
    EncodeContext context;
    context.params.ratio = ratio;
    context.seed = 1;
    context.shared_max = codec.LocalMax(gradient_, {}, context);
    const auto state = codec.NewState(kElements, context);
    context.state = state.get();
    GradientStatistics statistics;
    context.statistics = &statistics;
    payload_.resize(codec.MaxEncodedBytes(kElements, context));
    std::vector<double> encodes, decodes;
    for (int i = 0; i <= kRepetitions; ++i) {
      const TimePoint begin = RealClock().Now();
      size_t bytes = 0;
      for (context.round = 0; context.round < codec.Traits().rounds; ++context.round) {
        context.previous = std::span(payload_).first(bytes);
        const std::span<std::byte> out = std::span(payload_).subspan(bytes);
        const auto encoded =
            codec.Traits().needs_error_feedback
                ? codec.EncodeWithFeedback(gradient_, residual_, residual_, context, out)
                : codec.Encode(gradient_, context, out);
        if (!encoded.ok()) return std::nullopt;
        bytes += encoded->bytes;
      }
      const TimePoint middle = RealClock().Now();
      // Payloads of indices only cannot be decoded this way, so their time stays unknown.
      const auto payload = std::span<const std::byte>(payload_).first(bytes);
      const bool decoded = codec.DecodeAdd(payload, context, 0.25f, sum_).ok();
      if (i == 0) continue;
      encodes.push_back(ToSeconds(middle - begin));
      decodes.push_back(decoded ? ToSeconds(RealClock().Now() - middle) : 0);
    }
    return Seconds{Median(encodes), Median(decodes)};
  }

 private:
  static double Median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  std::vector<float> gradient_, residual_, sum_;
  std::vector<std::byte> payload_;
};

/// The line through two points, with coefficients of at least 0.
CodecTime Fit(double low_s, double high_s) {
  constexpr double n = kElements;
  CodecTime time;
  time.per_kept_s = std::max(0.0, (high_s - low_s) / ((kRatioHigh - kRatioLow) * n));
  time.per_element_s = std::max(0.0, low_s / n - time.per_kept_s * kRatioLow);
  return time;
}

std::map<std::string, CodecTiming> Measure() {
  Workbench bench;
  std::map<std::string, CodecTiming> timings;
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    const auto high = bench.Time(*codec, traits.uses_ratio ? kRatioHigh : 1);
    const auto low = traits.uses_ratio ? bench.Time(*codec, kRatioLow) : high;
    if (!high.has_value() || !low.has_value()) continue;
    timings[traits.name] =
        traits.uses_ratio
            ? CodecTiming{Fit(low->encode, high->encode), Fit(low->decode, high->decode)}
            : CodecTiming{{high->encode / kElements, 0}, {high->decode / kElements, 0}};
  }
  return timings;
}

}  // namespace

const std::map<std::string, CodecTiming>& CodecTimings() {
  static const auto* timings = new std::map<std::string, CodecTiming>(Measure());
  return *timings;
}

}  // namespace weir
