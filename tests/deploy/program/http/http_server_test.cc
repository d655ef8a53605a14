// SPDX-License-Identifier: Apache-2.0
// The HTTP server of every program: slow clients, request ids, the access log, and
// health on a listener of its own. tests/e2e/attacks_test.py has the same of whole programs.
#include "deploy/program/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/log.h"
#include "deploy/program/http/health_listener.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    SetLogSink([this](LogLevel, std::string_view part, std::string_view message) {
      if (part == "access") lines_.emplace_back(message);
    });
  }
  ~HttpServerTest() override {
    for (const int each : sockets_) close(each);
    SetLogSink({});
  }

  void Start(HttpLimits limits = {}) {
    server_ = std::make_unique<HttpServer>(nullptr, limits, &access_);
    server_->Get("/id", [](const httplib::Request&, httplib::Response& response) {
      HttpServer::NameCaller("ann");
      response.set_content(HttpServer::RequestId(response), "text/plain");
    });
    ASSERT_TRUE(server_->Begin("127.0.0.1", 0).ok());
  }

  // A connection that has sent `begin` and sends nothing more.
  int Slow(int port, const std::string& begin) {
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(send(made, begin.data(), begin.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(begin.size()));
    sockets_.push_back(made);
    return made;
  }

  httplib::Result Get(int port, const std::string& path, const httplib::Headers& headers = {}) {
    httplib::Client client("127.0.0.1", port);
    client.set_read_timeout(10);
    return client.Get(path.c_str(), headers);
  }

  AccessLog access_;
  std::unique_ptr<HttpServer> server_;
  std::vector<std::string> lines_;
  std::vector<int> sockets_;
};

TEST_F(HttpServerTest, ARequestKeepsItsIdIfItIsOneAndOtherwiseGetsAnother) {
  Start();
  const auto given = Get(server_->port(), "/id", {{"X-Request-ID", "abc-1.2_Z"}});
  ASSERT_TRUE(given);
  EXPECT_EQ(given->body, "abc-1.2_Z");
  EXPECT_EQ(given->get_header_value("X-Request-ID"), "abc-1.2_Z");
  for (const std::string& wrong :
       {std::string("a b"), std::string("\"x\""), std::string(65, 'a')}) {
    const auto answer = Get(server_->port(), "/id", {{"X-Request-ID", wrong}});
    ASSERT_TRUE(answer);
    EXPECT_THAT(answer->body, MatchesRegex("[0-9a-f]{32}")) << wrong;
    EXPECT_EQ(answer->get_header_value("X-Request-ID"), answer->body);
  }
}

TEST_F(HttpServerTest, TheAccessLogHasWhoWhatAndTheId) {
  Start();
  ASSERT_TRUE(Get(server_->port(), "/id?a=1", {{"X-Request-ID", "r1"}}));
  ASSERT_TRUE(Get(server_->port(), "/nothing", {{"X-Request-ID", "r2"}}));
  server_->End();  // the line of an answer may come after it
  EXPECT_THAT(
      lines_,
      ElementsAre(MatchesRegex("http GET /id\\?a=1: 200 peer=127.0.0.1 principal=ann request_id=r1 "
                               "bytes=[0-9]+ seconds=[0-9.e-]+"),
                  HasSubstr("http GET /nothing: 404 peer=127.0.0.1 principal=- request_id=r2")));
}

TEST_F(HttpServerTest, TheAccessLogIsBoundedInEveryWindow) {
  FakeClock clock;
  AccessLog log(clock);
  for (int i = 0; i < AccessLog::kLinesMax + 500; ++i) {
    log.Add(
        {.protocol = "http", .method = "GET", .target = std::string(5000, 'x'), .outcome = "200"});
  }
  ASSERT_EQ(lines_.size(), static_cast<size_t>(AccessLog::kLinesMax));
  EXPECT_LT(lines_.front().size(), AccessLog::kTargetBytesMax + 200);
  clock.Advance(LogLimit::kWindow);
  log.Add({.protocol = "http", .method = "GET", .outcome = "200"});
  EXPECT_THAT(lines_[AccessLog::kLinesMax], HasSubstr("500 lines"));
}

// The kernel drops connections beyond the backlog, and they try again only after a second.
TEST(HttpServerBacklogTest, IsTheLongestThatTheKernelGives) {
  struct Listening : HttpServer {
    using HttpServer::HttpServer;
    int socket() const { return svr_sock_; }
  } server(nullptr);
  ASSERT_TRUE(server.Begin("127.0.0.1", 0).ok());
  tcp_info info{};
  socklen_t size = sizeof(info);
  ASSERT_EQ(getsockopt(server.socket(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  int longest = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> longest;
  EXPECT_EQ(info.tcpi_sacked, static_cast<uint32_t>(std::min(longest, SOMAXCONN)))
      << "of a listening socket, this is the length of its backlog";
  server.End();
}

TEST_F(HttpServerTest, SlowClientsMakeRoom) {
  Start({.connections_max = 8, .connections_of_peer_max = 8});
  for (int i = 0; i < 24; ++i) Slow(server_->port(), "GET / HTTP/1.1\r\nX: ");
  for (int i = 0; i < 5; ++i) {
    const auto answer = Get(server_->port(), "/id");
    ASSERT_TRUE(answer) << i;
    EXPECT_EQ(answer->status, 200);
  }
}

TEST_F(HttpServerTest, ARequestHasOneDeadline) {
  Start({.request_max = std::chrono::milliseconds(300)});
  const int slow = Slow(server_->port(), "GET / HTTP/1.1\r\nX: ");
  const TimePoint begin = RealClock().Now();
  char byte = 0;
  pollfd waiting{slow, POLLIN, 0};
  while (poll(&waiting, 1, 50) == 0) {
    (void)!send(slow, "a", 1, MSG_NOSIGNAL);  // a byte now and then would extend a read's deadline
    ASSERT_LT(RealClock().Now() - begin, std::chrono::seconds(10));
  }
  while (recv(slow, &byte, 1, 0) > 0) {  // the answer 400, then the end
  }
}

// The other listener's threads may all be busy.
TEST_F(HttpServerTest, HealthHasThreadsOfItsOwn) {
  Start({.connections_max = 2, .connections_of_peer_max = 2});
  Mutex mutex;
  CondVar changed;
  bool released = false;
  int held = 0;
  server_->Get("/hold", [&](const httplib::Request&, httplib::Response&) {
    MutexLock lock(mutex);
    ++held;
    changed.NotifyAll();
    while (!released) changed.Wait(mutex);
  });
  StatusOr<std::string> well("standing by");
  const auto health = HealthListener::Start(
      {.host = "127.0.0.1"}, [] { return std::string("ok"); }, [&] { return well; });
  ASSERT_TRUE(health.ok()) << health.status();
  std::vector<std::jthread> holders;
  for (int i = 0; i < 2; ++i) {
    holders.emplace_back([this] { (void)Get(server_->port(), "/hold"); });
  }
  {
    MutexLock lock(mutex);
    while (held < 2) changed.Wait(mutex);
  }
  const int port = (*health)->port();
  EXPECT_EQ(Get(port, "/healthz")->body, "ok\n");
  EXPECT_EQ(Get(port, "/readyz")->status, 200);
  EXPECT_EQ(Get(port, "/readyz")->body, "standing by\n");
  well = Unavailable("no quorum");
  EXPECT_EQ(Get(port, "/readyz")->status, 503);
  EXPECT_EQ(Get(port, "/readyz")->body, "no quorum\n");
  EXPECT_EQ(Get(port, "/v1/jobs")->status, 404);
  for (int i = 0; i < 40; ++i) Slow(port, "GET / HTTP/1.1\r\nX: ");
  const auto answer = Get(port, "/healthz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  MutexLock lock(mutex);
  released = true;
  changed.NotifyAll();
}

TEST_F(HttpServerTest, ATakenPortIsNamed) {
  Start();
  HttpServer second(nullptr);
  const Status status = second.Begin("127.0.0.1", server_->port());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr(StrCat("127.0.0.1:", server_->port())));
}

}  // namespace
}  // namespace weir
