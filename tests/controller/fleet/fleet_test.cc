// SPDX-License-Identifier: Apache-2.0
// The controller's core against simulated agents: decisions, rollouts, recovery.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "controller/messages/json.h"
#include "tests/controller/fleet/fleet_fixture.h"

namespace weir {
namespace {

class FleetTest : public FleetFixture {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-fleet-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    StartController();
  }
  void TearDown() override {
    KillController();
    std::filesystem::remove_all(directory_);
  }

  void StartController() {
    auto store = OpenSqliteStore(directory_ / "state.db");
    ASSERT_TRUE(store.ok()) << ToString(store.status());
    store_ = std::move(*store);
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    ASSERT_TRUE(plane_->Recover().ok());
  }
  // As kill -9: there is no shutdown notice, and only what the store holds remains.
  void KillController() { plane_.reset(), store_.reset(); }

  std::vector<v1::Decision> Decisions() {
    v1::ListDecisionsRequest request;
    request.set_page_size(500);
    v1::ListDecisionsResponse response;
    EXPECT_TRUE(plane_->admin.ListDecisions(request, &response).ok());
    return {response.decisions().begin(), response.decisions().end()};
  }
  void Run(int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) cluster_.Step();
  }
  int StepsUntil(const std::function<bool()>& done, int limit) {
    for (int steps = 1; steps <= limit; ++steps) {
      cluster_.Step();
      if (done()) return steps;
    }
    return limit + 1;
  }

  std::filesystem::path directory_;
};

TEST_F(FleetTest, JobAppearsWaitsAndRuns) {
  cluster_.Connect(*plane_);
  EXPECT_EQ(Job().state(), "running");
  EXPECT_EQ(Job().ranks_size(), 4);
  EXPECT_EQ(Job().buckets_size(), 4);
  clock_.Advance(std::chrono::seconds(1));
  plane_->fleet.OnTick();
  cluster_.Deliver();
  EXPECT_EQ(cluster_.peers().peers_size(), 3);
  cluster_.DisconnectRank(2);
  EXPECT_EQ(Job().state(), "waiting");
  v1::ListNodesResponse nodes;
  ASSERT_TRUE(plane_->admin.ListNodes({}, &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 4);
  EXPECT_FALSE(nodes.nodes(2).connected());
  cluster_.ConnectRank(2);
  EXPECT_EQ(Job().state(), "running");
}

TEST_F(FleetTest, BandwidthDropIsActedOnWithinFifteenSteps) {
  cluster_.network.bandwidth_bytes_per_s = 2e9;
  cluster_.network.latency_s = 50e-6;
  cluster_.Connect(*plane_);
  Run(60);
  EXPECT_EQ(cluster_.ActiveCodec(), "identity") << "a fast network needs no compression";
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  const uint64_t changed_at = cluster_.step();
  const int steps = StepsUntil([&] { return cluster_.ActiveCodec() == "top_k"; }, 40);
  EXPECT_LE(steps, 15) << "steps from the change to the swap";
  Run(12);
  const auto decisions = Decisions();
  const auto switched = std::find_if(decisions.begin(), decisions.end(), [&](const auto& decision) {
    return decision.switched() && decision.step() >= changed_at;
  });
  ASSERT_NE(switched, decisions.end());
  EXPECT_EQ(Job().rollout_state(), "stable");
  EXPECT_GT(switched->trigger_step(), changed_at);
  EXPECT_THAT(switched->reason(), testing::Not(testing::IsEmpty()));
  RecordProperty("steps_to_swap", steps);
  std::printf("swap after %d steps: %s\n", steps, switched->reason().c_str());
}

TEST_F(FleetTest, RecoveryOfTheNetworkReturnsToAMilderChoice) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(60);
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  cluster_.network = {4e9, 20e-6};
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "identity"; }, 400), 400);
}

TEST_F(FleetTest, KilledControllerRecoversAndGoesOnDeciding) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  const uint64_t version = cluster_.active().version();
  ASSERT_GT(version, 0u);
  const size_t decisions = Decisions().size();
  KillController();
  StartController();
  EXPECT_EQ(Job().state(), "lost");
  EXPECT_EQ(Job().active_plan().version(), version);
  EXPECT_EQ(Decisions().size(), decisions) << "history must survive";
  v1::ListNodesResponse nodes;
  ASSERT_TRUE(plane_->admin.ListNodes({}, &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 4);
  EXPECT_FALSE(nodes.nodes(0).connected());
  cluster_.Connect(*plane_);
  EXPECT_EQ(Job().state(), "running");
  EXPECT_EQ(Job().active_plan().digest(), cluster_.active().digest()) << "learnt from the ranks";
  Run(40);
  cluster_.network.bandwidth_bytes_per_s = 5e9;
  cluster_.network.latency_s = 10e-6;
  EXPECT_LE(StepsUntil([&] { return cluster_.active().version() > version; }, 400), 400);
  EXPECT_GT(Decisions().size(), decisions);
}

TEST_F(FleetTest, KillBetweenOfferAndActivationIsHarmless) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  for (int steps_before = 3; steps_before < 24; ++steps_before) {
    SCOPED_TRACE(steps_before);
    cluster_.Connect(*plane_);
    Run(steps_before);
    KillController();
    StartController();
  }
  cluster_.Connect(*plane_);
  Run(60);
  EXPECT_EQ(cluster_.ActiveCodec(), "top_k");
  EXPECT_EQ(Job().active_plan().version(), cluster_.active().version());
}

TEST_F(FleetTest, AControllerThatComesBackAfterTheLeaseFindsTheDensePlan) {
  v1::ApplyPolicyRequest apply;
  apply.set_source("name: leased\nswitching: {lease_s: 30}\n");
  v1::ApplyPolicyResponse response;
  ASSERT_TRUE(plane_->admin.ApplyPolicy(apply, &response).ok());
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  const uint64_t lossy = cluster_.active().version();
  ASSERT_EQ(cluster_.lease_plan().version(), lossy + 1);
  EXPECT_EQ(cluster_.lease_plan().fallback().codec(), "identity");
  EXPECT_EQ(cluster_.lease_s(), 30);
  const int renewals = cluster_.leases();
  const TimePoint before = clock_.Now();
  Run(100);
  const double seconds = ToSeconds(clock_.Now() - before);
  EXPECT_NEAR(cluster_.leases() - renewals, seconds, 0.3 * seconds + 1) << "one a second";
  KillController();
  const v1::Plan lease = cluster_.lease_plan();
  StartController();
  cluster_.LetTheLeaseRunOut(/*heard=*/false);
  cluster_.Connect(*plane_);
  EXPECT_EQ(Job().active_plan().version(), lease.version());
  EXPECT_EQ(Job().active_plan().digest(), lease.digest());
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "top_k"; }, 120), 120);
  EXPECT_GT(cluster_.active().version(), lease.version());
}

TEST_F(FleetTest, ALeaseThatThePolicyGainsLaterReachesTheRanks) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  EXPECT_EQ(cluster_.lease_plan().version(), 0u);
  EXPECT_EQ(cluster_.lease_s(), 0);
  v1::ApplyPolicyRequest apply;
  apply.set_source("name: leased\nswitching: {lease_s: 30}\n");
  v1::ApplyPolicyResponse response;
  ASSERT_TRUE(plane_->admin.ApplyPolicy(apply, &response).ok());
  EXPECT_LE(StepsUntil([&] { return cluster_.lease_plan().version() != 0; }, 30), 30);
  EXPECT_EQ(cluster_.lease_s(), 30);
  // The controller sees the swap to the lease plan when only rank 0 is cut off from it.
  cluster_.LetTheLeaseRunOut(/*heard=*/true);
  const uint64_t dense = cluster_.active().version();
  EXPECT_EQ(Job().active_plan().version(), dense);
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "top_k"; }, 120), 120);
  EXPECT_GT(cluster_.active().version(), dense);
  apply.set_source("name: leased\n");
  ASSERT_TRUE(plane_->admin.ApplyPolicy(apply, &response).ok());
  EXPECT_LE(StepsUntil([&] { return cluster_.lease_s() == 0; }, 30), 30);
}

TEST_F(FleetTest, NackKeepsTheLastPlanAndIsVisible) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.nack = true;
  cluster_.Connect(*plane_);
  Run(40);
  EXPECT_EQ(cluster_.active().version(), 0u);
  auto decisions = Decisions();
  ASSERT_FALSE(decisions.empty());
  EXPECT_TRUE(std::any_of(decisions.begin(), decisions.end(), [](const auto& decision) {
    return decision.outcome() == "nacked" &&
           decision.reason().find("no memory") != std::string::npos;
  }));
  EXPECT_THAT(plane_->admin.MetricsText(), testing::HasSubstr("weir_plan_nacks_total"));
  cluster_.nack = false;
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "top_k"; }, 600), 600)
      << "after the back-off the plan is offered again";
}

TEST_F(FleetTest, PinFixesTheChoiceUntilUnpinned) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  v1::PinRequest pin;
  pin.set_job("lm");
  pin.set_actor("ann");
  pin.set_reason("compare");
  pin.mutable_choice()->set_codec("identity");
  pin.mutable_choice()->set_collective("sparse_all_gather");
  v1::PinResponse response;
  EXPECT_EQ(plane_->admin.Pin(pin, &response).code(), StatusCode::kInvalidArgument)
      << "forms differ";
  pin.mutable_choice()->set_collective("treee");
  const Status unknown = plane_->admin.Pin(pin, &response);
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_THAT(Message(unknown), testing::HasSubstr("valid: ring, sparse_all_gather"));
  pin.mutable_choice()->set_collective("ring");
  ASSERT_TRUE(plane_->admin.Pin(pin, &response).ok());
  EXPECT_THAT(response.job().pinned(), testing::HasSubstr("ann"));
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "identity"; }, 10), 10);
  Run(60);
  EXPECT_EQ(cluster_.ActiveCodec(), "identity") << "a pin holds whatever is measured";
  v1::UnpinRequest unpin;
  unpin.set_job("lm");
  v1::UnpinResponse unpinned;
  ASSERT_TRUE(plane_->admin.Unpin(unpin, &unpinned).ok());
  EXPECT_EQ(unpinned.job().pinned(), "");
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "top_k"; }, 60), 60);
}

TEST_F(FleetTest, PolicyChangeIsADecisionAtOnce) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  v1::ApplyPolicyRequest apply;
  apply.set_source("name: dense\nbounds: {codecs: [identity]}\n");
  v1::ApplyPolicyResponse response;
  ASSERT_TRUE(plane_->admin.ApplyPolicy(apply, &response).ok());
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "identity"; }, 15), 15);
  EXPECT_EQ(Job().policy(), "dense");
  EXPECT_EQ(Decisions()[0].trigger(), "policy");
  KillController();
  StartController();
  EXPECT_EQ(Job().policy(), "dense") << "applied policies survive";
}

TEST_F(FleetTest, APolicyThatNamesAPluginAppliesFromItsFirstRankOnAndAfterARestart) {
  const std::string source = "name: mine\nbounds: {codecs: [block_mean]}\n";
  plane_->fleet.OnPolicyFiles(std::map<std::string, std::string>{{"/p/mine.yaml", source}});
  v1::ApplyPolicyRequest apply;
  apply.set_source(source);
  v1::ApplyPolicyResponse response;
  EXPECT_THAT(Message(plane_->admin.ApplyPolicy(apply, &response)),
              testing::HasSubstr("policy:2: bounds.codecs: expected one of "));
  v1::ValidatePolicyRequest validate;
  validate.set_source(source);
  v1::ValidatePolicyResponse validated;
  ASSERT_TRUE(plane_->admin.ValidatePolicy(validate, &validated).ok());
  EXPECT_THAT(validated.error(), testing::HasSubstr("found 'block_mean'"));
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_config_last_reload_successful 0\n"));
  cluster_.plugin_codec = "block_mean";
  cluster_.Connect(*plane_);
  EXPECT_EQ(Job().policy(), "mine");
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_config_last_reload_successful 1\n"));
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "block_mean"; }, 60), 60);
  for (const v1::Decision& decision : Decisions()) EXPECT_EQ(decision.policy(), "mine");
  ASSERT_TRUE(plane_->admin.ApplyPolicy(apply, &response).ok());
  KillController();
  // The last rank that sent a hello belonged to a job without the plug-in.
  ASSERT_TRUE((*OpenSqliteStore(directory_ / "state.db"))->PutFact("capabilities", "{}").ok());
  StartController();
  EXPECT_EQ(Job().policy(), "mine") << "no other policy may rule meanwhile";
}

TEST_F(FleetTest, TheRingGoesAroundASlowLinkAndSaysSo) {
  cluster_.network.bandwidth_bytes_per_s = 100e6;
  cluster_.network.slow_pair_bytes_per_s = 10e6;
  v1::ApplyPolicyRequest policy;
  policy.set_source("name: lossless\nbounds: {codecs: [identity]}\n");
  v1::ApplyPolicyResponse applied;
  ASSERT_TRUE(plane_->admin.ApplyPolicy(policy, &applied).ok());
  cluster_.Connect(*plane_);
  const double ascending_s = cluster_.Step();
  ASSERT_LE(StepsUntil([&] { return cluster_.active().ring_order_size() > 0; }, 200), 200);
  EXPECT_THAT(cluster_.active().ring_order(), testing::ElementsAre(0, 1, 3, 2));
  EXPECT_LT(cluster_.Step(), 0.3 * ascending_s);
  v1::ExplainRequest request;
  request.set_job("lm");
  v1::Explanation explanation;
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  EXPECT_THAT(explanation.text(), testing::HasSubstr("Ring: the ring goes 0 1 3 2"));
  // The faster steps are attributed to the order, and not to a faster network.
  const uint64_t version = cluster_.active().version();
  Run(60);
  EXPECT_EQ(cluster_.active().version(), version);
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  const double predicted_s = explanation.decision().predicted_step_s();
  EXPECT_NEAR(cluster_.Step(), predicted_s, 0.3 * predicted_s);
  // A restarted controller continues with the order that it finds.
  KillController();
  StartController();
  cluster_.Connect(*plane_);
  Run(60);
  EXPECT_THAT(cluster_.active().ring_order(), testing::ElementsAre(0, 1, 3, 2));
}

TEST_F(FleetTest, NonFiniteStepsRollBackToDense) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  ASSERT_EQ(cluster_.ActiveCodec(), "top_k");
  cluster_.non_finite_when_lossy = true;
  EXPECT_LE(StepsUntil([&] { return cluster_.ActiveCodec() == "identity"; }, 12), 12);
  const auto decisions = Decisions();
  EXPECT_TRUE(std::any_of(decisions.begin(), decisions.end(), [](const auto& decision) {
    return decision.trigger() == "rollback" && decision.switched();
  }));
}

TEST_F(FleetTest, EveryStoredDecisionReplaysIdentically) {
  cluster_.network.bandwidth_bytes_per_s = 20e6;
  cluster_.Connect(*plane_);
  Run(50);
  cluster_.network.bandwidth_bytes_per_s = 1e9;
  Run(100);
  const auto decisions = Decisions();
  ASSERT_GE(decisions.size(), 2u);
  for (const auto& decision : decisions) {
    v1::ReplayRequest request;
    request.set_id(decision.id());
    v1::ReplayResponse response;
    ASSERT_TRUE(plane_->admin.Replay(request, &response).ok());
    EXPECT_TRUE(response.identical()) << decision.id() << ": " << decision.reason();
    EXPECT_EQ(response.stored_digest().size(), 16u);
  }
}

TEST_F(FleetTest, ExplainShowsInputsCandidatesAndDense) {
  v1::ExplainRequest request;
  request.set_job("lm");
  v1::Explanation explanation;
  EXPECT_EQ(plane_->admin.Explain(request, &explanation).code(), StatusCode::kNotFound);
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  EXPECT_EQ(plane_->admin.Explain(request, &explanation).code(), StatusCode::kFailedPrecondition);
  Run(60);
  ASSERT_TRUE(plane_->admin.Explain(request, &explanation).ok());
  EXPECT_NEAR(explanation.bandwidth_bytes_per_s().value(), 10e6, 5e6);
  for (const auto& estimate : {explanation.bandwidth_bytes_per_s(), explanation.latency_s()}) {
    EXPECT_THAT(estimate.method(), testing::AnyOf("tcp_info", "tcp_connect"));
    EXPECT_GT(estimate.samples(), 0u);
    EXPECT_GT(estimate.deviation(), 0);
    EXPECT_THAT(explanation.text(), testing::HasSubstr(StrCat(estimate.method(), ", ",
                                                              estimate.samples(), " samples, ")));
  }
  EXPECT_THAT(explanation.text(), testing::HasSubstr("Dense would take"));
  EXPECT_GT(explanation.front_size(), 0);
  EXPECT_GT(explanation.decision().dense_step_s(), explanation.decision().predicted_step_s());
  // A restarted controller explains earlier decisions from the store.
  KillController();
  StartController();
  v1::Explanation stored;
  ASSERT_TRUE(plane_->admin.Explain(request, &stored).ok());
  EXPECT_EQ(stored.bandwidth_bytes_per_s().value(), explanation.bandwidth_bytes_per_s().value());
  EXPECT_EQ(stored.bandwidth_bytes_per_s().method(), "collectives");
  std::printf("%s", explanation.text().c_str());
}

TEST_F(FleetTest, SeriesAndPredictionError) {
  cluster_.Connect(*plane_);
  Run(100);
  v1::GetSeriesRequest request;
  request.set_job("lm");
  request.set_since_step(51);
  v1::Series series;
  ASSERT_TRUE(plane_->admin.GetSeries(request, &series).ok());
  ASSERT_EQ(series.points_size(), 50);
  EXPECT_GT(series.points(49).bandwidth_deviation_bytes_per_s(), 0);
  EXPECT_GT(series.points(49).latency_deviation_s(), 0);
  for (const auto& [asked, given] : {std::pair(7u, 7), std::pair(50u, 50), std::pair(900u, 50)}) {
    request.set_points_max(asked);
    v1::Series newest;
    ASSERT_TRUE(plane_->admin.GetSeries(request, &newest).ok());
    ASSERT_EQ(newest.points_size(), given);
    EXPECT_EQ(newest.points(given - 1).step(), series.points(49).step());
  }
  EXPECT_GT(series.points(0).measured_network_s(), 0);
  EXPECT_NEAR(series.points(49).predicted_network_s(), series.points(49).measured_network_s(),
              0.15 * series.points(49).measured_network_s());
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_prediction_error_ratio{training_job=\"lm\"} 0.0"));
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_policy_gain_min_ratio{training_job=\"lm\"} 0.01\n"));
}

TEST_F(FleetTest, TheAgeOfTheOldestLinkIsReported) {
  const auto age_s = [this] {
    const std::string text = plane_->admin.MetricsText();
    const std::string name = "\nweir_link_age_seconds ";
    const size_t at = text.find(name);
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size()));
  };
  cluster_.Connect(*plane_);
  EXPECT_EQ(age_s(), 0);  // no link yet
  Run(20);
  const double before_s = age_s();
  EXPECT_GE(before_s, 0);
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_NEAR(age_s(), before_s + 30, 1e-6);
}

TEST_F(FleetTest, StrangeMessagesAreRefusedWithoutHarm) {
  cluster_.Connect(*plane_);
  auto stranger = std::make_shared<FakeAgent>();
  v1::AgentMessage message;
  message.mutable_heartbeat();
  EXPECT_EQ(plane_->agents.OnMessage(stranger, message).code(), StatusCode::kFailedPrecondition);
  message.mutable_hello()->set_node("");
  EXPECT_EQ(plane_->agents.OnMessage(stranger, message).code(), StatusCode::kInvalidArgument);
  message.mutable_hello()->set_node("x");
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
  auto* hello = message.mutable_rank()->mutable_message()->mutable_hello();
  message.mutable_rank()->set_job("lm");
  message.mutable_rank()->set_rank(1);
  hello->set_job("lm");
  hello->set_rank(1);
  hello->set_world(8);
  hello->set_pid(cluster_.pid);
  stranger->inbox.clear();
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
  ASSERT_EQ(stranger->inbox.size(), 1u);
  EXPECT_THAT(stranger->inbox[0].rank().command().refusal().reason(),
              testing::HasSubstr("world size 4"));
  EXPECT_EQ(Job().state(), "running");
  message.mutable_rank()->mutable_message()->mutable_ack()->set_version(99);
  message.mutable_rank()->set_rank(4000000000u);
  EXPECT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
  message.mutable_link()->set_target_node("nowhere");
  EXPECT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
}

TEST_F(FleetTest, ARankThatIsAttachedOnAnotherNodeIsRefusedAndChangesNothing) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  const uint64_t version = cluster_.active().version();
  ASSERT_GT(version, 0u);
  auto stranger = std::make_shared<FakeAgent>();
  v1::AgentMessage message;
  message.mutable_hello()->set_node("x");
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
  stranger->inbox.clear();
  message.mutable_rank()->set_job("lm");
  message.mutable_rank()->set_rank(2);
  auto* hello = message.mutable_rank()->mutable_message()->mutable_hello();
  hello->set_job("lm");
  hello->set_rank(2);
  hello->set_world(4);
  hello->set_pid(999);
  const v1::AgentMessage greeting = message;
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, greeting).ok());
  ASSERT_EQ(stranger->inbox.size(), 1u);
  const std::string why = stranger->inbox[0].rank().command().refusal().reason();
  for (const char* part : {"rank 2 of job 'lm'", "node n2", "process 100", "999", "node x"}) {
    EXPECT_THAT(why, testing::HasSubstr(part));
  }
  // Its later messages and its leaving are not taken for the attached rank's.
  message.mutable_rank()->mutable_message()->mutable_active()->set_version(version + 7);
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
  message.mutable_rank_gone()->set_job("lm");
  message.mutable_rank_gone()->set_rank(2);
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, message).ok());
  EXPECT_EQ(Job().state(), "running");
  EXPECT_EQ(Job().ranks(2).node(), "n2");
  EXPECT_EQ(Job().ranks(2).plan_version(), version);
  // After the first rank has left, the other one may attach.
  cluster_.DisconnectRank(2);
  stranger->inbox.clear();
  ASSERT_TRUE(plane_->agents.OnMessage(stranger, greeting).ok());
  for (const auto& answer : stranger->inbox) {
    EXPECT_FALSE(answer.rank().command().has_refusal()) << answer.ShortDebugString();
  }
}

TEST_F(FleetTest, AgentsDigestOfConnectionsIsShownAndReachesNoJobTwice) {
  cluster_.Connect(*plane_);
  Run(5);
  auto agent = std::make_shared<FakeAgent>();
  v1::AgentMessage message;
  message.mutable_hello()->set_node("x");
  ASSERT_TRUE(plane_->agents.OnMessage(agent, message).ok());
  const auto link_to = [&](const std::string& source, const std::string& target) {
    v1::ListLinksRequest request;
    request.set_node(source);
    v1::ListLinksResponse links;
    EXPECT_TRUE(plane_->admin.ListLinks(request, &links).ok());
    for (const v1::Link& link : links.links()) {
      if (link.source() == source && link.target() == target) return link;
    }
    return v1::Link();
  };
  message.mutable_link()->set_target_node("n1");
  message.mutable_link()->set_method("tcp_info");
  message.mutable_link()->set_rtt_s(0.003);
  message.mutable_link()->set_bandwidth_bytes_per_s(7e6);
  ASSERT_TRUE(plane_->agents.OnMessage(agent, message).ok());
  EXPECT_EQ(link_to("x", "n1").bandwidth_bytes_per_s().method(), "tcp_info");
  EXPECT_DOUBLE_EQ(link_to("x", "n1").bandwidth_bytes_per_s().value(), 7e6);
  const uint64_t samples = link_to("n0", "n1").rtt_s().samples();
  EXPECT_GT(samples, 0u);
  ASSERT_TRUE(plane_->agents.OnMessage(cluster_.agent(0), message).ok());
  EXPECT_EQ(link_to("n0", "n1").rtt_s().samples(), samples);
}

TEST_F(FleetTest, RestartedTrainingIsANewRunWithHigherVersions) {
  cluster_.network.bandwidth_bytes_per_s = 10e6;
  cluster_.Connect(*plane_);
  Run(40);
  const uint64_t version = cluster_.active().version();
  FakeCluster again(2, clock_);
  again.network = cluster_.network;
  again.pid = 200;
  for (int rank = 0; rank < 4; ++rank) cluster_.DisconnectRank(rank);
  again.Connect(*plane_);
  EXPECT_EQ(Job().world(), 2u);
  EXPECT_EQ(Job().state(), "running");
  for (int i = 0; i < 60; ++i) again.Step();
  EXPECT_GT(again.active().version(), version);
}

TEST_F(FleetTest, NewerAgentReplacesTheOldStreamAndSilenceEndsIt) {
  cluster_.Connect(*plane_);
  cluster_.ConnectRank(1);
  EXPECT_EQ(Job().state(), "running");
  clock_.Advance(std::chrono::seconds(30));
  plane_->fleet.OnTick();
  EXPECT_EQ(Job().state(), "lost");
}

TEST_F(FleetTest, SimulateUsesWhatRanksAdvertised) {
  v1::SimulateRequest request;
  request.set_model_parameters(25000000);
  request.set_world(8);
  request.set_latency_s(0.001);
  request.set_bandwidth_bytes_per_s(10e6);
  request.set_compute_s(0.1);
  v1::SimulateResponse response;
  EXPECT_EQ(plane_->admin.Simulate(request, &response).code(), StatusCode::kFailedPrecondition);
  cluster_.Connect(*plane_);
  ASSERT_TRUE(plane_->admin.Simulate(request, &response).ok());
  EXPECT_EQ(response.plan().buckets(0).choice().codec(), "top_k");
  request.set_bandwidth_bytes_per_s(50e9);
  request.set_latency_s(1e-6);
  ASSERT_TRUE(plane_->admin.Simulate(request, &response).ok());
  EXPECT_EQ(response.plan().buckets(0).choice().codec(), "identity");
  for (const uint32_t world : {0u, 4097u}) {
    request.set_world(world);
    EXPECT_EQ(plane_->admin.Simulate(request, &response).code(), StatusCode::kInvalidArgument)
        << world;
  }
}

}  // namespace
}  // namespace weir
