#pragma once
// doctor: does everything that Weir needs answer, and what is wrong if not.

#include "controller/cli/client.h"

namespace weir::cli {

/// Prints one line per check, "ok", "warn" or "FAIL" first. kInternal when any failed.
Status Doctor(Client& client);

}  // namespace weir::cli
