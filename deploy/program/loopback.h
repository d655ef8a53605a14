// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which addresses no other machine can reach: what may cross them in plain text.

#include <string>
#include <string_view>

namespace weir {

/// True when `host` (of "host:port") can only be reached from this machine: an IPv4 address in
/// 127.0.0.0/8, the IPv6 address ::1, also in brackets, or "localhost". Other names are not looked
/// up: "127.evil.example" is a name, not an address. Thread-safe.
bool IsLoopback(std::string_view host);

/// The same of what gRPC takes: "host:port", "[::1]:port", "unix:FILE".
bool IsLoopbackTarget(const std::string& target);

}  // namespace weir
