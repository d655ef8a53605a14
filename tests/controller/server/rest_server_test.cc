// SPDX-License-Identifier: Apache-2.0
// The HTTP server without the rest of the controller.

#include "controller/server/rest/rest_server.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <sched.h>

#include <string>
#include <thread>

#include "controller/server/control_plane.h"
#include "controller/server/rest/compression.h"

namespace weir {
namespace {

/// Gives the calling thread priority on its core until it waits, so that threads that it starts run
/// after it.
bool RunBeforeOthers() {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &allowed)) CPU_SET(core, &one);
  }
  const sched_param first{.sched_priority = 1};
  return sched_setaffinity(0, sizeof one, &one) == 0 &&
         sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0;
}

TEST(RestServerTest, StopsBeforeItsThreadHasRun) {
  const auto store = OpenSqliteStore(":memory:");
  ASSERT_TRUE(store.ok()) << ToString(store.status());
  EventHub events;
  ServedPlane served(std::make_unique<ControlPlane>(FleetOptions{}, RealClock(), **store, events));
  Executor executor;
  Authenticator anyone;
  AuditTrail audit(**store);
  Backups backups(**store, "/nonexistent/backup");
  AdminCalls calls(executor, served, audit, anyone, backups);
  bool alone = false;
  std::thread runner([&] {  // a separate thread, so that core and priority end with it
    alone = RunBeforeOthers();
    auto server = RestServer::Start({.host = "127.0.0.1", .port = 0}, executor, served, calls,
                                    events, anyone);
    ASSERT_TRUE(server.ok()) << ToString(server.status());
    (*server)->Stop();
  });
  runner.join();
  if (!alone) GTEST_SKIP() << "no right to a priority (CAP_SYS_NICE): the thread may have run";
}

// The header that Chromium sends with every request.
constexpr char kChromiumEncodings[] = "gzip, deflate, br, zstd";

class RestAnswersTest : public testing::Test {
 protected:
  void SetUp() override {
    executor_.Start([] {});
    auto server =
        RestServer::Start({.host = "127.0.0.1", .port = 0, .local = {.role = Role::kAdmin}},
                          executor_, served_, calls_, events_, anyone_);
    ASSERT_TRUE(server.ok()) << ToString(server.status());
    server_ = std::move(*server);
  }
  void TearDown() override {
    events_.Close();
    server_->Stop();
    executor_.Stop();
  }
  httplib::Result Get(const std::string& path, const httplib::Headers& headers, bool unpack) const {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(20, 0);
    client.set_decompress(unpack);
    return client.Get(path, headers);
  }

  EventHub events_;
  std::unique_ptr<Store> store_ = std::move(*OpenSqliteStore(":memory:"));
  ServedPlane served_{
      std::make_unique<ControlPlane>(FleetOptions{}, RealClock(), *store_, events_)};
  Executor executor_;
  Authenticator anyone_;
  AuditTrail audit_{*store_};
  Backups backups_{*store_, "/nonexistent/backup"};
  AdminCalls calls_{executor_, served_, audit_, anyone_, backups_};
  std::unique_ptr<RestServer> server_;
};

TEST_F(RestAnswersTest, BrowserGetsGzipNeverBrotli) {
  for (const char* path : {"/openapi.json", "/metrics", "/app.js", "/style.css", "/"}) {
    const auto plain = Get(path, {{"Accept-Encoding", "identity"}}, false);
    ASSERT_TRUE(plain) << path << ": " << to_string(plain.error());
    EXPECT_EQ(plain->get_header_value("Content-Encoding"), "") << path;
    const auto packed = Get(path, {{"Accept-Encoding", kChromiumEncodings}}, false);
    ASSERT_TRUE(packed) << path;
    EXPECT_EQ(packed->status, 200);
    EXPECT_EQ(packed->get_header_value("Content-Encoding"),
              plain->body.size() < kGzipBytesMin ? "" : "gzip")
        << path;
    EXPECT_EQ(packed->get_header_value("Vary"), "Accept-Encoding");
    EXPECT_LE(packed->body.size(), plain->body.size()) << path;
    const auto unpacked = Get(path, {{"Accept-Encoding", "gzip"}}, true);
    ASSERT_TRUE(unpacked) << path;
    // Metrics count the requests themselves, so only their sizes are alike.
    if (std::string_view(path) == "/metrics") continue;
    EXPECT_EQ(unpacked->body, plain->body) << path;
  }
}

TEST_F(RestAnswersTest, ErrorsKeepTheirBodyAndFilesTheirTag) {
  const auto error = Get("/v1/jobs/none:explain", {{"Accept-Encoding", kChromiumEncodings}}, false);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 404);
  EXPECT_NE(error->body.find("no job 'none'"), std::string::npos) << error->body;
  const auto file = Get("/app.js", {{"Accept-Encoding", kChromiumEncodings}}, false);
  ASSERT_TRUE(file);
  const auto again = Get("/app.js", {{"If-None-Match", file->get_header_value("ETag")}}, false);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->status, 304);
  EXPECT_EQ(again->body, "");
}

TEST(CompressionTest, HeaderSaysWhetherGzipIsAllowed) {
  for (const char* yes : {kChromiumEncodings, "gzip", "br;q=1.0, gzip;q=0.8", "*", " x-gzip "}) {
    EXPECT_TRUE(AcceptsGzip(yes)) << yes;
  }
  for (const char* no : {"", "br", "identity", "gzip;q=0", "*, gzip;q=0", "*;q=0", "bgzip"}) {
    EXPECT_FALSE(AcceptsGzip(no)) << no;
  }
}

}  // namespace
}  // namespace weir
