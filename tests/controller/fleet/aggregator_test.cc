// SPDX-License-Identifier: Apache-2.0
// Aggregators as the controller sees them: their JSON and the calls to them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <thread>

#include "controller/fleet/aggregator_api.h"
#include "controller/fleet/aggregator_gateway.h"
#include "datapath/base/bounded_queue.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/mutex.h"
#include "tests/controller/fleet/fake_lookups.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AggregatorApiTest, NamesAndAddressesAreStrict) {
  const auto good = ParseAggregator("sum-1=https://weir-aggregator.weir-system.svc:9466");
  ASSERT_TRUE(good.ok()) << ToString(good.status());
  EXPECT_EQ(good->name, "sum-1");
  EXPECT_EQ(HostOf(*good), "weir-aggregator.weir-system.svc");
  const auto six = ParseAggregator("a=http://[::1]:80");
  ASSERT_TRUE(six.ok()) << ToString(six.status());
  EXPECT_EQ(HostOf(*six), "::1");
  for (const char* text :
       {"", "sum-1", "=http://a:1", "a b=http://a:1", "a=ftp://a:1", "a=http://a", "a=http://:1",
        "a=http://a:0", "a=http://a:65536", "a=http://a:1/path", "a=http://u@a:1", "a=http://a:1 ",
        "a=http://[::1%x]:1", "a=http://a:-1"}) {
    const auto parsed = ParseAggregator(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(parsed.status()), HasSubstr("expected NAME=http(s)://HOST:PORT"));
  }
}

TEST(AggregatorApiTest, JobsKeepTheirNamesIfAggregatorsAcceptThem) {
  EXPECT_EQ(LeaseJobName("train-7.a_B"), "train-7.a_B");
  EXPECT_THAT(LeaseJobName("my job"), testing::StartsWith("my_job-"));
  EXPECT_NE(LeaseJobName("my job"), LeaseJobName("my/job"));
  EXPECT_LE(LeaseJobName(std::string(250, 'x')).size(), 128u);
}

LeaseAsk SomeAsk() {
  return {"sum-1", "lm", 1, "switchml", "sum", {"10.0.0.1:5", "10.0.0.2:5"}, 64, 256};
}

constexpr const char* kGrant =
    R"({"address":"10.0.0.9:48864","cookie":"5ad1c0ffee5ad1c0","epoch":7,"first_slot":0,"job":"lm",)"
    R"("lanes":256,"lease":3,"mode":"sum","slots":64,"workers":[]})";

TEST(AggregatorApiTest, RequestsAndGrants) {
  EXPECT_EQ(LeaseAskJson(SomeAsk()), R"({"job":"lm","lanes":256,"mode":"sum","slots":64,)"
                                     R"("workers":["10.0.0.1:5","10.0.0.2:5"]})");
  const auto grant = ReadGrant(kGrant, SomeAsk());
  ASSERT_TRUE(grant.ok()) << ToString(grant.status());
  EXPECT_EQ(grant->collective, "switchml");
  EXPECT_EQ(grant->aggregator, "sum-1");
  EXPECT_EQ(grant->address, "10.0.0.9:48864");
  EXPECT_EQ(grant->id, 3u);
  EXPECT_EQ(grant->epoch, 7u);
  EXPECT_EQ(grant->cookie, "5ad1c0ffee5ad1c0");
  EXPECT_EQ(grant->slots, 64u);
  EXPECT_EQ(grant->lanes, 256u);
}

// A job may hold slots for several collectives; a lease for one must not end that of another.
TEST(AggregatorApiTest, BlocksAreAskedForInColumnsUnderANameOfTheirOwn) {
  LeaseAsk ask = SomeAsk();
  ask.collective = "omnireduce";
  ask.mode = "sparse";
  ask.lanes = 64;
  ask.columns = 4;
  const std::string owner = LeaseJobName(LeaseOwner("lm", "sparse"));
  EXPECT_THAT(owner, testing::StartsWith("lm_sparse-"));
  EXPECT_NE(owner, LeaseJobName("lm_sparse"));
  EXPECT_EQ(LeaseAskJson(ask), StrCat(R"({"columns":4,"job":")", owner,
                                      R"(","lanes":64,"mode":"sparse","slots":64,)"
                                      R"("workers":["10.0.0.1:5","10.0.0.2:5"]})"));
  std::string granted = kGrant;
  granted.replace(granted.find(R"("mode":"sum")"), 12, R"("mode":"sparse","columns":4)");
  const auto grant = ReadGrant(granted, ask);
  ASSERT_TRUE(grant.ok()) << ToString(grant.status());
  EXPECT_EQ(grant->columns, 4u);
  ask.columns = 2;
  EXPECT_FALSE(ReadGrant(granted, ask).ok());
}

TEST(AggregatorApiTest, StrangeAnswersAreErrorsThatKeepTheCookie) {
  for (const char* text : {"", "[]", "{}", R"({"cookie":"5ad1c0ffee5ad1c0"})",
                           R"({"cookie":5,"epoch":1,"lease":1,"mode":"sum"})",
                           R"({"address":"a:1","cookie":"5ad1c0ffee5ad1c0","epoch":-1,"lanes":256,)"
                           R"("lease":3,"mode":"sum","slots":64})",
                           R"({"address":"a:1","cookie":"5ad1c0ffee5ad1c0","epoch":1,"lanes":256,)"
                           R"("lease":70000,"mode":"sum","slots":64})",
                           R"({"address":"a:1","cookie":"5ad1c0ffee5ad1c0","epoch":1,"lanes":256,)"
                           R"("lease":3,"mode":"max","slots":64})"}) {
    const auto grant = ReadGrant(text, SomeAsk());
    EXPECT_EQ(grant.status().code(), StatusCode::kDataLoss) << text;
    EXPECT_THAT(Message(grant.status()), testing::Not(HasSubstr("5ad1c0ffee"))) << text;
  }
  AggregatorReport out;
  EXPECT_FALSE(ReadCapacity("{}", &out).ok());
  EXPECT_FALSE(ReadCapacity("\xff", &out).ok());
  EXPECT_FALSE(ReadLeases(R"({"leases":{}})", &out).ok());
  EXPECT_FALSE(ReadLeases(R"({"leases":[1]})", &out).ok());
  ASSERT_TRUE(ReadLeases(R"({"leases":[{"job":"a\nb","plane":"p4","epoch":99999999999,"idle_s":-1,)"
                         R"("workers":[1,"10.0.0.1:1"],"waiting":{"age_s":4.5,"slot":2,)"
                         R"("missing":[{"worker":1,"address":"10.0.0.2:1"},7]}}]})",
                         &out)
                  .ok());
  ASSERT_EQ(out.leases.size(), 1);
  EXPECT_EQ(out.leases[0].job, "a?b");
  EXPECT_EQ(out.leases[0].epoch, UINT32_MAX);
  EXPECT_EQ(out.leases[0].idle_s, 0);
  EXPECT_EQ(out.leases[0].waiting_s, 4.5);
  EXPECT_EQ(out.leases[0].plane, "p4");
  EXPECT_THAT(out.leases[0].missing, ElementsAre("1 (10.0.0.2:1)"));
}

// An aggregator's HTTP interface with answers that a test sets.
class FakeServer {
 public:
  FakeServer() {
    server_.Get("/v1/capacity", [this](const httplib::Request& request, httplib::Response& r) {
      MutexLock lock(mutex_);
      authorization_ = request.get_header_value("Authorization");
      r.set_content(R"({"shards":1,"slots":128,"slots_free":100,"slots_free_of_shard":100,)"
                    R"("slots_per_job":64,"leases_free":4,"lanes_max":256,"workers_max":64})",
                    "application/json");
    });
    server_.Get("/v1/leases", [](const httplib::Request&, httplib::Response& r) {
      r.set_content(R"({"leases":[]})", "application/json");
    });
    server_.Post("/v1/leases", [this](const httplib::Request& request, httplib::Response& r) {
      MutexLock lock(mutex_);
      body_ = request.body;
      r.status = full ? 429 : 201;
      r.set_content(
          full ? R"({"code":8,"message":"all 4 leases are granted","details":[]})" : kGrant,
          "application/json");
    });
    server_.Delete("/v1/leases/[^/]+", [this](const httplib::Request& request, httplib::Response&) {
      MutexLock lock(mutex_);
      ended_ = request.target;
      ended_by_ = request.get_header_value("Weir-Lease-Owner");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeServer() {
    server_.stop();
    thread_.join();
  }
  int port() const { return port_; }
  std::string authorization() {
    MutexLock lock(mutex_);
    return authorization_;
  }
  std::string body() {
    MutexLock lock(mutex_);
    return body_;
  }
  std::string ended() {
    MutexLock lock(mutex_);
    return ended_;
  }

  std::string ended_by() {
    MutexLock lock(mutex_);
    return ended_by_;
  }

  std::atomic<bool> full{false};

 private:
  httplib::Server server_;
  Mutex mutex_;
  std::string authorization_ WEIR_GUARDED_BY(mutex_);
  std::string body_ WEIR_GUARDED_BY(mutex_), ended_ WEIR_GUARDED_BY(mutex_);
  std::string ended_by_ WEIR_GUARDED_BY(mutex_);
  int port_ = 0;
  std::thread thread_;
};

// Collects the gateway's events; tests wait for them with a deadline.
class Told {
 public:
  GatewayEvents Events() {
    GatewayEvents events;
    events.state = [this](AggregatorReport said) { states_.TryPush(std::move(said)); };
    events.answer = [this](const LeaseAsk&, StatusOr<SlotGrant> answer) {
      answers_.TryPush(std::move(answer));
    };
    return events;
  }
  AggregatorReport State() {
    return states_.Pop(RealClock().Now() + std::chrono::seconds(10)).value_or(AggregatorReport());
  }
  StatusOr<SlotGrant> Answer() {
    auto answer = answers_.Pop(RealClock().Now() + std::chrono::seconds(10));
    return answer.has_value() ? *answer : StatusOr<SlotGrant>(Internal("nothing came"));
  }

 private:
  BoundedQueue<AggregatorReport> states_{1000};
  BoundedQueue<StatusOr<SlotGrant>> answers_{100};
};

GatewayOptions OptionsFor(int port) {
  GatewayOptions options;
  options.aggregators = {{"sum-1", StrCat("http://127.0.0.1:", port)}};
  options.token = "secret";
  options.owner_secret = "kept secret";
  options.poll_interval = std::chrono::milliseconds(20);
  options.answer_timeout = std::chrono::milliseconds(500);
  return options;
}

TEST(AggregatorGatewayTest, PollsAsksAndEnds) {
  FakeServer server;
  Told told;
  auto gateway = StartHttpGateway(OptionsFor(server.port()), told.Events());
  ASSERT_TRUE(gateway.ok()) << ToString(gateway.status());
  const AggregatorReport state = told.State();
  EXPECT_TRUE(state.reachable) << state.error;
  EXPECT_EQ(state.name, "sum-1");
  EXPECT_EQ(state.slots_free_of_shard, 100u);
  EXPECT_EQ(server.authorization(), "Bearer secret");
  ASSERT_TRUE((*gateway)->Ask(SomeAsk()));
  const auto answer = told.Answer();
  ASSERT_TRUE(answer.ok()) << ToString(answer.status());
  EXPECT_EQ(answer->epoch, 7u);
  // The owner is the same at the grant and at the end of a lease, and after a restart, but
  // different for each aggregator, so that no aggregator can use it at another.
  const std::string owner = *DeriveToken("kept secret", "weir lease owner 1 sum-1 lm");
  EXPECT_EQ(server.body(), LeaseAskJson(SomeAsk(), owner));
  (*gateway)->End("sum-1", "lm", 7);
  server.full = true;
  ASSERT_TRUE((*gateway)->Ask(SomeAsk()));
  EXPECT_THAT(Message(told.Answer().status()), HasSubstr("all 4 leases are granted (HTTP 429)"));
  EXPECT_EQ(server.ended(), "/v1/leases/lm?epoch=7");
  EXPECT_EQ(server.ended_by(), owner);
  LeaseAsk other = SomeAsk();
  other.aggregator = "sum-2";
  EXPECT_FALSE((*gateway)->Ask(other));
}

TEST(AggregatorGatewayTest, SilenceAndAbsenceAreStatesAndStoppingIsQuick) {
  // This listener accepts connections and never answers.
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Told told;
  GatewayOptions options = OptionsFor(ntohs(address.sin_port));
  options.answer_timeout = std::chrono::milliseconds(100);
  {
    auto gateway = StartHttpGateway(options, told.Events());
    ASSERT_TRUE(gateway.ok());
    EXPECT_FALSE(told.State().reachable);
    ASSERT_TRUE((*gateway)->Ask(SomeAsk()));
    EXPECT_EQ(told.Answer().status().code(), StatusCode::kUnavailable);
  }
  options.answer_timeout = std::chrono::seconds(60);
  options.call_timeout = std::chrono::seconds(60);
  auto gateway = StartHttpGateway(options, told.Events());
  ASSERT_TRUE(gateway.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the poll waits by now
  const TimePoint begin = RealClock().Now();
  gateway->reset();
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 5);
  close(listener);
  Told absent;
  auto nobody = StartHttpGateway(OptionsFor(ntohs(address.sin_port)), absent.Events());
  ASSERT_TRUE(nobody.ok());
  const AggregatorReport state = absent.State();
  EXPECT_FALSE(state.reachable);
  EXPECT_THAT(state.error, HasSubstr("cannot connect"));
}

TEST(AggregatorGatewayTest, OptionsAreChecked) {
  Told told;
  GatewayOptions options = OptionsFor(1);
  options.aggregators.push_back(options.aggregators[0]);
  EXPECT_THAT(Message(StartHttpGateway(options, told.Events()).status()),
              HasSubstr("sum-1 is given twice"));
  options = OptionsFor(1);
  options.ca_file = "/nonexistent.pem";
  EXPECT_THAT(Message(StartHttpGateway(options, told.Events()).status()),
              HasSubstr("cannot read the CA file"));
  options = OptionsFor(1);
  for (int i = 0; i < 20; ++i) options.aggregators.push_back({StrCat("a", i), "http://a:1"});
  EXPECT_THAT(Message(StartHttpGateway(options, told.Events()).status()),
              HasSubstr("at most 16 aggregators"));
}

TEST(AggregatorGatewayTest, NamesAreLookedUpInTheBackgroundAndSilentNameServersAreReported) {
  FakeServer server;
  FakeLookups lookups;
  Told told;
  GatewayOptions options = OptionsFor(server.port());
  options.aggregators[0].url = StrCat("http://sum.invalid:", server.port());
  options.connect_timeout = std::chrono::milliseconds(50);
  options.start_lookup = lookups.Start();
  {
    auto gateway = StartHttpGateway(options, told.Events());
    ASSERT_TRUE(gateway.ok());
    EXPECT_EQ(told.State().error, "no name server answered for host sum.invalid within 0.05 s");
    ASSERT_TRUE((*gateway)->Ask(SomeAsk()));
    EXPECT_EQ(told.Answer().status().code(), StatusCode::kDeadlineExceeded);
  }
  Told again;
  lookups.answer = PendingLookup::Answer(std::vector<std::string>{"127.0.0.1"});
  auto gateway = StartHttpGateway(options, again.Events());
  ASSERT_TRUE(gateway.ok());
  const AggregatorReport state = again.State();
  EXPECT_TRUE(state.reachable) << state.error;
}

}  // namespace
}  // namespace weir
