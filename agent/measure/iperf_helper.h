// SPDX-License-Identifier: Apache-2.0
#pragma once
// The child process of an iperf3 test, which runs one libiperf test. libiperf keeps timers and
// errors in process-wide variables, ends the process on some errors, prints its JSON to standard
// output and has no way to stop a server, so nothing else may run in that process.

namespace weir::agent {

/// The flag of the agent's program that makes it call RunIperfHelper.
inline constexpr const char* kProbeHelperFlag = "--probe-helper";

/// Reads one request (a JSON object, see iperf_bandwidth.cc) from standard input, runs the test and
/// writes libiperf's JSON report to descriptor 3. Ends the process when standard input closes (the
/// parent is gone) or after the request's limit of seconds. Returns the exit status, which is 0
/// when a report was written, even one with an error.
int RunIperfHelper();

}  // namespace weir::agent
