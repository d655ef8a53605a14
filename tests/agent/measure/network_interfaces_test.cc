// SPDX-License-Identifier: Apache-2.0
// Whether the facts that the kernel reports of this machine's interfaces are plausible.
#include "agent/measure/network_interfaces.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weir::agent {
namespace {

TEST(NetworkInterfacesTest, ListsPlausibleInterfacesWithoutLoopback) {
  const std::vector<InterfaceInfo> interfaces = ListInterfaces();
  EXPECT_LE(interfaces.size(), 64u);
  EXPECT_TRUE(std::is_sorted(interfaces.begin(), interfaces.end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const InterfaceInfo& interface : interfaces) {
    EXPECT_NE(interface.name, "lo");
    EXPECT_GE(interface.mtu, 68u) << interface.name;  // the least that IPv4 allows
    EXPECT_GE(interface.speed_bytes_per_s, 0) << interface.name;
  }
}

}  // namespace
}  // namespace weir::agent
