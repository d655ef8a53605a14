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
#include "datapath/codec/residual/error_feedback.h"
#include "tests/bench/normal_numbers.h"

namespace weir {
namespace {

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "codec_step: %s\n", why.c_str());
  std::exit(2);
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<float> Normal(size_t n, uint64_t seed) {
  std::vector<float> x(n);
  bench::FillNormal(x, seed);
  return x;
}

struct Bucket {
  size_t begin = 0, size = 0;
  std::unique_ptr<CodecState> state;
  std::vector<std::byte> room;                   // of the own payload
  std::vector<std::vector<std::byte>> payloads;  // of all ranks
};

class Step {
 public:
  Step(const Codec& codec, double ratio, int rank, int world, size_t elements, size_t buckets)
      : codec_(codec), rank_(rank), noise_(Normal(elements + kSlack, 1 + rank)), data_(elements) {
    context_.params.ratio = ratio;
    context_.world = world;
    if (Status s = codec.Validate(context_.params, world); !s.ok()) Die(ToString(s));
    for (size_t b = 0; b < buckets; ++b)
      AddBucket(elements * b / buckets, elements * (b + 1) / buckets);
  }

  void Prepare() {
    const size_t at = ++steps_ * 112 % kSlack;
    std::copy_n(noise_.begin() + at, data_.size(), data_.begin());
  }

  size_t Run() {
    size_t bytes = 0;
    ++context_.seed;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      Encode(b);
      Decode(buckets_[b]);
      bytes += buckets_[b].payloads[rank_].size();
    }
    residuals_.Commit();
    return bytes;
  }

  size_t NonZero() const {
    return data_.size() - static_cast<size_t>(std::count(data_.begin(), data_.end(), 0.0f));
  }

 private:
  static constexpr size_t kSlack = 1 << 16;

  std::span<float> Part(const Bucket& bucket) {
    return std::span(data_).subspan(bucket.begin, bucket.size);
  }

  // The payloads of others stay the same for all steps.
  void AddBucket(size_t begin, size_t end) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.begin = begin;
    bucket.size = end - begin;
    if (Status s = residuals_.Define(buckets_.size() - 1, {{StrCat("part", begin), bucket.size}});
        !s.ok()) {
      Die(ToString(s));
    }
    bucket.state = codec_.NewState(bucket.size, context_);
    bucket.room.resize(codec_.MaxEncodedBytes(bucket.size, context_));
    for (int rank = 0; rank < context_.world; ++rank) {
      context_.rank = rank;
      const std::vector<float> x = Normal(bucket.size, 1000 + begin + rank);
      context_.shared_max = codec_.LocalMax(x, {}, context_);
      Keep(bucket, rank, codec_.Encode(x, context_, bucket.room));
    }
    context_.rank = rank_;
  }

  void Keep(Bucket& bucket, int rank, const StatusOr<EncodeResult>& result) {
    if (!result.ok()) Die(ToString(result.status()));
    bucket.payloads.resize(context_.world);
    bucket.payloads[rank].assign(bucket.room.begin(), bucket.room.begin() + result->bytes);
  }

  void Encode(size_t index) {
    Bucket& bucket = buckets_[index];
    const std::span<float> x = Part(bucket);
    const auto residual = residuals_.BeginEncode(index);
    if (!residual.ok()) Die(ToString(residual.status()));
    context_.state = bucket.state.get();
    if (shares_max_) context_.shared_max = codec_.LocalMax(x, residual->current, context_);
    Keep(bucket, rank_,
         codec_.EncodeWithFeedback(x, residual->current, residual->next, context_, bucket.room));
  }

  // Lanes are summed on the way, so only one payload is left to decode.
  void Decode(Bucket& bucket) {
    const std::span<float> out = Part(bucket);
    const float scale = 1.0f / static_cast<float>(context_.world);
    Status status;
    if (codec_.Traits().form == PayloadForm::kLanes) {
      std::fill(out.begin(), out.end(), 0.0f);
      status = codec_.DecodeAdd(bucket.payloads[rank_], context_, scale, out);
      codec_.Finish(context_, scale, out);
    } else {
      status = codec_.DecodeSum(bucket.payloads, context_, scale, out, [](std::span<float> part) {
        kernels::ScaleFinite(part.data(), part.size(), 1);
      });
    }
    if (!status.ok()) Die(ToString(status));
  }

  const Codec& codec_;
  const bool shares_max_ = codec_.Traits().shared_metadata == SharedMetadata::kMax;
  const int rank_;
  EncodeContext context_;
  std::vector<float> noise_, data_;
  ResidualStore residuals_;
  std::vector<Bucket> buckets_;
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
