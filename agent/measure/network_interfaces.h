#pragma once
// The node's network interfaces as the kernel states them.

#include <cstdint>
#include <string>
#include <vector>

namespace weir::agent {

struct InterfaceInfo {
  std::string name;
  double speed_bytes_per_s = 0;  // 0: unknown (virtual interfaces often state none)
  uint32_t mtu = 0;
};

/// Interfaces of this network namespace that are up, without loopback, ordered by name; at most 64.
/// Empty when the kernel does not tell.
std::vector<InterfaceInfo> ListInterfaces();

}  // namespace weir::agent
