// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options that a user may give to TCP connections.

#include <span>

#include "datapath/transport/transport.h"

namespace weir::tcp {

/// The options of "tcp:" and "auto:", which leaves some pairs on TCP. Valid for the life of the
/// process.
std::span<const TransportOption> Options();

}  // namespace weir::tcp
