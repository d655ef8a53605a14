// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/address.h"

#include <arpa/inet.h>

#include <charconv>

namespace weir::aggregation {

SourceAddress ToSourceAddress(const sockaddr_in& address) {
  return SourceAddress{ntohl(address.sin_addr.s_addr)} << 16 | ntohs(address.sin_port);
}

sockaddr_in ToSocketAddress(SourceAddress address) {
  sockaddr_in out = {};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(static_cast<uint32_t>(address >> 16));
  out.sin_port = htons(static_cast<uint16_t>(address));
  return out;
}

StatusOr<SourceAddress> ParseSourceAddress(std::string_view text) {
  const Status wrong =
      InvalidArgument(StrCat("address: expected IPV4:PORT, found '", text.substr(0, 100), "'"));
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  std::string host(text.substr(0, colon));
  if (host == "localhost") host = "127.0.0.1";
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return wrong;
  sockaddr_in parsed = {};
  if (inet_pton(AF_INET, host.c_str(), &parsed.sin_addr) != 1) return wrong;
  parsed.sin_port = htons(port);
  return ToSourceAddress(parsed);
}

std::string AddressText(SourceAddress address) {
  return StrCat(address >> 40 & 255, ".", address >> 32 & 255, ".", address >> 24 & 255, ".",
                address >> 16 & 255, ":", address & 65535);
}

}  // namespace weir::aggregation
