// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/network_interfaces.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cstring>
#include <set>

#include "agent/measure/socket.h"

namespace weir::agent {
namespace {

constexpr size_t kInterfacesMax = 64;

InterfaceInfo Describe(int fd, const std::string& name) {
  InterfaceInfo info;
  info.name = name;
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (ioctl(fd, SIOCGIFMTU, &request) == 0) info.mtu = static_cast<uint32_t>(request.ifr_mtu);
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (ioctl(fd, SIOCETHTOOL, &request) == 0) {
    const uint32_t megabits = ethtool_cmd_speed(&command);
    if (megabits != 0 && megabits != static_cast<uint32_t>(SPEED_UNKNOWN)) {
      info.speed_bytes_per_s = megabits * 1e6 / 8;
    }
  }
  return info;
}

}  // namespace

std::vector<InterfaceInfo> ListInterfaces() {
  std::vector<InterfaceInfo> result;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return result;
  std::set<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0) {
      names.insert(entry->ifa_name);
    }
  }
  freeifaddrs(list);
  const FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return result;
  for (const std::string& name : names) {
    if (result.size() == kInterfacesMax) break;
    result.push_back(Describe(fd.get(), name));
  }
  return result;
}

}  // namespace weir::agent
