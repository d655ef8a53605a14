// SPDX-License-Identifier: Apache-2.0
// One row for every codec of the registry, setting and ratio: time over memcpy of the same tensor,
// size, loss, and what PyTorch offers for the same job, all in one run. A table for people on
// standard output, a JSON array for programs.
//
//   codec_table [--json FILE] [--elements N] [--quick] [--codecs a,b] [--no-peers]
//
// Times are medians of warm steps that alternate with memcpy and with the peer: encode is
// EncodeWithFeedback where the codec needs it, plain is Encode, both of all rounds; max the pass
// for the shared maximum where there is one. The goal of a selector is judged by encode, that of
// any other codec by plain, since feedback alone moves half as much memory again. peer/ours counts
// encode and max. The loss is that of a first step on N(0, 1)-like input, without residual.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/codec_names.h"
#include "tests/bench/codec_peers.h"
#include "tests/bench/normal_numbers.h"

namespace weir {
namespace {

constexpr size_t kElements = 25'600'000;  // ResNet-50
constexpr size_t kQuickElements = 2'560'000;
constexpr size_t kSlack = 1 << 16;  // gradients of different steps are windows into longer noise
constexpr uint64_t kMatrix = 1024;  // the bucket's tensors: matrices of this size, then a vector
constexpr int kWorld = 4;
constexpr double kRatios[] = {0.1, 0.01, 0.001};
constexpr int kWarmUp = 8, kRepetitions = 9, kPeerRepetitions = 3;
constexpr int kOwnWarmUpMax = 300;  // steps in which a codec may send more than asked
constexpr int kPlainWarmUp = 3, kPlainRepetitions = 5;

struct Options {
  std::string json;
  size_t elements = kElements;
  std::vector<std::string> codecs;  // empty: all
  bool peers = true;
};

/// One setting of one codec.
struct Case {
  const Codec* codec;
  CodecParams params;
  int world;
};

/// Speed goals on one core, over memcpy; 0: none.
struct Goals {
  double encode = 0, decode = 0;
};

Goals GoalsOf(const Case& which, double bits_per_element) {
  const CodecTraits& traits = which.codec->Traits();
  if (traits.rounds > 1) return {};
  const bool sparse = traits.uses_ratio && traits.form == PayloadForm::kOpaque;
  const double decode = sparse && which.params.ratio <= 0.01 ? 0.25 : 0;
  if (traits.rotated) return {3, decode};
  if (traits.uses_ratio) return {1.5, decode};
  return {bits_per_element <= 1.25 ? 1.0 : 1.3, decode};
}

std::vector<Case> CasesOf(const Codec& codec) {
  const CodecTraits& traits = codec.Traits();
  std::vector<Case> cases;
  std::vector<int> seen;
  for (const CodecSetting& setting : traits.settings) {
    if (std::find(seen.begin(), seen.end(), setting.bits) != seen.end()) continue;
    seen.push_back(setting.bits);
    const bool fits = FindSetting(traits, {.bits = setting.bits}, kWorld) != nullptr;
    const int world = fits ? kWorld : setting.world_min;
    if (!traits.uses_ratio) cases.push_back({&codec, {.bits = setting.bits}, world});
    for (const double ratio : kRatios) {
      if (!traits.uses_ratio || ratio < traits.ratio_min || ratio > traits.ratio_max) continue;
      cases.push_back({&codec, {.ratio = ratio, .bits = setting.bits}, world});
    }
  }
  return cases;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename F>
double Timed(F&& run) {
  const TimePoint begin = RealClock().Now();
  run();
  return ToSeconds(RealClock().Now() - begin);
}

/// Square matrices, a shorter one, and a vector of what is left.
std::vector<TensorShape> ShapeFor(size_t n) {
  std::vector<TensorShape> shape(n / (kMatrix * kMatrix), TensorShape{kMatrix, kMatrix});
  const size_t left = n % (kMatrix * kMatrix);
  if (left >= kMatrix) shape.push_back({left / kMatrix, kMatrix});
  if (left % kMatrix != 0) shape.push_back({1, left % kMatrix});
  return shape;
}

/// The buffers that all cases use, allocated and touched once.
struct Buffers {
  explicit Buffers(size_t n)
      : size(n), noise(n + kSlack), residual(n), next(n), other(n), shape(ShapeFor(n)) {
    bench::FillNormal(noise, 2);
  }
  size_t size;
  std::vector<float> noise, residual, next, other, momentum, momentum_next;
  std::vector<TensorShape> shape;
  std::vector<std::byte> payload;
};

/// Runs one case.
class Runner {
 public:
  Runner(const Case& which, Buffers& buffers)
      : case_(which), codec_(*which.codec), traits_(codec_.Traits()), buffers_(buffers) {
    std::fill(buffers.residual.begin(), buffers.residual.end(), 0.0f);
    if (traits_.needs_momentum) {
      buffers.momentum.assign(buffers.size, 0.0f);
      buffers.momentum_next.assign(buffers.size, 0.0f);
    }
    context_.params = which.params;
    context_.world = which.world;
    context_.shape = buffers.shape;
    state_ = codec_.NewState(buffers.size, context_);
    buffers.payload.resize(codec_.MaxEncodedBytes(buffers.size, context_));
  }

  /// Bits and loss of a stateless first step.
  EncodeResult First() { return Encode(/*feedback=*/false); }

  /// Runs one step as a session does; sets the seconds of the encode with and without the shared
  /// maximum.
  void Step() {
    context_.state = state_.get();
    warm_ = true;
    encode_s_ = Timed([&] { Encode(traits_.needs_error_feedback); });
    encode_s_ -= shared_max_s_;  // set meanwhile
    buffers_.residual.swap(buffers_.next);
    buffers_.momentum.swap(buffers_.momentum_next);
    decode_s_ = Timed([&] { Decode(); });
  }

  /// Encode without residual and on the state as it is; the payload is overwritten.
  double PlainSeconds() {
    const double seconds = Timed([&] { Encode(/*feedback=*/false); });
    return seconds - (traits_.shared_metadata == SharedMetadata::kMax ? shared_max_s_ : 0);
  }

  double encode_s() const { return encode_s_; }
  double shared_max_s() const { return shared_max_s_; }
  double decode_s() const { return decode_s_; }
  size_t bytes() const { return bytes_; }
  std::span<const float> gradient() const {
    return std::span(buffers_.noise).subspan(step_ * 112 % kSlack, buffers_.size);
  }

 private:
  EncodeResult Encode(bool feedback) {
    context_.seed = ++step_;
    context_.momentum = {};
    context_.previous = {};
    if (traits_.needs_momentum && warm_) {
      context_.momentum = {buffers_.momentum, buffers_.momentum_next};
    }
    const std::span<const float> residual =
        feedback ? std::span<const float>(buffers_.residual) : std::span<const float>();
    if (traits_.shared_metadata == SharedMetadata::kMax) {
      shared_max_s_ =
          Timed([&] { context_.shared_max = codec_.LocalMax(gradient(), residual, context_); });
    }
    bytes_ = 0;
    EncodeResult last;
    for (context_.round = 0; context_.round < traits_.rounds; ++context_.round) {
      const std::span<std::byte> payload(buffers_.payload);
      context_.previous = payload.first(bytes_);
      const auto result = feedback ? codec_.EncodeWithFeedback(gradient(), residual, buffers_.next,
                                                               context_, payload.subspan(bytes_))
                                   : codec_.Encode(gradient(), context_, payload.subspan(bytes_));
      if (!result.ok()) std::fprintf(stderr, "%s\n", ToString(result.status()).c_str());
      WEIR_CHECK(result.ok());
      last = *result;
      bytes_ += last.bytes;
    }
    return last;
  }

  void Decode() {
    const auto payload = std::span<const std::byte>(buffers_.payload).first(bytes_);
    if (HoldsIndicesOnly(traits_.form)) {
      WEIR_CHECK(codec_.DecodeIndices(payload, buffers_.size, &indices_).ok());
      for (const uint32_t i : indices_) buffers_.residual[i] = 0;
      return;
    }
    WEIR_CHECK(codec_.DecodeAdd(payload, context_, 0.25f, buffers_.other).ok());
    codec_.Finish(context_, 0.25f, buffers_.other);
  }

  const Case case_;
  const Codec& codec_;
  const CodecTraits& traits_;
  Buffers& buffers_;
  EncodeContext context_;
  std::unique_ptr<CodecState> state_;
  std::vector<uint32_t> indices_;
  uint64_t step_ = 0;
  bool warm_ = false;  // past the first encode: state and momentum are used
  size_t bytes_ = 0;
  double encode_s_ = 0, shared_max_s_ = 0, decode_s_ = 0;
};

nlohmann::json Measure(const Case& which, Buffers& buffers, CodecPeers& peers) {
  const CodecTraits& traits = which.codec->Traits();
  Runner runner(which, buffers);
  const EncodeResult first = runner.First();
  const double loss = first.energy_in > 0 ? first.energy_lost / first.energy_in : 0;
  const double bits = 8.0 * static_cast<double>(runner.bytes()) / static_cast<double>(buffers.size);
  for (int i = 0; i < kWarmUp; ++i) runner.Step();
  // Codecs with a warm-up of their own send more than the first, stateless call until it is over.
  const size_t bytes_settled = first.bytes + first.bytes / 2 + kSlack;
  for (int i = 0; i < kOwnWarmUpMax && runner.bytes() > bytes_settled; ++i) runner.Step();
  std::vector<double> copy, encode, plain, shared_max, decode, peer;
  std::string peer_name;
  for (int i = 0; i < kRepetitions; ++i) {
    copy.push_back(Timed([&] {
      std::memcpy(buffers.other.data(), runner.gradient().data(), buffers.size * sizeof(float));
    }));
    runner.Step();
    encode.push_back(runner.encode_s());
    shared_max.push_back(runner.shared_max_s());
    decode.push_back(runner.decode_s());
    if (i >= kPeerRepetitions) continue;
    const CodecPeers::Answer answer = peers.Run(which.codec->Traits(), which.params, bits);
    peer_name = answer.name;
    if (!answer.name.empty()) peer.push_back(answer.seconds);
  }
  // This runs last, because it changes the state and would disturb the steps.
  for (int i = 0; i < kPlainWarmUp + kPlainRepetitions; ++i) {
    const double seconds = runner.PlainSeconds();
    if (i >= kPlainWarmUp) plain.push_back(seconds);
  }
  const double unit = Median(copy), ours = Median(encode) + Median(shared_max);
  const Goals goals = GoalsOf(which, bits);
  const double encode_ratio = Median(encode) / unit, decode_ratio = Median(decode) / unit;
  nlohmann::json missed = nlohmann::json::array();
  const double plain_ratio = Median(plain) / unit;
  const double judged = traits.uses_ratio ? encode_ratio : plain_ratio;
  if (goals.encode > 0 && judged > goals.encode) missed.push_back("encode");
  if (goals.decode > 0 && decode_ratio > goals.decode) missed.push_back("decode");
  return {{"codec", traits.name},
          {"params",
           {{"ratio", traits.uses_ratio ? which.params.ratio : 1},
            {"bits", which.params.bits},
            {"world", which.world}}},
          {"elements", buffers.size},
          {"feedback", traits.needs_error_feedback},
          {"memcpy_ms", unit * 1e3},
          {"encode_over_memcpy", encode_ratio},
          {"plain_over_memcpy", plain_ratio},
          {"shared_max_over_memcpy", Median(shared_max) / unit},
          {"decode_over_memcpy", decode_ratio},
          {"bits_per_element", bits},
          {"relative_error", std::sqrt(loss)},
          {"gain", 1 - loss},
          {"peer", peer_name},
          {"peer_over_ours", ours > 0 ? Median(peer) / ours : 0},
          {"encode_goal", goals.encode},
          {"decode_goal", goals.decode},
          {"goals_missed", missed}};
}

void PrintHeader() {
  std::printf("%-30s %7s %4s %5s %8s %7s %7s %8s %8s %8s %7s  %-26s %9s\n", "codec", "ratio",
              "bits", "world", "encode", "plain", "max", "decode", "bits/el", "rel.err", "gain",
              "peer", "peer/ours");
}

void PrintRow(const nlohmann::json& row) {
  std::string missed;
  for (const auto& each : row["goals_missed"]) missed += " !" + each.get<std::string>();
  std::printf("%-30s %7g %4d %5d %8.2f %7.2f %7.2f %8.2f %8.3f %8.4f %7.4f  %-26s %9.2f%s\n",
              row["codec"].get<std::string>().c_str(), row["params"]["ratio"].get<double>(),
              row["params"]["bits"].get<int>(), row["params"]["world"].get<int>(),
              row["encode_over_memcpy"].get<double>(), row["plain_over_memcpy"].get<double>(),
              row["shared_max_over_memcpy"].get<double>(), row["decode_over_memcpy"].get<double>(),
              row["bits_per_element"].get<double>(), row["relative_error"].get<double>(),
              row["gain"].get<double>(), row["peer"].get<std::string>().c_str(),
              row["peer_over_ours"].get<double>(), missed.c_str());
  std::fflush(stdout);
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

/// Returns false after printing the reason.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (flag == "--quick") {
      options->elements = kQuickElements;
    } else if (flag == "--no-peers") {
      options->peers = false;
    } else if (flag == "--json" && value != nullptr) {
      options->json = argv[++i];
    } else if (flag == "--codecs" && value != nullptr) {
      options->codecs = Split(argv[++i]);
    } else if (flag == "--elements" && value != nullptr && std::atoll(value) > 0) {
      options->elements = static_cast<size_t>(std::atoll(argv[++i]));
    } else {
      std::fprintf(stderr,
                   "usage: codec_table [--json FILE] [--elements N] [--quick] [--codecs a,b]"
                   " [--no-peers]\n");
      return false;
    }
  }
  for (const std::string& name : options->codecs) {
    const auto codec = Codecs().Find(name);
    if (codec.ok()) continue;
    std::fprintf(stderr, "codec_table: %s\n", ToString(codec.status()).c_str());
    return false;
  }
  return true;
}

int Run(const Options& options) {
  Buffers buffers(options.elements);
  CodecPeers peers(options.peers, options.elements);
  nlohmann::json rows = nlohmann::json::array();
  std::printf(
      "%zu elements; encode, plain, max and decode over memcpy of the same tensor; ! misses its "
      "goal\n",
      options.elements);
  PrintHeader();
  for (const Codec* codec : Codecs().All()) {
    const auto& names = options.codecs;
    if (!names.empty() &&
        std::find(names.begin(), names.end(), codec->Traits().name) == names.end()) {
      continue;
    }
    for (const Case& each : CasesOf(*codec)) {
      rows.push_back(Measure(each, buffers, peers));
      PrintRow(rows.back());
    }
  }
  if (options.json.empty()) return 0;
  std::ofstream file(options.json);
  file << rows.dump(1) << '\n';
  if (file.flush()) return 0;
  std::fprintf(stderr, "codec_table: cannot write %s\n", options.json.c_str());
  return 1;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::Options options;
  if (!weir::Parse(argc, argv, &options)) return 2;
  return weir::Run(options);
}
