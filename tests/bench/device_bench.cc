// SPDX-License-Identifier: Apache-2.0
// The device codecs against the memory of the device: encoding with error feedback, decoding and
// sums of lanes, each beside the time for moving the necessary bytes at the rate of a copy in
// the same run. Prints JSON lines. Built twice: device_bench is for a GPU, and device_bench_host
// rehearses the same on the CPU, where its times mean nothing.
//   device_bench [--elements N[,N...]] [--codec NAME] [--rounds R]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "datapath/cuda/device_codec.h"
#include "datapath/cuda/memory.h"
#include "tests/bench/normal_numbers.h"

namespace weir::cuda {
namespace {

using nlohmann::json;

/// The size of a sector of the device's memory, which a scattered access moves at least.
constexpr double kSectorBytes = 32;
/// Steps differ: the gradient of a step is a window into a longer run of noise.
constexpr size_t kWindowSlack = 1 << 16;
constexpr size_t kNoiseElements = 1 << 22;
constexpr int kWarmUpSteps = 8;

struct Options {
  std::vector<size_t> elements = {25'000'000, 250'000'000};
  std::string codec;
  int rounds = 5;
  int steps = 20;  // of a round
};

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "device_bench: %s\n", ToString(status).c_str());
  std::exit(1);
}

DeviceBuffer Make(size_t bytes) {
  StatusOr<DeviceBuffer> buffer = DeviceBuffer::Make(bytes);
  Must(buffer.status());
  return *std::move(buffer);
}

std::span<float> Floats(const DeviceBuffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

void Print(const json& row) {
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

/// Microseconds of one call, the median of rounds of several calls with one wait each.
template <class Call>
double MicrosecondsOf(const Options& options, Call&& call) {
  for (int step = 0; step < kWarmUpSteps; ++step) call();
  Must(Synchronise({}));
  std::vector<double> times;
  for (int round = 0; round < options.rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < options.steps; ++step) call();
    Must(Synchronise({}));
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - start;
    times.push_back(passed.count() / options.steps);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Buffers that all codecs of one size share.
struct Tensors {
  size_t n;
  DeviceBuffer noise, residual, sum;
  double bytes_per_us = 0;  // of a copy, read and written

  explicit Tensors(size_t elements)
      : n(elements),
        noise(Make((elements + kWindowSlack) * sizeof(float))),
        residual(Make(elements * sizeof(float))),
        sum(Make(elements * sizeof(float))) {
    std::vector<float> block(std::min(kNoiseElements, elements + kWindowSlack));
    bench::FillNormal(block, 2);
    const std::span<float> all = Floats(noise);
    for (size_t at = 0; at < all.size(); at += block.size()) {
      const size_t size = std::min(block.size(), all.size() - at);
      Must(CopyToDevice(all.data() + at, block.data(), size * sizeof(float), {}));
    }
    Must(FillDevice(residual.data(), 0, residual.size(), {}));
    Must(FillDevice(sum.data(), 0, sum.size(), {}));
    Must(Synchronise({}));
  }
  std::span<const float> Gradient(size_t step) const {
    return Floats(noise).subspan(step * 64 % kWindowSlack, n);
  }
};

void MeasureCopy(const Options& options, Tensors& tensors) {
  const size_t bytes = tensors.n * sizeof(float);
  const double us = MicrosecondsOf(
      options, [&] { Must(CopyOnDevice(tensors.sum.data(), tensors.noise.data(), bytes, {})); });
  tensors.bytes_per_us = 2.0 * static_cast<double>(bytes) / us;
  Print({{"benchmark", "copy"},
         {"elements", tensors.n},
         {"us", us},
         {"gigabytes_per_s", tensors.bytes_per_us / 1000}});
}

/// One codec and setting at one size.
class Contestant {
 public:
  Contestant(const DeviceCodec& codec, int bits, double ratio, const Options& options,
             Tensors& tensors)
      : codec_(codec),
        options_(options),
        tensors_(tensors),
        outcome_(Make(sizeof(Outcome))),
        fault_(Make(sizeof(uint64_t))),
        maxima_(Make(std::max<size_t>(1, codec.MaxCount(tensors.n)) * sizeof(float))) {
    call_.context.params = {.ratio = codec.host().Traits().uses_ratio ? ratio : 1, .bits = bits};
    call_.context.seed = 1;
    call_.outcome = reinterpret_cast<Outcome*>(outcome_.data());
    call_.fault = reinterpret_cast<uint64_t*>(fault_.data());
    workspace_ = Make(codec.WorkspaceBytes(tensors.n, call_));
    call_.workspace = workspace_.bytes();
    out_ = Make(codec.host().MaxEncodedBytes(tensors.n, call_.context));
    state_ = codec.host().NewState(tensors.n, call_.context);
    call_.context.state = state_.get();
    const size_t pinned_bytes = codec.PinnedBytes(tensors.n, call_);
    StatusOr<PinnedBuffer> pinned = PinnedBuffer::Make(pinned_bytes);
    Must(pinned.status());
    pinned_ = *std::move(pinned);
    call_.pinned = {pinned_.data(), pinned_bytes};
    if (codec.host().Traits().shared_metadata == SharedMetadata::kMax) {
      Must(codec.LocalMax(tensors.Gradient(0), {}, call_, Floats(maxima_).data()));
      call_.shared_max = Floats(maxima_);
    }
    Must(FillDevice(fault_.data(), 0xFF, sizeof(uint64_t), {}));
    Must(FillDevice(tensors.residual.data(), 0, tensors.residual.size(), {}));
  }

  void Run() {
    const CodecTraits& traits = codec_.host().Traits();
    const bool feedback = traits.needs_error_feedback;
    const bool resolves = traits.form == PayloadForm::kOpaque && traits.uses_ratio;
    size_t step = 0;
    uint64_t bytes = 0;
    if (traits.rounds > 1) return RunRounds();
    const auto encode = [&] {
      PassOperands operands{.gradient = tensors_.Gradient(step++)};
      if (feedback) {
        operands.residual = Floats(tensors_.residual);
        operands.rest = Floats(tensors_.residual);
      }
      call_.context.seed = step;
      Must(codec_.Encode(operands, call_, out_.bytes()));
      if (!resolves) return;
      const StatusOr<Outcome> outcome = codec_.Resolve(operands, call_, out_.bytes());
      Must(outcome.status());
      bytes = outcome->bytes;
    };
    const double us = MicrosecondsOf(options_, encode);
    if (!resolves) {
      Outcome outcome;
      Must(CopyToHost(&outcome, call_.outcome, sizeof(outcome), {}));
      Must(Synchronise({}));
      bytes = outcome.bytes;
    }
    const double n = static_cast<double>(tensors_.n), payload = static_cast<double>(bytes);
    Report("encode", us, (feedback ? 12 : 4) * n + payload, bytes);

    const auto received = std::span<const std::byte>(out_.bytes()).first(bytes);
    const double kept = traits.uses_ratio ? call_.context.params.ratio * n : 0;
    const double touched = traits.uses_ratio ? 2 * kSectorBytes * kept : 8 * n;
    const double decode_us = MicrosecondsOf(
        options_, [&] { Must(codec_.DecodeAdd(received, call_, 0.5f, Floats(tensors_.sum))); });
    Report("decode", decode_us, payload + std::min(touched, 8 * n), bytes);

    uint64_t fault = 0;
    Must(CopyToHost(&fault, call_.fault, sizeof(fault), {}));
    Must(Synchronise({}));
    if (fault != UINT64_MAX) Must(DataLoss(StrCat(traits.name, ": fault at ", fault)));
    if (traits.form != PayloadForm::kLanes) return;
    const DeviceBuffer addend = Make(bytes);
    Must(CopyOnDevice(addend.data(), out_.data(), bytes, {}));
    const Status adds = codec_.Accumulate(call_, out_.bytes().first(bytes), addend.bytes());
    if (adds.code() == StatusCode::kUnimplemented) return;
    const double sum_us = MicrosecondsOf(options_, [&] {
      Must(codec_.Accumulate(call_, out_.bytes().first(bytes), addend.bytes()));
    });
    Report("accumulate", sum_us, 3 * payload, bytes);
  }

  /// A codec whose rounds continue from sums on the host. The first round reads gradient and
  /// residual; the last one reads them for its factor, and again for the rest.
  void RunRounds() {
    const size_t total = out_.size();
    std::vector<std::byte> host(total);
    size_t step = 0;
    const auto encode = [&] {
      const PassOperands operands{.gradient = tensors_.Gradient(step++),
                                  .residual = Floats(tensors_.residual),
                                  .rest = Floats(tensors_.residual)};
      size_t at = 0;
      for (int round = 0; round < codec_.host().Traits().rounds; ++round) {
        call_.context.round = round;
        call_.context.previous = std::span(host).first(at);
        // Rounds need not be aligned in a common buffer.
        const std::span<std::byte> out = out_.bytes().first(total - at);
        Must(codec_.Encode(operands, call_, out));
        const StatusOr<Outcome> outcome = codec_.Resolve(operands, call_, out);
        Must(outcome.status());
        Must(CopyToHost(host.data() + at, out.data(), outcome->bytes, {}));
        Must(Synchronise({}));
        at += outcome->bytes;
      }
    };
    const double us = MicrosecondsOf(options_, encode);
    const double n = static_cast<double>(tensors_.n), payload = static_cast<double>(total);
    Report("encode", us, 28 * n + payload, total);
    Must(CopyToDevice(out_.data(), host.data(), total, {}));
    call_.payload_on_host = host;
    const double decode_us = MicrosecondsOf(
        options_, [&] { Must(codec_.DecodeAdd(out_.bytes(), call_, 0.5f, Floats(tensors_.sum))); });
    Report("decode", decode_us, payload + 8 * n, total);
  }

 private:
  void Report(const char* what, double us, double bytes_moved, uint64_t payload) const {
    const CodecTraits& traits = codec_.host().Traits();
    const double floor_us = bytes_moved / tensors_.bytes_per_us;
    Print({{"benchmark", what},
           {"codec", traits.name},
           {"bits", call_.context.params.bits},
           {"ratio", call_.context.params.ratio},
           {"elements", tensors_.n},
           {"payload_bytes", payload},
           {"us", us},
           {"floor_us", floor_us},
           {"times_floor", us / floor_us},
           {"goal", traits.rotated ? 2.0 : 1.5}});
  }

  const DeviceCodec& codec_;
  const Options& options_;
  Tensors& tensors_;
  DeviceBuffer outcome_, fault_, maxima_, workspace_, out_;
  std::unique_ptr<CodecState> state_;
  PinnedBuffer pinned_;
  DeviceCall call_;
};

void MeasureCodecs(const Options& options, Tensors& tensors) {
  for (const DeviceCodec* codec : DeviceCodecs()) {
    const CodecTraits& traits = codec->host().Traits();
    if (!options.codec.empty() && traits.name != options.codec) continue;
    std::vector<int> seen;
    for (const CodecSetting& setting : traits.settings) {
      if (setting.world_min > 1) continue;
      if (std::find(seen.begin(), seen.end(), setting.bits) != seen.end()) continue;
      seen.push_back(setting.bits);
      // Rank 4 of the near-square matrix, as device_peers.py.
      const double ratio =
          traits.size_in_steps ? 8 / std::sqrt(static_cast<double>(tensors.n)) : 0.01;
      Contestant(*codec, setting.bits, std::min(ratio, 1.0), options, tensors).Run();
    }
  }
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 == argc) Must(InvalidArgument(StrCat("argument ", name, " needs a value")));
    const std::string value = argv[++i];
    if (name == "--elements") {
      options.elements.clear();
      for (size_t at = 0; at < value.size();) {
        const size_t comma = std::min(value.find(',', at), value.size());
        options.elements.push_back(
            std::strtoull(value.substr(at, comma - at).c_str(), nullptr, 10));
        at = comma + 1;
      }
    } else if (name == "--codec") {
      options.codec = value;
    } else if (name == "--rounds") {
      options.rounds = std::max(1, std::atoi(value.c_str()));
      options.steps = std::min(options.steps, 4 * options.rounds);
    } else {
      Must(InvalidArgument(
          StrCat("unknown argument ", name, ", expected --elements, --codec or --rounds")));
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  const StatusOr<std::string> device = DeviceName();
  Must(device.status());
  Print({{"benchmark", "device"}, {"name", *device}});
  for (const size_t n : options.elements) {
    if (n == 0) Must(InvalidArgument("--elements: expected numbers of at least 1"));
    Tensors tensors(n);
    MeasureCopy(options, tensors);
    MeasureCodecs(options, tensors);
  }
  return 0;
}

}  // namespace
}  // namespace weir::cuda

int main(int argc, char** argv) { return weir::cuda::Main(argc, argv); }
