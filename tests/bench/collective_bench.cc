// All-reduce of float32 over loopback TCP: Weir's collectives beside Gloo's (what PyTorch runs on
// CPUs), taking turns in the same processes. Ranks are forked processes. Prints one JSON line per
// world, size and contestant; times are from the last rank's start to the last rank's end.
//
//   collective_bench [--ranks 2,4] [--bytes 1024,65536] [--only ring,gloo_ring] [--seconds 2]
//   [--segment 262144]

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

constexpr int kRanksMax = 16;
constexpr int kRoundsMax = 400;
constexpr int kWarmupRounds = 3;

struct Options {
  std::vector<int> ranks = {2, 4};
  std::vector<size_t> bytes = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> only;
  size_t segment_bytes = kSegmentBytesDefault;
  double seconds = 2;  // per world, size and contestant, about
};

// What the ranks share: addresses to meet, and one round's times.
struct Shared {
  std::atomic<int> ready;
  char addresses[kRanksMax][64];
  double start_s[kRanksMax];
  double end_s[kRanksMax];
  double cpu_s[kRanksMax];
};

struct Sample {
  double wall_s = 0;
  double cpu_s = 0;  // of all ranks and threads: what is left on a machine that others use, too
};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double NowSeconds() { return ToSeconds(RealClock().Now().time_since_epoch()); }
TimePoint Soon() { return RealClock().Now() + std::chrono::seconds(60); }

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "collective_bench: %s\n", what.c_str());
  std::_Exit(1);
}

void AddFloats(std::span<std::byte> sum, std::span<const std::byte> addend) {
  auto* __restrict a = reinterpret_cast<float*>(sum.data());
  const auto* __restrict b = reinterpret_cast<const float*>(addend.data());
  const size_t n = sum.size() / sizeof(float);
  for (size_t i = 0; i < n; ++i) a[i] += b[i];
}

// One rank: its Weir transport, its Gloo context and the data.
class Rank {
 public:
  Rank(int rank, int world, Shared& shared, const std::string& directory, size_t segment_bytes)
      : rank_(rank), world_(world), segment_bytes_(segment_bytes), shared_(shared) {
    ConnectWeir();
    gloo::transport::tcp::attr attributes("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(directory);
    gloo_ = std::make_shared<gloo::rendezvous::Context>(rank, world);
    gloo_->connectFullMesh(store, device);
  }

  std::map<std::string, std::function<void()>> Contestants() {
    std::map<std::string, std::function<void()>> contestants;
    contestants["gloo_ring"] = [this] { RunGloo(); };
    for (const Collective* collective : Collectives().All()) {
      if (collective->Traits().form != PayloadForm::kLanes) continue;
      contestants[collective->Traits().name] = [this, collective] { RunWeir(*collective); };
    }
    return contestants;
  }

  void Resize(size_t bytes) { values_.assign(bytes / sizeof(float), 1.0f); }

  // Times one run on all ranks. Every rank returns the same.
  Sample Round(const std::function<void()>& run) {
    Meet();
    const double cpu_before_s = CpuSeconds();
    shared_.start_s[rank_] = NowSeconds();
    run();
    shared_.end_s[rank_] = NowSeconds();
    shared_.cpu_s[rank_] = CpuSeconds() - cpu_before_s;
    Meet();
    Sample sample;
    sample.wall_s = *std::max_element(shared_.end_s, shared_.end_s + world_) -
                    *std::max_element(shared_.start_s, shared_.start_s + world_);
    for (int rank = 0; rank < world_; ++rank) sample.cpu_s += shared_.cpu_s[rank];
    Meet();  // nobody overwrites what another still reads
    return sample;
  }

  // Every element must be the world size: a fast wrong sum is no result.
  void Verify(const std::string& name, const std::function<void()>& run) {
    std::fill(values_.begin(), values_.end(), 1.0f);
    run();
    for (const float value : values_) {
      if (value != static_cast<float>(world_)) Die(StrCat(name, ": wrong sum ", value));
    }
    std::fill(values_.begin(), values_.end(), 0.0f);  // sums of zeros stay finite
  }

 private:
  void ConnectWeir() {
    TransportOptions options;
    options.rank = rank_;
    options.world = world_;
    auto transport = (*Transports().Find("tcp"))->Create(options);
    if (!transport.ok()) Die(ToString(transport.status()));
    transport_ = std::move(*transport);
    std::snprintf(shared_.addresses[rank_], sizeof shared_.addresses[rank_], "%s",
                  transport_->address().c_str());
    ++shared_.ready;
    while (shared_.ready < world_) std::this_thread::yield();
    const std::vector<TransportAddress> addresses(shared_.addresses, shared_.addresses + world_);
    if (Status status = transport_->Connect(addresses, Soon()); !status.ok()) Die(ToString(status));
  }

  void Meet() {
    Group group(*transport_);
    group.Begin({.plan_version = 0, .op_sequence = op_++, .bucket = 0}, {}, 0, Soon());
    if (Status status = Barrier(group); !status.ok()) Die(ToString(status));
  }

  void RunWeir(const Collective& collective) {
    Group group(*transport_, segment_bytes_);
    group.Begin({.plan_version = 0, .op_sequence = op_++, .bucket = 0}, {}, 0, Soon());
    Exchange exchange;
    exchange.lanes = std::as_writable_bytes(std::span(values_));
    exchange.accumulate = AddFloats;
    const auto report = collective.Run(group, exchange);
    if (!report.ok()) Die(ToString(report.status()));
  }

  void RunGloo() {
    gloo::AllreduceOptions options(gloo_);
    options.setOutput(values_.data(), values_.size());
    options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
      gloo::sum<float>(static_cast<float*>(out), static_cast<const float*>(a),
                       static_cast<const float*>(b), n);
    });
    options.setTag(tag_++);
    gloo::allreduce(options);
  }

  const int rank_, world_;
  const size_t segment_bytes_;
  Shared& shared_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<gloo::rendezvous::Context> gloo_;
  std::vector<float> values_;
  uint64_t op_ = 0;
  uint32_t tag_ = 0;
};

double Percentile(const std::vector<Sample>& samples, double Sample::*what, double p) {
  std::vector<double> sorted;
  for (const Sample& sample : samples) sorted.push_back(sample.*what);
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(p * static_cast<double>(sorted.size() - 1) + 0.5)];
}

void Print(int world, size_t bytes, const std::map<std::string, std::vector<Sample>>& times) {
  const auto gloo = times.find("gloo_ring");
  const double gloo_s = gloo == times.end() ? 0 : Percentile(gloo->second, &Sample::wall_s, 0.5);
  for (const auto& [name, samples] : times) {
    const double median_s = Percentile(samples, &Sample::wall_s, 0.5);
    std::printf(
        "{\"bench\":\"all_reduce\",\"transport\":\"tcp loopback\",\"ranks\":%d,\"bytes\":%zu,"
        "\"collective\":\"%s\",\"median_s\":%.6g,\"p10_s\":%.6g,\"p90_s\":%.6g,"
        "\"cpu_median_s\":%.6g,\"rounds\":%zu,\"over_gloo\":%.3f}\n",
        world, bytes, name.c_str(), median_s, Percentile(samples, &Sample::wall_s, 0.1),
        Percentile(samples, &Sample::wall_s, 0.9), Percentile(samples, &Sample::cpu_s, 0.5),
        samples.size(), gloo_s > 0 ? median_s / gloo_s : 0.0);
  }
  std::fflush(stdout);
}

void RunRank(int rank, int world, Shared& shared, const std::string& directory,
             const Options& options) {
  Rank self(rank, world, shared, directory, options.segment_bytes);
  auto contestants = self.Contestants();
  if (!options.only.empty()) {
    std::erase_if(contestants, [&](const auto& entry) {
      return std::find(options.only.begin(), options.only.end(), entry.first) == options.only.end();
    });
  }
  for (const size_t bytes : options.bytes) {
    self.Resize(bytes);
    for (const auto& [name, run] : contestants) self.Verify(name, run);
    std::map<std::string, std::vector<Sample>> times;
    double slowest_s = 0;
    for (int round = 0; round < kWarmupRounds; ++round) {
      for (const auto& [name, run] : contestants) {
        slowest_s = std::max(slowest_s, self.Round(run).wall_s);
      }
    }
    // Every rank saw the same times, so all count the same rounds.
    const int rounds = std::clamp(static_cast<int>(options.seconds / slowest_s), 7, kRoundsMax);
    for (int round = 0; round < rounds; ++round) {
      for (const auto& [name, run] : contestants) times[name].push_back(self.Round(run));
    }
    if (rank == 0) Print(world, bytes, times);
  }
}

int RunWorld(int world, const Options& options) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("mmap failed");
  auto* shared = new (memory) Shared();
  char directory[] = "/tmp/weir_bench_XXXXXX";
  if (mkdtemp(directory) == nullptr) Die("mkdtemp failed");
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) Die("fork failed");
    if (pid == 0) {
      try {
        RunRank(rank, world, *shared, directory, options);
      } catch (const std::exception& error) {
        Die(error.what());  // Gloo throws
      }
      std::_Exit(0);
    }
    children.push_back(pid);
  }
  int failed = 0;
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  std::filesystem::remove_all(directory);
  munmap(memory, sizeof(Shared));
  return failed;
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

Options ParseArguments(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::vector<std::string> values = Split(argv[i + 1]);
    if (flag == "--ranks") {
      options.ranks.clear();
      for (const auto& v : values) options.ranks.push_back(std::clamp(std::stoi(v), 1, kRanksMax));
    } else if (flag == "--bytes") {
      options.bytes.clear();
      for (const auto& v : values) options.bytes.push_back(std::stoull(v));
    } else if (flag == "--only") {
      options.only = values;
    } else if (flag == "--seconds") {
      options.seconds = std::stod(argv[i + 1]);
    } else if (flag == "--segment") {
      options.segment_bytes = std::stoull(argv[i + 1]);
    } else {
      Die("unknown flag " + flag + "; valid: --ranks, --bytes, --only, --seconds, --segment");
    }
  }
  return options;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  try {
    const weir::Options options = weir::ParseArguments(argc, argv);
    int failed = 0;
    for (const int world : options.ranks) failed |= weir::RunWorld(world, options);
    return failed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collective_bench: %s\n", error.what());
    return 1;
  }
}
