// SPDX-License-Identifier: Apache-2.0
#pragma once
// The network interfaces of the node, as the kernel reports them.

#include <cstdint>
#include <string>
#include <vector>

namespace weir::agent {

struct InterfaceInfo {
  std::string name;
  double speed_bytes_per_s = 0;  // 0: unknown (virtual interfaces often state none)
  uint32_t mtu = 0;
};

/// The interfaces of this network namespace that are up, without loopback, ordered by name; at most
/// 64. Empty when the kernel does not report them.
std::vector<InterfaceInfo> ListInterfaces();

}  // namespace weir::agent
