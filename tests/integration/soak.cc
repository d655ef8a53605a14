// SPDX-License-Identifier: Apache-2.0
// Random operations, plans, faults and re-formations for any time, from a seed. All values are
// small integers, so every sum, residual and model is exact in any order of addition, and is
// compared bit by bit:
//
//   after every step     the results are the same on all ranks that completed it; with an exact
//                        codec they are the sum
//   after every reform   all models equal that of the completed steps, and the gradients equal the
//                        model plus the residuals plus the residuals of ranks that died
//   at the end           memory and descriptors are as after a warm-up
//
//   soak [--seconds N] [--seed S] [--job J: start with that one] [--world W] [--verbose 1]

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "datapath/session/session.h"
#include "datapath/transport/fault.h"
#include "tests/support/world.h"

namespace weir {
namespace {

using testing::RunRanks;
using Values = std::vector<float>;

struct Settings {
  double seconds = 300;
  uint64_t seed = 1;
  uint64_t first_job = 0;
  int world = 4;
  bool verbose = false;  // what the library logs, which is mostly what was done to it
};

struct Counts {
  uint64_t jobs = 0, steps = 0, sums = 0, failures = 0, reforms = 0, shrinks = 0, replacements = 0;
  uint64_t rollbacks = 0, plans = 0, balances = 0, rebases = 0;
};

std::string& Where() {
  static std::string where;  // the job under way
  return where;
}

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "soak: %s%s\n", Where().c_str(), what.c_str());
  std::exit(1);
}

void Require(const Status& status, const std::string& doing) {
  if (!status.ok()) Die(StrCat(doing, ": ", ToString(status)));
}

/// Accepts a session's messages and discards them.
class DeafAgent : public AgentPort {
 public:
  void Send(RankMessage) override {}
  bool connected() const override { return true; }
};

struct Footprint {
  size_t resident_kib = 0, descriptors = 0;
};

Footprint Measure() {
  malloc_trim(0);
  Footprint now;
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages >> now.resident_kib;
  now.resident_kib *= static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 1024;
  DIR* const directory = opendir("/proc/self/fd");
  while (directory != nullptr && readdir(directory) != nullptr) ++now.descriptors;
  if (directory != nullptr) closedir(directory);
  return now;
}

struct BucketShape {
  std::string name;
  size_t elements;
  uint64_t key = 0;
};

/// The driver's view of a rank. The model is the sum of all results that were delivered to it.
struct Rank {
  std::unique_ptr<DeafAgent> agent = std::make_unique<DeafAgent>();
  std::unique_ptr<Session> session;
  std::vector<Values> model;        // by bucket
  std::vector<Values> gradient;     // of the step under way; outlives the session's use of it
  std::vector<Values> held_before;  // residuals before that step
  bool completed = false;
  Status ended;  // how the last step did
  bool newcomer = true;
};

/// One job, from its start until only one rank is left or the number of steps is reached.
class Job {
 public:
  Job(uint64_t seed, int world, Counts& counts);
  void Run(uint64_t steps_max, TimePoint until);

 private:
  uint64_t Below(uint64_t bound) { return random_.Next() % bound; }
  void Form(std::vector<Rank> former, int world);
  void FormAndConnect(std::vector<Rank> ranks, int world);
  FaultOptions DrawFaults(int world);
  std::unique_ptr<Transport> MakeTransport(int rank, int world);
  Status ConnectAll();
  void SharePlan();
  bool Step();
  void Submit(Rank& rank);
  void CheckDelivered();
  [[noreturn]] void DieOf(const std::string& what, const Rank& rank, const Values& expected,
                          size_t bucket) const;
  void CloseAll();
  void Reform(bool failed);
  void TakeModels(bool failed, bool done);
  std::vector<Values> Unaccounted();
  void Rebase();
  void CheckBalance();
  std::vector<Values> Held(Session& session) const;
  std::vector<Values> Zeros() const;
  static void AddTo(std::vector<Values>& sum, const std::vector<Values>& part, float sign = 1);

  Random random_;
  const uint64_t id_;
  Counts& counts_;
  std::string transport_, fault_;
  uint64_t epoch_ = 0;
  std::vector<BucketShape> buckets_;
  std::vector<std::unique_ptr<TransportFactory>> factories_;
  std::vector<Rank> ranks_;
  uint64_t step_ = 0;
  uint64_t plan_version_ = 0;
  bool exact_ = true;                  // the plan of the step under way
  std::vector<Values> fed_, fed_now_;  // gradients of the steps that count, of the one under way
  std::vector<Values> lost_;           // held by ranks that died
};

Job::Job(uint64_t seed, int world, Counts& counts)
    : random_(seed), id_(MixSeed(seed, 77)), counts_(counts) {
  constexpr const char* kTransports[] = {"tcp", "shm", "auto"};
  transport_ = kTransports[Below(3)];
  const size_t count = 1 + Below(4);
  for (size_t i = 0; i < count; ++i) {
    buckets_.push_back({StrCat("bucket", i), 1 + Below(i == 0 ? 20000 : 2000)});
  }
  fed_ = fed_now_ = lost_ = Zeros();
  FormAndConnect({}, world);
  for (Rank& rank : ranks_) rank.newcomer = false;
}

std::vector<Values> Job::Zeros() const {
  std::vector<Values> zeros;
  for (const BucketShape& bucket : buckets_) zeros.emplace_back(bucket.elements);
  return zeros;
}

void Job::AddTo(std::vector<Values>& sum, const std::vector<Values>& part, float sign) {
  for (size_t b = 0; b < part.size(); ++b) {
    for (size_t i = 0; i < part[b].size(); ++i) sum[b][i] += sign * part[b][i];
  }
}

FaultOptions Job::DrawFaults(int world) {
  FaultOptions faults;
  faults.seed = random_.Next();
  faults.rank = static_cast<int>(Below(static_cast<uint64_t>(world)));
  constexpr const char* kNames[] = {"disconnect", "drop", "corrupt", "delay", "none"};
  const uint64_t kind = Below(std::size(kNames));
  fault_ = StrCat(kNames[kind], " at rank ", faults.rank);
  switch (kind) {
    case 0:
      faults.disconnect_after_frames = 20 + Below(400);
      break;
    case 1:
      faults.every_peer.drop_probability = 0.003;
      break;
    case 2:
      faults.every_peer.corrupt_probability = 0.005;
      break;
    case 3:
      faults.every_peer.delay_probability = 0.05;
      faults.every_peer.delay_max = std::chrono::milliseconds(20);
      break;
    default:
      break;
  }
  return faults;
}

std::unique_ptr<Transport> Job::MakeTransport(int rank, int world) {
  TransportOptions options;
  options.job = MixSeed(id_, epoch_);
  options.rank = rank;
  options.world = world;
  auto made = factories_.back()->Create(options);
  Require(made.status(), "making a transport");
  return std::move(made).value();
}

/// Makes the ranks of the next mesh: `former` in order; ranks without a session are new.
void Job::Form(std::vector<Rank> former, int world) {
  if (former.empty()) former.resize(static_cast<size_t>(world));
  FaultOptions faults = DrawFaults(world);
  // Bytes in shared memory carry no checksums.
  if (transport_ != "tcp") faults.every_peer.corrupt_probability = 0;
  factories_.push_back(MakeFaultFactory(*Transports().Find(transport_).value(), faults));
  for (int r = 0; r < world; ++r) {
    Rank& rank = former[static_cast<size_t>(r)];
    SessionOptions options;
    options.job = StrCat("soak", id_);
    options.rank = r;
    options.world = world;
    options.epoch = epoch_;
    options.operation_timeout = std::chrono::seconds(4);
    options.operation_timeout_floor = std::chrono::milliseconds(800);
    options.connect_timeout = std::chrono::seconds(20);
    SessionParts parts;
    parts.agent = rank.agent.get();
    parts.former = rank.session.get();
    parts.transport = MakeTransport(r, world);
    auto made = Session::Create(options, std::move(parts));
    Require(made.status(), "making a session");
    rank.session = std::move(made).value();
    if (rank.model.empty()) rank.model = rank.gradient = Zeros();
    for (BucketShape& bucket : buckets_) {
      auto key = rank.session->DefineBucket({{bucket.name, bucket.elements}}, Dtype::kFloat32);
      Require(key.status(), "defining a bucket");
      bucket.key = *key;
    }
  }
  ranks_ = std::move(former);
}

/// Returns the status of the first rank that failed.
Status Job::ConnectAll() {
  std::vector<TransportAddress> addresses;
  for (const Rank& rank : ranks_) addresses.push_back(rank.session->address());
  std::vector<Status> statuses(ranks_.size());
  RunRanks(static_cast<int>(ranks_.size()), [&](int r) {
    statuses[static_cast<size_t>(r)] = ranks_[static_cast<size_t>(r)].session->Connect(addresses);
  });
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return OkStatus();
}

/// A fault may happen while the mesh is being made; then another mesh is made.
void Job::FormAndConnect(std::vector<Rank> ranks, int world) {
  for (int attempt = 0;; ++attempt) {
    Form(std::move(ranks), world);
    const Status connected = ConnectAll();
    if (connected.ok()) return;
    if (attempt == 20) Die(StrCat("no mesh in 20 attempts: ", ToString(connected)));
    CloseAll();
    ranks = std::move(ranks_);
    ++epoch_;
  }
}

/// Offers a plan to all and arms rank 0, as a controller would.
void Job::SharePlan() {
  struct Pair {
    const char* codec;
    const char* collective;
  };
  constexpr Pair kPairs[] = {{"identity", "ring"},           {"identity", "tree"},
                             {"identity", "mesh"},           {"identity", "recursive_doubling"},
                             {"identity", "ps_star"},        {"identity", "halving_doubling"},
                             {"top_k", "sparse_all_gather"}, {"top_k", "ring_all_gather"},
                             {"top_k", "bruck_all_gather"},  {"shared_top_k", "ar_topk_star"},
                             {"shared_top_k", "ar_topk_var"}};
  const Pair& pair = kPairs[Below(std::size(kPairs))];
  Plan plan;
  plan.version = ++plan_version_;
  plan.fallback.codec = pair.codec;
  plan.fallback.collective = pair.collective;
  if (std::strcmp(pair.codec, "identity") != 0)
    plan.fallback.ratio = 0.02 + 0.3 * random_.Uniform();
  for (const Rank& rank : ranks_) {
    rank.session->OnCommand(PlanOffer{plan.version, "nonce", plan});
  }
  ranks_[0].session->OnCommand(PlanArm{plan.version});
  ++counts_.plans;
}

std::vector<Values> Job::Held(Session& session) const {
  std::vector<std::byte> bytes(session.ExportBytes().value());
  Require(session.ExportState(bytes).status(), "exporting residuals");
  ResidualStore store;
  Require(store.Import(bytes), "importing residuals");
  std::vector<Values> held = Zeros();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Require(store.Define(b, {{buckets_[b].name, buckets_[b].elements}}), "defining");
    Require(store.Flush(b, held[b]).status(), "reading a residual");
  }
  return held;
}

void Job::Submit(Rank& rank) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    // A rank that lost the mesh learns it here or at the end of the step.
    (void)rank.session->AllReduce(buckets_[b].key, rank.gradient[b].data(), 1, nullptr);
  }
}

/// Returns false when some rank failed in the step.
bool Job::Step() {
  if (Below(12) == 0) SharePlan();
  fed_now_ = Zeros();
  bool all = true;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.completed = false;
    rank.held_before = Held(*rank.session);
    Random values(MixSeed(random_.Next(), r));
    for (Values& gradient : rank.gradient) {
      for (float& value : gradient) value = static_cast<float>(values.Next() % 17) - 8;
    }
    AddTo(fed_now_, rank.gradient);
  }
  for (Rank& rank : ranks_) all = rank.session->BeginStep().ok() && all;
  exact_ = true;
  for (const Rank& rank : ranks_) {
    exact_ = exact_ && rank.session->ActivePlan()->fallback.codec == "identity";
  }
  for (Rank& rank : ranks_) Submit(rank);
  const size_t first = Below(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[(first + i) % ranks_.size()];
    const StatusOr<bool> ended = rank.session->EndStep();
    rank.completed = ended.ok();
    rank.ended = ended.status();
    all = all && ended.ok();
    if (ended.ok() && *ended) Die("a step of finite values was skipped");
    if (ended.ok()) AddTo(rank.model, rank.gradient);
  }
  CheckDelivered();
  ++counts_.steps;
  if (all) {
    AddTo(fed_, fed_now_);
    ++step_;
  } else {
    ++counts_.failures;
  }
  return all;
}

void Job::CheckDelivered() {
  const Rank* one = nullptr;
  std::vector<Values> expected = fed_now_;
  if (exact_) {
    for (const Rank& rank : ranks_) AddTo(expected, rank.held_before);  // flushed
  }
  for (const Rank& rank : ranks_) {
    if (!rank.completed) continue;
    if (one == nullptr) one = &rank;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (rank.gradient[b] != one->gradient[b]) {
        DieOf(StrCat("unlike rank ", one - ranks_.data(), "'s"), rank, one->gradient[b], b);
      }
      if (exact_ && rank.gradient[b] != expected[b]) DieOf("a wrong sum", rank, expected[b], b);
    }
    counts_.sums += buckets_.size();
  }
}

/// Prints the cause, and everything that is needed to reproduce the step.
void Job::DieOf(const std::string& what, const Rank& rank, const Values& expected,
                size_t bucket) const {
  const Values& got = rank.gradient[bucket];
  size_t first = got.size(), differing = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    first = std::min(first, i);
    ++differing;
  }
  std::string ranks;
  for (const Rank& one : ranks_) {
    const Plan& plan = *one.session->ActivePlan();
    ranks +=
        StrCat("\n  rank ", &one - ranks_.data(), ", plan ", plan.version, " ", plan.fallback.codec,
               "(", plan.fallback.ratio, ")/", plan.fallback.collective, ": ", ToString(one.ended));
  }
  Die(StrCat("step ", step_, ": rank ", &rank - ranks_.data(), " was handed ", what, " in ",
             differing, " of ", got.size(), " elements of bucket ", bucket, " of ", buckets_.size(),
             ", first at ", first, ": ", got[first], " where ", expected[first],
             " was expected\n  ", transport_, ", epoch ", epoch_, ", fault: ", fault_, ranks));
}

void Job::CloseAll() {
  RunRanks(static_cast<int>(ranks_.size()), [&](int r) {
    Session* const session = ranks_[static_cast<size_t>(r)].session.get();
    if (session != nullptr) session->Close();
  });
}

/// Ends one rank and continues without it or with a new one. `failed`: whether the last step
/// failed.
void Job::Reform(bool failed) {
  const bool shrink = ranks_.size() > 2 && Below(2) == 0;
  CloseAll();
  std::vector<Rank> next = std::move(ranks_);
  const auto victim = next.begin() + static_cast<long>(Below(next.size()));
  Rank gone = std::exchange(*victim, Rank());
  if (shrink) next.erase(victim);
  (shrink ? counts_.shrinks : counts_.replacements) += 1;
  ++epoch_;
  const int world = static_cast<int>(next.size());
  FormAndConnect(std::move(next), world);
  factories_.erase(factories_.begin(), factories_.end() - 1);
  ++counts_.reforms;
  const uint64_t resumed = ranks_[0].session->Stats().next_step;
  const bool done = failed && resumed == step_ + 1;  // by all that are left
  if (resumed != step_ && !done) {
    Die(StrCat("step ", step_, failed ? " failed" : " is next", " and the ranks go on with ",
               resumed));
  }
  if (done) {
    AddTo(fed_, fed_now_);
    ++step_;
  }
  TakeModels(failed, done);
  if (failed && !done) {
    AddTo(lost_, gone.held_before);
  } else if (gone.completed) {
    AddTo(lost_, Held(*gone.session));
  } else {
    Rebase();  // nobody knows what the one that died had not sent of a step that counts
  }
  CheckBalance();
}

/// All ranks take the model of the source. Ranks that completed the same steps must have it
/// already.
void Job::TakeModels(bool failed, bool done) {
  const int source = ranks_[0].session->Stats().model_source;
  const std::vector<Values> model = ranks_[static_cast<size_t>(source)].model;
  for (Rank& rank : ranks_) {
    if (rank.session->Stats().model_source != source) Die("ranks disagree on whose model counts");
    if (!rank.newcomer && (!failed || rank.completed == done) && rank.model != model) {
      Die(StrCat("step ", step_, ": models differ that hold the same steps"));
    }
    if (!rank.newcomer && failed && rank.completed && !done) ++counts_.rollbacks;
    rank.model = model;
    rank.newcomer = false;
  }
}

std::vector<Values> Job::Unaccounted() {
  std::vector<Values> rest = fed_;
  AddTo(rest, ranks_[0].model, -1);
  for (const Rank& rank : ranks_) AddTo(rest, Held(*rank.session), -1);
  return rest;
}

void Job::Rebase() {
  lost_ = Unaccounted();
  ++counts_.rebases;
}

void Job::CheckBalance() {
  if (Unaccounted() != lost_) {
    Die(StrCat("step ", step_, ": gradients were lost or counted twice"));
  }
  ++counts_.balances;
}

void Job::Run(uint64_t steps_max, TimePoint until) {
  for (uint64_t step = 0; step < steps_max && RealClock().Now() < until; ++step) {
    const bool failed = !Step();
    if (failed || Below(80) == 0) Reform(failed);
    if (ranks_.size() == 1) break;
  }
  CheckBalance();
  CloseAll();
  ++counts_.jobs;
}

Settings Parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seconds") {
      settings.seconds = std::atof(argv[i + 1]);
    } else if (name == "--seed") {
      settings.seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (name == "--job") {
      settings.first_job = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (name == "--world") {
      settings.world = std::clamp(std::atoi(argv[i + 1]), 2, 16);
    } else if (name == "--verbose") {
      settings.verbose = std::atoi(argv[i + 1]) != 0;
    } else {
      Die(StrCat("unknown option '", name,
                 "'; valid: --seconds, --seed, --job, --world, --verbose"));
    }
  }
  if (argc % 2 == 0) Die("every option takes a value");
  return settings;
}

void Soak(const Settings& settings) {
  std::printf("soak: seed %llu, %g s, %d ranks\n", static_cast<unsigned long long>(settings.seed),
              settings.seconds, settings.world);
  const TimePoint begin = RealClock().Now();
  const TimePoint warm = begin + FromSeconds(settings.seconds / 4);
  const TimePoint end = begin + FromSeconds(settings.seconds);
  Counts counts;
  Footprint before;
  for (uint64_t job = settings.first_job; RealClock().Now() < end; ++job) {
    Where() = StrCat("seed ", settings.seed, ", job ", job, ": ");
    // At least three jobs run before, so that the pools of the library and of the allocator are
    // filled.
    if (before.descriptors == 0 && counts.jobs >= 3 && RealClock().Now() > warm) before = Measure();
    Job(MixSeed(settings.seed, job), settings.world, counts).Run(400, end);
  }
  Where().clear();
  const Footprint after = Measure();
  std::printf(
      "soak: %llu jobs, %llu steps, %llu sums compared, %llu steps failed, %llu reforms "
      "(%llu shrunk, %llu replaced), %llu ranks went back a step, %llu plans, %llu balances "
      "(%llu without the dead rank's part)\n",
      static_cast<unsigned long long>(counts.jobs), static_cast<unsigned long long>(counts.steps),
      static_cast<unsigned long long>(counts.sums),
      static_cast<unsigned long long>(counts.failures),
      static_cast<unsigned long long>(counts.reforms),
      static_cast<unsigned long long>(counts.shrinks),
      static_cast<unsigned long long>(counts.replacements),
      static_cast<unsigned long long>(counts.rollbacks),
      static_cast<unsigned long long>(counts.plans),
      static_cast<unsigned long long>(counts.balances),
      static_cast<unsigned long long>(counts.rebases));
  std::printf("soak: %zu KiB and %zu descriptors after warm-up, %zu KiB and %zu at the end\n",
              before.resident_kib, before.descriptors, after.resident_kib, after.descriptors);
  if (counts.reforms == 0) Die("nothing failed: too short a time");
  if (before.descriptors == 0) return;  // too short for a warm-up
  if (after.descriptors != before.descriptors) Die("descriptors were lost");
  if (after.resident_kib > before.resident_kib + before.resident_kib / 5 + 8192) {
    Die("memory has grown");
  }
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  const weir::Settings settings = weir::Parse(argc, argv);
  if (!settings.verbose) {
    weir::SetLogSink([](weir::LogLevel, std::string_view, std::string_view) {});
  }
  weir::Soak(settings);
  return 0;
}
