#pragma once
// The child side of an iperf3 test: one libiperf test in one process. libiperf keeps timers and
// errors in process-wide variables, ends the process on some errors, prints its JSON to standard
// output and has no way to stop a server, so nothing else may live in that process.

namespace weir::agent {

/// The command line of the agent's program that calls RunIperfHelper.
inline constexpr const char* kProbeHelperFlag = "--probe-helper";

/// Reads one request (a JSON object, see iperf_bandwidth.cc) from standard input, runs the test and
/// writes libiperf's JSON report to descriptor 3. Ends the process when standard input closes (the
/// parent is gone) or the request's limit of seconds has passed. Returns the exit status: 0 when a
/// report was written, also when the report states an error.
int RunIperfHelper();

}  // namespace weir::agent
