// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank as the agent sees it: a blocking socket client whose every wait is bounded.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <optional>
#include <string>

#include <google/protobuf/util/json_util.h>

#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/wire/socket_frame.h"
#include "weir/v1/rank.pb.h"

namespace weir::agent {

class SocketClient {
 public:
  explicit SocketClient(const std::string& path) {
    fd_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  explicit SocketClient(const SocketAddress& address) {
    fd_ = FileDescriptor(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    connected_ = connect(fd_.get(), address.get(), address.size()) == 0;
  }
  /// Takes over a connection.
  explicit SocketClient(FileDescriptor fd) : fd_(std::move(fd)), connected_(true) {}
  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }
  void Close() { fd_.Close(); }

  /// False when the agent has closed the connection.
  bool SendBytes(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool SendJson(std::string_view json) { return SendBytes(EncodeSocketFrame(json)); }

  /// The challenge that the agent sent to this connection; empty when none came.
  const v1::RankChallenge& AwaitChallenge() {
    if (challenge_.challenge().empty()) (void)ReceiveAny();
    return challenge_;
  }

  /// The next command other than the challenge, within 10 s; nothing when the connection ended or
  /// the time passed.
  std::optional<v1::RankCommand> Receive() {
    while (true) {
      std::optional<v1::RankCommand> command = ReceiveAny();
      if (!command || !command->has_challenge()) return command;
    }
  }
  /// The reason of the next refusal; empty when none comes.
  std::string ReceiveRefusal() {
    const auto command = Receive();
    return command && command->has_refusal() ? command->refusal().reason() : "";
  }
  /// Returns true when the agent ends the connection, after all of its remaining messages.
  bool WaitForEnd() {
    while (Receive()) {
    }
    return ended_;
  }

 private:
  std::optional<v1::RankCommand> ReceiveAny() {
    const TimePoint deadline = RealClock().Now() + std::chrono::seconds(10);
    while (true) {
      const auto frame = reader_.Next();
      if (!frame.ok()) return std::nullopt;
      if (*frame) {
        v1::RankCommand command;
        if (!google::protobuf::util::JsonStringToMessage(**frame, &command).ok()) {
          return std::nullopt;
        }
        if (command.has_challenge()) challenge_ = command.challenge();
        return command;
      }
      pollfd ready{fd_.get(), POLLIN, 0};
      if (poll(&ready, 1, PollMilliseconds(RealClock().Now(), deadline, 10000)) <= 0) {
        return std::nullopt;
      }
      char chunk[65536];
      const ssize_t n = recv(fd_.get(), chunk, sizeof chunk, 0);
      if (n <= 0) {
        ended_ = true;
        return std::nullopt;
      }
      reader_.Append(std::string_view(chunk, static_cast<size_t>(n)));
    }
  }
  v1::RankChallenge challenge_;
  FileDescriptor fd_;
  SocketFrameReader reader_;
  bool connected_ = false;
  bool ended_ = false;
};

}  // namespace weir::agent
