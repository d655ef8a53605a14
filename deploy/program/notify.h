// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells the service manager that started a program when it serves, so that units which wait for it
// start then, and not when its process exists.

#include "datapath/base/status.h"

namespace weir {

/// Says READY=1. `socket`: the value of NOTIFY_SOCKET, a path or '@' and an abstract name; null or
/// empty: nobody asked, and nothing is done. Does not block on a full socket for longer than the
/// manager takes to read it. Thread-safe. kInvalidArgument: not such a name, or one that is too
/// long. kUnavailable: nobody reads the socket; callers log that and go on.
/// Source: sd_notify(3), section "Standalone Implementations".
Status NotifyReady(const char* socket);

}  // namespace weir
