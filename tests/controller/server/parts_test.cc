// SPDX-License-Identifier: Apache-2.0
// Small pure parts of the service.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "controller/server/event_hub.h"
#include "controller/server/executor.h"
#include "controller/server/grpc/admission.h"
#include "controller/server/rest/routes.h"
#include "controller/server/status_mapping.h"
#include "deploy/program/loopback.h"

namespace weir {
namespace {

TEST(LoopbackTest, OnlyAddressesAndOneNameAreOfThisMachine) {
  for (const char* yes : {"127.0.0.1", "127.8.9.10", "localhost", "::1", "[::1]"}) {
    EXPECT_TRUE(IsLoopback(yes)) << yes;
  }
  for (const char* no : {"0.0.0.0", "::", "127.evil.example", "127.", "127.0.0.1.evil.example",
                         "localhost.evil.example", "128.0.0.1", "", "[::]"}) {
    EXPECT_FALSE(IsLoopback(no)) << no;
  }
  for (const char* yes : {"127.0.0.1:7700", "[::1]:7700", "localhost:1", "unix:/run/weir.sock"}) {
    EXPECT_TRUE(IsLoopbackTarget(yes)) << yes;
  }
  for (const char* no : {"127.evil.example:7700", "10.0.0.1:7700", "train-0:7700", "[fe80::1]:1"}) {
    EXPECT_FALSE(IsLoopbackTarget(no)) << no;
  }
}

TEST(RoutesTest, MatchesVerbsAndDecodesNames) {
  auto match = MatchRoute("GET", "/v1/jobs/a%2Fb:explain");
  ASSERT_TRUE(match.ok());
  EXPECT_STREQ(match->route->method, "Explain");
  EXPECT_EQ(match->path_fields.at("job"), "a/b");
  match = MatchRoute("GET", "/v1/jobs/a:b");
  ASSERT_TRUE(match.ok());
  EXPECT_STREQ(match->route->method, "GetJob");
  EXPECT_STREQ(MatchRoute("POST", "/v1:simulate")->route->method, "Simulate");
  EXPECT_STREQ(MatchRoute("POST", "/v1/policies:validate")->route->method, "ValidatePolicy");
  EXPECT_STREQ(MatchRoute("GET", "/v1/jobs/x/series")->route->method, "GetSeries");
  EXPECT_EQ(MatchRoute("POST", "/v1/jobs").status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(MatchRoute("GET", "/v1/absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MatchRoute("GET", "/v1/jobs/").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MatchRoute("GET", "/v1/jobs/%").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MatchRoute("GET", "/v1/jobs/%zz").status().code(), StatusCode::kInvalidArgument);
  for (const Route& route : Routes()) EXPECT_NE(MethodOf(route), nullptr) << route.method;
}

TEST(RoutesTest, EveryAdminMethodHasARoute) {
  const auto* service = v1::Event::descriptor()->file()->FindServiceByName("AdminService");
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& name = service->method(i)->name();
    EXPECT_TRUE(std::any_of(Routes().begin(), Routes().end(), [&](const Route& route) {
      return name == route.method;
    })) << name;
  }
}

TEST(RoutesTest, FieldsAreSetByType) {
  v1::ListDecisionsRequest request;
  EXPECT_TRUE(SetField(&request, "job", "j").ok());
  EXPECT_TRUE(SetField(&request, "page_size", "7").ok());
  EXPECT_EQ(request.page_size(), 7u);
  EXPECT_EQ(SetField(&request, "page_size", "-1").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SetField(&request, "page_size", "7x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SetField(&request, "pagesize", "7").code(), StatusCode::kInvalidArgument);
  v1::WatchRequest watch;
  EXPECT_TRUE(SetField(&watch, "kinds", "job,decision").ok());
  EXPECT_EQ(watch.kinds_size(), 2);
}

TEST(EventHubTest, FiltersBoundsAndCloses) {
  EventHub hub;
  v1::WatchRequest request;
  request.add_kinds("job");
  request.set_job("a");
  const auto subscription = *hub.Subscribe(request);
  const auto publish = [&](const std::string& kind, const std::string& job) {
    v1::Event event;
    event.set_kind(kind);
    event.set_job(job);
    hub.Publish(std::move(event));
  };
  publish("job", "b");
  publish("step", "a");
  EXPECT_EQ(subscription->TryNext(), nullptr);
  publish("job", "a");
  EXPECT_NE(subscription->TryNext(), nullptr);
  for (size_t i = 0; i < Subscription::kQueueMax + 10; ++i) publish("job", "a");
  EXPECT_EQ(subscription->dropped(), 10u);
  request.add_kinds("nonsense");
  EXPECT_THAT(Message(hub.Subscribe(request).status()), testing::HasSubstr("valid: decision"));
  hub.Close();
  EXPECT_TRUE(subscription->closed());
  EXPECT_EQ(hub.Subscribe({}).status().code(), StatusCode::kUnavailable);
}

TEST(ExecutorTest, CallsReturnAndStopRunsWhatWasQueued) {
  Executor executor(std::chrono::milliseconds(1));
  std::atomic<int> ticks{0}, ran{0};
  executor.Start([&] { ++ticks; });
  EXPECT_EQ(executor.Call([] { return NotFound("x"); }).code(), StatusCode::kNotFound);
  while (ticks < 3) ASSERT_TRUE(executor.Call([] { return OkStatus(); }).ok());
  for (int i = 0; i < 100; ++i) executor.Post([&] { ++ran; });
  executor.Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(executor.Post([] {}));
  EXPECT_EQ(executor.Call([] { return OkStatus(); }).code(), StatusCode::kUnavailable);
}

TEST(ExecutorTest, ControlOvertakesTelemetryWhichStillHasTurns) {
  Executor executor;
  std::vector<int> order;
  std::atomic<bool> go{false};
  executor.Start([] {});
  executor.Post([&] {
    while (!go) std::this_thread::yield();
  });
  for (int i = 0; i < 3; ++i) executor.Post([&] { order.push_back(-1); }, Urgency::kTelemetry);
  for (int i = 0; i < 100; ++i) executor.Post([&, i] { order.push_back(i); });
  while (executor.Lag(Urgency::kTelemetry) < 0.01) std::this_thread::yield();
  EXPECT_GT(executor.Lag(Urgency::kControl), 0.005);
  go = true;
  executor.Stop();
  ASSERT_EQ(order.size(), 103u);
  const auto first = std::find(order.begin(), order.end(), -1) - order.begin();
  EXPECT_GT(first, 20) << "control went first";
  EXPECT_LT(first, 40) << "telemetry was not left to starve";
  EXPECT_EQ(executor.Lag(Urgency::kControl), 0);
}

TEST(AdmissionTest, ABurstIsAdmittedAndTheRestComesBackAtTheRate) {
  Admission admission({.greetings_per_s = 100, .burst = 50, .lag_max_s = 1});
  const TimePoint begin{std::chrono::hours(1)};
  std::multimap<double, int> waiting;
  int admitted = 0;
  const auto come = [&](double at_s) {
    const double wait_s = admission.Admit(begin + FromSeconds(at_s), 0);
    if (wait_s > 0) {
      EXPECT_GE(wait_s, 0.5);
      EXPECT_LE(wait_s, 60);
      waiting.emplace(at_s + wait_s, 0);
    } else {
      ++admitted;
    }
  };
  for (int i = 0; i < 1000; ++i) come(0);
  EXPECT_GE(admitted, 50);
  EXPECT_LE(admitted, 52);
  int returns = 0;
  double at_s = 0;
  for (; !waiting.empty(); ++returns) {
    at_s = waiting.begin()->first;
    waiting.erase(waiting.begin());
    come(at_s);
  }
  EXPECT_EQ(admitted, 1000);
  EXPECT_LE(returns, 1300) << "most were right to come when they were told";
  EXPECT_GT(at_s, 9) << "not faster than the rate";
  EXPECT_LT(at_s, 16);
}

TEST(AdmissionTest, NobodyIsAdmittedWhileWorkWaits) {
  Admission admission({.greetings_per_s = 100, .burst = 50, .lag_max_s = 1});
  const TimePoint now{std::chrono::hours(1)};
  EXPECT_EQ(admission.Admit(now, 0.9), 0);
  EXPECT_GE(admission.Admit(now, 3), 3.0) << "what waits has to be done first";
  EXPECT_EQ(admission.Admit(now, 0), 0);
}

TEST(StatusMappingTest, CodesAndErrorJson) {
  EXPECT_EQ(HttpCode(StatusCode::kOk), 200);
  EXPECT_EQ(HttpCode(StatusCode::kNotFound), 404);
  EXPECT_EQ(HttpCode(StatusCode::kUnauthenticated), 401);
  EXPECT_EQ(HttpCode(StatusCode::kPermissionDenied), 403);
  EXPECT_EQ(HttpCode(StatusCode::kUnavailable), 503);
  EXPECT_EQ(ErrorJson(NotFound("no \"x\"")), R"({"code":5,"message":"no \"x\"","details":[]})");
}

}  // namespace
}  // namespace weir
