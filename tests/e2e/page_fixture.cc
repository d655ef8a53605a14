// SPDX-License-Identifier: Apache-2.0
// A controller with a simulated fleet, for tests of the web page: real REST server, real solver, no
// network namespaces and no training. Prints "http <port>", then executes lines of standard input
// (see Obey) and answers each with "ok" or "error"; ends with the input.
//
//   weir-page-fixture [TOKEN_FILE]

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

#include "controller/server/executor.h"
#include "controller/server/rest/rest_server.h"
#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

constexpr int kWorld = 6;
constexpr int kSpares = 3;
constexpr double kFast = 100e6, kFaster = 1000e6, kSlow = 2e6;

// A simulated clock with plausible times: it reaches the present when the history has been played.
class ShownClock : public FakeClock {
 public:
  double UnixSeconds() const override { return offset_ + FakeClock::UnixSeconds(); }
  void MeetThePresent() { offset_ = RealClock().UnixSeconds() - FakeClock::UnixSeconds(); }
  void StartBefore(double seconds) {
    MeetThePresent();
    offset_ = offset_ - seconds;
  }

 private:
  std::atomic<double> offset_{0};
};

class Fixture {
 public:
  Status Start(const std::string& token_file) {
    RestOptions options{.port = 0, .version = "fixture", .local = {.role = Role::kAdmin}};
    if (!token_file.empty()) {
      options.local = {};
      WEIR_ASSIGN_OR_RETURN(authenticator_, Authenticator::FromFile(token_file));
    }
    WEIR_ASSIGN_OR_RETURN(store_, OpenSqliteStore(":memory:"));
    clock_.StartBefore(120);
    served_.Replace(std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_), 1);
    plane_ = served_.get();
    v1::ApplyPolicyRequest policy;
    policy.set_source("name: lm-bounds\njobs: [\"lm*\"]\nbounds:\n  gain_min: 0.2\n");
    policy.set_actor("fixture");
    v1::ApplyPolicyResponse applied;
    WEIR_RETURN_IF_ERROR(plane_->admin.ApplyPolicy(policy, &applied));
    audit_ = std::make_unique<AuditTrail>(*store_);
    backups_ = std::make_unique<Backups>(*store_, "/nonexistent/backup");
    calls_ = std::make_unique<AdminCalls>(executor_, served_, *audit_, *authenticator_, *backups_);
    executor_.Start([] {});
    WEIR_ASSIGN_OR_RETURN(
        rest_, RestServer::Start(options, executor_, served_, *calls_, events_, *authenticator_));
    return OkStatus();
  }
  ~Fixture() {
    events_.Close();
    if (rest_ != nullptr) rest_->Stop();
    executor_.Stop();
  }

  int port() const { return rest_->port(); }

  /// One line: "history", "steps N", "decisions N", "fast", "slow", "nack on|off", "lose RANK",
  /// "return RANK".
  /// kInvalidArgument: none of these.
  Status Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb, argument;
    words >> verb >> argument;
    return executor_.Call([this, verb, argument] { return Do(verb, argument); },
                          std::chrono::seconds(60));
  }

  /// Runs one step, with a simulated second for a real one. Returns its duration.
  double Live() {
    double step_s = 0.05;
    const Status done = executor_.Call([this, &step_s] {
      if (connected_) step_s = Step();
      return OkStatus();
    });
    return done.ok() ? step_s : 0.05;
  }

 private:
  Status Do(const std::string& verb, const std::string& argument) {
    if (verb == "history") {
      History();
    } else if (verb == "steps") {
      for (int i = std::atoi(argument.c_str()); i > 0; --i) Step();
    } else if (verb == "decisions") {
      return RepeatDecisions(std::atoi(argument.c_str()));
    } else if (verb == "fast" || verb == "slow") {
      cluster_.network.bandwidth_bytes_per_s = verb == "fast" ? kFaster : kSlow;
    } else if (verb == "nack") {
      cluster_.nack = argument == "on";
    } else if (verb == "lose") {
      cluster_.DisconnectRank(std::atoi(argument.c_str()));
    } else if (verb == "return") {
      cluster_.ConnectRank(std::atoi(argument.c_str()));
    } else {
      return InvalidArgument(StrCat("unknown line '", verb, "'"));
    }
    return OkStatus();
  }

  // As many further decisions as a job of days has: copies of those that it has, every fourth a
  // switch.
  Status RepeatDecisions(int count) {
    WEIR_ASSIGN_OR_RETURN(const auto known, store_->ListDecisions("lm", 0, 50, false));
    if (known.empty()) return FailedPrecondition("there is no decision to repeat");
    for (int i = 0; i < count; ++i) {
      StoredDecision copy = known[static_cast<size_t>(i) % known.size()];
      copy.switched = i % 4 == 0;
      WEIR_RETURN_IF_ERROR(store_->AddDecision(copy).status());
    }
    return OkStatus();
  }

  double Step() {
    const double step_s = PlayOne();
    clock_.MeetThePresent();
    return step_s;
  }

  // The network is fast, then slow with a refusal at first, then fast again, so that every view has
  // content.
  void History() {
    Join();
    Play(80);
    cluster_.nack = true;
    cluster_.network.bandwidth_bytes_per_s = kSlow;
    Play(8);
    cluster_.nack = false;
    Play(60);
    cluster_.network.bandwidth_bytes_per_s = kFast;
    Play(150);
    cluster_.network.bandwidth_bytes_per_s = 10e6;
    Play(100);
    Probe(0, 1);
    clock_.MeetThePresent();
  }

  void Play(int steps) {
    for (int i = 0; i < steps; ++i) PlayOne();
  }

  // The last of the spare nodes is silent, so its stream is closed after a while.
  double PlayOne() {
    for (int i = 0; i + 1 < static_cast<int>(spares_.size()); ++i) {
      v1::AgentMessage alive;
      alive.mutable_heartbeat()->set_unix_s(clock_.UnixSeconds());
      (void)plane_->agents.OnMessage(spares_[static_cast<size_t>(i)], alive);
    }
    return cluster_.Step();
  }

  void Join() {
    cluster_.Connect(*plane_);
    for (int i = 0; i < kSpares; ++i) {
      spares_.push_back(std::make_shared<FakeAgent>());
      v1::AgentMessage hello;
      hello.mutable_hello()->set_node(StrCat("spare", i));
      hello.mutable_hello()->set_address(StrCat("10.0.1.", i + 1));
      hello.mutable_hello()->set_agent_version("test");
      auto* interface = hello.mutable_hello()->add_interfaces();
      interface->set_name("eth0");
      interface->set_speed_bytes_per_s(1.25e9);
      (void)plane_->agents.OnMessage(spares_.back(), hello);
    }
    Probe(0, kSpares);  // all but the first are old when the history has been played
    connected_ = true;
  }

  // Nodes without ranks: links of very different speed, so that the map has every colour.
  void Probe(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      for (int to = 0; to < kWorld; ++to) {
        v1::AgentMessage message;
        auto* link = message.mutable_link();
        link->set_target_node(FakeCluster::Node(to));
        link->set_method("iperf3");
        link->set_bandwidth_bytes_per_s(1e6 * std::pow(3.0, i + 0.7 * to));
        link->set_bandwidth_deviation_bytes_per_s(1e5);
        link->set_rtt_s(1e-4 * std::pow(2.0, to));
        link->set_samples(3);
        (void)plane_->agents.OnMessage(spares_[static_cast<size_t>(i)], message);
      }
    }
  }

  ShownClock clock_;
  EventHub events_;
  std::unique_ptr<AuditTrail> audit_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<AdminCalls> calls_;
  std::unique_ptr<Authenticator> authenticator_ = std::make_unique<Authenticator>();
  std::unique_ptr<Store> store_;
  ServedPlane served_;
  ControlPlane* plane_ = nullptr;
  Executor executor_;
  FakeCluster cluster_{kWorld, clock_};
  std::vector<std::shared_ptr<FakeAgent>> spares_;
  std::unique_ptr<RestServer> rest_;
  bool connected_ = false;
};

// Runs steps between the lines; false once the input has ended.
bool LiveUntilInput(Fixture& fixture) {
  for (;;) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const double step_s = fixture.Live();
    const int wait_ms = static_cast<int>(std::clamp(step_s, 0.02, 1.0) * 1e3);
    if (poll(&input, 1, wait_ms) > 0) return true;
  }
}

int Main(int argc, char** argv) {
  Fixture fixture;
  if (const Status started = fixture.Start(argc > 1 ? argv[1] : ""); !started.ok()) {
    std::cerr << ToString(started) << "\n";
    return 1;
  }
  std::cout << "http " << fixture.port() << std::endl;
  std::string line;
  while (LiveUntilInput(fixture) && std::getline(std::cin, line)) {
    const Status done = fixture.Obey(line);
    std::cout << (done.ok() ? "ok" : StrCat("error ", Message(done))) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }
