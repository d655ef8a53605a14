// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/loopback.h"

#include <arpa/inet.h>

namespace weir {

bool IsLoopback(std::string_view host) {
  if (host == "localhost") return true;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string text(host);
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsLoopbackTarget(const std::string& target) {
  if (target.starts_with("unix:")) return true;
  const size_t colon = target.rfind(':');
  const bool port = colon != std::string::npos && target.find(']', colon) == std::string::npos;
  return IsLoopback(port ? std::string_view(target).substr(0, colon) : target);
}

}  // namespace weir
