// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/row_limit.h"

#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "datapath/aggregation/io/address.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::aggregation {
namespace {

constexpr size_t kHeaderBytesMax = 64;  // of IPv4, UDP and the link, which count towards the limit
constexpr size_t kAnswerBytesMax = 32768;

std::optional<uint32_t> GsoMaxSize(int netlink, const char* interface) {
  struct {
    nlmsghdr header;
    ifinfomsg link;
  } request = {};
  request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.link);
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.link.ifi_index = static_cast<int>(if_nametoindex(interface));
  if (send(netlink, &request, request.header.nlmsg_len, 0) < 0) return std::nullopt;
  // The kernel has answered by the time the call above returns.
  alignas(nlmsghdr) static thread_local std::array<char, kAnswerBytesMax> answer;
  const ssize_t received = recv(netlink, answer.data(), answer.size(), MSG_DONTWAIT);
  if (received < 0) return std::nullopt;
  const auto* const header = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (!NLMSG_OK(header, static_cast<size_t>(received)) || header->nlmsg_type != RTM_NEWLINK) {
    return std::nullopt;
  }
  const auto* const link = static_cast<const ifinfomsg*>(NLMSG_DATA(header));
  auto rest = static_cast<int>(IFLA_PAYLOAD(header));
  for (const rtattr* field = IFLA_RTA(link); RTA_OK(field, rest); field = RTA_NEXT(field, rest)) {
    if (field->rta_type != IFLA_GSO_MAX_SIZE) continue;
    uint32_t size;
    if (RTA_PAYLOAD(field) != sizeof size) return std::nullopt;
    std::memcpy(&size, RTA_DATA(field), sizeof size);
    return size;
  }
  return std::nullopt;
}

}  // namespace

size_t RowBytesFor(SourceAddress local) {
  const in_addr_t wanted = ToSocketAddress(local).sin_addr.s_addr;
  const mesh::UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  ifaddrs* list = nullptr;
  if (!netlink || getifaddrs(&list) != 0) return kRowBytesMax;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  size_t bytes = kRowBytesMax;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address;
    std::memcpy(&address, one->ifa_addr, sizeof address);
    if (wanted != INADDR_ANY && address.sin_addr.s_addr != wanted) continue;
    const auto size = GsoMaxSize(netlink.get(), one->ifa_name);
    if (size > kHeaderBytesMax) bytes = std::min<size_t>(bytes, *size - kHeaderBytesMax);
  }
  return bytes;
}

}  // namespace weir::aggregation
