#pragma once
// The options that a user may give to TCP connections.

#include <span>

#include "datapath/transport/transport.h"

namespace weir::tcp {

/// What can be written behind "tcp:", and behind "auto:", which leaves pairs on TCP. Valid for the
/// life of the process.
std::span<const TransportOption> Options();

}  // namespace weir::tcp
