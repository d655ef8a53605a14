// SPDX-License-Identifier: Apache-2.0
#pragma once
// Orderly shutdown of a server program by SIGINT or SIGTERM, and its level of logging by SIGUSR1
// and SIGUSR2 (log_flags.h).

#include "datapath/base/clock.h"

namespace weir {

/// Blocks SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 and ignores SIGPIPE. To be called before the program
/// starts threads, which inherit the mask: then only WaitForStopSignal receives the signals.
/// Threads that exist already (libraries start some when they are loaded) pass them on to the
/// caller's thread.
void HoldStopSignals();

/// Waits for SIGINT or SIGTERM, in the thread that called HoldStopSignals, and changes the level of
/// logging meanwhile where it is asked to. Returns the number of the signal.
int WaitForStopSignal();

/// As above, for at most `wait_max`. Returns 0 if neither came.
int WaitForStopSignal(Duration wait_max);

}  // namespace weir
