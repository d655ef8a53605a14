// SPDX-License-Identifier: Apache-2.0
// The local sockets against friendly, broken and hostile clients.
#include "agent/local_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "datapath/base/bounded_queue.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/random.h"
#include "tests/agent/socket_client.h"

namespace weir::agent {
namespace {

constexpr char kGreeting[] = R"({"hello":{"job":"j","rank":0,"world":2}})";

struct Said {
  ConnectionId connection;
  std::optional<v1::RankMessage> message;  // none: closed
  std::string reason;
  std::shared_ptr<const RankPeer> peer;
};

class Recorder : public LocalServer::Handler {
 public:
  bool OnRankMessage(ConnectionId connection, v1::RankMessage message, size_t,
                     const std::shared_ptr<const RankPeer>& peer) override {
    return queue_.TryPush({connection, std::move(message), "", peer});
  }
  void OnRankClosed(ConnectionId connection, const std::string& reason) override {
    queue_.TryPush({connection, std::nullopt, reason, nullptr});
  }
  std::optional<Said> Next() { return queue_.Pop(RealClock().Now() + std::chrono::seconds(10)); }

 private:
  BoundedQueue<Said> queue_{100000};
};

class LocalServerTest : public testing::Test {
 protected:
  LocalServerTest() {
    directory_ = testing::TempDir() + StrCat("weir-local-", getpid(), "-", counter_++);
    options_.socket_path = directory_ + "/run/agent.sock";
  }
  ~LocalServerTest() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void Start() {
    auto server = LocalServer::Start(options_, recorder_, RealClock());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
  }
  // Checks that the server still serves a new rank.
  void ExpectAlive() {
    SocketClient client(options_.socket_path);
    ASSERT_TRUE(client.connected());
    ASSERT_TRUE(client.SendJson(kGreeting));
    while (true) {
      const auto said = recorder_.Next();
      ASSERT_TRUE(said) << "the server no longer answers";
      if (said->message && said->message->has_hello()) return;
    }
  }
  static inline int counter_ = 0;
  std::string directory_;
  LocalServer::Options options_;
  Recorder recorder_;
  std::unique_ptr<LocalServer> server_;
};

TEST_F(LocalServerTest, CarriesMessagesBothWays) {
  Start();
  SocketClient client(options_.socket_path);
  ASSERT_TRUE(client.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said && said->message);
  EXPECT_EQ(said->message->hello().job(), "j");
  v1::RankCommand command;
  command.mutable_arm()->set_version(9);
  server_->Send(said->connection, command);
  const auto received = client.Receive();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->arm().version(), 9u);
  client.Close();
  const auto closed = recorder_.Next();
  ASSERT_TRUE(closed);
  EXPECT_FALSE(closed->message);
  EXPECT_EQ(closed->connection, said->connection);
}

TEST_F(LocalServerTest, MakesTheDirectoryAndSetsThePermissions) {
  options_.socket_mode = 0600;
  Start();
  struct stat info {};
  ASSERT_EQ(stat(options_.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((directory_ + "/run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0755u);
  server_.reset();
  EXPECT_NE(stat(options_.socket_path.c_str(), &info), 0);  // removed at the end
}

TEST_F(LocalServerTest, ReplacesAStaleSocketButNoLiveOne) {
  std::filesystem::create_directories(directory_ + "/run");
  {
    const FileDescriptor dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, options_.socket_path.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  Start();
  const auto second = LocalServer::Start(options_, recorder_, RealClock());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition) << second.status();
  ExpectAlive();
}

TEST_F(LocalServerTest, RefusesASocketOfAnotherProgram) {
  std::filesystem::create_directories(directory_ + "/run");
  const FileDescriptor other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options_.socket_path.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(other.get(), 1), 0);
  const auto server = LocalServer::Start(options_, recorder_, RealClock());
  EXPECT_EQ(server.status().code(), StatusCode::kFailedPrecondition) << server.status();
}

TEST_F(LocalServerTest, RefusesAFileThatIsNoSocket) {
  std::filesystem::create_directories(directory_ + "/run");
  std::ofstream(options_.socket_path) << "precious";
  EXPECT_EQ(LocalServer::Start(options_, recorder_, RealClock()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(options_.socket_path));
}

TEST_F(LocalServerTest, RefusesAPathThatIsTooLong) {
  options_.socket_path = directory_ + "/" + std::string(200, 'x');
  EXPECT_EQ(LocalServer::Start(options_, recorder_, RealClock()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LocalServerTest, MalformedMessagesAreRefusedWithTheReason) {
  Start();
  const std::string huge = {'\x01', '\x00', '\x40', '\x00'};  // 4 MiB + 1
  const struct {
    std::string bytes;
    std::string reason;
  } kCases[] = {
      {EncodeSocketFrame("{"), "JSON"},
      {EncodeSocketFrame("[1,2]"), "JSON"},
      {EncodeSocketFrame(R"({"hello":{"rank":"two"}})"), "rank"},
      {EncodeSocketFrame(R"({"hello":{"job":{"a":1}}})"), "job"},
      {EncodeSocketFrame(std::string(100000, '[')), "deeper"},
      {EncodeSocketFrame(std::string(1000, '\xff')), "JSON"},
      {huge, "4194304"},
      {std::string(4, '\0'), ""},
      {std::string(4, '\xff'), "4194304"},
      {"GET / HTTP/1.1\r\n\r\n", ""},
  };
  for (const auto& c : kCases) {
    SocketClient client(options_.socket_path);
    ASSERT_TRUE(client.SendBytes(c.bytes));
    const std::string reason = client.ReceiveRefusal();
    EXPECT_FALSE(reason.empty()) << c.bytes.substr(0, 40);
    EXPECT_THAT(reason, testing::HasSubstr(c.reason)) << c.bytes.substr(0, 40);
    EXPECT_TRUE(client.WaitForEnd());
  }
  ExpectAlive();
}

TEST_F(LocalServerTest, RefusalSurvivesUnreadInput) {
  Start();
  SocketClient client(options_.socket_path);
  std::string bytes = EncodeSocketFrame("{");
  bytes += std::string(60000, 'x');
  ASSERT_TRUE(client.SendBytes(bytes));
  EXPECT_FALSE(client.ReceiveRefusal().empty());
}

TEST_F(LocalServerTest, TruncatedMessageIsOnlyAClosedConnection) {
  Start();
  {
    SocketClient client(options_.socket_path);
    ASSERT_TRUE(client.SendJson(kGreeting));
    ASSERT_TRUE(client.SendBytes(std::string(EncodeSocketFrame(kGreeting)).substr(0, 20)));
  }
  ASSERT_TRUE(recorder_.Next());
  const auto closed = recorder_.Next();
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->reason, testing::HasSubstr("in the middle of a message"));
  ExpectAlive();
}

TEST_F(LocalServerTest, MessageInSingleBytesArrivesWhole) {
  Start();
  SocketClient client(options_.socket_path);
  for (const char byte : EncodeSocketFrame(kGreeting)) {
    ASSERT_TRUE(client.SendBytes(std::string_view(&byte, 1)));
  }
  const auto said = recorder_.Next();
  ASSERT_TRUE(said && said->message);
  EXPECT_EQ(said->message->hello().world(), 2u);
}

TEST_F(LocalServerTest, ConnectionsAreBounded) {
  options_.connections_max = 3;
  Start();
  std::vector<std::unique_ptr<SocketClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<SocketClient>(options_.socket_path));
    ASSERT_TRUE(clients.back()->SendJson(kGreeting));
    ASSERT_TRUE(recorder_.Next());
  }
  SocketClient extra(options_.socket_path);
  EXPECT_THAT(extra.ReceiveRefusal(), testing::HasSubstr("maximum"));
  clients.pop_back();
  ASSERT_TRUE(recorder_.Next());  // the notice that it has closed: there is room again
  ExpectAlive();
}

TEST_F(LocalServerTest, SilentConnectionIsClosedInTime) {
  options_.hello_timeout = std::chrono::milliseconds(100);
  Start();
  SocketClient client(options_.socket_path);
  EXPECT_TRUE(client.WaitForEnd());
}

TEST_F(LocalServerTest, RankThatDoesNotReadIsClosed) {
  options_.output_bytes_max = 100000;
  Start();
  SocketClient client(options_.socket_path);
  ASSERT_TRUE(client.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said);
  v1::RankCommand command;
  command.mutable_offer()->set_nonce(std::string(50000, 'n'));
  for (int i = 0; i < 100; ++i) server_->Send(said->connection, command);
  const auto closed = recorder_.Next();
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->reason, testing::HasSubstr("did not read"));
}

TEST_F(LocalServerTest, ManyCommandsArriveInOrder) {
  Start();
  SocketClient client(options_.socket_path);
  ASSERT_TRUE(client.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said);
  for (int i = 1; i <= 500; ++i) {
    v1::RankCommand command;
    command.mutable_offer()->mutable_plan()->set_version(i);
    command.mutable_offer()->set_nonce(std::string(1000, 'n'));
    server_->Send(said->connection, command);
  }
  for (uint64_t i = 1; i <= 500; ++i) {
    const auto command = client.Receive();
    ASSERT_TRUE(command) << i;
    ASSERT_EQ(command->offer().plan().version(), i);
  }
}

TEST_F(LocalServerTest, RefuseSaysWhyAndCloses) {
  Start();
  SocketClient client(options_.socket_path);
  ASSERT_TRUE(client.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said);
  server_->Refuse(said->connection, "wrong job");
  server_->Refuse(said->connection, "expected a hello");  // of a message that came after it
  EXPECT_EQ(client.ReceiveRefusal(), "wrong job");
  EXPECT_TRUE(client.WaitForEnd());
  client.Close();
  ASSERT_TRUE(recorder_.Next());
  server_->Send(said->connection, v1::RankCommand());  // gone: ignored
}

std::string TokenProof(const std::string& proof) {
  return StrCat("{\"token_proof\":\"", proof, "\"}");
}

TEST_F(LocalServerTest, TcpNeedsProofOfTheTokenFirst) {
  options_.node = "node-a";
  options_.tcp = *SocketAddress::FromIp("127.0.0.1", 0);
  const std::string path = testing::TempDir() + "rank-tokens", token = "correct-horse-battery";
  std::ofstream(path) << token << "\n";
  const auto tokens = TokenFile::Open(path, "test");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  options_.tokens = tokens->get();
  Start();
  const SocketAddress tcp = *SocketAddress::FromIp("127.0.0.1", server_->tcp_port());
  for (const std::string& first :
       {std::string(R"({"token":"correct-horse-battery"})"), std::string(R"({"token_proof":""})"),
        std::string(kGreeting), TokenProof(std::string(32, '0')), std::string("{")}) {
    SocketClient client(tcp);
    ASSERT_TRUE(client.SendJson(first));
    EXPECT_FALSE(client.ReceiveRefusal().empty()) << first;
    EXPECT_TRUE(client.WaitForEnd());
  }
  {
    SocketClient other(tcp), replayed(tcp);  // an answer to another connection's challenge
    const auto proof = ProveToken(token, "node-a", other.AwaitChallenge().challenge());
    ASSERT_TRUE(proof.ok()) << proof.status();
    ASSERT_TRUE(replayed.SendJson(TokenProof(*proof)));
    EXPECT_THAT(replayed.ReceiveRefusal(), testing::HasSubstr("wrong token"));
  }
  {
    // While a file has the old token and a new one, ranks that began with either are let in.
    const std::string next = "another-battery-staple";
    std::ofstream(path) << "old " << token << "\nnew " << next << "\n";
    SocketClient early(tcp), late(tcp), never(tcp);
    const auto with = [](SocketClient& client, const std::string& known) {
      return client.SendJson(
          TokenProof(*ProveToken(known, "node-a", client.AwaitChallenge().challenge())));
    };
    ASSERT_TRUE(with(early, token) && early.SendJson(kGreeting));
    ASSERT_TRUE(recorder_.Next());
    ASSERT_TRUE(with(late, next) && late.SendJson(kGreeting));
    ASSERT_TRUE(recorder_.Next());
    ASSERT_TRUE(with(never, "new-token-of-somebody"));
    EXPECT_THAT(never.ReceiveRefusal(), testing::HasSubstr("wrong token"));
  }
  for (int closed = 0; closed < 2; ++closed) {
    const auto said = recorder_.Next();
    ASSERT_TRUE(said && !said->message);
  }
  SocketClient flood(tcp);
  (void)flood.SendBytes(std::string("\x00\x00\x10\x00", 4) + std::string(8000, 'x'));
  EXPECT_THAT(flood.ReceiveRefusal(), testing::HasSubstr("4 KiB"));
  SocketClient client(tcp);
  const std::string challenge = client.AwaitChallenge().challenge();
  EXPECT_EQ(challenge.size(), kChallengeDigits);
  const auto proof = ProveToken(token, "node-a", challenge);
  ASSERT_TRUE(proof.ok()) << proof.status();
  ASSERT_TRUE(client.SendJson(TokenProof(*proof)));
  ASSERT_TRUE(client.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said && said->message);
  EXPECT_TRUE(said->message->has_hello());
  EXPECT_FALSE(said->peer->is_local);
  EXPECT_EQ(said->peer->challenge, client.AwaitChallenge().challenge());
}

TEST_F(LocalServerTest, EveryConnectionHasAChallengeOfItsOwnAndAProcess) {
  options_.node = "node-a";
  Start();
  SocketClient first(options_.socket_path), second(options_.socket_path);
  EXPECT_EQ(first.AwaitChallenge().node(), "node-a");
  EXPECT_NE(first.AwaitChallenge().challenge(), second.AwaitChallenge().challenge());
  ASSERT_TRUE(first.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said && said->peer);
  EXPECT_EQ(said->peer->challenge, first.AwaitChallenge().challenge());
  EXPECT_TRUE(said->peer->is_local);
  EXPECT_EQ(said->peer->pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(said->peer->uid, getuid());
  ASSERT_TRUE(said->peer->ended);
  EXPECT_FALSE(said->peer->ended());
}

// The client does not read the challenge, so closing resets the connection; its message must still
// be delivered.
TEST_F(LocalServerTest, MessagesBeforeAResetAreDelivered) {
  Start();
  for (int i = 0; i < 50; ++i) {
    {
      SocketClient client(options_.socket_path);
      ASSERT_TRUE(client.SendJson(kGreeting));
    }
    const auto said = recorder_.Next();
    ASSERT_TRUE(said && said->message && said->message->has_hello());
    const auto closed = recorder_.Next();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->reason, "closed its connection");
  }
}

TEST_F(LocalServerTest, TcpWithoutATokenIsRefusedAtStart) {
  options_.tcp = *SocketAddress::FromIp("127.0.0.1", 0);
  EXPECT_EQ(LocalServer::Start(options_, recorder_, RealClock()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LocalServerTest, TokenOnTheUnixSocketIsIgnored) {
  Start();
  SocketClient client(options_.socket_path);
  ASSERT_TRUE(client.SendJson(R"({"token_proof":"whatever"})"));
  ASSERT_TRUE(client.SendJson(kGreeting));
  const auto said = recorder_.Next();
  ASSERT_TRUE(said && said->message);
  EXPECT_TRUE(said->message->has_hello());
}

TEST_F(LocalServerTest, RandomBytesNeverStopIt) {
  Start();
  Random random(11);
  for (int i = 0; i < 200; ++i) {
    SocketClient client(options_.socket_path);
    std::string bytes;
    if (random.Below(2) == 0) bytes = EncodeSocketFrame(kGreeting);
    for (uint64_t n = random.Below(400); n > 0; --n) bytes += static_cast<char>(random.Below(256));
    (void)client.SendBytes(bytes);
  }
  ExpectAlive();
}

}  // namespace
}  // namespace weir::agent
