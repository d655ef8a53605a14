// SPDX-License-Identifier: Apache-2.0
// Attacks on a node's agent by other processes of the same user. None may take a living rank,
// another run's name or an epoch, and the attached run must not be disturbed.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "agent/agent.h"
#include "datapath/agent_link/agent_link.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/log.h"
#include "tests/agent/fake_controller.h"
#include "tests/agent/socket_client.h"

namespace weir::agent {
namespace {

using testing::HasSubstr;

const std::string kKey(kJobKeyBytes, 'k'), kOtherKey(kJobKeyBytes, 'o');

bool GreetsARank(const v1::AgentMessage& m) {
  return m.has_rank() && m.rank().message().has_hello();
}

/// A connection that another process made, so that the kernel reports that process. This test
/// writes and reads its bytes.
class ForeignClient {
 public:
  explicit ForeignClient(const std::string& path) {
    FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    int stay[2], ready[2];
    EXPECT_EQ(pipe2(stay, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {  // only calls that are safe in the child of a program with threads
      for (int other = 3; other < 1024; ++other) {  // this test's own connections among them
        if (other != fd.get() && other != stay[0] && other != ready[1]) close(other);
      }
      char byte = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
      (void)!write(ready[1], &byte, 1);
      (void)!read(stay[0], &byte, 1);
      _exit(0);
    }
    close(stay[0]);
    close(ready[1]);
    stay_ = FileDescriptor(stay[1]);
    char connected = 0;
    EXPECT_EQ(read(ready[0], &connected, 1), 1);
    EXPECT_EQ(connected, 1);
    close(ready[0]);
    client_.emplace(std::move(fd));
  }
  ~ForeignClient() { EndProcess(); }

  /// Ends the process. The connection stays open, as if a child of the process had inherited it.
  void EndProcess() {
    if (!stay_.valid()) return;
    stay_.Close();
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }
  pid_t pid() const { return pid_; }
  SocketClient* operator->() { return &*client_; }
  SocketClient& operator*() { return *client_; }

 private:
  pid_t pid_ = -1;
  FileDescriptor stay_;
  std::optional<SocketClient> client_;
};

struct Claim {
  uint32_t rank = 0;
  uint64_t epoch = 0;
  std::string key = {};  // empty: none
};

class AttackTest : public testing::Test {
 protected:
  AttackTest() {
    directory_ = testing::TempDir() + StrCat("weir-attack-", getpid(), "-", counter_++);
    AgentOptions options;
    options.node = "node-a";
    options.address = "127.0.0.1";
    options.probe_port = 0;
    options.helper_program = WEIR_AGENT_PROGRAM;
    options.local.socket_path = path_ = directory_ + "/agent.sock";
    options.controller.controller = StrCat("127.0.0.1:", controller_.port());
    options.controller.credentials =
        *MakeCredentialFactory({.controller = options.controller.controller});
    auto agent = Agent::Start(options, RealClock());
    EXPECT_TRUE(agent.ok()) << agent.status();
    if (agent.ok()) agent_ = std::move(*agent);
  }
  ~AttackTest() override {
    agent_.reset();
    std::filesystem::remove_all(directory_);
  }

  /// A hello of job 'job' with a world of 4, with a proof for `client` if there is a key.
  static std::string Hello(SocketClient& client, const Claim& claim) {
    v1::RankMessage message;
    v1::RankHello& hello = *message.mutable_hello();
    hello.set_job("job");
    hello.set_rank(claim.rank);
    hello.set_world(4);
    hello.set_pid(1);  // the rank's own statement must not count
    hello.set_epoch(claim.epoch);
    if (!claim.key.empty()) {
      const v1::RankChallenge& asked = client.AwaitChallenge();
      const auto proof = ProveRank(
          claim.key, {"job", asked.node(), claim.rank, 4, claim.epoch, asked.challenge()});
      EXPECT_TRUE(proof.ok()) << proof.status();
      if (proof.ok()) {
        hello.mutable_proof()->set_public_key(proof->public_key);
        hello.mutable_proof()->set_node(proof->node);
        hello.mutable_proof()->set_challenge(proof->challenge);
        hello.mutable_proof()->set_signature(proof->signature);
      }
    }
    std::string json;
    EXPECT_TRUE(google::protobuf::util::MessageToJsonString(message, &json).ok());
    return json;
  }
  void Attach(SocketClient& client, const Claim& claim) {
    ASSERT_TRUE(client.SendJson(Hello(client, claim)));
    ASSERT_TRUE(controller_.Next(GreetsARank)) << "rank " << claim.rank << " was not let in";
  }
  /// Sends the hello of `claim` and returns the reason of the refusal; empty if there was none.
  static std::string Try(SocketClient& client, const Claim& claim) {
    EXPECT_TRUE(client.SendJson(Hello(client, claim)));
    return client.ReceiveRefusal();
  }

  /// Checks that a plan can be offered to `rank`, acked and activated, and that the controller gets
  /// no hello and no RankGone in between.
  void ExpectUndisturbed(SocketClient& rank) {
    v1::ControllerMessage message;
    v1::ToRank& to = *message.mutable_rank();
    to.set_job("job");
    to.set_rank(0);
    v1::PlanOffer& offer = *to.mutable_command()->mutable_offer();
    offer.set_nonce("n3");
    offer.mutable_plan()->set_version(3);
    ASSERT_TRUE(controller_.Send(message));
    const auto received = rank.Receive();
    ASSERT_TRUE(received && received->has_offer()) << received->DebugString();
    ASSERT_TRUE(rank.SendJson(R"({"ack":{"version":3,"nonce":"n3"}})"));
    ASSERT_TRUE(rank.SendJson(R"({"active":{"version":3,"step":17}})"));
    const auto next = controller_.Next([](const auto& m) {
      return m.has_rank_gone() || (m.has_rank() && !m.rank().message().has_ack());
    });
    ASSERT_TRUE(next);
    EXPECT_TRUE(next->has_rank() && next->rank().message().has_active()) << next->DebugString();
  }

  static inline int counter_ = 0;
  std::string directory_, path_;
  FakeController controller_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(AttackTest, AnotherProcessCannotTakeALivingRank) {
  for (const std::string& key : {std::string(), kKey}) {
    SCOPED_TRACE(key.empty() ? "without a key" : "with the job's own key");
    SocketClient rank(path_);
    Attach(rank, {.rank = 0, .key = key});
    ForeignClient rogue(path_);
    const std::string reason = Try(*rogue, {.rank = 0, .key = key});
    for (const std::string& part :
         {std::string("rank 0 of job 'job'"),
          StrCat("belongs to process ", getpid(), " of user ", getuid()),
          StrCat("process ", rogue.pid(), " of user "), std::string("job name of its own")}) {
      EXPECT_THAT(reason, HasSubstr(part));
    }
    ExpectUndisturbed(rank);
    rank.Close();
    ASSERT_TRUE(controller_.Next([](const auto& m) { return m.has_rank_gone(); }));
  }
}

TEST_F(AttackTest, ASecondRunOfTheNameIsRefusedAndTheFirstGoesOn) {
  SocketClient first(path_);
  Attach(first, {.rank = 0, .key = kKey});
  ForeignClient second(path_), keyless(path_), member(path_);
  const std::string reason = Try(*second, {.rank = 1, .key = kOtherKey});
  for (const std::string& part :
       {std::string("rank 1 of job 'job'"), StrCat("process ", second.pid(), " of user"),
        std::string("proves another job key"), StrCat("the run of process ", getpid()),
        std::string("job name of its own")}) {
    EXPECT_THAT(reason, HasSubstr(part));
  }
  EXPECT_THAT(Try(*keyless, {.rank = 2}), HasSubstr("does not prove the job's key"));
  ExpectUndisturbed(first);
  Attach(*member, {.rank = 1, .key = kKey});  // other ranks of its own run are accepted
  // The name is free when the run has left.
  first.Close();
  member->Close();
  member.EndProcess();
  ASSERT_TRUE(controller_.Next([](const auto& m) { return m.has_rank_gone(); }));
  ASSERT_TRUE(controller_.Next([](const auto& m) { return m.has_rank_gone(); }));
  ForeignClient third(path_);
  Attach(*third, {.rank = 0, .key = kOtherKey});
}

TEST_F(AttackTest, ARunWithoutAKeyIsNotJoinedByOneThatHasOne) {
  SocketClient first(path_);
  Attach(first, {.rank = 0});
  ForeignClient second(path_);
  EXPECT_THAT(Try(*second, {.rank = 1, .key = kKey}), HasSubstr("this job runs without one"));
  ExpectUndisturbed(first);
}

TEST_F(AttackTest, AnUnknownProcessCannotRaiseTheEpoch) {
  for (const std::string& key : {std::string(), kKey}) {
    SCOPED_TRACE(key.empty() ? "without a key" : "with a key");
    SocketClient rank(path_);
    Attach(rank, {.rank = 0, .key = key});
    for (const uint32_t claimed : {0u, 1u}) {
      ForeignClient rogue(path_);
      EXPECT_THAT(Try(*rogue, {.rank = claimed, .epoch = 999}),
                  HasSubstr(key.empty() ? "says epoch 999" : "does not prove the job's key"));
    }
    ExpectUndisturbed(rank);
    // Survivors form a new mesh before all of them have left the old one.
    SocketClient again(path_);
    Attach(again, {.rank = 1, .epoch = 1, .key = key});
    again.Close();
    rank.Close();
    ASSERT_TRUE(controller_.Next([](const auto& m) { return m.has_rank_gone(); }));
    ASSERT_TRUE(controller_.Next([](const auto& m) { return m.has_rank_gone(); }));
  }
}

TEST_F(AttackTest, AStoppedProcessCannotKeepARankFromAHigherProvenEpoch) {
  ForeignClient stopped(path_);
  Attach(*stopped, {.rank = 1, .key = kKey});
  SocketClient survivor(path_);
  EXPECT_THAT(Try(survivor, {.rank = 1, .key = kKey}), HasSubstr("belongs to process"));
  SocketClient again(path_);
  Attach(again, {.rank = 1, .epoch = 1, .key = kKey});
  EXPECT_THAT(stopped->ReceiveRefusal(), HasSubstr("takes over"));
}

TEST_F(AttackTest, AProofIsValidForItsConnectionOnly) {
  SocketClient rank(path_);
  const std::string hello = Hello(rank, {.rank = 0, .epoch = 5, .key = kKey});
  ASSERT_TRUE(rank.SendJson(hello));
  ASSERT_TRUE(controller_.Next(GreetsARank));
  rank.Close();
  ASSERT_TRUE(controller_.Next([](const auto& m) { return m.has_rank_gone(); }));
  ForeignClient rogue(path_);
  ASSERT_TRUE(rogue->SendJson(hello));
  EXPECT_THAT(rogue->ReceiveRefusal(), HasSubstr("another challenge"));
}

TEST_F(AttackTest, ARankIsFreeWhenItsProcessEndedThoughTheConnectionIsOpen) {
  ForeignClient former(path_);
  Attach(*former, {.rank = 0});
  former.EndProcess();
  SocketClient next(path_);
  Attach(next, {.rank = 0});
  EXPECT_THAT(former->ReceiveRefusal(), HasSubstr("takes over"));
  ExpectUndisturbed(next);
}

TEST_F(AttackTest, RepeatedRefusalsAreLoggedOnce) {
  BoundedQueue<std::string> lines(1000);
  SetLogSink([&](LogLevel level, std::string_view, std::string_view line) {
    if (level == LogLevel::kWarning) lines.TryPush(std::string(line));
  });
  SocketClient rank(path_);
  Attach(rank, {.rank = 0, .key = kKey});
  for (int i = 0; i < 5; ++i) {
    SocketClient rogue(path_);
    EXPECT_THAT(Try(rogue, {.rank = 1, .key = kOtherKey}), HasSubstr("another job key"));
  }
  SetLogSink(nullptr);
  int said = 0;
  while (const auto line = lines.TryPop()) said += line->find("another job key") != line->npos;
  EXPECT_EQ(said, 1);
}

// The rank's side is libweir's own connection.
TEST_F(AttackTest, TheRanksLinkProvesItsKey) {
  class Handler : public AgentHandler {
   public:
    std::vector<RankMessage> Greeting() override {
      RankHello hello;
      hello.job = "job";
      hello.rank = 2;
      hello.world = 4;
      hello.epoch = 7;
      return {hello};
    }
    void OnCommand(RankCommand) override {}
    std::string Stance() override { return "running dense"; }
  } handler;
  AgentLinkOptions options;
  options.address = "unix:" + path_;
  options.job_key = kKey;
  options.name = "rank 2";
  auto link = AgentLink::Create(options, handler);
  ASSERT_TRUE(link.ok()) << link.status();
  (*link)->Start();
  const auto hello = controller_.Next(GreetsARank);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->rank().message().hello().proof().public_key(),
            ProveRank(kKey, {"job", "", 0, 0, 0, std::string(kChallengeDigits, '0')})->public_key);
  EXPECT_EQ(hello->rank().message().hello().proof().node(), "node-a");
  ForeignClient rogue(path_);
  EXPECT_THAT(Try(*rogue, {.rank = 2, .epoch = 999}), HasSubstr("does not prove the job's key"));
}

}  // namespace
}  // namespace weir::agent
