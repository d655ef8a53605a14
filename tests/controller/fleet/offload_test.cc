// SPDX-License-Identifier: Apache-2.0
// Jobs and aggregators: simulated ranks that could sum on a switch, a controller that decides
// whether they do, and their leases.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "controller/messages/json.h"
#include "datapath/base/bounded_queue.h"
#include "tests/controller/fleet/fake_cluster.h"
#include "tests/support/program.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCookie[] = "0123456789abcdef";

// An aggregator that answers when the test tells it to.
class FakeGateway : public LeaseGateway {
 public:
  bool Ask(const LeaseAsk& ask) override {
    waiting.push_back(ask);
    asks.push_back(ask);
    return true;
  }
  void End(const std::string&, const std::string& job, uint32_t epoch) override {
    ended.push_back(epoch);
    std::erase_if(said.leases, [&](const ReportedLease& lease) {
      return lease.job == LeaseJobName(job) && lease.epoch == epoch;
    });
  }

  FakeGateway() {
    said.name = "sum-1";
    said.url = "http://127.0.0.1:9466";
    said.reachable = true;
    said.shards = 1;
    said.slots = 8192;
    said.slots_free = 8192;
    said.slots_free_of_shard = 8192;
    said.slots_per_job = 512;
    said.leases_free = 64;
    said.lanes_max = 256;
    said.workers_max = 64;
  }

  void Poll(Fleet* fleet) const {
    AggregatorReport now = said;
    if (!now.reachable) now.leases.clear();
    fleet->sums().OnReport(now);
  }

  /// Answers the pending requests and reports its present leases.
  void Serve(Fleet* fleet) {
    for (const LeaseAsk& ask : std::exchange(waiting, {})) {
      if (!refusal.empty()) {
        fleet->OnLeaseAnswer(ask, ResourceExhausted(refusal));
        continue;
      }
      SlotGrant lease;
      lease.collective = ask.collective;
      lease.aggregator = ask.aggregator;
      lease.address = "10.0.0.9:48864";
      lease.mode = ask.mode;
      lease.id = 1;
      lease.epoch = ++epoch;
      lease.cookie = kCookie;
      lease.slots = ask.slots;
      lease.lanes = ask.lanes;
      lease.columns = ask.columns;
      auto* granted = &said.leases.emplace_back();
      granted->job = LeaseJobName(LeaseOwner(ask.job, ask.mode));
      granted->epoch = epoch;
      granted->slots = ask.slots;
      for (const std::string& worker : ask.workers) granted->workers.push_back(worker);
      fleet->OnLeaseAnswer(ask, lease);
    }
    Poll(fleet);
  }

  AggregatorReport said;
  std::string refusal;
  uint32_t epoch = 0;
  std::vector<LeaseAsk> waiting, asks;
  std::vector<uint32_t> ended;
};

class OffloadTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-offload-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    cluster_.offload = true;
    StartController();
  }
  void TearDown() override {
    plane_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartController() {
    plane_.reset();
    store_.reset();
    auto store = OpenSqliteStore(directory_ / "state.db");
    ASSERT_TRUE(store.ok()) << ToString(store.status());
    store_ = std::move(*store);
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    ASSERT_TRUE(plane_->Recover().ok());
    plane_->fleet.sums().Use({{"sum-1", "http://127.0.0.1:9466"}}, &gateway_);
    v1::ApplyPolicyRequest policy;
    policy.set_name("lossless");
    policy.set_source("name: lossless\nbounds: {codecs: [identity]}\n");
    v1::ApplyPolicyResponse applied;
    const Status status = plane_->admin.ApplyPolicy(policy, &applied);
    ASSERT_TRUE(status.ok()) << ToString(status);
  }

  void Step() {
    cluster_.Step();
    gateway_.Serve(&plane_->fleet);
    cluster_.Deliver();
  }
  void Run(int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) Step();
  }
  bool RunsWithin(const std::string& collective, int steps) {
    for (int i = 0; i < steps; ++i) {
      if (cluster_.ActiveCollective() == collective) return true;
      Step();
    }
    return cluster_.ActiveCollective() == collective;
  }
  v1::Job Job() {
    v1::Job job;
    v1::GetJobRequest request;
    request.set_name("lm");
    EXPECT_TRUE(plane_->admin.GetJob(request, &job).ok());
    return job;
  }
  v1::Explanation Explain() {
    v1::Explanation explanation;
    v1::ExplainRequest request;
    request.set_job("lm");
    EXPECT_TRUE(plane_->admin.Explain(request, &explanation).ok());
    return explanation;
  }

  std::filesystem::path directory_;
  FakeClock clock_;
  EventHub events_;
  FakeGateway gateway_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{4, clock_};
};

TEST_F(OffloadTest, ASlowNetworkGoesThroughTheAggregator) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  ASSERT_EQ(gateway_.asks.size(), 1u);
  EXPECT_EQ(gateway_.asks[0].job, "lm");
  EXPECT_THAT(gateway_.asks[0].workers, testing::ElementsAre("10.0.0.1:40000", "10.0.0.2:40000",
                                                             "10.0.0.3:40000", "10.0.0.4:40000"));
  const v1::Plan& plan = cluster_.active();
  ASSERT_EQ(plan.leases_size(), 1);
  EXPECT_EQ(plan.leases(0).cookie(), kCookie);
  EXPECT_EQ(plan.leases(0).collective(), "switchml");
  EXPECT_EQ(plan.leases(0).epoch(), 1u);
  EXPECT_EQ(plan.digest(), PlanDigest(ToModel(plan)));
  EXPECT_EQ(plan.fallback().collective(), "ring") << "buckets that no plan knows need no lease";
  Run(60);
  EXPECT_EQ(gateway_.asks.size(), 1u) << "a live lease serves later plans, too";
  EXPECT_TRUE(gateway_.ended.empty());
  v1::ListAggregatorsResponse list;
  ASSERT_TRUE(plane_->admin.ListAggregators({}, &list).ok());
  ASSERT_EQ(list.aggregators_size(), 1);
  EXPECT_TRUE(list.aggregators(0).reachable());
  EXPECT_EQ(list.aggregators(0).leases(0).job(), "lm");
  const std::string metrics = plane_->admin.MetricsText();
  EXPECT_THAT(metrics, HasSubstr("weir_controller_aggregator_reachable{aggregator=\"sum-1\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("weir_controller_aggregator_leases{aggregator=\"sum-1\"} 1"));
}

TEST_F(OffloadTest, OnlyTheRanksGetTheCookie) {
  std::vector<std::string> seen;
  const auto subscription = events_.Subscribe(v1::WatchRequest());
  ASSERT_TRUE(subscription.ok());
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  Run(5);
  while (const auto event = (*subscription)->TryNext()) seen.push_back(ToJson(*event));
  events_.Unsubscribe(*subscription);
  seen.push_back(ToJson(Job()));
  seen.push_back(ToJson(Explain()));
  v1::ListDecisionsResponse decisions;
  ASSERT_TRUE(plane_->admin.ListDecisions({}, &decisions).ok());
  seen.push_back(ToJson(decisions));
  const auto stored = store_->GetPlan("lm", cluster_.active().version());
  ASSERT_TRUE(stored.ok() && stored->has_value());
  seen.push_back((*stored)->payload);
  for (const std::string& text : seen) {
    EXPECT_THAT(text, Not(HasSubstr(kCookie)));
    EXPECT_THAT(text, Not(HasSubstr(cluster_.active().digest()))) << "a digest gives it away";
  }
  EXPECT_THAT(seen.back(), HasSubstr("10.0.0.9:48864")) << "the rest is told";
}

TEST_F(OffloadTest, AFastNetworkNeedsNoAggregatorAndExplainShowsBoth) {
  cluster_.network = {4e9, 20e-6};
  cluster_.Connect(*plane_);
  Run(60);
  EXPECT_EQ(cluster_.ActiveCollective(), "ring");
  EXPECT_TRUE(gateway_.asks.empty());
  EXPECT_THAT(Explain().text(), HasSubstr("dense over switchml"));
}

TEST_F(OffloadTest, TheReasonForNoAggregatorIsExplained) {
  gateway_.said.slots_free_of_shard = 12;
  cluster_.Connect(*plane_);
  Run(40);
  EXPECT_EQ(cluster_.ActiveCollective(), "ring");
  EXPECT_TRUE(gateway_.asks.empty());
  const v1::Explanation explanation = Explain();
  EXPECT_THAT(explanation.text(),
              testing::ContainsRegex(
                  "excluded: switchml: no aggregator has [0-9]* free slots .sum-1 has 12"));
  v1::ReplayRequest replay;
  replay.set_id(explanation.decision().id());
  v1::ReplayResponse replayed;
  ASSERT_TRUE(plane_->admin.Replay(replay, &replayed).ok());
  EXPECT_TRUE(replayed.identical());
  gateway_.said.slots_free_of_shard = 8192;
  EXPECT_TRUE(RunsWithin("switchml", 300)) << "room is noticed at the next look";
}

TEST_F(OffloadTest, ARankWithoutAnAddressExcludesAggregators) {
  cluster_.deaf_rank = 3;
  cluster_.Connect(*plane_);
  Run(40);
  EXPECT_EQ(cluster_.ActiveCollective(), "ring");
  EXPECT_THAT(Explain().text(), HasSubstr("switchml: rank 3 gave no aggregation address"));
}

TEST_F(OffloadTest, ARefusalIsTheReasonUntilTheBackOffEnds) {
  gateway_.refusal = "all 64 leases are granted";
  cluster_.Connect(*plane_);
  Run(20);
  EXPECT_EQ(cluster_.ActiveCollective(), "ring");
  EXPECT_THAT(Explain().text(),
              HasSubstr("switchml: sum-1 gives no lease: all 64 leases are granted"));
  const size_t asked = gateway_.asks.size();
  EXPECT_GE(asked, 1u);
  Run(300);
  EXPECT_LE(gateway_.asks.size(), asked + 4) << "asks are spaced";
  gateway_.refusal.clear();
  EXPECT_TRUE(RunsWithin("switchml", 1500));
}

TEST_F(OffloadTest, ARequestWithoutAnAnswerIsGivenUpSoon) {
  cluster_.Connect(*plane_);
  const auto step = [&] {
    cluster_.Step();
    gateway_.Poll(&plane_->fleet);
  };
  for (int i = 0; i < 60 && gateway_.asks.empty(); ++i) step();
  ASSERT_EQ(gateway_.asks.size(), 1u);
  EXPECT_EQ(Job().active_plan().version(), 0u) << "nothing is offered without its lease";
  for (int i = 0; i < 200 && cluster_.active().version() == 0; ++i) step();
  EXPECT_EQ(cluster_.ActiveCollective(), "ring");
  EXPECT_THAT(Explain().text(), HasSubstr("sum-1 did not answer within 8 s"));
  gateway_.Serve(&plane_->fleet);
  EXPECT_EQ(gateway_.ended, std::vector<uint32_t>{1}) << "the late grant is given back";
}

TEST_F(OffloadTest, AFailedOffloadEndsTheLeaseAndTakesANewEpochLater) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  for (int rank = 0; rank < 4; ++rank) cluster_.Tell(rank, "offload_failed", "no sum in 200 ms");
  EXPECT_EQ(gateway_.ended, std::vector<uint32_t>{1});
  ASSERT_TRUE(RunsWithin("ring", 5));
  EXPECT_EQ(cluster_.active().leases_size(), 0);
  EXPECT_THAT(Explain().text(), HasSubstr("switchml: offload failed on rank 0: no sum in 200 ms"));
  ASSERT_TRUE(RunsWithin("switchml", 600)) << "after the back-off";
  EXPECT_EQ(cluster_.active().leases(0).epoch(), 2u);
}

TEST_F(OffloadTest, ADeadAggregatorIsLeft) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  gateway_.said.reachable = false;
  gateway_.said.error = "Connection";
  Run(20);
  EXPECT_EQ(cluster_.ActiveCollective(), "switchml") << "its packets may still flow";
  ASSERT_TRUE(RunsWithin("ring", 400));
  EXPECT_THAT(Explain().text(), HasSubstr("sum-1"));
  EXPECT_THAT(plane_->admin.MetricsText(),
              HasSubstr("weir_controller_aggregator_reachable{aggregator=\"sum-1\"} 0"));
}

TEST_F(OffloadTest, OtherRanksTakeAnotherLease) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  cluster_.LoseRank(2);
  EXPECT_EQ(gateway_.ended, std::vector<uint32_t>{1});
  cluster_.mesh_epoch = 1;
  cluster_.aggregation_port = 41000;
  cluster_.pid = 200;
  cluster_.Connect(*plane_);
  bool second = false;
  for (int i = 0; i < 600 && !second; ++i) {
    Step();
    second = cluster_.active().leases_size() == 1 && cluster_.active().leases(0).epoch() == 2;
  }
  EXPECT_TRUE(second);
  EXPECT_EQ(gateway_.asks.back().workers[0], "10.0.0.1:41000");
}

TEST_F(OffloadTest, ARestartedControllerGoesOnWithTheRanksLease) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  StartController();
  cluster_.Connect(*plane_);
  Run(60);
  EXPECT_EQ(cluster_.ActiveCollective(), "switchml");
  EXPECT_EQ(cluster_.active().leases(0).epoch(), 1u);
  EXPECT_EQ(gateway_.asks.size(), 1u);
  EXPECT_TRUE(gateway_.ended.empty());
}

TEST_F(OffloadTest, APlanWithoutItGivesTheSlotsBack) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  v1::PinRequest pin;
  pin.set_job("lm");
  pin.mutable_choice()->set_codec("identity");
  pin.mutable_choice()->set_collective("ring");
  pin.mutable_choice()->set_ratio(1);
  v1::PinResponse pinned;
  ASSERT_TRUE(plane_->admin.Pin(pin, &pinned).ok());
  ASSERT_TRUE(RunsWithin("ring", 20));
  Step();
  EXPECT_EQ(gateway_.ended, std::vector<uint32_t>{1});
}

// The active plan keeps its slots until the other plan is active.
TEST_F(OffloadTest, APlanForAnotherCollectiveTakesALeaseOfItsModeBesideTheFirst) {
  cluster_.Connect(*plane_);
  ASSERT_TRUE(RunsWithin("switchml", 60));
  v1::PinRequest pin;
  pin.set_job("lm");
  pin.mutable_choice()->set_codec("identity");
  pin.mutable_choice()->set_collective("omnireduce");
  pin.mutable_choice()->set_ratio(1);
  v1::PinResponse pinned;
  const Status status = plane_->admin.Pin(pin, &pinned);
  ASSERT_TRUE(status.ok()) << ToString(status);
  for (int i = 0; i < 20 && cluster_.ActiveCollective() == "switchml"; ++i) {
    EXPECT_TRUE(gateway_.ended.empty());
    Step();
  }
  ASSERT_EQ(cluster_.ActiveCollective(), "omnireduce") << Explain().text();
  ASSERT_EQ(gateway_.asks.size(), 2u);
  EXPECT_EQ(gateway_.asks[1].mode, "sparse");
  ASSERT_EQ(cluster_.active().leases_size(), 1);
  EXPECT_EQ(cluster_.active().leases(0).collective(), "omnireduce");
  EXPECT_EQ(cluster_.active().leases(0).columns(), 4u);
  EXPECT_EQ(cluster_.active().leases(0).epoch(), 2u);
  Step();
  EXPECT_EQ(gateway_.ended, std::vector<uint32_t>{1});
  // A failure of one collective's lease does not affect the other one.
  cluster_.Tell(0, "offload_failed", "aggregator 'sum-1' at 10.0.0.9:1 for switchml: late");
  Run(20);
  EXPECT_EQ(cluster_.ActiveCollective(), "omnireduce");
  cluster_.Tell(0, "offload_failed", "aggregator 'sum-1' at 10.0.0.9:1 for omnireduce: late");
  EXPECT_EQ(gateway_.ended, (std::vector<uint32_t>{1, 2}));
}

TEST_F(OffloadTest, SimulationsShowWhenAnAggregatorPays) {
  cluster_.Connect(*plane_);
  v1::SimulateRequest request;
  request.set_model_parameters(25000000);
  request.set_world(16);
  request.set_latency_s(2e-4);
  request.set_bandwidth_bytes_per_s(125e6);
  request.set_compute_s(0.05);
  request.set_policy_source("name: lossless\nbounds: {codecs: [identity]}\n");
  v1::SimulateResponse response;
  const auto chosen = [&](double aggregator_bytes_per_s) {
    request.set_aggregator_bytes_per_s(aggregator_bytes_per_s);
    response.Clear();
    const Status status = plane_->admin.Simulate(request, &response);
    EXPECT_TRUE(status.ok()) << ToString(status);
    return response.plan().buckets(0).choice().collective();
  };
  EXPECT_EQ(chosen(0), "ring");
  EXPECT_THAT(ToJson(response), HasSubstr("switchml: without an aggregator"));
  EXPECT_EQ(chosen(16 * 125e6), "switchml") << "as fast as all ranks together";
  EXPECT_EQ(chosen(125e6), "ring") << "no faster than one rank's link";
  request.set_aggregator_bytes_per_s(-1);
  EXPECT_EQ(plane_->admin.Simulate(request, &response).code(), StatusCode::kInvalidArgument);
}

#ifdef WEIR_AGGREGATOR_PROGRAM
// The real program grants, lists and loses the lease; ranks are simulated.
TEST_F(OffloadTest, TheRealAggregatorServesAndItsEndIsSeen) {
  auto program = std::make_unique<Program>(
      std::vector<std::string>{WEIR_AGGREGATOR_PROGRAM, "--port", "0", "--http", "127.0.0.1:0"});
  program->ReadUntil([&] { return program->output.find('\n') != std::string::npos; });
  char host[64] = {};
  int port = 0;
  ASSERT_EQ(std::sscanf(program->output.c_str(), "http %63[0-9.]:%d", host, &port), 2);
  BoundedQueue<std::function<void()>> events(1000);
  GatewayOptions options;
  options.aggregators = {{"sum-1", StrCat("http://", host, ":", port)}};
  options.poll_interval = std::chrono::milliseconds(20);
  GatewayEvents told;
  told.state = [&](AggregatorReport said) {
    events.TryPush([this, said = std::move(said)] { plane_->fleet.sums().OnReport(said); });
  };
  told.answer = [&](const LeaseAsk& ask, StatusOr<SlotGrant> answer) {
    events.TryPush(
        [this, ask, answer = std::move(answer)] { plane_->fleet.OnLeaseAnswer(ask, answer); });
  };
  auto gateway = StartHttpGateway(options, std::move(told));
  ASSERT_TRUE(gateway.ok()) << ToString(gateway.status());
  plane_->fleet.sums().Use(options.aggregators, gateway->get());
  cluster_.Connect(*plane_);
  const auto runs = [&](const std::string& collective) {
    const TimePoint deadline = RealClock().Now() + std::chrono::seconds(20);
    while (RealClock().Now() < deadline && cluster_.ActiveCollective() != collective) {
      // Simulated time must not run away from the program's answers.
      if (auto event = events.Pop(RealClock().Now() + std::chrono::milliseconds(50))) (*event)();
      cluster_.Step();
    }
    return cluster_.ActiveCollective() == collective;
  };
  ASSERT_TRUE(runs("switchml")) << Explain().text();
  v1::ListAggregatorsResponse list;
  ASSERT_TRUE(plane_->admin.ListAggregators({}, &list).ok());
  EXPECT_TRUE(list.aggregators(0).reachable());
  EXPECT_EQ(list.aggregators(0).slots(), 8192u);
  EXPECT_EQ(cluster_.active().leases(0).cookie().size(), 16u);
  program.reset();
  EXPECT_TRUE(runs("ring")) << Explain().text();
  EXPECT_THAT(Explain().text(), HasSubstr("sum-1"));
  plane_->fleet.sums().Use({}, nullptr);
}
#endif

}  // namespace
}  // namespace weir
