// SPDX-License-Identifier: Apache-2.0
#pragma once
// Orderly shutdown of a server program by SIGINT or SIGTERM.

#include "datapath/base/clock.h"

namespace weir {

/// Blocks SIGINT and SIGTERM and ignores SIGPIPE. To be called before the program starts threads,
/// which inherit the mask: then only WaitForStopSignal receives the signals. Threads that exist
/// already (libraries start some when they are loaded) pass them on to the caller's thread.
void HoldStopSignals();

/// Waits for one of these signals, in the thread that called HoldStopSignals. Returns its number.
int WaitForStopSignal();

/// As above, for at most `wait_max`. Returns 0 if no signal came.
int WaitForStopSignal(Duration wait_max);

}  // namespace weir
