// SPDX-License-Identifier: Apache-2.0
// iperf3 tests between real helper processes on loopback, and invalid reports.
#include "agent/measure/iperf_bandwidth.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "agent/measure/tcp_connect_rtt.h"
#include "tests/agent/measure/loopback.h"

namespace weir::agent {
namespace {

// A shorter test may end before its receiver has read anything.
constexpr uint64_t kMoreThanBuffersHold = 32u << 20;

uint16_t FreePort() {
  const auto bound = BindSocket(Loopback(0), SOCK_STREAM);
  return LocalAddress(bound->get())->port();
}

// Waits until something accepts at `port`, without speaking iperf to it.
bool Listens(uint16_t port) {
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(10);
  while (RealClock().Now() < deadline) {
    // Binding fails with "address in use" as soon as the server listens.
    if (!BindSocket(Loopback(port), SOCK_STREAM).ok()) return true;
    poll(nullptr, 0, 5);
  }
  return false;
}

IperfOptions Options(uint16_t port) {
  IperfOptions options;
  options.helper_program = WEIR_AGENT_PROGRAM;
  options.host = "127.0.0.1";
  options.port = port;
  return options;
}

IperfServer::Options ServerOptions(uint16_t port) {
  return {.helper_program = WEIR_AGENT_PROGRAM, .host = "127.0.0.1", .port = port};
}

TEST(IperfBandwidthTest, MeasuresBothDirectionsWithinTheByteLimit) {
  const uint16_t port = FreePort();
  IperfServer server(ServerOptions(port), RealClock());
  for (const bool reverse : {false, true}) {
    ASSERT_TRUE(Listens(port));
    IperfOptions options = Options(port);
    options.bytes_max = kMoreThanBuffersHold;
    options.reverse = reverse;
    const auto report = MeasureIperfBandwidth(options, RealClock(), {});
    ASSERT_TRUE(report.ok()) << report.status() << " reverse " << reverse;
    EXPECT_GT(report->bandwidth_bytes_per_s, 1e6);
    EXPECT_GT(report->deviation_bytes_per_s, 0);
    EXPECT_GT(report->bytes_received, 1u << 20);
    if (!reverse) {
      EXPECT_LE(report->bytes_sent, options.bytes_max + (256u << 10));
    }
  }
}

TEST(IperfBandwidthTest, RefusedPortGivesIperfsReason) {
  const auto report = MeasureIperfBandwidth(Options(FreePort()), RealClock(), {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(report.status()).find("onnection refused"), std::string::npos)
      << report.status();
}

TEST(IperfBandwidthTest, SilentServerCostsTheDeadlineOnly) {
  const auto silent = BindSocket(Loopback(0), SOCK_STREAM);  // accepts in the kernel, never speaks
  IperfOptions options = Options(LocalAddress(silent->get())->port());
  options.time_max = std::chrono::milliseconds(700);
  const TimePoint start = RealClock().Now();
  const auto report = MeasureIperfBandwidth(options, RealClock(), {});
  EXPECT_EQ(report.status().code(), StatusCode::kDeadlineExceeded) << report.status();
  EXPECT_LT(RealClock().Now() - start, std::chrono::seconds(5));
}

TEST(IperfBandwidthTest, TwoTestsAtOnceShareNothing) {
  const uint16_t ports[2] = {FreePort(), FreePort()};
  IperfServer first(ServerOptions(ports[0]), RealClock());
  IperfServer second(ServerOptions(ports[1]), RealClock());
  ASSERT_TRUE(Listens(ports[0]));
  ASSERT_TRUE(Listens(ports[1]));
  const uint64_t bytes[2] = {kMoreThanBuffersHold, 2 * kMoreThanBuffersHold};
  StatusOr<IperfReport> reports[2] = {Internal("not run"), Internal("not run")};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      IperfOptions options = Options(ports[i]);
      options.bytes_max = bytes[i];
      reports[i] = MeasureIperfBandwidth(options, RealClock(), {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reports[i].ok()) << reports[i].status();
    EXPECT_NEAR(static_cast<double>(reports[i]->bytes_sent), static_cast<double>(bytes[i]),
                256.0 * 1024);
  }
}

TEST(IperfBandwidthTest, StalledClientDoesNotHoldTheServer) {
  const uint16_t port = FreePort();
  IperfServer::Options server_options = ServerOptions(port);
  server_options.test_time_max = std::chrono::milliseconds(300);
  IperfServer server(server_options, RealClock());
  ASSERT_TRUE(Listens(port));
  FileDescriptor stalled(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress target = Loopback(port);
  ASSERT_EQ(connect(stalled.get(), target.get(), target.size()), 0);
  // The server process ends; its half of the connection closes with it.
  pollfd closed{stalled.get(), POLLIN, 0};
  ASSERT_EQ(poll(&closed, 1, 10000), 1);
  stalled.Close();
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(10);
  StatusOr<IperfReport> report = Internal("not run");
  while (!report.ok() && RealClock().Now() < deadline) {
    IperfOptions options = Options(port);
    options.bytes_max = kMoreThanBuffersHold;
    report = MeasureIperfBandwidth(options, RealClock(), {});
  }
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_GE(server.tests_served(), 1u);
}

TEST(IperfBandwidthTest, ServerOnATakenPortSaysWhy) {
  const auto taken = BindSocket(Loopback(0), SOCK_STREAM);
  IperfServer server(ServerOptions(LocalAddress(taken->get())->port()), RealClock());
  const TimePoint deadline = RealClock().Now() + std::chrono::seconds(10);
  while (server.last_error().empty() && RealClock().Now() < deadline) poll(nullptr, 0, 5);
  EXPECT_NE(server.last_error().find("listen"), std::string::npos) << server.last_error();
}

TEST(IperfReportTest, ReadsTheReceiversTotals) {
  const auto report = ParseIperfReport(R"({"end":{
      "sum_sent":{"bytes":2000,"seconds":0.1,"retransmits":3},
      "sum_received":{"bytes":1000,"seconds":0.5}}})");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_DOUBLE_EQ(report->bandwidth_bytes_per_s, 2000);
  EXPECT_EQ(report->bytes_sent, 2000u);
  EXPECT_EQ(report->retransmits, 3u);
  EXPECT_DOUBLE_EQ(report->deviation_bytes_per_s, 200);
}

TEST(IperfReportTest, ErrorTextIsPassedOn) {
  const auto report = ParseIperfReport(R"({"start":{},"error":"the server is busy"})");
  EXPECT_EQ(report.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Message(report.status()), "the server is busy");
}

TEST(IperfReportTest, MalformedReportsAreDataLoss) {
  const std::string deep(200000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"end\":3}"),
        std::string(R"({"end":{"sum_sent":{},"sum_received":{}}})"),
        std::string(R"({"end":{"sum_sent":{"bytes":1},"sum_received":{"bytes":"x","seconds":1}}})"),
        std::string(R"({"end":{"sum_sent":{"bytes":1},"sum_received":{"bytes":5,"seconds":0}}})"),
        std::string(R"({"end":{"sum_sent":{"bytes":1},"sum_received":{"bytes":-5,"seconds":1}}})"),
        deep}) {
    EXPECT_EQ(ParseIperfReport(text).status().code(), StatusCode::kDataLoss) << text.substr(0, 80);
  }
}

}  // namespace
}  // namespace weir::agent
