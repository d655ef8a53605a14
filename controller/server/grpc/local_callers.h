// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rights of callers over gRPC that show no credential. On loopback the kernel says which user a
// connection belongs to, so that a controller need not trust every user of its machine.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "controller/server/auth/sessions.h"
#include "datapath/base/status.h"

namespace weir {

/// The user that owns the client's end of the open TCP connection from `client_port` of `client` to
/// `server_port` of `server` on this machine. Both are IP addresses of one family. kUnavailable:
/// the kernel does not say, for example because there is no such connection. Thread-safe; one
/// message to the kernel, whatever the number of connections. Source: sock_diag(7).
StatusOr<uint32_t> UserOfConnection(const std::string& client, uint16_t client_port,
                                    const std::string& server, uint16_t server_port);

/// Thread-safe.
class LocalCallers {
 public:
  /// `rights`: of callers that show nothing. `others`: the rights of users other than root and the
  /// process's own one, on a listener at `host`, a loopback address or "localhost"; none: no
  /// distinction is made.
  LocalCallers(LocalRights rights, std::optional<LocalRights> others, std::string host)
      : rights_(std::move(rights)), others_(std::move(others)), host_(std::move(host)) {}

  /// The port of the listener, to be told as soon as it is known.
  void SetPort(int port) { port_.store(port); }

  /// The rights of gRPC's `peer` ("ipv4:127.0.0.1:40000").
  LocalRights Of(const std::string& peer) const;

 private:
  const LocalRights rights_;
  const std::optional<LocalRights> others_;
  const std::string host_;
  std::atomic<int> port_{0};
};

}  // namespace weir
