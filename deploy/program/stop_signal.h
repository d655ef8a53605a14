// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a program that serves is ended: SIGINT or SIGTERM.

#include "datapath/base/clock.h"

namespace weir {

/// Blocks SIGINT and SIGTERM and ignores SIGPIPE. To be called before the program starts threads,
/// as they inherit the mask: only WaitForStopSignal then receives them. A thread that is there
/// already (libraries start some when they are loaded) passes them on to the caller's.
void HoldStopSignals();

/// Waits for one of them, in the thread that holds them. Returns its number.
int WaitForStopSignal();

/// As above, for at most `wait_max`. Returns 0 if no signal came.
int WaitForStopSignal(Duration wait_max);

}  // namespace weir
