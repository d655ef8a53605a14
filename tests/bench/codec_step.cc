// SPDX-License-Identifier: Apache-2.0
// The time that the codec's calls of one step take by themselves; the script compressed_bench runs
// one process per rank. A step encodes every bucket with error feedback, and decodes the payloads
// of all ranks for it.
//
//   codec_step CODEC RATIO RANK WORLD ELEMENTS BUCKETS
//
// It uses the lines of the script's ranks, three per step: "codec" -> "ready"; "go" ->
// [START, END, BYTES], seconds of the monotonic clock and the size of its payloads; "check" ->
// [0, COUNT], the number of elements that are not 0. It ends with its input, and at once with
// status 3 if the codec has several rounds, momentum or an estimate (EF21): then its calls cannot
// be timed alone.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/codec/codec.h"
#include "datapath/codec/kernels/kernels.h"
#include "tests/bench/codec_calls.h"

namespace weir {
namespace {

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "codec_step: %s\n", why.c_str());
  std::exit(2);
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Step {
 public:
  Step(const Codec& codec, double ratio, int rank, int world, size_t elements, size_t buckets)
      : feedback_(codec.Traits().needs_error_feedback),
        noise_(elements + kSlack),
        data_(elements),
        residual_(elements),
        next_(elements) {
    bench::FillNormal(noise_, 1 + static_cast<uint64_t>(rank));
    const CodecParams params{.ratio = ratio};
    if (Status s = codec.Validate(params, world); !s.ok()) Die(ToString(s));
    for (size_t b = 0; b < buckets; ++b) {
      const size_t begin = elements * b / buckets, end = elements * (b + 1) / buckets;
      buckets_.push_back(
          {begin, std::make_unique<bench::CodecCalls>(codec, params, rank, world, end - begin,
                                                      std::span<const TensorShape>())});
      sizes_.push_back(end - begin);
    }
  }

  void Prepare() {
    const size_t at = ++steps_ * 112 % kSlack;
    std::copy_n(noise_.begin() + static_cast<ptrdiff_t>(at), data_.size(), data_.begin());
  }

  size_t Run() {
    size_t bytes = 0;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      bench::CodecCalls& calls = *buckets_[b].second;
      const auto part = [&](std::vector<float>& of) {
        return std::span(of).subspan(buckets_[b].first, sizes_[b]);
      };
      const std::span<float> residual = feedback_ ? part(residual_) : std::span<float>();
      calls.BeginStep(part(data_), residual);
      const auto encoded =
          calls.Encode(part(data_), residual, feedback_ ? part(next_) : std::span<float>());
      if (!encoded.ok()) Die(ToString(encoded.status()));
      const Status decoded = calls.Decode(part(data_), [](std::span<float> done) {
        kernels::ScaleFinite(done.data(), done.size(), 1);
      });
      if (!decoded.ok()) Die(ToString(decoded));
      bytes += calls.payload_bytes();
    }
    residual_.swap(next_);
    return bytes;
  }

  size_t NonZero() const {
    return data_.size() - static_cast<size_t>(std::count(data_.begin(), data_.end(), 0.0f));
  }

 private:
  static constexpr size_t kSlack =
      1 << 16;  // gradients of different steps are windows into longer noise

  const bool feedback_;
  std::vector<float> noise_, data_, residual_, next_;
  std::vector<std::pair<size_t, std::unique_ptr<bench::CodecCalls>>> buckets_;  // where they begin
  std::vector<size_t> sizes_;
  size_t steps_ = 0;
};

void Serve(Step& step) {
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "go") {
      const double start_s = NowSeconds();
      const size_t bytes = step.Run();
      std::printf("[%.9f, %.9f, %zu]\n", start_s, NowSeconds(), bytes);
    } else if (line == "check") {
      std::printf("[0, %zu]\n", step.NonZero());
    } else {
      step.Prepare();
      std::puts("ready");
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (argc != 7) weir::Die("expected CODEC RATIO RANK WORLD ELEMENTS BUCKETS");
  const auto codec = weir::Codecs().Find(argv[1]);
  if (!codec.ok()) weir::Die(weir::ToString(codec.status()));
  const weir::CodecTraits& traits = (*codec)->Traits();
  if (traits.needs_momentum || traits.ef21 || traits.rounds != 1) return 3;
  weir::Step step(**codec, std::stod(argv[2]), std::stoi(argv[3]), std::stoi(argv[4]),
                  std::stoull(argv[5]), std::stoull(argv[6]));
  weir::Serve(step);
}
