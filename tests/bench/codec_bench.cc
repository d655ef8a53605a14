// SPDX-License-Identifier: Apache-2.0
// Encode and decode of every codec of the registry, with memcpy of the same tensor and the call
// that a PyTorch user would make instead (rows "CODEC/Peer") as peers in the same run. Arguments:
// elements, and for codecs with a ratio the ratio in millionths. Rows with "threads:2" have two
// workers with a bucket each, as in sessions with two of them: their items per second against those
// of one worker show the scaling.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "datapath/codec/codec.h"
#include "datapath/codec/residual/error_feedback.h"
#include "tests/bench/codec_peers.h"
#include "tests/bench/normal_numbers.h"

namespace weir {
namespace {

constexpr int64_t kElements = 25'600'000;       // ResNet-50
constexpr int64_t kBucketElements = 6'553'600;  // a 25 MiB bucket
constexpr int kOwnWarmUpMax = 300;              // steps in which a codec may send more than asked

/// Floats that start at a cache line.
class AlignedFloats {
 public:
  explicit AlignedFloats(size_t size)
      : size_(size), data_(static_cast<float*>(::operator new (size * 4, std::align_val_t{64}))) {
    std::memset(data_, 0, size * 4);
  }
  ~AlignedFloats() { ::operator delete (data_, std::align_val_t{64}); }
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;
  std::span<float> span() { return {data_, size_}; }

 private:
  size_t size_;
  float* data_;
};

void Memcpy(benchmark::State& state) {
  AlignedFloats from(state.range(0)), to(state.range(0));
  bench::FillNormal(from.span(), 1);
  for (auto _ : state) {
    std::memcpy(to.span().data(), from.span().data(), from.span().size_bytes());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(Memcpy)->Arg(kBucketElements)->Arg(kElements)->Unit(benchmark::kMillisecond);
BENCHMARK(Memcpy)->Arg(kBucketElements)->Threads(2)->UseRealTime()->Unit(benchmark::kMillisecond);

enum class Mode { kEncode, kFeedback, kFeedbackInPlace, kDecode };

/// The gradient of a step is a window into a longer run of noise, so that steps differ.
constexpr size_t kWindowSlack = 1 << 16;

struct Fixture {
  const Codec& codec;
  size_t size;
  AlignedFloats noise, decoded;
  ResidualStore residuals;
  size_t step = 0;
  EncodeContext context;
  std::unique_ptr<CodecState> codec_state;
  std::vector<std::byte> out;

  Fixture(const Codec& which, size_t n, double ratio)
      : codec(which), size(n), noise(n + kWindowSlack), decoded(n) {
    WEIR_CHECK(residuals.Define(1, {{"all", n}}).ok());
    bench::FillNormal(noise.span(), 2);
    context.params.ratio = codec.Traits().uses_ratio ? ratio : 1;
    context.world = 4;
    context.shared_max = codec.LocalMax(noise.span(), {}, context);
    codec_state = codec.NewState(n, context);
    context.state = codec_state.get();
    out.resize(codec.MaxEncodedBytes(n, context));
  }
  std::span<float> Gradient() {
    step += 7;
    return noise.span().subspan(step * 16 % kWindowSlack, size);
  }
  /// One step as the session runs it: the current and the next residual swap.
  size_t Step(bool in_place) {
    const ResidualBuffers buffers = residuals.BeginEncode(1).value();
    const std::span<float> to =
        in_place ? std::span(const_cast<float*>(buffers.current.data()), size) : buffers.next;
    const size_t bytes = Rounds([&](std::span<const float> x, std::span<std::byte> room) {
      return codec.EncodeWithFeedback(x, buffers.current, to, context, room);
    });
    in_place ? residuals.Discard() : residuals.Commit();
    return bytes;
  }
  /// Runs all rounds of one step in a world of one rank; returns the bytes of all of them.
  template <typename Encode>
  size_t Rounds(Encode&& encode) {
    const std::span<const float> x = Gradient();
    size_t at = 0;
    for (context.round = 0; context.round < codec.Traits().rounds; ++context.round) {
      context.previous = std::span(out).first(at);
      const auto result = encode(x, std::span(out).subspan(at));
      WEIR_CHECK(result.ok());
      at += result->bytes;
    }
    return at;
  }
};

/// Bits per element that the traits promise, from which a codec's warm-up is recognised.
double PromisedBits(const CodecTraits& traits, const EncodeContext& context) {
  const CodecSetting& setting = *FindSetting(traits, context.params, context.world);
  const double ratio = context.params.ratio;
  double bits = setting.fixed_bits + ratio * setting.kept_bits;
  if (traits.indices_coded && ratio < 1) {
    bits -= ratio * std::log2(ratio) + (1 - ratio) * std::log2(1 - ratio);
  }
  return bits;
}

void RunCodec(benchmark::State& state, const Codec& codec, Mode mode) {
  const auto n = static_cast<size_t>(state.range(0));
  Fixture fixture(codec, n, static_cast<double>(state.range(1)) * 1e-6);
  size_t bytes = 0;
  for (int warm_up = 0; warm_up < 24; ++warm_up) bytes = fixture.Step(false);
  const double promised =
      PromisedBits(codec.Traits(), fixture.context) * static_cast<double>(n) / 8;
  for (int more = 0; more<kOwnWarmUpMax&& static_cast<double>(bytes)> 1.5 * promised; ++more) {
    bytes = fixture.Step(false);
  }
  for (auto _ : state) {
    switch (mode) {
      case Mode::kEncode:
        bytes = fixture.Rounds([&](std::span<const float> x, std::span<std::byte> room) {
          return codec.Encode(x, fixture.context, room);
        });
        break;
      case Mode::kFeedback:
        bytes = fixture.Step(false);
        break;
      case Mode::kFeedbackInPlace:
        bytes = fixture.Step(true);
        break;
      case Mode::kDecode:
        WEIR_CHECK(codec
                       .DecodeAdd(std::span(fixture.out).first(bytes), fixture.context, 0.25f,
                                  fixture.decoded.span())
                       .ok());
        break;
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.counters["payload_bits_per_element"] = benchmark::Counter(
      8.0 * static_cast<double>(bytes) / static_cast<double>(n), benchmark::Counter::kAvgThreads);
}

/// Runs PyTorch's call for the same purpose on one core; the row's label names the call.
void RunPeer(benchmark::State& state, const Codec& codec) {
  static std::map<int64_t, CodecPeers> processes;
  CodecPeers& peers = processes.try_emplace(state.range(0), true, state.range(0)).first->second;
  EncodeContext context;
  context.world = 4;
  context.params.ratio = static_cast<double>(state.range(1)) * 1e-6;
  const double bits = PromisedBits(codec.Traits(), context);
  for (auto _ : state) {
    const CodecPeers::Answer answer = peers.Run(codec.Traits(), context.params, bits);
    if (answer.name.empty()) {
      state.SkipWithError("PyTorch gave no time: is python3-torch there?");
      break;
    }
    state.SetLabel(answer.name);
    state.SetIterationTime(answer.seconds);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// The codecs beside which PyTorch's calls are timed: one for each call.
constexpr const char* kPeered[] = {"bf16", "ef_signsgd", "fp16", "power_sgd",
                                   "qsgd", "random_k",   "top_k"};

/// Sizes and, for codecs that have one, ratios.
void AddArguments(benchmark::internal::Benchmark* run, const CodecTraits& traits) {
  run->Unit(benchmark::kMillisecond);
  for (const int64_t n : {kBucketElements, kElements}) {
    if (!traits.uses_ratio) {
      run->Args({n, 1'000'000});
    } else {
      for (const int64_t millionths : {100'000, 10'000, 1'000}) run->Args({n, millionths});
    }
  }
}

/// Adds rows for one worker and for two, each with a bucket, at ratio 1 % or none.
void RegisterWorkers(const Codec* codec, Mode mode, const std::string& name) {
  for (const int threads : {1, 2}) {
    benchmark::RegisterBenchmark((name + "/workers").c_str(),
                                 [codec, mode](benchmark::State& s) { RunCodec(s, *codec, mode); })
        ->Args({kBucketElements, codec->Traits().uses_ratio ? 10'000 : 1'000'000})
        ->Threads(threads)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

void RegisterAll() {
  const std::pair<Mode, const char*> modes[] = {{Mode::kEncode, "Encode"},
                                                {Mode::kFeedback, "Feedback"},
                                                {Mode::kFeedbackInPlace, "FeedbackInPlace"},
                                                {Mode::kDecode, "DecodeAdd"}};
  for (const Codec* codec : Codecs().All()) {
    for (const auto& [mode, mode_name] : modes) {
      if (mode == Mode::kDecode && HoldsIndicesOnly(codec->Traits().form)) continue;
      const std::string name = codec->Traits().name + "/" + mode_name;
      auto* run = benchmark::RegisterBenchmark(
          name.c_str(), [codec, m = mode](benchmark::State& s) { RunCodec(s, *codec, m); });
      AddArguments(run, codec->Traits());
      if (mode == Mode::kFeedback) RegisterWorkers(codec, mode, name);
    }
    if (std::ranges::find(kPeered, codec->Traits().name) != std::end(kPeered)) {
      auto* run =
          benchmark::RegisterBenchmark((codec->Traits().name + "/Peer").c_str(),
                                       [codec](benchmark::State& s) { RunPeer(s, *codec); });
      AddArguments(run->UseManualTime(), codec->Traits());
    }
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
