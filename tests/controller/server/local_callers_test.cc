// SPDX-License-Identifier: Apache-2.0
// Which user of this machine a connection over loopback belongs to, and what follows from it.
#include "controller/server/grpc/local_callers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weir {
namespace {

constexpr uid_t kOther = 64123;  // no user of any machine

int PortOf(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// A listener on loopback with one client, which `user` has connected.
class LocalCallersTest : public ::testing::Test {
 protected:
  void Connect(uid_t user) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_, 1), 0);
    port_ = PortOf(listener_);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    child_ = fork();
    if (child_ == 0) {
      if (user != getuid() && setuid(user) != 0) _exit(3);
      const int client = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        _exit(4);
      pause();
      _exit(0);
    }
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    accepted_ = accept(listener_, reinterpret_cast<sockaddr*>(&peer), &size);
    ASSERT_GE(accepted_, 0);
    peer_port_ = ntohs(peer.sin_port);
    peer_ = StrCat("ipv4:127.0.0.1:", peer_port_);
  }
  ~LocalCallersTest() override {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(accepted_);
    close(listener_);
  }
  LocalRights RightsOf(const std::string& peer) const {
    LocalCallers callers({.role = Role::kAdmin, .agent = true}, LocalRights{.role = Role::kViewer},
                         "localhost");
    callers.SetPort(port_);
    return callers.Of(peer);
  }

  int listener_ = -1, accepted_ = -1, port_ = 0, peer_port_ = 0;
  pid_t child_ = -1;
  std::string peer_;
};

TEST_F(LocalCallersTest, OneOwnUserIsTrusted) {
  Connect(getuid());
  const auto user = UserOfConnection("127.0.0.1", static_cast<uint16_t>(peer_port_), "127.0.0.1",
                                     static_cast<uint16_t>(port_));
  ASSERT_TRUE(user.ok()) << user.status();
  EXPECT_EQ(*user, getuid());
  EXPECT_EQ(RightsOf(peer_).role, Role::kAdmin);
  EXPECT_TRUE(RightsOf(peer_).agent);
}

TEST_F(LocalCallersTest, AnotherUserIsNot) {
  if (getuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  Connect(kOther);
  const LocalRights rights = RightsOf(peer_);
  EXPECT_EQ(rights.role, Role::kViewer);
  EXPECT_FALSE(rights.agent);
  EXPECT_EQ(rights.user, StrCat("user ", kOther));
}

TEST_F(LocalCallersTest, WhomTheKernelDoesNotKnowIsNotTrusted) {
  Connect(getuid());
  for (const std::string& peer : {std::string("ipv4:127.0.0.1:1"), std::string("ipv4:127.0.0.1:"),
                                  std::string("ipv6:%5B::1%5D:80"), std::string("nonsense")}) {
    EXPECT_EQ(RightsOf(peer).role, Role::kViewer) << peer;
    EXPECT_FALSE(RightsOf(peer).user.empty()) << peer;
  }
}

}  // namespace
}  // namespace weir
