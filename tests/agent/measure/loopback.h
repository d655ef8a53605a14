// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/measure/socket.h"

namespace weir::agent {

inline SocketAddress Loopback(uint16_t port) { return *SocketAddress::FromIp("127.0.0.1", port); }

}  // namespace weir::agent
