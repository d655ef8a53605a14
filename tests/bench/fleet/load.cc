// SPDX-License-Identifier: Apache-2.0
// Thousands of agents with ranks in one process, each agent on a connection of its own. Driven by
// lines on standard input, each answered by one JSON line: "start" connects, over the time of
// --ramp; "status" says how many agents have been welcomed; "report" says what was seen since the
// last report; "push CODEC" pins every job to it and measures until all of its ranks have the plan;
// "stop" ends.

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <iostream>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <thread>

#include "datapath/base/status.h"
#include "tests/bench/fleet/load_agent.h"
#include "tests/bench/fleet/training.h"
#include "weir/v1/admin.grpc.pb.h"

namespace weir::fleet_bench {
namespace {

struct Options {
  std::string controller = "127.0.0.1:7700";
  int agents = 1000, first_agent = 0;
  int jobs = 20;
  double ramp_s = 5;
  double paths_s = 1;
  double push_timeout_s = 60;
  TrainingShape shape;
};

class TimerThread : public Timer {
 public:
  TimerThread() : thread_([this](const std::stop_token& stop) { Run(stop); }) {}

  void After(double seconds, std::function<void()> task) override {
    MutexLock lock(mutex_);
    tasks_.push({RealClock().Now() + FromSeconds(seconds), sequence_++, std::move(task)});
  }
  double Uniform() override {
    MutexLock lock(mutex_);
    return random_.Uniform();
  }

 private:
  struct Task {
    TimePoint at;
    uint64_t sequence;
    std::function<void()> run;
    bool operator<(const Task& other) const {
      return std::tie(at, sequence) > std::tie(other.at, other.sequence);
    }
  };

  void Run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::function<void()> due;
      {
        MutexLock lock(mutex_);
        if (!tasks_.empty() && tasks_.top().at <= RealClock().Now()) {
          due = tasks_.top().run;
          tasks_.pop();
        }
      }
      if (due != nullptr) {
        due();
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  Mutex mutex_;
  std::priority_queue<Task> tasks_ WEIR_GUARDED_BY(mutex_);
  uint64_t sequence_ WEIR_GUARDED_BY(mutex_) = 0;
  Random random_ WEIR_GUARDED_BY(mutex_){1};
  std::jthread thread_;
};

// One training job over several agents.
class LoadJob {
 public:
  LoadJob(const Options& options, int index, std::vector<std::unique_ptr<LoadAgent>>& agents,
          Measures& measures)
      : options_(options),
        index_(index),
        name_(StrCat("job-", index)),
        agents_(agents),
        measures_(measures),
        random_(static_cast<uint64_t>(index) + 7) {}

  const std::string& name() const { return name_; }
  int nodes() const {
    return (options_.shape.world + options_.shape.ranks_per_node - 1) /
           options_.shape.ranks_per_node;
  }
  /// The agent of a rank, of those of this process.
  int AgentOf(int rank) const {
    return (index_ * nodes() + rank / options_.shape.ranks_per_node) % options_.agents;
  }

  // The messages of its ranks on an agent when the agent has connected.
  void Greet(int agent, std::vector<v1::AgentMessage>* out) {
    MutexLock lock(mutex_);
    for (int rank = 0; rank < options_.shape.world; ++rank) {
      if (AgentOf(rank) != agent) continue;
      out->push_back(From(rank, Hello(options_.shape, name_, rank, step_, active_)));
      if (rank == 0) out->push_back(From(rank, Buckets(options_.shape)));
    }
  }

  void OnCommand(const v1::ToRank& message) {
    const v1::RankCommand& command = message.command();
    const int rank = static_cast<int>(message.rank());
    if (command.has_offer()) {
      const v1::Plan& plan = command.offer().plan();
      {
        MutexLock lock(mutex_);
        prepared_[plan.version()] = plan;
        while (prepared_.size() > 4) prepared_.erase(prepared_.begin());
        if (pushed_at_ != TimePoint{}) {
          measures_.Time("push_s", ToSeconds(RealClock().Now() - pushed_at_));
          if (++offers_ == options_.shape.world) pushed_at_ = {};
        }
      }
      v1::RankMessage ack;
      ack.mutable_ack()->set_version(plan.version());
      ack.mutable_ack()->set_nonce(command.offer().nonce());
      Say(rank, std::move(ack), agent::Tier::kControl);
    } else if (command.has_arm()) {
      MutexLock lock(mutex_);
      armed_ = command.arm().version();
    } else if (command.has_refusal()) {
      measures_.Count("ranks_refused");
      measures_.Count("rank refused: " + command.refusal().reason());
    }
  }

  // Runs one step of all ranks whose agents are connected.
  void Step() {
    uint64_t swapped = 0, step = 0;
    std::vector<std::pair<int, v1::RankMessage>> said;
    {
      MutexLock lock(mutex_);
      step = ++step_;
      if (const auto ready = prepared_.find(armed_); armed_ != 0 && ready != prepared_.end()) {
        active_ = ready->second;
        swapped = armed_;
        armed_ = 0;
      }
      for (int rank = 0; rank < options_.shape.world; ++rank) {
        if (!agents_[static_cast<size_t>(AgentOf(rank))]->welcomed()) continue;
        said.emplace_back(rank, fleet_bench::Step(options_.shape, rank, step, active_, random_));
        if (options_.paths_s > 0 && PathsDue(rank, step)) {
          said.emplace_back(rank, Paths(options_.shape, rank, random_));
        }
      }
    }
    measures_.Count("rank_messages", static_cast<double>(said.size()));
    for (auto& [rank, message] : said) Say(rank, std::move(message), agent::Tier::kTelemetry);
    if (swapped == 0) return;
    measures_.Count("switches");
    for (int rank = 0; rank < options_.shape.world; ++rank) {
      v1::RankMessage active;
      active.mutable_active()->set_version(swapped);
      active.mutable_active()->set_step(step);
      Say(rank, std::move(active), agent::Tier::kControl);
    }
  }

  void BeginPush() {
    MutexLock lock(mutex_);
    pushed_at_ = RealClock().Now();
    offers_ = 0;
  }
  bool pushed() const {
    MutexLock lock(mutex_);
    return pushed_at_ == TimePoint{};
  }

 private:
  // As often as a rank reports its paths, and not all ranks in the same step.
  bool PathsDue(int rank, uint64_t step) const {
    const double interval_s = std::max(options_.paths_s, 0.125 * (options_.shape.world - 1));
    const auto every = static_cast<uint64_t>(std::max(1.0, interval_s / options_.shape.step_s));
    return (step + static_cast<uint64_t>(rank)) % every == 0;
  }
  v1::AgentMessage From(int rank, v1::RankMessage said) const {
    v1::AgentMessage message;
    message.mutable_rank()->set_job(name_);
    message.mutable_rank()->set_rank(static_cast<uint32_t>(rank));
    *message.mutable_rank()->mutable_message() = std::move(said);
    return message;
  }
  void Say(int rank, v1::RankMessage said, agent::Tier tier) {
    agents_[static_cast<size_t>(AgentOf(rank))]->Send(From(rank, std::move(said)), tier);
  }

  const Options& options_;
  const int index_;
  const std::string name_;
  std::vector<std::unique_ptr<LoadAgent>>& agents_;
  Measures& measures_;
  mutable Mutex mutex_;
  Random random_ WEIR_GUARDED_BY(mutex_);
  uint64_t step_ WEIR_GUARDED_BY(mutex_) = 0;
  v1::Plan active_ WEIR_GUARDED_BY(mutex_);
  std::map<uint64_t, v1::Plan> prepared_ WEIR_GUARDED_BY(mutex_);
  uint64_t armed_ WEIR_GUARDED_BY(mutex_) = 0;
  TimePoint pushed_at_ WEIR_GUARDED_BY(mutex_){};  // epoch: no push is under way
  int offers_ WEIR_GUARDED_BY(mutex_) = 0;
};

// gRPC ends the threads that run callbacks when the last channel with callbacks goes, and crashes
// if that happens on one of them. This channel stays.
void KeepCallbackThreads(const std::string& controller) {
  static const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(controller, grpc::InsecureChannelCredentials()));
  static grpc::ClientContext context;
  static const v1::GetNodeRequest request;
  static v1::Node answer;
  stub->async()->GetNode(&context, &request, &answer, [](const grpc::Status&) {});
}

class Load {
 public:
  explicit Load(Options options) : options_(std::move(options)) {
    KeepCallbackThreads(options_.controller);
    for (int i = 0; i < options_.agents; ++i) {
      agents_.push_back(std::make_unique<LoadAgent>(
          options_.first_agent + i, options_.controller, timer_, measures_,
          [this](int, const v1::ToRank& command) { OnCommand(command); },
          [this, i] { return RanksOf(i); }));
    }
    for (int j = 0; j < options_.jobs; ++j) {
      jobs_.push_back(std::make_unique<LoadJob>(options_, j, agents_, measures_));
      LoadJob* job = jobs_.back().get();
      by_name_[job->name()] = job;
      std::set<int> on;
      for (int rank = 0; rank < options_.shape.world; ++rank) on.insert(job->AgentOf(rank));
      for (const int agent : on) on_agent_[agent].push_back(job);
    }
  }

  nlohmann::json Start() {
    for (auto& agent : agents_) {
      timer_.After(options_.ramp_s * timer_.Uniform(), [&agent] { agent->Connect(); });
    }
    for (auto& job : jobs_) {
      timer_.After(options_.ramp_s + options_.shape.step_s * timer_.Uniform(),
                   [this, &job] { Step(job.get()); });
    }
    return {{"started", options_.agents}};
  }

  nlohmann::json Status() const {
    const auto welcomed = std::count_if(agents_.begin(), agents_.end(),
                                        [](const auto& agent) { return agent->welcomed(); });
    return {{"agents", options_.agents}, {"welcomed", welcomed}};
  }

  nlohmann::json Report() {
    const Measures::Summary seen = measures_.Take();
    nlohmann::json out = Status();
    for (const auto& [what, count] : seen.counts) out["counts"][what] = count;
    for (const auto& [what, times] : seen.times) {
      out["times"][what] = {
          {"count", times.count}, {"p50", times.p50}, {"p99", times.p99}, {"max", times.max}};
    }
    return out;
  }

  nlohmann::json Push(const std::string& codec) {
    grpc::ChannelArguments arguments;
    const auto stub = v1::AdminService::NewStub(grpc::CreateCustomChannel(
        options_.controller, grpc::InsecureChannelCredentials(), arguments));
    nlohmann::json out = {{"pushed", jobs_.size()}};
    size_t missing = 0;
    for (auto& job : jobs_) {
      v1::PinRequest request;
      request.set_job(job->name());
      request.mutable_choice()->set_codec(codec);
      request.mutable_choice()->set_collective("ring");
      request.mutable_choice()->set_ratio(1);
      request.set_reason("fleet_bench");
      job->BeginPush();
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
      v1::PinResponse response;
      const grpc::Status status = stub->Pin(&context, request, &response);
      if (!status.ok()) out["errors"][status.error_message()] = job->name();
    }
    const TimePoint deadline = RealClock().Now() + FromSeconds(options_.push_timeout_s);
    for (auto& job : jobs_) {
      while (!job->pushed() && RealClock().Now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (!job->pushed()) ++missing;
    }
    out["jobs_without_the_plan"] = missing;
    return out;
  }

  nlohmann::json Stop() {
    for (auto& agent : agents_) agent->Stop();
    return {{"stopped", options_.agents}};
  }

 private:
  std::vector<v1::AgentMessage> RanksOf(int agent) {
    std::vector<v1::AgentMessage> out;
    if (const auto found = on_agent_.find(agent); found != on_agent_.end()) {
      for (LoadJob* job : found->second) job->Greet(agent, &out);
    }
    return out;
  }
  void OnCommand(const v1::ToRank& command) {
    const auto found = by_name_.find(command.job());
    if (found != by_name_.end()) found->second->OnCommand(command);
  }
  void Step(LoadJob* job) {
    const TimePoint next = RealClock().Now() + FromSeconds(options_.shape.step_s);
    job->Step();
    const double left = ToSeconds(next - RealClock().Now());
    if (left < 0) measures_.Count("late_steps");  // this process is too slow for the load
    timer_.After(std::max(0.0, left), [this, job] { Step(job); });
  }

  const Options options_;
  Measures measures_;
  TimerThread timer_;
  std::vector<std::unique_ptr<LoadAgent>> agents_;
  std::vector<std::unique_ptr<LoadJob>> jobs_;
  std::map<std::string, LoadJob*> by_name_;
  std::map<int, std::vector<LoadJob*>> on_agent_;
};

bool RaiseFileLimit(int agents) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto needed = static_cast<rlim_t>(agents) + 200;
  if (limit.rlim_cur >= needed) return true;
  limit.rlim_cur = needed;
  limit.rlim_max = std::max(limit.rlim_max, needed);  // only root may
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return true;
  std::cerr << "fleet_load: " << agents << " connections need " << needed
            << " file descriptors: raise the limit with 'ulimit -n " << needed << "'\n";
  return false;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("fleet_load: simulated agents and ranks for tests/bench/fleet_bench");
  app.add_option("--controller", options.controller)->capture_default_str();
  app.add_option("--agents", options.agents)->capture_default_str();
  app.add_option("--first-agent", options.first_agent)->capture_default_str();
  app.add_option("--jobs", options.jobs)->capture_default_str();
  app.add_option("--world", options.shape.world)->capture_default_str();
  app.add_option("--ranks-per-node", options.shape.ranks_per_node)->capture_default_str();
  app.add_option("--buckets", options.shape.buckets)->capture_default_str();
  app.add_option("--step", options.shape.step_s, "seconds of a step")->capture_default_str();
  app.add_option("--paths", options.paths_s, "seconds between path reports")->capture_default_str();
  app.add_option("--ramp", options.ramp_s, "seconds over which agents connect")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!RaiseFileLimit(options.agents)) return 1;
  auto& load = *new Load(options);  // streams of gRPC's threads use it until the process ends
  std::string line;
  while (std::getline(std::cin, line)) {
    nlohmann::json answer;
    if (line == "start") answer = load.Start();
    if (line == "status") answer = load.Status();
    if (line == "report") answer = load.Report();
    if (line.starts_with("push ")) answer = load.Push(line.substr(5));
    if (line == "stop") answer = load.Stop();
    if (answer.is_null())
      answer = {{"error", "expected start, status, report, push CODEC or stop"}};
    std::cout << answer.dump() << std::endl;
    if (line == "stop") break;
  }
  std::_Exit(0);
}

}  // namespace
}  // namespace weir::fleet_bench

int main(int argc, char** argv) { return weir::fleet_bench::Main(argc, argv); }
