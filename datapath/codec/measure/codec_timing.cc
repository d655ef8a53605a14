// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/measure/codec_timing.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/random.h"
#include "datapath/codec/codec.h"

namespace weir {
namespace {

constexpr size_t kElements = 1 << 18, kDeviceElements = 1 << 22;
constexpr int kRepetitions = 3;  // after one that warms caches and pages; the median counts
// Far apart, so that the cost of a kept element stands out from the cost of a scanned one.
constexpr double kRatioHigh = 0.1, kRatioLow = 0.01;

struct Seconds {
  double encode = 0, decode = 0;
};

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void FillNormal(std::span<float> gradient) {
  Random random(1);
  for (float& x : gradient) x = static_cast<float>(random.Normal());
}

/// Runs one codec at one ratio on shared input.
class Workbench {
 public:
  Workbench() : gradient_(kElements), residual_(kElements), sum_(kElements) {
    FillNormal(gradient_);
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
  std::vector<float> gradient_, residual_, sum_;
  std::vector<std::byte> payload_;
};

/// The same for a bucket on a device.
class DeviceWorkbench {
 public:
  DeviceWorkbench(Device& device, size_t elements) : device_(device), elements_(elements) {}
  ~DeviceWorkbench() {
    for (float* const floats : {gradient_, residual_, sum_}) {
      if (floats != nullptr) device_.Free(floats);
    }
  }

  Status SetUp() {
    for (float** const floats : {&gradient_, &residual_, &sum_}) {
      WEIR_ASSIGN_OR_RETURN(*floats, device_.Allocate(elements_));
    }
    std::vector<float> noise(elements_);
    FillNormal(noise);
    return device_.WriteFloats(gradient_, noise.data(), elements_);
  }

  /// Seconds for an element, from or to pinned memory.
  StatusOr<Seconds> CopyAnElement() {
    ScratchBuffer host = device_.pinned().Take(elements_ * sizeof(float));
    WEIR_ASSIGN_OR_RETURN(const auto bucket, Open(gradient_));
    std::vector<double> out, in;
    for (int i = 0; i <= kRepetitions; ++i) {
      const TimePoint begin = RealClock().Now();
      WEIR_RETURN_IF_ERROR(bucket->CopyToHost(host.bytes()));
      const TimePoint middle = RealClock().Now();
      WEIR_RETURN_IF_ERROR(bucket->CopyFromHost(host.bytes()));
      if (i == 0) continue;
      out.push_back(ToSeconds(middle - begin));
      in.push_back(ToSeconds(RealClock().Now() - middle));
    }
    const auto n = static_cast<double>(elements_);
    return Seconds{Median(out) / n, Median(in) / n};
  }

  StatusOr<Seconds> Time(const Codec& codec, double ratio) {
    EncodeContext context;
    context.params.ratio = ratio;
    context.seed = 1;
    const auto state = codec.NewState(elements_, context);
    context.state = state.get();
    ScratchBuffer payload = device_.pinned().Take(codec.MaxEncodedBytes(elements_, context));
    WEIR_ASSIGN_OR_RETURN(const auto from, Open(gradient_));
    WEIR_ASSIGN_OR_RETURN(const auto to, Open(sum_));
    const bool keeps = codec.Traits().needs_error_feedback;
    const std::span<float> residual(residual_, keeps ? elements_ : 0);
    std::vector<double> encodes, decodes;
    for (int i = 0; i <= kRepetitions; ++i) {
      const TimePoint begin = RealClock().Now();
      if (codec.Traits().shared_metadata == SharedMetadata::kMax) {
        WEIR_ASSIGN_OR_RETURN(context.shared_max, from->LocalMax(codec, residual, context));
      }
      size_t bytes = 0;
      for (int round = 0; round < codec.Traits().rounds; ++round) {
        context.round = round;
        context.previous = payload.bytes().first(bytes);
        WEIR_ASSIGN_OR_RETURN(
            const EncodeResult encoded,
            from->Encode(codec, residual, residual, context, payload.bytes().subspan(bytes)));
        bytes += encoded.bytes;
      }
      const TimePoint middle = RealClock().Now();
      const std::span<const std::byte> sent = payload.bytes().first(bytes);
      WEIR_RETURN_IF_ERROR(to->DecodeSum(codec, std::span(&sent, 1), {}, context, 0.25f).status());
      if (i == 0) continue;
      encodes.push_back(ToSeconds(middle - begin));
      decodes.push_back(ToSeconds(RealClock().Now() - middle));
    }
    return Seconds{Median(encodes), Median(decodes)};
  }

 private:
  StatusOr<std::unique_ptr<DeviceBucket>> Open(float* data) {
    WEIR_ASSIGN_OR_RETURN(auto bucket, device_.Open({.data = data, .elements = elements_}));
    while (true) {  // nothing but what was waited for is on the default stream of a new process
      WEIR_ASSIGN_OR_RETURN(const bool ready, bucket->IsReady());
      if (ready) break;
    }
    WEIR_RETURN_IF_ERROR(bucket->Floats().status());
    return bucket;
  }

  Device& device_;
  const size_t elements_;
  float *gradient_ = nullptr, *residual_ = nullptr, *sum_ = nullptr;
};

/// The line through two points, with coefficients of at least 0.
CodecTime Fit(double low_s, double high_s, size_t elements) {
  const auto n = static_cast<double>(elements);
  CodecTime time;
  time.per_kept_s = std::max(0.0, (high_s - low_s) / ((kRatioHigh - kRatioLow) * n));
  time.per_element_s = std::max(0.0, low_s / n - time.per_kept_s * kRatioLow);
  return time;
}

CodecTiming TimingOf(const CodecTraits& traits, const Seconds& low, const Seconds& high,
                     size_t elements) {
  if (traits.uses_ratio) {
    return {Fit(low.encode, high.encode, elements), Fit(low.decode, high.decode, elements)};
  }
  const auto n = static_cast<double>(elements);
  return {{high.encode / n, 0}, {high.decode / n, 0}};
}

std::map<std::string, CodecTiming> Measure() {
  Workbench bench;
  std::map<std::string, CodecTiming> timings;
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    const auto high = bench.Time(*codec, traits.uses_ratio ? kRatioHigh : 1);
    const auto low = traits.uses_ratio ? bench.Time(*codec, kRatioLow) : high;
    if (!high.has_value() || !low.has_value()) continue;
    timings[traits.name] = TimingOf(traits, *low, *high, kElements);
  }
  return timings;
}

}  // namespace

const std::map<std::string, CodecTiming>& CodecTimings() {
  static const auto* timings = new std::map<std::string, CodecTiming>(Measure());
  return *timings;
}

bool EncodesOn(const Device& device, const Codec& codec) {
  // A lossless codec adds the residual to the gradient instead of encoding the sum.
  const CodecTraits& traits = codec.Traits();
  return traits.lossy && !traits.lanes_are_votes && device.Runs(codec);
}

DeviceCodecTimings MeasureCodecsOn(Device& device, size_t elements) {
  DeviceWorkbench bench(device, elements);
  if (!bench.SetUp().ok()) return {};
  const StatusOr<Seconds> copy = bench.CopyAnElement();
  if (!copy.ok()) return {};
  DeviceCodecTimings timings;
  timings.on_host = CodecTimings();
  timings.copy_out_s_per_byte = copy->encode / sizeof(float);
  timings.copy_in_s_per_byte = copy->decode / sizeof(float);
  for (auto& [name, timing] : timings.on_host) {
    timing.encode.per_element_s += copy->encode;
    timing.decode.per_element_s += copy->decode;
  }
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    if (!EncodesOn(device, *codec)) continue;
    const StatusOr<Seconds> high = bench.Time(*codec, traits.uses_ratio ? kRatioHigh : 1);
    const StatusOr<Seconds> low = traits.uses_ratio ? bench.Time(*codec, kRatioLow) : high;
    if (!high.ok() || !low.ok()) continue;
    timings.on_device[traits.name] = TimingOf(traits, *low, *high, elements);
  }
  return timings;
}

const DeviceCodecTimings& CodecTimingsOn(Device& device) {
  // Never destroyed, because sessions may outlive static destructors.
  static Mutex& mutex = *new Mutex();
  static auto& measured = *new std::map<Device*, DeviceCodecTimings>();
  MutexLock lock(mutex);
  const auto found = measured.find(&device);
  if (found != measured.end()) return found->second;
  return measured[&device] = MeasureCodecsOn(device, kDeviceElements);
}

}  // namespace weir
