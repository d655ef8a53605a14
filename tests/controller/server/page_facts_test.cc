// SPDX-License-Identifier: Apache-2.0
// The facts that the web page needs: kept events, the parts of a step, what dense would have cost,
// refusals as events, and policies that two people edit at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/controller/fleet/fake_cluster.h"

namespace weir {
namespace {

std::vector<std::string> Texts(EventHub& hub, const v1::WatchRequest& request) {
  const auto subscription = *hub.Subscribe(request);
  std::vector<std::string> texts;
  while (const auto event = subscription->TryNext()) texts.push_back(event->text());
  hub.Unsubscribe(subscription);
  return texts;
}

v1::Event Event(const std::string& kind, const std::string& text) {
  v1::Event event;
  event.set_kind(kind);
  event.set_text(text);
  return event;
}

TEST(EventHistoryTest, ReplayGoesOnAfterAnIdAndLeavesStepsOut) {
  EventHub hub;
  hub.Publish(Event("job", "first"));
  hub.Publish(Event("step", "a step"));
  hub.Publish(Event("rank", "third"));
  v1::WatchRequest request;
  EXPECT_THAT(Texts(hub, request), testing::IsEmpty());
  request.set_replay(true);
  EXPECT_THAT(Texts(hub, request), testing::ElementsAre("first", "third"));
  request.set_after_id(1);
  EXPECT_THAT(Texts(hub, request), testing::ElementsAre("third"));
  request.set_after_id(3);
  EXPECT_THAT(Texts(hub, request), testing::IsEmpty());
  request.set_after_id(99);  // another controller's
  EXPECT_THAT(Texts(hub, request), testing::ElementsAre("first", "third"));
  request.add_kinds("rank");
  EXPECT_THAT(Texts(hub, request), testing::ElementsAre("third"));
}

TEST(EventHistoryTest, IsBoundedAndDropsWhatMayBeLarge) {
  EventHub hub;
  v1::Event large = Event("decision", "large");
  large.mutable_decision()->set_outcome("nacked");
  large.mutable_decision()->add_candidates()->set_label("x");
  large.mutable_decision()->mutable_plan()->add_buckets();
  hub.Publish(large);
  v1::WatchRequest request;
  request.set_replay(true);
  const auto kept = (*hub.Subscribe(request))->TryNext();
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->decision().outcome(), "nacked");
  EXPECT_EQ(kept->decision().candidates_size(), 0);
  EXPECT_FALSE(kept->decision().has_plan());
  for (size_t i = 0; i < EventHub::kHistoryMax + 5; ++i) hub.Publish(Event("job", "more"));
  const auto texts = Texts(hub, request);
  EXPECT_EQ(texts.size(), EventHub::kHistoryMax);
  EXPECT_THAT(texts, testing::Each("more"));
}

class PageFactsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto store = OpenSqliteStore(":memory:");
    ASSERT_TRUE(store.ok()) << ToString(store.status());
    store_ = std::move(*store);
    plane_ = std::make_unique<ControlPlane>(FleetOptions{}, clock_, *store_, events_);
    cluster_.Connect(*plane_);
  }
  void Run(int steps) {
    for (int i = 0; i < steps && !HasFatalFailure(); ++i) cluster_.Step();
  }
  v1::Job Job() {
    v1::GetJobRequest request;
    request.set_name("lm");
    v1::Job job;
    EXPECT_TRUE(plane_->admin.GetJob(request, &job).ok());
    return job;
  }
  Status Apply(const std::string& source, const std::string& if_match) {
    v1::ApplyPolicyRequest request;
    request.set_name("mine");
    request.set_source(source);
    request.set_if_match(if_match);
    v1::ApplyPolicyResponse response;
    const Status status = plane_->admin.ApplyPolicy(request, &response);
    applied_ = response.policy();
    return status;
  }

  FakeClock clock_;
  EventHub events_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<ControlPlane> plane_;
  FakeCluster cluster_{3, clock_};
  v1::Policy applied_;
};

TEST_F(PageFactsTest, StepsCarryTheirPartsAndWhatDenseWouldTake) {
  Run(60);
  v1::GetSeriesRequest request;
  request.set_job("lm");
  v1::Series series;
  ASSERT_TRUE(plane_->admin.GetSeries(request, &series).ok());
  const v1::SeriesPoint& first = series.points(0);
  const v1::SeriesPoint& last = series.points(series.points_size() - 1);
  EXPECT_EQ(first.dense_step_s(), 0) << "nothing was decided yet";
  EXPECT_GT(last.dense_step_s(), 0);
  EXPECT_GT(last.network_s(), 0);
  EXPECT_DOUBLE_EQ(last.backward_s(), FakeCluster::kBackwardS);
  EXPECT_DOUBLE_EQ(last.encode_s() + last.decode_s(), last.codec_s());
  EXPECT_FALSE(last.skipped());
}

TEST_F(PageFactsTest, SavedTimeIsThatOfDenseForTheSameProgressLessWhatWasMeasured) {
  Run(60);
  cluster_.network.bandwidth_bytes_per_s = 2e6;
  Run(100);
  v1::GetSeriesRequest request;
  request.set_job("lm");
  v1::Series series;
  ASSERT_TRUE(plane_->admin.GetSeries(request, &series).ok());
  double saved = 0, compared = 0;
  for (const auto& point : series.points()) {
    if (point.dense_step_s() == 0) continue;
    saved += point.dense_step_s() - point.step_s();
    compared += point.step_s();
  }
  const v1::Job job = Job();
  EXPECT_GT(job.compared_s(), 0);
  EXPECT_EQ(job.saved_s(), job.benefit().saved_s());
  EXPECT_LT(job.saved_s(), saved) << "steps that keep less of the gradient count for less";
  EXPECT_NEAR(job.compared_s(), compared, 1e-9);
  EXPECT_LT(job.benefit().saved_share_low(), job.benefit().saved_share());
  EXPECT_GT(job.benefit().saved_share_high(), job.benefit().saved_share());
  EXPECT_GT(job.saved_s(), 10) << "compressing a network of 2 MB/s saves most of the time";
}

TEST_F(PageFactsTest, ARefusalIsAnEventWithRankAndReason) {
  Run(40);
  v1::WatchRequest request;
  request.add_kinds("rank");
  const auto subscription = *events_.Subscribe(request);
  cluster_.nack = true;
  cluster_.network.bandwidth_bytes_per_s = 2e6;
  Run(40);
  const auto event = subscription->TryNext();
  ASSERT_NE(event, nullptr);
  EXPECT_EQ(event->job(), "lm");
  EXPECT_EQ(event->rank_event().kind(), "plan_nack");
  EXPECT_THAT(event->text(),
              testing::MatchesRegex("rank [0-2] refuses plan [0-9]+: .*no memory.*"));
  v1::WatchRequest decisions;
  decisions.add_kinds("decision");
  decisions.set_replay(true);
  std::set<std::string> outcomes;
  const auto kept = *events_.Subscribe(decisions);
  while (const auto decision = kept->TryNext()) outcomes.insert(decision->decision().outcome());
  EXPECT_TRUE(outcomes.contains("nacked")) << "how a decision ended is told, too";
}

TEST_F(PageFactsTest, ASkippedStepNamesRankAndParameter) {
  Run(40);
  EXPECT_FALSE(Job().has_non_finite());
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::Not(testing::HasSubstr("weir_non_finite_rank")));
  v1::WatchRequest request;
  request.add_kinds("rank");
  const auto subscription = *events_.Subscribe(request);
  const auto say = [&](int rank, int guilty, const std::string& parameter) {
    v1::RankEvent event;
    event.set_kind("non_finite");
    event.set_step(7);
    event.set_guilty_rank(guilty);
    event.set_parameter(parameter);
    cluster_.Tell(rank, event);
    return subscription->TryNext() != nullptr;
  };
  EXPECT_TRUE(say(0, -1, ""));
  EXPECT_EQ(Job().non_finite().guilty_rank(), -1);
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_non_finite_rank{training_job=\"lm\"} -1\n"));
  EXPECT_TRUE(say(2, 2, ""));
  EXPECT_TRUE(say(2, 2, std::string(300, 'w')));
  EXPECT_FALSE(say(1, 1, "")) << "adds nothing";
  EXPECT_EQ(Job().non_finite().step(), 7u);
  EXPECT_EQ(Job().non_finite().guilty_rank(), 2);
  EXPECT_EQ(Job().non_finite().parameter(), std::string(256, 'w'));
  EXPECT_THAT(plane_->admin.MetricsText(),
              testing::HasSubstr("weir_non_finite_rank{training_job=\"lm\"} 2\n"));
}

TEST_F(PageFactsTest, ARankBlamesOnlyItself) {
  Run(40);
  v1::RankEvent event;
  event.set_kind("non_finite");
  event.set_guilty_rank(0);
  cluster_.Tell(1, event);
  EXPECT_EQ(Job().non_finite().guilty_rank(), 1);
}

TEST_F(PageFactsTest, AnUpdateOfAnOlderTextIsRefused) {
  ASSERT_TRUE(Apply("name: mine\n", "").ok());
  const std::string tag = applied_.etag();
  ASSERT_EQ(tag.size(), 16u);
  const Status other = Apply("name: mine\nbounds: {gain_min: 0.5}\n", tag);
  ASSERT_TRUE(other.ok()) << ToString(other);
  EXPECT_NE(applied_.etag(), tag);
  EXPECT_DOUBLE_EQ(applied_.bounds().gain_min(), 0.5);
  EXPECT_DOUBLE_EQ(applied_.bounds().ratio_max(), 1) << "defaults are filled in";
  const Status late = Apply("name: mine\nbounds: {gain_min: 0.9}\n", tag);
  EXPECT_EQ(late.code(), StatusCode::kAborted);
  EXPECT_THAT(Message(late), testing::HasSubstr("changed meanwhile"));
  v1::ListPoliciesResponse policies;
  ASSERT_TRUE(plane_->admin.ListPolicies({}, &policies).ok());
  EXPECT_DOUBLE_EQ(policies.policies(0).bounds().gain_min(), 0.5)
      << "the refused one has no effect";
}

TEST_F(PageFactsTest, AValidatedPolicyHasItsName) {
  v1::ValidatePolicyRequest request;
  request.set_source("objective:\n  name: throughput\nname: mine\n");
  v1::ValidatePolicyResponse response;
  ASSERT_TRUE(plane_->admin.ValidatePolicy(request, &response).ok());
  EXPECT_TRUE(response.valid());
  EXPECT_EQ(response.name(), "mine");
}

}  // namespace
}  // namespace weir
