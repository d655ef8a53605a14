// SPDX-License-Identifier: Apache-2.0
// Hop counts on loopback and, as root, over a router made of network namespaces.
#include "agent/measure/route.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "agent/measure/udp_echo.h"
#include "tests/agent/measure/loopback.h"

namespace weir::agent {
namespace {

RouteOptions Options() {
  RouteOptions options;
  options.nonce = 77;
  options.hop_timeout = std::chrono::milliseconds(100);
  options.deadline = RealClock().Now() + std::chrono::seconds(5);
  return options;
}

TEST(RouteTest, NeighbourIsOneHopAway) {
  const auto server = EchoServer::Start(Loopback(0), RealClock());
  ASSERT_TRUE(server.ok());
  const auto route = MeasureRoute(Loopback((*server)->port()), Options(), RealClock(), {});
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->hops, 1u);
  EXPECT_TRUE(route->routers.empty());
  EXPECT_GT(route->bytes_used, 0u);
}

TEST(RouteTest, ClosedPortAlsoSaysReached) {
  uint16_t port = 0;
  {
    const auto bound = BindSocket(Loopback(0), SOCK_DGRAM);
    port = LocalAddress(bound->get())->port();
  }
  const auto route = MeasureRoute(Loopback(port), Options(), RealClock(), {});
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->hops, 1u);
}

TEST(RouteTest, SilentTargetIsNotReached) {
  const auto silent = BindSocket(Loopback(0), SOCK_DGRAM);
  RouteOptions options = Options();
  options.hops_max = 2;
  options.attempts = 1;
  options.hop_timeout = std::chrono::milliseconds(30);
  const auto route = MeasureRoute(*LocalAddress(silent->get()), options, RealClock(), {});
  EXPECT_EQ(route.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(Message(route.status()).find("2 hops"), std::string::npos) << route.status();
}

TEST(RouteTest, DeadlineHolds) {
  const auto silent = BindSocket(Loopback(0), SOCK_DGRAM);
  RouteOptions options = Options();
  const TimePoint start = RealClock().Now();
  options.deadline = start + std::chrono::milliseconds(150);
  const auto route = MeasureRoute(*LocalAddress(silent->get()), options, RealClock(), {});
  EXPECT_EQ(route.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(RealClock().Now() - start, std::chrono::seconds(2));
}

// Three namespaces in a row: client, router, server. Removed at the end.
class RoutedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    prefix_ = StrCat("weir-route-", getpid());
    if (!Ip(StrCat("netns add ", Ns("c")))) {
      GTEST_SKIP() << "network namespaces are not permitted here";
    }
    made_ = true;
    ASSERT_TRUE(Ip(StrCat("netns add ", Ns("r"))) && Ip(StrCat("netns add ", Ns("s"))));
    ASSERT_TRUE(Connect("c", "10.77.1.1", "10.77.1.2", "c0", "r0"));
    ASSERT_TRUE(Connect("s", "10.77.2.1", "10.77.2.2", "s0", "r1"));
    ASSERT_TRUE(Ip(StrCat("-n ", Ns("c"), " route add default via 10.77.1.2")));
    ASSERT_TRUE(Ip(StrCat("-n ", Ns("s"), " route add default via 10.77.2.2")));
    ASSERT_EQ(std::system(StrCat("ip netns exec ", Ns("r"),
                                 " sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'")
                              .c_str()),
              0);
  }
  void TearDown() override {
    if (!made_) return;
    for (const char* name : {"c", "r", "s"}) Ip(StrCat("netns del ", Ns(name)));
  }

  std::string Ns(const std::string& name) const { return StrCat(prefix_, name); }
  static bool Ip(const std::string& arguments) {
    return std::system(StrCat("ip ", arguments, " 2>/dev/null").c_str()) == 0;
  }
  // A veth pair between namespace `name` and the router.
  bool Connect(const std::string& name, const std::string& own, const std::string& router,
               const std::string& device, const std::string& router_device) {
    return Ip(StrCat("link add ", device, " netns ", Ns(name), " type veth peer name ",
                     router_device, " netns ", Ns("r"))) &&
           Ip(StrCat("-n ", Ns(name), " addr add ", own, "/24 dev ", device)) &&
           Ip(StrCat("-n ", Ns("r"), " addr add ", router, "/24 dev ", router_device)) &&
           Ip(StrCat("-n ", Ns(name), " link set ", device, " up")) &&
           Ip(StrCat("-n ", Ns("r"), " link set ", router_device, " up"));
  }
  // Runs `work` on a thread inside a namespace; its sockets stay there.
  void In(const std::string& name, const std::function<void()>& work) {
    std::thread thread([&] {
      const FileDescriptor ns(open(StrCat("/run/netns/", Ns(name)).c_str(), O_RDONLY | O_CLOEXEC));
      ASSERT_TRUE(ns.valid());
      ASSERT_EQ(setns(ns.get(), CLONE_NEWNET), 0);
      work();
    });
    thread.join();
  }

  std::string prefix_;
  bool made_ = false;
};

TEST_F(RoutedTest, CountsTheRouterAndNamesIt) {
  std::unique_ptr<EchoServer> server;
  In("s", [&] {
    auto started = EchoServer::Start(*SocketAddress::FromIp("10.77.2.1", 7446), RealClock());
    ASSERT_TRUE(started.ok()) << started.status();
    server = std::move(*started);
  });
  In("c", [&] {
    RouteOptions options = Options();
    options.hop_timeout = std::chrono::seconds(1);
    const auto route =
        MeasureRoute(*SocketAddress::FromIp("10.77.2.1", 7446), options, RealClock(), {});
    ASSERT_TRUE(route.ok()) << route.status();
    EXPECT_EQ(route->hops, 2u);
    EXPECT_EQ(route->routers, std::vector<std::string>{"10.77.1.2"});
    const auto nowhere =
        MeasureRoute(*SocketAddress::FromIp("10.99.0.1", 7446), options, RealClock(), {});
    EXPECT_EQ(nowhere.status().code(), StatusCode::kUnavailable) << nowhere.status();
    EXPECT_NE(Message(nowhere.status()).find("10.77.1.2"), std::string::npos) << nowhere.status();
  });
}

}  // namespace
}  // namespace weir::agent
