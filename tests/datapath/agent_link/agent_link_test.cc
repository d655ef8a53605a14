// SPDX-License-Identifier: Apache-2.0
// The rank's side of the local socket against a fake agent: hello, commands, hostile bytes, no
// agent, loss of the agent and its return.

#include "datapath/agent_link/agent_link.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/json.h"
#include "datapath/base/log.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::Within;

// An agent that exchanges frames over a Unix socket. Every wait is bounded.
class FakeAgent {
 public:
  explicit FakeAgent(const std::string& path) : path_(path) {
    unlink(path.c_str());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
  }
  ~FakeAgent() {
    Hang();
    close(listener_);
    unlink(path_.c_str());
  }

  bool Accept() {
    Hang();
    pollfd wait{listener_, POLLIN, 0};
    if (poll(&wait, 1, 10000) != 1) return false;
    fd_ = accept(listener_, nullptr, nullptr);
    return fd_ >= 0;
  }
  void Hang() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    reader_ = SocketFrameReader();
  }
  void Write(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Say(const std::string& json) { Write(EncodeSocketFrame(json)); }

  /// The next message as JSON; null at the end of the connection or after 10 s.
  nlohmann::json Hear() {
    for (;;) {
      const auto text = reader_.Next();
      EXPECT_TRUE(text.ok());
      if (text->has_value()) return *ParseJson(**text, 4u << 20);
      pollfd wait{fd_, POLLIN, 0};
      if (poll(&wait, 1, 10000) != 1) return nullptr;
      char bytes[65536];
      const ssize_t got = recv(fd_, bytes, sizeof bytes, 0);
      if (got <= 0) return nullptr;
      reader_.Append(std::string_view(bytes, static_cast<size_t>(got)));
    }
  }
  /// Skips to the next message that has `key`.
  nlohmann::json HearUntil(const char* key) {
    for (;;) {
      nlohmann::json message = Hear();
      if (message.is_null() || message.contains(key)) return message;
    }
  }

 private:
  std::string path_;
  int listener_ = -1, fd_ = -1;
  SocketFrameReader reader_;
};

class Handler : public AgentHandler {
 public:
  std::vector<RankMessage> Greeting() override {
    RankHello hello;
    hello.job = "job";
    return {hello};
  }
  void OnCommand(RankCommand command) override { commands.TryPush(std::move(command)); }
  std::string Stance() override { return "running dense"; }
  BoundedQueue<RankCommand> commands{64};
};

// Collects log lines while it lives.
class LogCapture {
 public:
  LogCapture() {
    SetLogSink([this](LogLevel, std::string_view, std::string_view message) {
      lines.TryPush(std::string(message));
    });
  }
  ~LogCapture() { SetLogSink(nullptr); }
  std::string Next() { return lines.Pop(Within(10)).value_or("nothing within 10 s"); }
  BoundedQueue<std::string> lines{1000};
};

std::string SocketPath() {
  static std::atomic<int> count{0};
  return StrCat(::testing::TempDir(), "/weir-", getpid(), "-", count.fetch_add(1), ".sock");
}

std::unique_ptr<AgentLink> MakeLink(const std::string& address, Handler& handler,
                                    const std::string& token = "") {
  AgentLinkOptions options;
  options.address = address;
  options.token = token;
  options.name = "rank 0";
  options.backoff_min = std::chrono::milliseconds(5);
  options.backoff_max = std::chrono::milliseconds(20);
  options.refusal_pause = std::chrono::milliseconds(20);
  auto link = AgentLink::Create(options, handler);
  EXPECT_TRUE(link.ok()) << ToString(link.status());
  (*link)->Start();
  return std::move(link).value();
}

TEST(AgentLinkTest, RefusesAddressesOfNoKnownForm) {
  Handler handler;
  for (const char* address :
       {"", "/path", "unix:", "tcp:", "tcp:host", "tcp:some.name:80", "tcp:127.0.0.1:http",
        "tcp:127.0.0.1:65536", "tcp:127.0.0.1:0", "http:127.0.0.1:80"}) {
    AgentLinkOptions options;
    options.address = address;
    EXPECT_EQ(AgentLink::Create(options, handler).status().code(), StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(AgentLinkTest, ProvesTokenAndGreetsThenPassesCommandsAndMessages) {
  FakeAgent agent(SocketPath() + ".a");
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent listener(path);
  auto link = MakeLink("unix:" + path, handler, "secret");
  ASSERT_TRUE(listener.Accept());
  listener.Say(R"({"challenge": {"node": "n", "challenge": "00112233445566778899aabbccddeeff"}})");
  EXPECT_EQ(listener.Hear()["token_proof"],
            *ProveToken("secret", "n", "00112233445566778899aabbccddeeff"));
  EXPECT_EQ(listener.Hear()["hello"]["job"], "job");
  listener.Say(R"({"arm": {"version": 5}})");
  const auto command = handler.commands.Pop(Within(10));
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(std::get<PlanArm>(*command).version, 5u);
  link->Send(PlanAck{5, "n"});
  EXPECT_EQ(listener.Hear()["ack"]["version"], 5);
}

// Something that only says it is the agent must not learn the token.
TEST(AgentLinkTest, ATokenIsNeverSent) {
  LogCapture log;
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  AgentLinkOptions options;
  options.address = "unix:" + path;
  options.token = "secret";
  options.challenge_timeout = std::chrono::milliseconds(50);
  auto link = AgentLink::Create(options, handler);
  ASSERT_TRUE(link.ok()) << link.status();
  (*link)->Start();
  ASSERT_TRUE(agent.Accept());
  EXPECT_TRUE(agent.Hear().is_null());  // closed, without a word
  EXPECT_NE(log.Next().find("no challenge"), std::string::npos);
}

TEST(AgentLinkTest, MalformedCommandsCloseTheConnectionAndItComesBack) {
  LogCapture log;
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  auto link = MakeLink("unix:" + path, handler);
  for (const std::string& bytes :
       {EncodeSocketFrame("not json"), EncodeSocketFrame(R"({"arm": 3})"),
        std::string("\xff\xff\xff\xff", 4), std::string("\0\0\0\0", 4),
        EncodeSocketFrame(std::string(100000, '['))}) {
    ASSERT_TRUE(agent.Accept());
    EXPECT_TRUE(agent.Hear().contains("hello"));
    agent.Write(bytes);
    EXPECT_TRUE(agent.Hear().is_null());  // closed by the rank
  }
  ASSERT_TRUE(agent.Accept());
  agent.Say(R"({"arm": {"version": 6}})");
  const auto command = handler.commands.Pop(Within(10));
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(std::get<PlanArm>(*command).version, 6u);
}

TEST(AgentLinkTest, SaysOnceThatThereIsNoAgentAndOnceEachThatItCameAndWent) {
  LogCapture log;
  Handler handler;
  const std::string path = SocketPath();
  auto link = MakeLink("unix:" + path, handler);
  EXPECT_NE(log.Next().find("no agent at unix:" + path), std::string::npos);
  {
    FakeAgent agent(path);
    ASSERT_TRUE(agent.Accept());
    EXPECT_TRUE(agent.Hear().contains("hello"));
    EXPECT_TRUE(link->connected());
    EXPECT_NE(log.Next().find(": connected"), std::string::npos);
  }
  EXPECT_NE(log.Next().find("lost the agent"), std::string::npos);
  FakeAgent again(path);
  ASSERT_TRUE(again.Accept());
  EXPECT_TRUE(again.Hear().contains("hello"));
  // Attempts in between logged nothing.
  EXPECT_NE(log.Next().find("connected again"), std::string::npos);
  link->Stop();
  EXPECT_EQ(log.lines.size(), 0u);
}

TEST(AgentLinkTest, ARefusalIsLoggedWithItsReason) {
  LogCapture log;
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  auto link = MakeLink("unix:" + path, handler);
  ASSERT_TRUE(agent.Accept());
  agent.Say(R"({"refusal": {"reason": "wrong token"}})");
  EXPECT_NE(log.Next().find("connected"), std::string::npos);
  EXPECT_NE(log.Next().find("wrong token"), std::string::npos);
  EXPECT_TRUE(agent.Accept());  // later it tries again
}

TEST(AgentLinkTest, ARefusalThatRepeatsIsLoggedOnceAndItsEndToo) {
  LogCapture log;
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  auto link = MakeLink("unix:" + path, handler);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(agent.Accept());
    agent.Say(R"({"refusal": {"reason": "held by process 7", "retry_after_s": 0.01}})");
    EXPECT_TRUE(agent.HearUntil("nothing").is_null());
  }
  ASSERT_TRUE(agent.Accept());
  agent.Say(R"({"arm": {"version": 6}})");
  ASSERT_TRUE(handler.commands.Pop(Within(10)).has_value());
  EXPECT_NE(log.Next().find("connected"), std::string::npos);
  EXPECT_NE(log.Next().find("held by process 7"), std::string::npos);
  EXPECT_NE(log.Next().find("accepts this rank now"), std::string::npos);
  link->Stop();
  EXPECT_EQ(log.lines.size(), 0u);
}

TEST(AgentLinkTest, ARefusalMaySayHowSoonToComeAgain) {
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  AgentLinkOptions options;  // the pause after a refusal is 30 s
  options.address = "unix:" + path;
  auto link = AgentLink::Create(options, handler);
  ASSERT_TRUE(link.ok());
  (*link)->Start();
  ASSERT_TRUE(agent.Accept());
  agent.Say(R"({"refusal": {"reason": "soon", "retry_after_s": 0.2}})");
  EXPECT_TRUE(agent.Accept()) << "not within 10 s";
}

TEST(AgentLinkTest, AJobKeyIsProvenByTheAnswerToAChallengeAndNeverSent) {
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  AgentLinkOptions options;
  options.address = "unix:" + path;
  options.job_key = std::string(kJobKeyBytes, 'k');
  options.challenge_timeout = std::chrono::seconds(60);
  auto link = AgentLink::Create(options, handler);
  ASSERT_TRUE(link.ok());
  (*link)->Start();
  ASSERT_TRUE(agent.Accept());
  const std::string challenge = "00112233445566778899aabbccddeeff";
  agent.Say(StrCat(R"({"challenge": {"node": "node-a", "challenge": ")", challenge, R"("}})"));
  const nlohmann::json hello = agent.Hear()["hello"];
  EXPECT_EQ(hello.dump().find("kkkk"), std::string::npos);
  ASSERT_TRUE(hello.contains("proof")) << hello;
  const RankProof proof{hello["proof"]["public_key"], hello["proof"]["node"],
                        hello["proof"]["challenge"], hello["proof"]["signature"]};
  const Status proven = CheckRankProof({"job", "node-a", 0, 1, 0, challenge}, proof);
  EXPECT_TRUE(proven.ok()) << proven;
}

TEST(AgentLinkTest, AnAgentThatAsksForNoProofGetsNone) {
  LogCapture log;
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  AgentLinkOptions options;
  options.address = "unix:" + path;
  options.job_key = std::string(kJobKeyBytes, 'k');
  options.challenge_timeout = std::chrono::milliseconds(50);
  auto link = AgentLink::Create(options, handler);
  ASSERT_TRUE(link.ok());
  (*link)->Start();
  ASSERT_TRUE(agent.Accept());
  const nlohmann::json hello = agent.Hear()["hello"];
  EXPECT_EQ(hello["job"], "job");
  EXPECT_FALSE(hello.contains("proof"));
  EXPECT_NE(log.Next().find("connected"), std::string::npos);
  EXPECT_NE(log.Next().find("without a proof of the job's key"), std::string::npos);
}

TEST(AgentLinkTest, AnAgentThatDoesNotReadCostsOnlyOldReports) {
  Handler handler;
  const std::string path = SocketPath();
  FakeAgent agent(path);
  auto link = MakeLink("unix:" + path, handler);
  ASSERT_TRUE(agent.Accept());
  EXPECT_TRUE(agent.Hear().contains("hello"));
  StepReport report;
  report.buckets.resize(200);
  for (uint64_t step = 0; step < 3000; ++step) {
    report.step = step;
    link->Send(report);  // never waits
  }
  link->Send(PlanAck{77, "n"});
  uint64_t last = 0, heard = 0;
  for (;;) {
    const auto message = agent.Hear();
    ASSERT_FALSE(message.is_null());
    if (message.contains("step")) {
      const uint64_t step = message["step"]["step"];
      EXPECT_GE(step, last);
      last = step;
      ++heard;
      if (step == 2999) break;
    }
  }
  EXPECT_LT(heard, 3000u);
}

TEST(AgentLinkTest, StopIsQuickWithoutAnAgent) {
  LogCapture log;
  Handler handler;
  auto link = MakeLink("tcp:127.0.0.1:1", handler);
  EXPECT_NE(log.Next().find("no agent"), std::string::npos);
  const TimePoint begin = RealClock().Now();
  link->Stop();
  EXPECT_LT(RealClock().Now() - begin, std::chrono::seconds(1));
}

// A whole job with real sockets: the agent sends the plan and dies in the middle.
TEST(SessionWithAgentTest, PlanArrivesByTheSocketAndSurvivesTheAgent) {
  LogCapture log;
  const std::string path = SocketPath();
  auto agent = std::make_unique<FakeAgent>(path);
  testing::SessionWorld job({.world = 1, .agent = "unix:" + path});
  job.Up();
  ASSERT_TRUE(agent->Accept());
  EXPECT_EQ(agent->Hear()["hello"]["world"], 1);
  const uint64_t key = job.Define({{"p", 1000}});
  const auto step = [&](uint64_t seed) {
    auto data = testing::RandomGradients(1, 1000, seed);
    job.Begin();
    job.AllReduce(key, data);
    job.End();
  };
  step(0);
  EXPECT_EQ(agent->HearUntil("buckets")["buckets"]["buckets"][0]["key"], Hex64(key));
  agent->Say(R"({"offer": {"nonce": "x", "plan": {"version": 3, "fallback":
      {"codec": "nope", "collective": "ring"}}}})");
  EXPECT_NE(agent->HearUntil("nack")["nack"]["reason"].get<std::string>().find("unknown codec"),
            std::string::npos);
  agent->Say(R"({"offer": {"nonce": "y", "plan": {"version": 4, "fallback":
      {"codec": "top_k", "collective": "sparse_all_gather", "ratio": 0.1}}}})");
  EXPECT_EQ(agent->HearUntil("ack")["ack"]["nonce"], "y");
  agent->Say(R"({"arm": {"version": 4}})");
  for (uint64_t s = 1; job.sessions[0]->ActivePlan()->version != 4 && s < 100000; ++s) step(s);
  EXPECT_EQ(agent->HearUntil("active")["active"]["version"], 4);
  agent.reset();
  step(1);
  step(2);
  EXPECT_EQ(job.sessions[0]->ActivePlan()->version, 4u);
  std::string line;
  while (line.find("nothing within") == std::string::npos &&
         line.find("lost the agent") == std::string::npos) {
    line = log.Next();
  }
  EXPECT_NE(line.find("keeping plan 4"), std::string::npos) << line;
}

TEST(SessionWithAgentTest, TheHelloSaysHowFramesAreProtected) {
  const auto said = [](bool keyed, bool encrypt) {
    SessionOptions options;
    options.job = "protected";
    if (keyed) options.job_key.emplace().front() = std::byte{1};
    options.encrypt = encrypt;
    auto session = Session::Create(options);
    EXPECT_TRUE(session.ok()) << session.status();
    const auto hello = std::get<RankHello>((*session)->Greeting().front());
    EXPECT_EQ(hello.unauthenticated_peers, 0);
    return hello.protection;
  };
  EXPECT_EQ(said(false, false), Protection::kChecked);
  EXPECT_EQ(said(true, false), Protection::kAuthenticated);
  EXPECT_EQ(said(true, true), Protection::kEncrypted);
}

}  // namespace
}  // namespace weir
