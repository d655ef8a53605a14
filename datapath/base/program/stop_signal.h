#pragma once
// How a program that serves is ended: SIGINT or SIGTERM.

#include "datapath/base/clock.h"

namespace weir {

/// Blocks SIGINT and SIGTERM and ignores SIGPIPE. To be called before any thread starts, as threads
/// inherit the mask: only WaitForStopSignal then receives them.
void HoldStopSignals();

/// Waits for one of them. Returns its number.
int WaitForStopSignal();

/// As above, at most `patience`; 0: none came.
int WaitForStopSignal(Duration patience);

}  // namespace weir
