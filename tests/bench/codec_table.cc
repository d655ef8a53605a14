// SPDX-License-Identifier: Apache-2.0
// The cost of a step on one rank, for every codec of the registry, setting and ratio: the shared
// maximum, encode with its residual and statistics of state, and the decoding of all that arrives
// in a world of 4 and of 8. Times are in times of memcpy of the same tensor. Beside them stand the
// floor that follows from the bytes that must move, instructions, size, loss, and what PyTorch
// offers for the same job, all in one run. A table for people on standard output, a JSON array for
// programs.
//
//   codec_table [--json FILE] [--elements N] [--quick] [--codecs a,b] [--no-peers]
//   [--no-instructions]
//
// Times are medians of warm steps that alternate with memcpy and with the peer. Instructions are
// counted by a second run of this program under callgrind, which has no vectors beyond AVX2. The
// loss is that of a first step on normal input, without residual.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
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
#include "datapath/codec/kernels/kernels.h"
#include "tests/bench/codec_calls.h"
#include "tests/bench/codec_peers.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_DUMP_STATS_AT(label)
#endif

namespace weir {
namespace {

constexpr size_t kElements = 25'600'000;  // ResNet-50
constexpr size_t kQuickElements = 2'560'000;
constexpr size_t kCountedElements = 1 << 18;
constexpr size_t kSlack = 1 << 16;  // gradients of different steps are windows into longer noise
constexpr uint64_t kMatrix = 1024;  // the bucket's tensors: matrices of this size, then a vector
constexpr int kWorld = 4, kLargerWorld = 8;
constexpr double kRatios[] = {0.1, 0.01, 0.001};
constexpr int kWarmUp = 6, kRepetitions = 9, kPeerRepetitions = 3;
constexpr int kOwnWarmUpMax = 300;  // steps in which a codec may send more than asked
constexpr double kCopied = 8;       // bytes that memcpy moves per element

struct Options {
  std::string json;
  size_t elements = kElements;
  std::vector<std::string> codecs;  // empty: all
  bool peers = true, instructions = true;
  bool counted = false;  // this is the second run
};

/// One setting of one codec.
struct Case {
  const Codec* codec;
  CodecParams params;
  int world;  // kWorld, or the least that the setting is for

  bool Fits(int world) const { return FindSetting(codec->Traits(), params, world) != nullptr; }
  std::string Name() const {
    return StrCat(codec->Traits().name, "|", params.ratio, "|", params.bits);
  }
};

/// Speed goals on one core, over memcpy; 0: none.
struct Goals {
  double encode = 0, decode = 0;
};

/// decode is that of one payload.
Goals GoalsOf(const Case& which, double bits_per_element) {
  const CodecTraits& traits = which.codec->Traits();
  const bool sparse =
      traits.uses_ratio && traits.form == PayloadForm::kOpaque && which.params.ratio <= 0.01;
  const double decode = sparse ? 0.15 : traits.form == PayloadForm::kLanes ? 0.8 : 0;
  if (traits.rotated || traits.rounds > 1) return {2.5, decode};
  if (traits.uses_ratio) return {1.6, decode};
  if (bits_per_element > 9.5) return {1.0, decode};
  return {bits_per_element <= 1.25 ? 1.5 : 1.6, decode};
}

/// Bytes per element that encode must move, over memcpy's: gradient and residual are read once by
/// the maximum, once by every round and, after several rounds, once more for the new residual;
/// residual and payload are written.
double EncodeFloor(const CodecTraits& traits, double bits_per_element) {
  const double input = traits.needs_error_feedback ? 8 : 4;
  const bool reads_again = traits.rounds > 1 && traits.needs_error_feedback;
  const int passes = traits.rounds + (reads_again ? 1 : 0) +
                     (traits.shared_metadata == SharedMetadata::kMax ? 1 : 0);
  const double momentum = traits.needs_momentum ? 8 : 0;
  return (passes * input + momentum + (traits.needs_error_feedback ? 4 : 0) +
          bits_per_element / 8) /
         kCopied;
}

/// The same of what decoding must move: payloads are read, the sum is written; lanes are added
/// before.
double DecodeFloor(const CodecTraits& traits, double bits_per_element, int world) {
  const double payload = bits_per_element / 8;
  if (traits.form == PayloadForm::kOpaque) return (world * payload + 4) / kCopied;
  if (HoldsIndicesOnly(traits.form)) return (payload + 4) / kCopied;
  return (3 * payload * (world - 1) / world + payload + 4) / kCopied;
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
      : size(n), noise(n + kSlack), residual(n), next(n), out(n), shape(ShapeFor(n)) {
    bench::FillNormal(noise, 2);
  }
  const size_t size;
  std::vector<float> noise, residual, next, out;
  const std::vector<TensorShape> shape;
};

/// Runs the steps of one case in one world.
class Runner {
 public:
  Runner(const Case& which, int world, Buffers& buffers)
      : feedback_(which.codec->Traits().needs_error_feedback),
        buffers_(buffers),
        calls_(*which.codec, which.params, 0, world, buffers.size, buffers.shape) {
    std::fill(buffers.residual.begin(), buffers.residual.end(), 0.0f);
  }

  /// Bits and loss of a stateless first step.
  EncodeResult First() { return Checked(calls_.EncodeAlone(gradient())); }

  void Max() { calls_.BeginStep(gradient(), residual()); }
  void Encode() {
    Checked(calls_.Encode(gradient(), residual(),
                          feedback_ ? std::span<float>(buffers_.next) : std::span<float>()));
    buffers_.residual.swap(buffers_.next);
    ++step_;
  }
  void Decode() {
    WEIR_CHECK(calls_
                   .Decode(buffers_.out,
                           [](std::span<float> part) {
                             kernels::ScaleFinite(part.data(), part.size(), 1);
                           })
                   .ok());
  }
  void DecodeOne() { (void)calls_.DecodeOne(buffers_.out); }

  void WarmUp(int steps, size_t first_bytes) {
    for (int i = 0; i < steps; ++i) Step();
    // Codecs with a warm-up of their own send more than the first, stateless call until it is over.
    const size_t settled = first_bytes + first_bytes / 2 + kSlack;
    for (int i = 0; i < kOwnWarmUpMax && calls_.payload_bytes() > settled; ++i) Step();
  }
  void Step() {
    Max();
    Encode();
    Decode();
  }

  std::span<const float> gradient() const {
    return std::span(buffers_.noise).subspan(step_ * 112 % kSlack, buffers_.size);
  }

 private:
  std::span<const float> residual() const {
    return feedback_ ? std::span<const float>(buffers_.residual) : std::span<const float>();
  }
  static EncodeResult Checked(const StatusOr<EncodeResult>& result) {
    if (!result.ok()) std::fprintf(stderr, "%s\n", ToString(result.status()).c_str());
    WEIR_CHECK(result.ok());
    return *result;
  }

  const bool feedback_;
  Buffers& buffers_;
  bench::CodecCalls calls_;
  uint64_t step_ = 0;
};

struct Peer {
  std::string name;
  double seconds = 0;
};

/// Seconds of a step's parts in one world, and of memcpy beside them.
struct Times {
  double copy = 0, max = 0, encode = 0, decode = 0, decode_one = 0;
  EncodeResult first = {};
  Peer peer = {};

  double whole() const { return (max + encode + decode) / copy; }
};

Times Measure(const Case& which, int world, Buffers& buffers, CodecPeers* peers) {
  Runner runner(which, world, buffers);
  Times out{.first = runner.First()};
  runner.WarmUp(kWarmUp, out.first.bytes);
  const double bits =
      8.0 * static_cast<double>(out.first.bytes) / static_cast<double>(buffers.size);
  std::vector<double> copy, max, encode, decode, decode_one, peer;
  for (int i = 0; i < kRepetitions; ++i) {
    copy.push_back(Timed([&] {
      std::memcpy(buffers.out.data(), runner.gradient().data(), buffers.size * sizeof(float));
    }));
    max.push_back(Timed([&] { runner.Max(); }));
    encode.push_back(Timed([&] { runner.Encode(); }));
    decode.push_back(Timed([&] { runner.Decode(); }));
    decode_one.push_back(Timed([&] { runner.DecodeOne(); }));
    if (peers == nullptr || i >= kPeerRepetitions) continue;
    const CodecPeers::Answer answer = peers->Run(which.codec->Traits(), which.params, bits);
    out.peer.name = answer.name;
    if (!answer.name.empty()) peer.push_back(answer.seconds);
  }
  out.copy = Median(copy), out.max = Median(max), out.encode = Median(encode);
  out.decode = Median(decode), out.decode_one = Median(decode_one), out.peer.seconds = Median(peer);
  return out;
}

// ---- instructions

using Counts = std::map<std::string, double>;  // of "codec|ratio|bits|part"

/// One step's parts, each collected by itself; in the run under callgrind.
void CountOne(const Case& which, Buffers& buffers) {
  Runner runner(which, which.world, buffers);
  runner.WarmUp(2, runner.First().bytes);
  const auto collect = [&](const char* part, auto&& run) {
    const std::string label = StrCat(which.Name(), "|", part);
    CALLGRIND_TOGGLE_COLLECT;
    run();
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(label.c_str());
  };
  collect("encode", [&] {
    runner.Max();
    runner.Encode();
  });
  collect("decode", [&] { runner.Decode(); });
}

/// The label and the sum in a file of callgrind's.
void ReadCounts(const std::filesystem::path& file, Counts* counts) {
  constexpr std::string_view kLabel = "desc: Trigger: Client Request: ", kTotals = "totals: ";
  std::ifstream in(file);
  std::string label;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(kLabel)) label = line.substr(kLabel.size());
    if (line.starts_with(kTotals))
      (*counts)[label] = std::strtod(line.c_str() + kTotals.size(), nullptr);
  }
}

/// Runs this program again under callgrind. Empty, and a line says so, where that is impossible.
Counts CountInstructions(const Options& options) {
  char directory[] = "/tmp/codec_table.XXXXXX";
  if (!options.instructions || mkdtemp(directory) == nullptr) return {};
  std::string names;
  for (const std::string& name : options.codecs) names += (names.empty() ? "" : ",") + name;
  std::vector<std::string> words = {"valgrind",
                                    "-q",
                                    "--tool=callgrind",
                                    "--collect-atstart=no",
                                    StrCat("--callgrind-out-file=", directory, "/counts"),
                                    std::filesystem::read_symlink("/proc/self/exe"),
                                    "--counted"};
  if (!names.empty()) words.insert(words.end(), {"--codecs", names});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  Counts counts;
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0) {
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      ReadCounts(entry.path(), &counts);
  }
  if (counts.empty())
    std::fprintf(stderr, "codec_table: no instructions are counted: valgrind did not run\n");
  std::filesystem::remove_all(directory);
  return counts;
}

// ---- rows

nlohmann::json RowOf(const Case& which, Buffers& buffers, CodecPeers& peers, const Counts& counts) {
  const CodecTraits& traits = which.codec->Traits();
  const Times times = Measure(which, which.world, buffers, &peers);
  const double loss =
      times.first.energy_in > 0 ? times.first.energy_lost / times.first.energy_in : 0;
  const double bits =
      8.0 * static_cast<double>(times.first.bytes) / static_cast<double>(buffers.size);
  const Goals goals = GoalsOf(which, bits);
  const double encode = (times.max + times.encode) / times.copy,
               one = times.decode_one / times.copy;
  nlohmann::json missed = nlohmann::json::array();
  if (goals.encode > 0 && encode > goals.encode) missed.push_back("encode");
  if (goals.decode > 0 && one > goals.decode) missed.push_back("decode");
  nlohmann::json row = {{"codec", traits.name},
                        {"params",
                         {{"ratio", traits.uses_ratio ? which.params.ratio : 1},
                          {"bits", which.params.bits},
                          {"world", which.world}}},
                        {"elements", buffers.size},
                        {"feedback", traits.needs_error_feedback},
                        {"memcpy_ms", times.copy * 1e3},
                        {"shared_max_over_memcpy", times.max / times.copy},
                        {"encode_over_memcpy", encode},
                        {"encode_floor", EncodeFloor(traits, bits)},
                        {"decode_one_over_memcpy", one},
                        {"decode_over_memcpy", times.decode / times.copy},
                        {"decode_floor", DecodeFloor(traits, bits, which.world)},
                        {"step_over_memcpy", times.whole()},
                        {"bits_per_element", bits},
                        {"relative_error", std::sqrt(loss)},
                        {"gain", 1 - loss},
                        {"peer", times.peer.name},
                        {"peer_over_ours", times.peer.seconds / (times.max + times.encode)},
                        {"encode_goal", goals.encode},
                        {"decode_goal", goals.decode},
                        {"goals_missed", missed}};
  if (which.world == kWorld && which.Fits(kLargerWorld)) {
    row["step_over_memcpy_of_8"] = Measure(which, kLargerWorld, buffers, nullptr).whole();
  }
  for (const char* part : {"encode", "decode"}) {
    const auto found = counts.find(StrCat(which.Name(), "|", part));
    if (found != counts.end())
      row[StrCat(part, "_instructions")] = found->second / kCountedElements;
  }
  return row;
}

void PrintHeader() {
  std::printf(
      "%-30s %6s %4s | %6s %6s %6s | %6s %6s %6s | %6s %6s | %7s %7s | %7s %8s %7s  %-26s %9s\n",
      "codec", "ratio", "bits", "max", "encode", "floor", "one", "decode", "floor", "of 4", "of 8",
      "i.enc", "i.dec", "bits/el", "rel.err", "gain", "peer", "peer/ours");
}

double Number(const nlohmann::json& row, const char* key) { return row.value(key, std::nan("")); }

void PrintRow(const nlohmann::json& row) {
  std::string missed;
  for (const auto& each : row["goals_missed"]) missed += " !" + each.get<std::string>();
  std::printf(
      "%-30s %6g %4d | %6.2f %6.2f %6.2f | %6.2f %6.2f %6.2f | %6.2f %6.2f | %7.2f %7.2f | %7.3f "
      "%8.4f %7.4f"
      "  %-26s %9.2f%s\n",
      row["codec"].get<std::string>().c_str(), row["params"]["ratio"].get<double>(),
      row["params"]["bits"].get<int>(), Number(row, "shared_max_over_memcpy"),
      Number(row, "encode_over_memcpy"), Number(row, "encode_floor"),
      Number(row, "decode_one_over_memcpy"), Number(row, "decode_over_memcpy"),
      Number(row, "decode_floor"), Number(row, "step_over_memcpy"),
      Number(row, "step_over_memcpy_of_8"), Number(row, "encode_instructions"),
      Number(row, "decode_instructions"), Number(row, "bits_per_element"),
      Number(row, "relative_error"), Number(row, "gain"), row["peer"].get<std::string>().c_str(),
      Number(row, "peer_over_ours"), missed.c_str());
  std::fflush(stdout);
}

// ---- the program

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
    } else if (flag == "--no-instructions") {
      options->instructions = false;
    } else if (flag == "--counted") {
      options->counted = true;
    } else if (flag == "--json" && value != nullptr) {
      options->json = argv[++i];
    } else if (flag == "--codecs" && value != nullptr) {
      options->codecs = Split(argv[++i]);
    } else if (flag == "--elements" && value != nullptr && std::atoll(value) > 0) {
      options->elements = static_cast<size_t>(std::atoll(argv[++i]));
    } else {
      std::fprintf(stderr,
                   "usage: codec_table [--json FILE] [--elements N] [--quick] [--codecs a,b]"
                   " [--no-peers] [--no-instructions]\n");
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

std::vector<Case> CasesOf(const Options& options) {
  std::vector<Case> cases;
  const auto& names = options.codecs;
  for (const Codec* codec : Codecs().All()) {
    if (!names.empty() &&
        std::find(names.begin(), names.end(), codec->Traits().name) == names.end())
      continue;
    for (const Case& each : CasesOf(*codec)) cases.push_back(each);
  }
  return cases;
}

int Run(const Options& options) {
  if (options.counted) {
    Buffers buffers(kCountedElements);
    for (const Case& each : CasesOf(options)) CountOne(each, buffers);
    return 0;
  }
  const Counts counts = CountInstructions(options);
  Buffers buffers(options.elements);
  CodecPeers peers(options.peers, options.elements);
  nlohmann::json rows = nlohmann::json::array();
  std::printf(
      "%zu elements; times over memcpy of the same tensor; encode contains max, decode is that of "
      "all that\n"
      "arrives in a world of 4; of 4, of 8: the whole step; i: instructions per element; ! misses "
      "its goal\n",
      options.elements);
  PrintHeader();
  for (const Case& each : CasesOf(options)) {
    rows.push_back(RowOf(each, buffers, peers, counts));
    PrintRow(rows.back());
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
