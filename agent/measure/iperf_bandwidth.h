// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bandwidth by iperf3, the least trusted and most expensive method. It is bounded in bytes and time
// and uses one process per test (see iperf_helper.h).

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "agent/measure/helper_process.h"
#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct IperfOptions {
  std::string helper_program;  // this agent's own executable
  std::string host;            // IP literal of the server
  uint16_t port = 5201;
  uint64_t bytes_max = 4u << 20;  // limit of sent bytes, within one block of 128 KiB
  Duration time_max = std::chrono::seconds(10);
  bool reverse = false;  // true: measures server to client
  int streams = 1;
};

struct IperfReport {
  /// The receiver's figure, because the sender's includes bytes that only reached socket buffers.
  double bandwidth_bytes_per_s = 0;
  double deviation_bytes_per_s = 0;
  uint64_t bytes_received = 0;
  uint64_t bytes_sent = 0;
  double seconds = 0;
  uint64_t retransmits = 0;
};

/// Runs one test against an iperf3 server and waits for it, at most time_max; then the helper is
/// killed. kUnavailable with iperf's own message (refused, server busy); kDeadlineExceeded;
/// kAborted: `stop` was requested; kInternal: the helper failed; kDataLoss: the report is
/// implausible.
StatusOr<IperfReport> MeasureIperfBandwidth(const IperfOptions& options, const Clock& clock,
                                            std::stop_token stop);

/// Parses libiperf's JSON report, trusting nothing. kUnavailable with the error message of the
/// report; kDataLoss when it is malformed, too deep, or lacks the receiver's totals.
StatusOr<IperfReport> ParseIperfReport(std::string_view json);

/// Keeps an iperf3 server process waiting at an address. Each process serves one test and is then
/// replaced; one whose client stalls is ended after `test_time_max`. Thread "weir-iperf".
class IperfServer {
 public:
  struct Options {
    std::string helper_program;
    std::string host;  // address to bind; empty: all
    uint16_t port = 5201;
    Duration test_time_max = std::chrono::seconds(30);
  };
  IperfServer(Options options, const Clock& clock);
  /// Ends the server process and joins.
  ~IperfServer();
  IperfServer(const IperfServer&) = delete;
  IperfServer& operator=(const IperfServer&) = delete;

  /// The number of tests served, including failed ones. Thread-safe.
  uint64_t tests_served() const;
  /// The reason why the last server process failed, or empty. Thread-safe.
  std::string last_error() const;

 private:
  void Supervise(const std::stop_token& stop);
  void Record(const Status& status);

  const Options options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  uint64_t tests_served_ WEIR_GUARDED_BY(mutex_) = 0;
  std::string last_error_ WEIR_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace weir::agent
