// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

Status NotifyReady(const char* socket) {
  const std::string_view name = socket == nullptr ? "" : socket;
  if (name.empty()) return OkStatus();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if ((name.front() != '/' && name.front() != '@') || name.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(StrCat("NOTIFY_SOCKET: expected a path or an abstract name of at most ",
                                  sizeof(address.sun_path) - 1, " bytes, found '", name, "'"));
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name.front() == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());

  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return Unavailable(StrCat("NOTIFY_SOCKET: socket: ", strerror(errno)));
  constexpr std::string_view kReady = "READY=1";
  const ssize_t sent = sendto(descriptor, kReady.data(), kReady.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), length);
  const int error = errno;
  close(descriptor);
  if (sent < 0) return Unavailable(StrCat("NOTIFY_SOCKET '", name, "': ", strerror(error)));
  return OkStatus();
}

}  // namespace weir
