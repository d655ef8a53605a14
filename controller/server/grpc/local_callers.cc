// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/local_callers.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "controller/server/grpc/caller.h"

namespace weir {
namespace {

constexpr timeval kKernelMax = {.tv_sec = 1, .tv_usec = 0};

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

StatusOr<Question> Ask(const std::string& client, uint16_t client_port, const std::string& server,
                       uint16_t server_port) {
  Question question = {};
  question.header.nlmsg_len = sizeof(question);
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  const bool v6 = client.find(':') != std::string::npos;
  question.body.sdiag_family = v6 ? AF_INET6 : AF_INET;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0U;
  inet_diag_sockid& id = question.body.id;
  id.idiag_sport = htons(client_port);
  id.idiag_dport = htons(server_port);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const int family = question.body.sdiag_family;
  if (inet_pton(family, client.c_str(), id.idiag_src) != 1 ||
      inet_pton(family, server.c_str(), id.idiag_dst) != 1) {
    return Unavailable(StrCat("no connection from ", client, " to ", server, " can be looked up"));
  }
  return question;
}

StatusOr<uint32_t> ReadAnswer(int netlink) {
  alignas(nlmsghdr) std::array<char, 4096> bytes{};
  const ssize_t got = recv(netlink, bytes.data(), bytes.size(), 0);
  const auto* const header = reinterpret_cast<const nlmsghdr*>(bytes.data());
  if (got < static_cast<ssize_t>(sizeof(nlmsghdr)) || header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg)) ||
      static_cast<size_t>(got) < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
    return Unavailable("the kernel knows no such connection");
  }
  return static_cast<const inet_diag_msg*>(NLMSG_DATA(header))->idiag_uid;
}

}  // namespace

StatusOr<uint32_t> UserOfConnection(const std::string& client, uint16_t client_port,
                                    const std::string& server, uint16_t server_port) {
  WEIR_ASSIGN_OR_RETURN(const Question question, Ask(client, client_port, server, server_port));
  const int netlink = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0) return Unavailable(StrCat("socket: ", std::strerror(errno)));
  setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &kKernelMax, sizeof(kKernelMax));
  StatusOr<uint32_t> user = Unavailable("the kernel was not asked");
  if (send(netlink, &question, sizeof(question), 0) == sizeof(question)) {
    user = ReadAnswer(netlink);
  } else {
    user = Unavailable(StrCat("send: ", std::strerror(errno)));
  }
  close(netlink);
  return user;
}

LocalRights LocalCallers::Of(const std::string& peer) const {
  if (!others_.has_value()) return rights_;
  const std::string client = PeerAddress(peer);
  const size_t colon = peer.rfind(':');
  uint16_t client_port = 0;
  if (colon != std::string::npos) {
    std::from_chars(peer.data() + colon + 1, peer.data() + peer.size(), client_port);
  }
  std::string server = host_;
  if (server == "localhost") server = client.find(':') == std::string::npos ? "127.0.0.1" : "::1";
  const auto user =
      UserOfConnection(client, client_port, server, static_cast<uint16_t>(port_.load()));
  if (user.ok() && (*user == 0 || *user == getuid())) return rights_;
  LocalRights others = *others_;
  others.user = user.ok() ? StrCat("user ", *user) : "a user whom the kernel does not name";
  return others;
}

}  // namespace weir
